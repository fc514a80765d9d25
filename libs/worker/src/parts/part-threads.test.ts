// Threads of parts as their owner has them; whole parts on threads are in part-runner.test.ts.

import { afterEach, expect, test } from 'vitest';
import type { Part } from '@shoal/contract';
import { RecordingLogger } from '@shoal/core/testing';
import { PartThreads } from './part-threads.ts';

/** What the thread of a test does: it opens and closes parts, and says which thread it is where it is asked for texts. */
const OBEDIENT = `import { parentPort, threadId } from 'node:worker_threads';
  parentPort.on('message', ({ id, kind }) => {
    if (kind === 'next') parentPort.postMessage({ id, kind, texts: { place: String(threadId) } });
    else parentPort.postMessage({ id, kind: 'done' });
  });`;
const MORTAL = `${OBEDIENT}
  parentPort.on('message', ({ kind }) => kind === 'close' && setImmediate(() => process.exit(3)));`;

const part: Part = {
  run: '0'.repeat(16),
  number: 0,
  of: 1,
  source: { kind: 'file', path: '/in', bytes: 1, modifiedMs: 1 },
  format: 'text',
  range: { kind: 'bytes', from: 0, to: 1, firstLine: 1, lines: 1 },
  onError: 'fail',
  output: { kind: 'folder', folder: '/', stem: 'out', format: 'parquet', dtype: 'f32', hasIds: false },
  model: { name: 'm@1', truncate: 'end' },
};
const TERMS = { part, fingerprint: 'f'.repeat(16), token: 't', model: 'm@1', dims: 4, jobRows: 256 } as const;
let threads: PartThreads;
const log = new RecordingLogger();

function start(program: string): void {
  threads = new PartThreads({
    folders: [],
    tokenizer: { model: 'tiny-random', cacheDir: '.', maxTokens: 8 },
    log,
    program: new URL(`data:text/javascript,${encodeURIComponent(program)}`),
  });
}
afterEach(() => threads.stop());

test('parts that are open at the same time have a thread each, and one that is free is used again', async () => {
  start(OBEDIENT);
  const [a, b] = await Promise.all([threads.open(TERMS), threads.open(TERMS)]);
  const [ofA, ofB] = [await a.next(), await b.next()];
  expect(ofA!.place).not.toBe(ofB!.place);
  await a.close();
  await a.close();
  const c = await threads.open(TERMS);
  expect(await c.next()).toEqual(ofA);
});

test('a thread that ends while it is free is missed by nobody, and all end when they are told to', async () => {
  start(MORTAL);
  const first = await threads.open(TERMS);
  const before = await first.next();
  await first.close();
  await expect.poll(() => log.lines.some(({ message }) => message === 'a thread of a part ended')).toBe(true);
  const second = await threads.open(TERMS);
  expect(await second.next()).not.toEqual(before);
  await threads.stop();
  await threads.stop();
});
