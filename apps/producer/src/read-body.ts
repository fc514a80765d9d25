// The bytes of a body, as they arrive: as many as one request may have, within the budget of all, and not too slowly.
// Where the length is told, room is taken before the first byte is read; where it is not, as the bytes come. Whoever
// stops sending is answered with 408, and its connection closed.

import type { IncomingMessage } from 'node:http';
import type { Readable } from 'node:stream';
import type { Hold } from './byte-budget.ts';
import { callerLeft, invalid, type Problem } from './problem.ts';

export interface ArrivalLimits {
  readonly mostBytes: number;
  /** From the headers to the last byte. */
  readonly wholeMs: number;
  /** Longest time without a byte. */
  readonly idleMs: number;
}

/**
 * 2,048 inputs of 512 tokens are about 5 MB of English; what is far above that is a mistake of the caller. Whoever
 * sends at 300 KB/s is done within the minute.
 */
export const ARRIVAL: ArrivalLimits = { mostBytes: 16 * 1024 * 1024, wholeMs: 60_000, idleMs: 10_000 };

export interface BodyTerms {
  readonly limits: ArrivalLimits;
  readonly hold: Hold;
  /** What to answer where there is no room for more. */
  readonly noRoom: () => Problem;
}

/** Rejects with a Problem. */
export async function readBody(
  { headers }: Pick<IncomingMessage, 'headers'>,
  body: Readable,
  { limits, hold, noRoom }: BodyTerms,
): Promise<Buffer> {
  const told = headers['content-length'] === undefined ? undefined : Number(headers['content-length']);
  if (told !== undefined && told > limits.mostBytes) throw tooLarge(limits);
  if (told !== undefined && !hold.take(told)) throw noRoom();
  const chunks: Buffer[] = [];
  let bytes = 0;
  let isOver = false;
  await new Promise<void>((resolve, reject) => {
    const whole = setTimeout(() => endUnlessMoved(limits.wholeMs), limits.wholeMs);
    const idle = setTimeout(() => endUnlessMoved(limits.idleMs), limits.idleMs);
    const onData = (chunk: Buffer): void => {
      idle.refresh();
      bytes += chunk.length;
      if (bytes > limits.mostBytes) return end(tooLarge(limits));
      if (told === undefined && !hold.take(chunk.length)) return end(noRoom());
      chunks.push(chunk);
    };
    // Where this process was busy, timers come before the bytes that have arrived meanwhile: these are read first.
    const endUnlessMoved = (ms: number): void => {
      const before = bytes;
      setImmediate(() => {
        if (ms === limits.wholeMs || bytes === before) end(late(ms, bytes));
      });
    };
    const onEnd = (): void => end(undefined);
    const onGone = (): void => end(callerLeft());
    const end = (problem: Problem | undefined): void => {
      if (isOver) return;
      isOver = true;
      clearTimeout(whole);
      clearTimeout(idle);
      body.off('data', onData).off('end', onEnd).off('close', onGone);
      if (problem === undefined) return resolve();
      chunks.length = 0;
      reject(problem);
    };
    body.on('data', onData).on('end', onEnd).on('error', onGone).on('close', onGone);
  });
  return Buffer.concat(chunks, bytes);
}

function late(ms: number, bytes: number): Problem {
  return invalid(
    'request_timeout',
    null,
    `the body did not arrive: ${ms / 1_000} s went by after ${bytes} bytes of it; send it faster, or fewer inputs at ` +
      'a time',
    408,
  );
}

function tooLarge({ mostBytes }: ArrivalLimits): Problem {
  return invalid(
    'request_too_large',
    null,
    `the body of the request is larger than ${mostBytes} bytes; send fewer inputs at a time`,
    413,
  );
}
