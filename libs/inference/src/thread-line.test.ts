// A thread that is gone answers nobody: whoever asks it hears so at once.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { openGraph, openModel } from '@shoal/models';
import { openThreadLine } from './thread-line.ts';

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-thread-line-'));
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

test('a run that is asked of a thread that has ended is lost at once, and nothing is said to be running', async () => {
  const model = await openModel('tiny-random', { cacheDir });
  const slots = [
    {
      ids: new SharedArrayBuffer(32),
      lengths: new SharedArrayBuffer(4),
      embeddings: new SharedArrayBuffer(4 * model.dims),
    },
  ];
  const line = await openThreadLine({
    graphPath: await openGraph(model, { cacheDir }),
    exactGraphPath: undefined,
    provider: 'cpu',
    threads: 1,
    dims: model.dims,
    slots,
    arenaBytes: undefined,
  });
  await line.stop();
  await expect(line.run({ slot: 0, rows: 1, width: 8, isUrgent: false, isExact: false })).rejects.toMatchObject({
    code: 'DEVICE_LOST',
  });
  await line.prepare(8);
  expect([line.pending, line.runningMs()]).toEqual([0, 0]);
});
