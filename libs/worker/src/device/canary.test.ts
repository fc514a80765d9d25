// A wrong file never answers: a graph with one changed weight and a digest that is right, a tokenizer that is another,
// a model whose graph does not run. On the CPU; on a GPU the same check runs in bench/gpu and at every start.

import { readFile, rm, writeFile } from 'node:fs/promises';
import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { Slot } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { OrtBackend } from '@shoal/inference';
import { importModel, keepDigest, openGraph, openModel, openTokenizer, type StoredModel } from '@shoal/models';
import { examineModel } from '../doctor/examine-model.ts';
import { exactCanary } from './canary.ts';
import { WorkerBench } from '../testing/worker-bench.ts';
import { openDevice } from './open-device.ts';
import { proveModel } from './prove-model.ts';

let bench: WorkerBench;
let cacheDir: string;

beforeAll(async () => {
  bench = await WorkerBench.start();
  cacheDir = bench.cacheDir;
});
afterEach(() => rm(join(cacheDir, 'graphs'), { recursive: true, force: true }));
afterAll(() => bench.stop());

/** One bit of one bias: the value is four times as large, or a quarter. */
async function changeWeight(graph: string, model: StoredModel): Promise<void> {
  const bytes = await readFile(graph);
  const at = bytes.indexOf(await firstBias(model));
  expect(at).toBeGreaterThan(0);
  bytes[at + 3]! ^= 1;
  await writeFile(graph, bytes);
}

/** The bytes of a bias in the first layer, as they stand in the file of weights. */
async function firstBias(model: StoredModel): Promise<Uint8Array> {
  const file = await readFile(join(model.folder, 'model.safetensors'));
  const length = Number(file.readBigUInt64LE(0));
  const header = JSON.parse(file.subarray(8, 8 + length).toString()) as Record<
    string,
    { data_offsets: [number, number] }
  >;
  const [start] = header['encoder.layer.0.output.dense.bias']!.data_offsets;
  return file.subarray(8 + length + start, 8 + length + start + 4);
}

async function openOnCpu(model: StoredModel, log = new RecordingLogger()): Promise<RecordingLogger> {
  const backend = await openDevice({
    device: 'cpu',
    precision: 'auto',
    slots: { dims: model.dims, slotRows: 4, slotTokens: 512 },
    model,
    tokenizer: await openTokenizer(model),
    cacheDir,
    threads: 1,
    environment: {},
    log,
  });
  await backend.stop();
  return log;
}

const lines = (log: RecordingLogger): readonly string[] => log.lines.map(({ message }) => message);
const refusal = (code: string, message: RegExp): unknown =>
  expect.objectContaining({ code, message: expect.stringMatching(message) as unknown });

