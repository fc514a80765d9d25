// Many commands in one round trip, each with its own answer, tried again where trying again can help: while the server
// is away, loading or full. A command may be executed twice for one answer (the reply may be lost after the work was
// done), so only commands that may be repeated belong here. Replies come as Buffers.

import { setTimeout as sleep } from 'node:timers/promises';
import { ShoalError } from '@shoal/contract';
import { backoffMs, type Backoff } from '@shoal/core/base';
import { Command as RedisCommand } from 'ioredis';
import { isPassingFault, refusesWrites, type Redis } from './connection.ts';
import { STAGED_FROM_BYTES } from './staging.ts';
import { UncopiedCommand } from './uncopied-command.ts';

export type Argument = string | Buffer | number;
export type Command = readonly [name: string, ...values: Argument[]];

/** What the server said to one command; an error here is one that will not pass. */
export type Reply = { readonly ok: true; readonly value: unknown } | { readonly ok: false; readonly error: Error };

export interface RetryOptions {
  /** Somebody else decides how long a server is waited for that takes no writes: its refusal is the reply. */
  readonly isRefusalReply?: boolean | undefined;
  /** Ends the waiting between attempts. */
  readonly signal?: AbortSignal | undefined;
  /** Told once per attempt in which `count` commands met a fault that will pass. */
  readonly onFault?: ((fault: Error, count: number) => void) | undefined;
}

const RETRY: Backoff = { firstMs: 50, mostMs: 2_000 };

/** One reply per command, in order. Throws QUEUE_UNREACHABLE once the connection is closed for good, nothing else. */
export async function askAll(
  connection: Redis,
  commands: readonly Command[],
  { signal, onFault, isRefusalReply = false }: RetryOptions = {},
): Promise<Reply[]> {
  const replies: Reply[] = [];
  let open = commands.map((_, index) => index);
  for (let attempt = 0; open.length > 0; attempt++) {
    let fault: Error | undefined;
    const answers = await askOnce(
      connection,
      open.map((index) => commands[index]!),
    );
    const again: number[] = [];
    for (const [at, index] of open.entries()) {
      const reply = answers[at]!;
      replies[index] = reply;
      if (reply.ok || !isPassingFault(reply.error) || (isRefusalReply && refusesWrites(reply.error))) continue;
      fault = reply.error;
      again.push(index);
    }
    open = again;
    if (fault !== undefined) await waitOut(connection, fault, attempt, signal, () => onFault?.(fault, again.length));
  }
  return replies;
}

/** The value of a reply; throws the server's error. */
export function valueOf(reply: Reply): unknown {
  if (!reply.ok) throw reply.error;
  return reply.value;
}

/**
 * The string that was read. Undefined where there is nothing, or something that is no string: that concerns its own
 * reader alone.
 */
export function bytesOf(reply: Reply | undefined): Buffer | undefined {
  if (reply === undefined || (!reply.ok && reply.error.message.startsWith('WRONGTYPE'))) return undefined;
  const value = valueOf(reply);
  return Buffer.isBuffer(value) ? value : undefined;
}

/** Sent whole: a copy of what is staged would cost more than a write of its own. */
function isLarge(values: readonly Argument[]): boolean {
  return values.some((value) => Buffer.isBuffer(value) && value.length >= STAGED_FROM_BYTES);
}

function toError(reason: unknown): Error {
  return reason instanceof Error ? reason : new Error(String(reason));
}

/**
 * All of them are written before this returns, and leave together (connection.ts). Not by ioredis' pipelines: each
 * takes over every script that BullMQ has defined on its connection, 64 of them, and copies what it sends twice. One
 * command took 145 µs of CPU so, with its reply, and takes 70; 64 commands 720 and 430 (2026-11). One reply per
 * command, faults that will pass among them; never throws.
 */
export async function askOnce(connection: Redis, commands: readonly Command[]): Promise<Reply[]> {
  const answers = await Promise.allSettled(
    commands.map(([name, ...values]) =>
      connection.sendCommand(
        isLarge(values) ? new UncopiedCommand(name, values) : new RedisCommand(name, values, { replyEncoding: null }),
      ),
    ),
  );
  return answers.map((answer) =>
    answer.status === 'fulfilled' ? { ok: true, value: answer.value } : { ok: false, error: toError(answer.reason) },
  );
}

async function waitOut(
  connection: Redis,
  fault: Error,
  attempt: number,
  signal: AbortSignal | undefined,
  report: () => void,
): Promise<void> {
  const closed = (): never => {
    throw new ShoalError(
      'QUEUE_UNREACHABLE',
      'the connection to the queue server was closed before it answered',
      {},
      fault,
    );
  };
  if (connection.status === 'end') closed();
  report();
  await sleep(backoffMs(attempt, RETRY), undefined, { signal }).catch(closed);
}
