// What is waited for beside an interruption, and what becomes of it when that comes first.

import { setImmediate } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { untilAborted } from './until-aborted.ts';

const INTERRUPTED = new Error('interrupted');

test('an interruption comes first, before and after the wait begins, and what fails behind it ends no process', async () => {
  const unheard: unknown[] = [];
  const hear = (reason: unknown): number => unheard.push(reason);
  process.on('unhandledRejection', hear);
  try {
    await expect(untilAborted(Promise.reject(new Error('a bad file')), AbortSignal.abort(INTERRUPTED))).rejects.toBe(
      INTERRUPTED,
    );
    const stop = new AbortController();
    const { promise, reject } = Promise.withResolvers<never>();
    const waited = untilAborted(promise, stop.signal);
    stop.abort(INTERRUPTED);
    await expect(waited).rejects.toBe(INTERRUPTED);
    reject(new Error('a bad file'));
    await setImmediate();
    expect(unheard).toEqual([]);
  } finally {
    process.off('unhandledRejection', hear);
  }
});

test('without one, what is waited for comes or fails', async () => {
  const { signal } = new AbortController();
  expect(await untilAborted(Promise.resolve(7), signal)).toBe(7);
  await expect(untilAborted(Promise.reject(new Error('a bad file')), signal)).rejects.toThrow('a bad file');
});