describe('a worker', () => {
  test('does not start with a graph that has one other weight and the right digest, and doctor says why', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const graph = await openGraph(model, { cacheDir });
    await changeWeight(graph, model);
    await keepDigest(graph);
    const reason = /tiny-random@\w+ on cpu in fp32 gives the canary text another vector.*cosine 0\.\d+, at least/;
    await expect(bench.startWorker('tiny-random')).rejects.toThrow(reason);
    await expect(openOnCpu(model)).rejects.toEqual(refusal('CANARY_FAILED', reason));
    const options = { model, device: 'cpu', precision: 'auto', cacheDir, environment: {} } as const;
    expect(await examineModel(options)).toMatchObject({
      state: 'broken',
      found: expect.stringMatching(reason) as unknown,
    });
  });

  test('runs no row again in fp32 with a graph that has one other weight, and those beside it are as they were', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const [graphPath, exactGraphPath] = [
      await openGraph(model, { cacheDir, kind: 'plain-fp16' }),
      await openGraph(model, { cacheDir, kind: 'plain-fp32' }),
    ];
    const log = new RecordingLogger();
    const slots = { dims: model.dims, slotRows: 2, slotTokens: 128 };
    const exactRun = async (): Promise<{ readonly slot: Slot; readonly vectors: Float32Array }> => {
      const proveExact = exactCanary(model, { device: 'here', slots, log });
      const backend = await OrtBackend.open({
        ...slots,
        graphPath,
        exactGraphPath,
        proveExact,
        precision: 'fp16',
        threads: 1,
      });
      const slot = backend.lend()!;
      slot.ids.set([3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
      slot.lengths.set([8, 2]);
      try {
        expect(await backend.runExact!(slot, { rows: 2, width: 8 })).toMatchObject({ ok: true });
        const vectors = slot.embeddings.slice();
        await backend.runExact!(slot, { rows: 2, width: 8 });
        expect(slot.embeddings).toEqual(vectors);
        return { slot, vectors };
      } finally {
        await backend.stop();
      }
    };
    const { slot, vectors } = await exactRun();
    expect([...slot.ids.subarray(0, 10)]).toEqual([3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    expect(slot.ids.subarray(10).every((id) => id === 0)).toBe(true);
    expect([...slot.lengths]).toEqual([8, 2]);
    expect(lines(log)).toEqual(['the canary text has its vector in exact runs']);
    const plain = await OrtBackend.open({ ...slots, graphPath: exactGraphPath, threads: 1 });
    const other = plain.lend()!;
    other.ids.set(slot.ids);
    other.lengths.set(slot.lengths);
    await plain.run(other, { rows: 2, width: 8 });
    expect(vectors).toEqual(other.embeddings);
    await plain.stop();
    await changeWeight(exactGraphPath, model);
    await expect(exactRun()).rejects.toEqual(
      refusal('CANARY_FAILED', /tiny-random@\w+ on here in fp32 gives the canary text another vector/),
    );
  });

  test('builds a graph again that is not what was built, and says so', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const graph = await openGraph(model, { cacheDir });
    const whole = await readFile(graph);
    await changeWeight(graph, model);
    const log = await openOnCpu(model);
    expect(lines(log)).toEqual([
      'a graph of the cache is not what was built, building it again',
      'the canary text has its vector',
    ]);
    expect(await readFile(graph)).toEqual(whole);
  });

  test('does not start with a tokenizer that gives other ids', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const ids = model.canary!.ids.toReversed();
    await expect(openOnCpu({ ...model, canary: { ...model.canary!, ids } })).rejects.toEqual(
      refusal('CANARY_FAILED', /the tokenizer of tiny-random gives the canary text the ids/),
    );
  });

  test('does not start for a model of the cache whose name is the queue of another', async () => {
    await expect(bench.startWorker('tiny-random-quarantine')).rejects.toThrow(
      /"tiny-random-quarantine" cannot be the name of a model: its queue .* would be that of tiny-random \(its/,
    );
  });

  test('compares in every precision that a model computes in, and says where no vector is known', async () => {
    for (const name of ['tiny-random', 'tiny-random-b']) {
      const log = await openOnCpu(await openModel(name, { cacheDir }));
      expect(log.lines.at(-1)).toMatchObject({ message: 'the canary text has its vector' });
    }
    const { canary: _, ...unknown } = await openModel('tiny-random', { cacheDir });
    expect(lines(await openOnCpu(unknown))).toEqual(['no canary text is compared']);
  });
});

const bring = (path: string, timeoutMs?: number, normalize = true): Promise<StoredModel> =>
  importModel(path, {
    cacheDir,
    name: 'mine',
    force: true,
    normalize,
    prove: (model) => proveModel(model, { cacheDir, ...(timeoutMs !== undefined && { timeoutMs }) }),
  }).then(({ model }) => model);

describe('an import', () => {
  let given: string;
  beforeAll(async () => {
    given = (await openModel('tiny-random-b', { cacheDir })).folder;
  });

  test('keeps what the model gives, and every start compares with it', async () => {
    const brought = await bring(given);
    const shipped = (await openModel('tiny-random-b', { cacheDir })).canary!;
    expect(brought.canary!.ids).toEqual(shipped.ids);
    // computed on another machine, whose vector instructions may add in another order
    for (const [at, value] of shipped.vector.entries()) expect(brought.canary!.vector[at]).toBeCloseTo(value, 6);
    expect(brought.canary!.vector.length).toBe(shipped.vector.length);
    const model = await openModel('mine', { cacheDir });
    expect(model.canary).toEqual(brought.canary);
    expect(lines(await openOnCpu(model))).toEqual(['the canary text has its vector']);
    const graph = await openGraph(model, { cacheDir });
    await changeWeight(graph, model);
    await keepDigest(graph);
    await expect(openOnCpu(model)).rejects.toEqual(refusal('CANARY_FAILED', /mine@\w+ on cpu in fp32/));
  });

  test('of a model that does not normalize compares lengths as well', async () => {
    const brought = await bring(given, undefined, false);
    const { ids, vector } = brought.canary!;
    expect(Math.abs(Math.hypot(...vector) - 1)).toBeGreaterThan(0.1);
    expect(lines(await openOnCpu(brought))).toEqual(['the canary text has its vector']);
    const longer = { ...brought, canary: { ids, vector: vector.map((value) => value * 1.001) } };
    await expect(openOnCpu(longer)).rejects.toEqual(refusal('CANARY_FAILED', /gives the canary text another vector/));
  });

  test('is refused where the graph does not run, or not in time, and nothing is kept', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'shoal-proof-'));
    const graph = join(folder, 'model.onnx');
    for (const path of ['config.json', 'tokenizer.json'])
      await writeFile(join(folder, path), await readFile(join(given, path)));
    const whole = await readFile(await openGraph(await openModel('tiny-random-b', { cacheDir }), { cacheDir }));
    // an operator that nobody has
    await writeFile(graph, Buffer.from(whole.toString('latin1').replaceAll('BiasGelu', 'BiasGolu'), 'latin1'));
    await rm(join(cacheDir, 'models/mine'), { recursive: true, force: true });
    await expect(bring(graph)).rejects.toEqual(refusal('MODEL_CORRUPT', /the model does not run: .*BiasGolu/s));
    await writeFile(graph, whole);
    await expect(bring(graph, 1)).rejects.toEqual(
      refusal('MODEL_CORRUPT', /no vector for a short text within 0\.001 s/),
    );
    await expect(openModel('mine', { cacheDir })).rejects.toMatchObject({ code: 'MODEL_UNKNOWN' });
    await rm(folder, { recursive: true });
  });
});
