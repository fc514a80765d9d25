// A job from its request to its stored answer: one call, asked until it is answered, expires or is cancelled.

import type { Logger } from '@shoal/core';
import type { Allowances } from '../access/allowances.ts';
import { Problem } from '../problem.ts';
import type { BatchStore } from './batch-store.ts';
import { rowsOf, tokensOf, type CallAnswer, type Calls } from './calls.ts';
import type { Held } from './held.ts';
import type { InFlight } from './in-flight.ts';
import { answerPatiently, checkPatiently } from './patience.ts';
import { nowSeconds, type JobRecord } from './records.ts';

export interface JobRunParts {
  readonly store: BatchStore;
  readonly calls: Calls;
  readonly inFlight: InFlight;
  readonly allowances: Pick<Allowances, 'spentBy'>;
  readonly log: Logger;
}

/** Rejects with LeaseLost, StorageFailure, or the reason of `stop`; another process, or this one later, goes on. */
export async function runJob(parts: JobRunParts, held: Held<'job'>, stop: AbortSignal): Promise<void> {
  const { store } = parts;
  const { tenant, id, expires_at: expiresAt } = held.record;
  const leftMs = Math.min(Math.max(0, expiresAt * 1_000 - Date.now()), 2 ** 31 - 1);
  const expiry = AbortSignal.timeout(leftMs);
  const ended = AbortSignal.any([held.interrupted.signal, expiry, stop]);
  await held.save((job) =>
    job.status === 'cancelled' ? job : { ...job, status: 'in_progress', started_at: job.started_at ?? nowSeconds() },
  );
  const answer = await answerOf(parts, held.record, ended).catch((error: unknown) => {
    stop.throwIfAborted();
    const { signal } = held.interrupted;
    if (signal.aborted && signal.reason !== 'cancelled') throw signal.reason;
    if (ended.aborted) return undefined;
    throw error;
  });
  if (answer !== undefined && 'body' in answer)
    await store.storage.write(store.resultKey(tenant, id), [Buffer.from(JSON.stringify(answer.body))]);
  await held.end((job) => endedWith(job, answer));
  await store.storage.remove(store.askedKey(tenant, id));
}

async function answerOf(
  { store, calls, inFlight, allowances, log }: JobRunParts,
  { tenant, id, endpoint, trace, key }: JobRecord,
  signal: AbortSignal,
): Promise<CallAnswer> {
  const asked = await store.storage.read(store.askedKey(tenant, id));
  if (asked === undefined) throw new Error(`what the job ${id} asks for is gone`);
  const body: unknown = JSON.parse(asked.bytes.toString());
  try {
    const call = await checkPatiently(calls, endpoint, body, { signal, log });
    const leave = await inFlight.enter(rowsOf(call), signal);
    const answers = await answerPatiently(calls, [call], { id, tenant, trace, signal }, log).finally(leave);
    allowances.spentBy(key, tokensOf(answers)); // its texts were taken when it was handed in
    return answers[0]!;
  } catch (error) {
    if (error instanceof Problem) return { problem: error };
    throw error;
  }
}

function endedWith(job: JobRecord, answer: CallAnswer | undefined): JobRecord {
  const webhook = job.webhook && { ...job.webhook, nextMs: Date.now() };
  const end = { ended_at: nowSeconds(), webhook };
  if (job.status === 'cancelled') return { ...job, ...end };
  if (answer === undefined) return { ...job, ...end, status: 'expired' };
  if ('body' in answer) return { ...job, ...end, status: 'completed' };
  return { ...job, ...end, status: 'failed', error: answer.problem.body.error };
}
