// A static model (model2vec) through a real queue server and ONNX Runtime: plain BullMQ jobs have the vectors of model2vec,
// alone and among others, and a text without a known token has zeros and harms no other row.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { encodeTexts } from '@shoal/contract';
import { resolveSettings } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { importModel } from '@shoal/models';
import { madeModel, madeTexts, madeVectors } from '@shoal/models/testing';
import { proveModel } from '../device/prove-model.ts';
import { WorkerBench } from '../testing/worker-bench.ts';
import { startWorker } from './worker.ts';

/** Of a value of a vector of length 1; right code differs by 1e-7. */
const MOST_DIFFERENCE = 2e-6;
const FAMILY = 'static-wordpiece';
/** Nothing of it is in the vocabulary. */
const UNKNOWN = 'x'.repeat(120);

let bench: WorkerBench;
beforeAll(async () => {
  bench = await WorkerBench.start();
});
afterAll(() => bench.stop());

function apart(found: Float32Array, row: Float32Array): number {
  return Math.max(...row.map((value, at) => Math.abs(value - found[at]!)));
}

test('its jobs have the vectors of model2vec, and zeros where no token is known', async () => {
  const [texts, expected] = [await madeTexts(), await madeVectors(FAMILY)];
  const folder = await mkdtemp(join(tmpdir(), 'shoal-static-worker-'));
  const { cacheDir, url } = bench;
  await madeModel(FAMILY, folder);
  const { model } = await importModel(folder, { cacheDir, name: 'table', prove: (it) => proveModel(it, { cacheDir }) });
  await rm(folder, { recursive: true });
  const queue = bench.openQueue('embed-table');
  await bench.redis.set(bench.inputKey(queue, 'together'), encodeTexts([UNKNOWN, ...texts]));
  await queue.add('embed', { v: 1, input: { form: 'texts', rows: texts.length + 1 } }, { jobId: 'together' });
  const alone = [0, texts.length - 1];
  for (const at of alone) await queue.add('embed', { v: 1, texts: [texts[at]] }, { jobId: `alone-${at}` });
  const flags = { device: 'cpu', model: 'table', cacheDir, threads: '1' };
  const worker = await startWorker({
    settings: { ...resolveSettings({ flags }), redisUrl: url },
    log: new RecordingLogger(),
  });
  try {
    const together = await bench.finished(queue, 'together');
    expect(together).toMatchObject({ model: `table@${model.revision}`, rows: texts.length + 1, dims: model.dims });
    const values = await bench.vectorsOf(together);
    const rowOf = (at: number): Float32Array => values.subarray(at * model.dims, (at + 1) * model.dims);
    expect(rowOf(0)).toEqual(new Float32Array(model.dims));
    expect(Math.max(...expected.map((row, at) => apart(rowOf(at + 1), row)))).toBeLessThan(MOST_DIFFERENCE);
    for (const at of alone) {
      const found = await bench.vectorsOf(await bench.finished(queue, `alone-${at}`));
      expect(apart(found, expected[at]!)).toBeLessThan(MOST_DIFFERENCE);
    }
  } finally {
    await worker.stop();
  }
});
