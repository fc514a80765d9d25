// A model that overflows in fp16, through the real executor and the real runtime: no vector that is not of length 1 is
// delivered; the rows run again in fp32, and are counted.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { openResult } from '@shoal/contract';
import { Executor, fixedBudget, systemClock, type FromExecutor, type JobOrder } from '@shoal/core';
import { noFaults } from '@shoal/core/base';
import { FakeTokenizer, MemoryPayloadStore, RecordingLogger } from '@shoal/core/testing';
import { OrtBackend } from '@shoal/inference';
import { openGraph, openTokenizer, writeTinyModel, type StoredModel } from '@shoal/models';

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-exact-'));
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

const TEXTS = Array.from(
  { length: 24 },
  (_, i) =>
    ['the cat', 'a red house by the water', 'batch of text through the queue, token after token', 'no'][i % 4]! +
    ` and ${i}`,
);

async function run(
  model: StoredModel,
  kind: 'plain-fp16' | 'fused-fp32',
  withExact: boolean,
): Promise<{ sent: FromExecutor[]; vectors: Float32Array | undefined }> {
  const [graphPath, exactGraphPath] = [
    await openGraph(model, { cacheDir, kind }),
    await openGraph(model, { cacheDir, kind: 'fused-fp32' }),
  ];
  const backend = await OrtBackend.open({
    graphPath,
    exactGraphPath: withExact ? exactGraphPath : undefined,
    precision: kind === 'plain-fp16' ? 'fp16' : 'fp32',
    dims: model.dims,
    threads: 1,
    slotRows: 64,
    slotTokens: 1024,
  });
  const words = await openTokenizer(model);
  const tokenizer = Object.assign(new FakeTokenizer(), {
    encodeAll: async (texts: readonly string[]) => texts.map((text) => words.encode(text)),
  });
  const store = new MemoryPayloadStore();
  const sent: FromExecutor[] = [];
  const ended = Promise.withResolvers<void>();
  const executor = new Executor({
    store,
    backend,
    tokenizer,
    clock: systemClock,
    log: new RecordingLogger(),
    isLastLane: true,
    faults: noFaults,
    model: 'loud@0',
    prompts: { query: '', passage: '' },
    budget: fixedBudget({ maxPaddedTokens: 512, maxRows: 16 }),
    limits: { maxRowAgeMs: 250, windowRows: 64, maxWaitMs: 0, minRows: 1 },
    resultKey: (jobId) => jobId,
    send: (message) => {
      sent.push(message);
      if (message.kind === 'outcomes') ended.resolve();
    },
  });
  store.locks.set('loud', 'token');
  executor.handle({ kind: 'run', jobs: [order()], isQueueDrained: true });
  await ended.promise;
  await executor.stop();
  await backend.stop();
  const result = store.results.get('loud');
  return { sent, vectors: result && new Float32Array(Uint8Array.from(openResult(result).body).buffer) };
}

function order(): JobOrder {
  return {
    jobId: 'loud',
    token: 'token',
    queuedMs: 0,
    input: { form: 'inline', texts: TEXTS },
    fingerprint: undefined,
    class: 'bulk',
    truncate: 'end',
    prompt: undefined,
    output: { dtype: 'f32', dimensions: undefined },
    resultTtlMs: 1_000,
    remainingMs: undefined,
  };
}

test(
  'rows that fp16 turns into NaN are delivered as fp32 gives them, and counted; without an fp32 graph their job ' +
    'fails and delivers nothing',
  async () => {
    const model = await writeTinyModel(join(cacheDir, 'loud'), { seed: 1, feedForwardScale: 100 });
    const [exact, mended, refused] = [
      await run(model, 'fused-fp32', false),
      await run(model, 'plain-fp16', true),
      await run(model, 'plain-fp16', false),
    ];
    const rerun = mended.sent.reduce((sum, message) => sum + (message.kind === 'rerun' ? message.rows : 0), 0);
    expect(rerun).toBeGreaterThan(0);
    expect(rerun).toBeLessThan(TEXTS.length);
    const good = fp16Rows(mended.vectors!, exact.vectors!, model.dims);
    expect(good.same).toBeGreaterThanOrEqual(rerun);
    expect(good.least).toBeGreaterThan(0.99);
    expect(refused.vectors).toBeUndefined();
    expect(refused.sent.flatMap((message) => (message.kind === 'outcomes' ? message.outcomes : []))).toMatchObject([
      { kind: 'failed', failure: { code: 'INFERENCE_FAILED' } },
    ]);
    process.stdout.write(
      `fp16 overflow: ${rerun} of ${TEXTS.length} rows ran again in fp32, least cosine to fp32 ` +
        `${good.least.toFixed(6)}\n`,
    );
  },
);

/** How many rows are fp32's to the bit but one, and the least cosine of all. */
function fp16Rows(
  found: Float32Array,
  exact: Float32Array,
  dims: number,
): { readonly same: number; readonly least: number } {
  let [same, least] = [0, 1];
  for (let at = 0; at < found.length; at += dims) {
    let cosine = 0;
    for (let i = at; i < at + dims; i++) cosine += found[i]! * exact[i]!;
    if (cosine > 0.9999999) same++;
    least = Number.isNaN(cosine) ? -1 : Math.min(least, cosine);
  }
  return { same, least };
}
