// ONNX Runtime passes the suite that every backend passes, on a tiny random model; and what is its own: graphs it refuses.

import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { describeInferenceBackend } from '@shoal/core/testing';
import { openGraph, openModel } from '@shoal/models';
import { OrtBackend } from './ort-backend.ts';
import { classifyRunFailure } from './run-failure.ts';

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-inference-'));
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

describeInferenceBackend('ONNX Runtime on the CPU', async () => {
  const model = await openModel('tiny-random', { cacheDir });
  const graphPath = await openGraph(model, { cacheDir });
  const maxTokens = Math.floor(model.positionLimit / 8) * 8;
  const backend = await OrtBackend.open({ graphPath, dims: model.dims, threads: 1, slotRows: 64, slotTokens: Math.max(1024, maxTokens) });
  return { backend, vocabularySize: model.vocabularySize, maxTokens };
});

test('a graph that the runtime cannot read is named, and nothing is left running', async () => {
  const graphPath = join(cacheDir, 'broken.onnx');
  writeFileSync(graphPath, 'not a graph');
  await expect(OrtBackend.open({ graphPath, dims: 8, threads: 1, slotRows: 1, slotTokens: 8 })).rejects.toMatchObject({
    code: 'INFERENCE_FAILED', message: expect.stringContaining('broken.onnx'),
  });
});

test('a token id outside the vocabulary fails that run alone', async () => {
  const model = await openModel('tiny-random', { cacheDir });
  const backend = await OrtBackend.open({ graphPath: await openGraph(model, { cacheDir }), dims: model.dims, threads: 1, slotRows: 4, slotTokens: 64 });
  const slot = backend.lend()!;
  slot.ids[0] = model.vocabularySize + 5;
  slot.lengths[0] = 1;
  await expect(backend.run(slot, { rows: 1, width: 8 })).rejects.toMatchObject({ code: 'INFERENCE_FAILED' });
  slot.ids[0] = 1;
  expect(await backend.run(slot, { rows: 1, width: 8 })).toMatchObject({ ok: true });
  await backend.stop();
});

test('the runtime leaves no device id behind and reports to nobody', async () => {
  const model = await openModel('tiny-random', { cacheDir });
  const graphPath = await openGraph(model, { cacheDir });
  const home = join(cacheDir, 'home');
  mkdirSync(home);
  const program = join(cacheDir, 'open-and-stop.mjs');
  writeFileSync(program, `
    import { OrtBackend } from '${new URL('./ort-backend.ts', import.meta.url).href}';
    const backend = await OrtBackend.open({ graphPath: process.argv[2], dims: ${model.dims}, threads: 1, slotRows: 1, slotTokens: 64 });
    await backend.stop();`);
  const { ORT_DISABLE_TELEMETRY: _ours, ...environment } = process.env;
  execFileSync(process.execPath, ['--conditions=@shoal/source', program, graphPath], { env: { ...environment, HOME: home, XDG_CACHE_HOME: join(home, 'cache') } });
  expect(readdirSync(home, { recursive: true })).toEqual([]);
});

test('messages of failed runs are told apart: out of memory, device lost, anything else', () => {
  expect(classifyRunFailure("Non-zero status code returned while running Attention node. Name:'Attention_4' Status Message: std::bad_alloc")).toBe('out-of-vram');
  expect(classifyRunFailure('Status Message: bfc_arena.cc:360 Failed to allocate memory for requested buffer of size 201326592')).toBe('out-of-vram');
  expect(classifyRunFailure('CUDA failure 2: out of memory ; GPU=0 ; hostname=H ; expr=cudaMalloc((void**)&p, size);')).toBe('out-of-vram');
  expect(classifyRunFailure('CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED ; GPU=0')).toBe('out-of-vram');
  expect(classifyRunFailure('CUDA failure 700: an illegal memory access was encountered ; GPU=0')).toBe('device-lost');
  expect(classifyRunFailure('input index out of range')).toBe('failed');
});
