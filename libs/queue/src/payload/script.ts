// A Lua script and how it is called: EVALSHA, loaded again whenever the server does not know it (first use, a restart), sent
// again with back-off while the server is full, loading or away. Every script here may be executed twice for one call: the
// reply may be lost after the server did the work. Replies come as Buffers.

import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { ShoalError } from '@shoal/core';
import { isPassingFault, type Redis } from '../connection.ts';

export interface Script {
  readonly lua: string;
  readonly sha: string;
  readonly keyCount: number;
}

export type Arguments = readonly (string | Buffer | number)[];

export interface RetryOptions {
  /** Ends the waiting between attempts. */
  readonly signal?: AbortSignal | undefined;
  /** Told once per attempt in which `count` calls met a fault that will pass. */
  readonly onFault?: ((fault: Error, count: number) => void) | undefined;
}

const FIRST_RETRY_MS = 50;
const LAST_RETRY_MS = 2_000;

/**
 * Every script begins with a line of flags: `allow-oom` for those that only shrink or change what is stored, so that they
 * work when the server's memory is full, which is when they are needed most (without it SET inside a script is refused).
 */
export function script(keyCount: number, flags: '' | 'allow-oom', lua: string): Script {
  const text = `#!lua${flags === '' ? '' : ` flags=${flags}`}\n${lua}`;
  return { lua: text, sha: createHash('sha1').update(text).digest('hex'), keyCount };
}

/**
 * One reply per list of arguments (keys first), in order, all sent in one pipeline. Calls that met a passing fault are sent
 * again while the others keep their replies. Throws QUEUE_UNREACHABLE once the connection is closed for good, and the
 * server's own error when it refuses for a reason that will not pass.
 */
export async function runScript(connection: Redis, called: Script, calls: readonly Arguments[], { signal, onFault }: RetryOptions = {}): Promise<unknown[]> {
  const answers: unknown[] = Array.from({ length: calls.length });
  let open = calls.map((_, index) => index);
  for (let attempt = 0; open.length > 0; attempt++) {
    const { faults, stillOpen } = await sendOnce(connection, called, calls, open, answers);
    open = stillOpen;
    const fault = faults[0];
    if (fault === undefined) continue;
    if (!isPassingFault(fault)) throw fault;
    if (connection.status === 'end') throw closedError(fault);
    onFault?.(fault, open.length);
    await sleep(Math.min(FIRST_RETRY_MS * 2 ** Math.min(attempt, 10), LAST_RETRY_MS), undefined, { signal }).catch(() => Promise.reject(closedError(fault)));
  }
  return answers;
}

/** Fills `answers` and says which calls of `open` have none yet. A missing script was not executed: it is loaded here. */
async function sendOnce(connection: Redis, called: Script, calls: readonly Arguments[], open: readonly number[], answers: unknown[]): Promise<{ faults: Error[]; stillOpen: number[] }> {
  const pipeline = connection.pipeline();
  for (const index of open) pipeline.callBuffer('EVALSHA', called.sha, called.keyCount, ...calls[index]!);
  const replies = (await pipeline.exec()) ?? [];
  const stillOpen: number[] = [];
  const faults: Error[] = [];
  let isMissing = false;
  for (const [at, index] of open.entries()) {
    const [error, value] = replies[at] ?? [new Error('Connection is closed.'), undefined];
    if (error === null) answers[index] = value;
    else stillOpen.push(index);
    if (error?.message.startsWith('NOSCRIPT')) isMissing = true;
    else if (error) faults.push(error);
  }
  if (isMissing) await connection.script('LOAD', called.lua).catch((error: Error) => faults.push(error));
  return { faults: faults.toSorted((a, b) => Number(isPassingFault(a)) - Number(isPassingFault(b))), stillOpen };
}

function closedError(cause: Error): ShoalError<'QUEUE_UNREACHABLE'> {
  return new ShoalError('QUEUE_UNREACHABLE', 'the connection to the queue server was closed before it answered', {}, cause);
}
