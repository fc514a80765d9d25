// ONNX Runtime passes the suite that every backend passes, on a tiny random model; and what is its own: graphs it
// refuses.

import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { invariant } from '@shoal/contract';
import type { Slot } from '@shoal/core';
import { describeInferenceBackend } from '@shoal/core/testing';
import { openGraph, openModel, writeTinyModel } from '@shoal/models';
import { OrtBackend } from './ort-backend.ts';
import { classifyRunFailure } from './run-failure.ts';

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-inference-'));
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

const SLOTS = { threads: 1, slotRows: 4, slotTokens: 64 } as const;

describe('a backend on the CPU', () => {
  describeInferenceBackend('ONNX Runtime on the CPU', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const graphPath = await openGraph(model, { cacheDir });
    const maxTokens = Math.floor(model.positionLimit / 8) * 8;
    const backend = await OrtBackend.open({
      graphPath,
      dims: model.dims,
      threads: 1,
      slotRows: 64,
      slotTokens: Math.max(1024, maxTokens),
    });
    return { backend, vocabularySize: model.vocabularySize, maxTokens };
  });

  // the session runs on the CPU: what the backend says of its card, it was told
  describeInferenceBackend('ONNX Runtime under the name of a card', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const backend = await OrtBackend.open({
      graphPath: await openGraph(model, { cacheDir }),
      dims: model.dims,
      threads: 1,
      slotRows: 64,
      slotTokens: 1024,
      device: 'cuda:0',
      deviceKind: 'NVIDIA H200',
      probe: { read: async () => ({ freeBytes: 1e9, totalBytes: 2e9 }) },
    });
    invariant(backend.memoryPlan().kind === 'preset', 'a card that is named begins with its preset');
    return { backend, vocabularySize: model.vocabularySize, maxTokens: 64 };
  });

  test('a graph that the runtime cannot read is named, and nothing is left running', async () => {
    const graphPath = join(cacheDir, 'broken.onnx');
    writeFileSync(graphPath, 'not a graph');
    await expect(OrtBackend.open({ graphPath, dims: 8, threads: 1, slotRows: 1, slotTokens: 8 })).rejects.toMatchObject(
      {
        code: 'INFERENCE_FAILED',
        message: expect.stringContaining('broken.onnx'),
      },
    );
  });

  test('a token id outside the vocabulary fails that run alone', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const backend = await OrtBackend.open({
      graphPath: await openGraph(model, { cacheDir }),
      dims: model.dims,
      threads: 1,
      slotRows: 4,
      slotTokens: 64,
    });
    const slot = backend.lend()!;
    slot.ids[0] = model.vocabularySize + 5;
    slot.lengths[0] = 1;
    await expect(backend.run(slot, { rows: 1, width: 8 })).rejects.toMatchObject({ code: 'INFERENCE_FAILED' });
    slot.ids[0] = 1;
    expect(await backend.run(slot, { rows: 1, width: 8 })).toMatchObject({ ok: true });
    await backend.stop();
  });

  test('a prepared backend gives the same vectors, also without the address space that was asked for', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const graphPath = await openGraph(model, { cacheDir });
    const vectors: string[] = [];
    for (const paddedTokens of [undefined, 1024, Number.MAX_SAFE_INTEGER]) {
      const backend = await OrtBackend.open({
        graphPath,
        dims: model.dims,
        threads: 1,
        slotRows: 4,
        slotTokens: 64,
      });
      if (paddedTokens !== undefined) await backend.prepare(paddedTokens);
      const slot = backend.lend()!;
      slot.ids.set([2, 7, 9, 3, 0, 0, 0, 0]);
      slot.lengths[0] = 4;
      expect(await backend.run(slot, { rows: 1, width: 8 })).toMatchObject({ ok: true });
      vectors.push(String(slot.embeddings.subarray(0, model.dims)));
      await backend.stop();
    }
    expect(new Set(vectors).size).toBe(1);
  });

  test('an urgent run overtakes what is queued and has not begun', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const backend = await OrtBackend.open({
      graphPath: await openGraph(model, { cacheDir }),
      dims: model.dims,
      threads: 1,
      slotRows: 64,
      slotTokens: 1024,
    });
    const order: string[] = [];
    const run = (name: string, isUrgent: boolean): Promise<unknown> => {
      const slot = backend.lend()!;
      slot.lengths.fill(16);
      slot.ids.fill(1);
      return backend.run(slot, { rows: 64, width: 16 }, { isUrgent }).finally(() => order.push(name));
    };
    await Promise.all([run('running', false), run('queued', false), run('urgent', true)]);
    expect(order.indexOf('urgent')).toBeLessThan(order.indexOf('queued'));
    await backend.stop();
  });

  describe('a model that overflows in fp16', () => {
    const SHAPE = { rows: 64, width: 16 } as const;

    function fill({ ids, lengths }: Slot): void {
      for (let row = 0; row < SHAPE.rows; row++) {
        lengths[row] = 2 + (row % 15);
        for (let at = 0; at < SHAPE.width; at++)
          ids[row * SHAPE.width + at] = at < lengths[row]! ? 5 + ((row * 31 + at * 7919) % 150) : 0;
      }
    }

    function rowsOfLengthOne({ embeddings }: Slot, dims: number): boolean[] {
      return Array.from(
        { length: SHAPE.rows },
        (_, row) =>
          Math.abs(
            embeddings.subarray(row * dims, (row + 1) * dims).reduce((sum, value) => sum + value * value, 0) - 1,
          ) < 0.01,
      );
    }

    test('gives some rows that are no vectors, and in an exact run all of them as the fp32 graph does', async () => {
      const model = await writeTinyModel(join(cacheDir, 'loud'), { seed: 1, feedForwardScale: 100 });
      const [graphPath, exactGraphPath] = [
        await openGraph(model, { cacheDir, kind: 'plain-fp16' }),
        await openGraph(model, { cacheDir, kind: 'fused-fp32' }),
      ];
      const options = { dims: model.dims, threads: 1, slotRows: SHAPE.rows, slotTokens: 1024 };
      const [half, full] = [
        await OrtBackend.open({ ...options, graphPath, exactGraphPath, precision: 'fp16' }),
        await OrtBackend.open({ ...options, graphPath: exactGraphPath }),
      ];
      const [slot, reference] = [half.lend()!, full.lend()!];
      fill(slot);
      fill(reference);
      expect(full.runExact).toBeUndefined();
      expect(await half.run(slot, SHAPE)).toMatchObject({ ok: true });
      const good = rowsOfLengthOne(slot, model.dims);
      expect(good).toContain(false);
      expect(good).toContain(true);
      expect(await half.runExact!(slot, SHAPE)).toMatchObject({ ok: true });
      await full.run(reference, SHAPE);
      expect(rowsOfLengthOne(slot, model.dims)).not.toContain(false);
      expect(slot.embeddings).toEqual(reference.embeddings);
      await Promise.all([half.stop(), full.stop()]);
    });
  });

  test('an exact graph that could not be opened is tried again by the next exact run', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const graphPath = await openGraph(model, { cacheDir });
    const exactGraphPath = join(cacheDir, 'later.onnx');
    const backend = await OrtBackend.open({ ...SLOTS, graphPath, exactGraphPath, dims: model.dims });
    const slot = backend.lend()!;
    slot.lengths.fill(8, 0, 2);
    const runExact = () =>
      backend.runExact!(slot, { rows: 2, width: 8 }).then(
        ({ ok }) => (ok ? 'ran' : 'no room'),
        (error: { code: string }) => error.code,
      );
    expect(await runExact()).toBe('INFERENCE_FAILED');
    copyFileSync(graphPath, exactGraphPath);
    expect(await runExact()).toBe('ran');
    await backend.stop();
  });

  test.skipIf(process.platform === 'win32')(
    'an exact graph that does not open is seen like a run that hangs',
    async () => {
      const model = await openModel('tiny-random', { cacheDir });
      const exactGraphPath = join(cacheDir, 'never.onnx');
      execFileSync('mkfifo', [exactGraphPath]); // whoever reads it waits until somebody writes
      const graphPath = await openGraph(model, { cacheDir });
      const backend = await OrtBackend.open({ ...SLOTS, graphPath, exactGraphPath, dims: model.dims });
      expect(backend.runningMs()).toBe(0);
      const slot = backend.lend()!;
      slot.lengths.fill(8, 0, 2);
      const refused = backend.runExact!(slot, { rows: 2, width: 8 }).catch((error: { code: string }) => error.code);
      await expect.poll(() => backend.runningMs()).toBeGreaterThan(100);
      writeFileSync(exactGraphPath, 'no graph');
      expect(await refused).toBe('INFERENCE_FAILED');
      expect(backend.runningMs()).toBe(0);
      await backend.stop();
    },
  );

  test('memory is what this process holds: now, and at most so far', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const backend = await OrtBackend.open({
      graphPath: await openGraph(model, { cacheDir }),
      dims: model.dims,
      threads: 1,
      slotRows: 64,
      slotTokens: 1024,
    });
    const { footprintBytes, liveBytes, source } = (await backend.memory())!;
    expect(source).toBe('process');
    expect(footprintBytes! / process.memoryUsage.rss()).toBeCloseTo(1, 0);
    expect(liveBytes).toBeGreaterThanOrEqual(footprintBytes!);
    await backend.stop();
  });
});

