// Claims many jobs in one call. BullMQ's own script claims one, and asks the queue anew each time whether it is paused,
// limited, or has delayed jobs that are due: 70 µs of the server's time a job. This one asks once for all that are
// claimed together, and answers each as BullMQ's does, so that all of BullMQ's own code around it stays. Where it would
// have to limit, or to let a delayed job go, BullMQ's does it. claim.test.ts holds the two against each other,
// key by key.
//
// Why: docs/decisions/queue.md#jobs-are-added-claimed-and-completed-many-in-a-call

import { Batcher } from '@shoal/core/base';
import type { Worker } from 'bullmq';
import { Command } from 'ioredis';
import type { Redis } from '../redis/connection.ts';
import { CLAIM_JOBS } from './lua/scripts.generated.ts';

/** The server does nothing else meanwhile: some 35 µs a job. */
const JOBS_PER_CALL = 32;

type Backend = Awaited<ReturnType<Worker['getBackend']>>;
type Execute = Backend['execCommand'];
type Arguments = Parameters<Execute>[2];

interface Waiting {
  readonly client: Parameters<Execute>[0];
  readonly values: Arguments;
  readonly answer: (reply: unknown) => void;
  readonly fail: (error: unknown) => void;
}

/** Told of each job that is claimed: its hash, names and values by turns. */
export type OnClaimed = (jobId: string, fields: readonly unknown[]) => void;

export interface ClaimTerms {
  readonly onClaimed?: OnClaimed | undefined;
  /** Bulk jobs alone are claimed. Where BullMQ has to be asked itself it gives whatever is next. */
  readonly isBulkAlone?: boolean | undefined;
}

/** From now on the claims that this worker asks for in one microtask travel together. */
export async function joinClaims(
  worker: Worker,
  connection: Redis,
  { onClaimed, isBulkAlone = false }: ClaimTerms = {},
): Promise<void> {
  const backend = worker.getBackend();
  const executeAlone = backend.execCommand.bind(backend);
  const told = (reply: unknown): unknown => {
    if (Array.isArray(reply) && Array.isArray(reply[0])) onClaimed?.(String(reply[1]), reply[0]);
    return reply;
  };
  const send = async (batch: readonly Waiting[]): Promise<void> => {
    const shared = batch[0]!.values.slice(0, CLAIM_JOBS.keyCount + 2);
    if (isBulkAlone) shared[CLAIM_JOBS.keyCount + 1] = `${String(shared[CLAIM_JOBS.keyCount + 1])}b`;
    try {
      const replies = await claim(connection, [
        ...shared,
        ...batch.map(({ values }) => values[CLAIM_JOBS.keyCount + 2]),
      ]);
      for (const [at, { client, values, answer, fail }] of batch.entries()) {
        const reply = replies[at];
        if (reply === 1) executeAlone(client, 'moveToActive', values).then(told).then(answer, fail);
        else if (reply instanceof Error) fail(reply);
        else answer(told(reply));
      }
    } catch (error) {
      for (const { fail } of batch) fail(error);
    }
  };

  const batcher = new Batcher({ send, gathers: 'microtask', most: JOBS_PER_CALL });
  backend.execCommand = (client, name, values) => {
    if (name !== 'moveToActive') return executeAlone(client, name, values);
    return new Promise((answer, fail) => batcher.add([{ client, values, answer, fail }]));
  };
  await connection.script('LOAD', CLAIM_JOBS.lua).catch(() => undefined);
}

async function claim(connection: Redis, values: readonly unknown[]): Promise<unknown[]> {
  const ask = (): Promise<unknown[]> =>
    connection.sendCommand(
      new Command('EVALSHA', [CLAIM_JOBS.sha, CLAIM_JOBS.keyCount, ...(values as string[])], { replyEncoding: 'utf8' }),
    ) as Promise<unknown[]>;
  try {
    return await ask();
  } catch (error) {
    if (!(error instanceof Error && error.message.startsWith('NOSCRIPT'))) throw error;
    await connection.script('LOAD', CLAIM_JOBS.lua);
    return ask();
  }
}
