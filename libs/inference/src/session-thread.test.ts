// A thread that is gone answers nobody: whoever asks it hears so at once.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { openGraph, openModel } from '@shoal/models';
import { SessionThread, soonestThread } from './session-thread.ts';

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-session-thread-'));
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

test('a run that is asked of a thread that has ended is lost at once, and nothing is said to be running', async () => {
  const model = await openModel('tiny-random', { cacheDir });
  const slots = [
    {
      ids: new SharedArrayBuffer(32),
      lengths: new SharedArrayBuffer(4),
      secondFrom: new SharedArrayBuffer(4),
      embeddings: new SharedArrayBuffer(4 * model.dims),
    },
  ];
  const thread = await SessionThread.open({
    graphPath: await openGraph(model, { cacheDir }),
    exactGraphPath: undefined,
    provider: 'cpu',
    threads: 1,
    dims: model.dims,
    slots,
  });
  await thread.stop();
  await expect(thread.run({ slot: 0, rows: 1, width: 8, isUrgent: false, isExact: false })).rejects.toMatchObject({
    code: 'DEVICE_LOST',
  });
  await thread.prepare(8);
  expect([thread.pending, thread.runningMs()]).toEqual([0, 0]);
});

const candidate = (name: string, pending: number, runningMs: number) => ({ name, pending, runningMs: () => runningMs });

test('the thread with least to do is next, and of those with as much the one that has run for longest', () => {
  expect(soonestThread([candidate('two', 2, 90), candidate('one', 1, 5), candidate('other', 1, 40)]).name).toBe(
    'other',
  );
  expect(soonestThread([candidate('busy', 1, 90), candidate('idle', 0, 0)]).name).toBe('idle');
  expect(soonestThread([candidate('first', 0, 0), candidate('second', 0, 0)]).name).toBe('first');
});