test('the runtime leaves no device id behind and reports to nobody', async () => {
  const model = await openModel('tiny-random', { cacheDir });
  const graphPath = await openGraph(model, { cacheDir });
  const home = join(cacheDir, 'home');
  mkdirSync(home);
  const program = join(cacheDir, 'open-and-stop.mjs');
  writeFileSync(
    program,
    `
    import { OrtBackend } from '${new URL('./ort-backend.ts', import.meta.url).href}';
    const sizes = { dims: ${model.dims}, threads: 1, slotRows: 1, slotTokens: 64 };
    const backend = await OrtBackend.open({ graphPath: process.argv[2], ...sizes });
    await backend.stop();`,
  );
  const { ORT_DISABLE_TELEMETRY: _ours, ...environment } = process.env;
  execFileSync(process.execPath, ['--conditions=@shoal/source', program, graphPath], {
    env: { ...environment, HOME: home, XDG_CACHE_HOME: join(home, 'cache') },
  });
  expect(readdirSync(home, { recursive: true })).toEqual([]);
});

test('messages of failed runs are told apart: out of memory, device lost, anything else', () => {
  expect(
    classifyRunFailure(
      "Non-zero status code returned while running Attention node. Name:'Attention_4' Status Message: std::bad_alloc",
    ),
  ).toBe('out-of-vram');
  expect(
    classifyRunFailure(
      'Status Message: bfc_arena.cc:360 Failed to allocate memory for requested buffer of size 201326592',
    ),
  ).toBe('out-of-vram');
  expect(
    classifyRunFailure('CUDA failure 2: out of memory ; GPU=0 ; hostname=H ; expr=cudaMalloc((void**)&p, size);'),
  ).toBe('out-of-vram');
  expect(classifyRunFailure('CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0')).toBe('out-of-vram');
  expect(classifyRunFailure('CUDA failure 700: an illegal memory access was encountered ; GPU=0')).toBe('device-lost');
  expect(classifyRunFailure('input index out of range')).toBe('failed');
});
