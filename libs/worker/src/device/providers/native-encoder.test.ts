// Which encoder a GPU's worker ends up with, and what it says on the way. The reference library stands in for the one
// for CUDA: it has the same interface, and a canary that passes it passes what lies between.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { systemClock } from '@shoal/core';
import { ManualClock, RecordingLogger } from '@shoal/core/testing';
import { ENCODER_LIBRARIES, EncoderBackend } from '@shoal/inference';
import { buildReferenceEncoder } from '@shoal/inference/testing';
import { CANARY_TEXT, openModel, openTokenizer } from '@shoal/models';
import { openDeviceBudget } from '../../measure/device-budget.ts';
import type { DeviceOptions } from '../device-options.ts';
import { nativeEncoder } from './native-encoder.ts';

let cacheDir: string;
beforeAll(async () => {
  cacheDir = await mkdtemp(join(tmpdir(), 'shoal-native-'));
});
afterAll(() => rm(cacheDir, { recursive: true, force: true }));

const hasCompiler = buildReferenceEncoder('opening the native encoder');

const REFERENCE = { device: 'cuda:0', library: ENCODER_LIBRARIES.reference };
const MISSING = { device: 'cuda:0', library: '/nowhere/libshoal_encoder.so' };

async function options(given: Partial<DeviceOptions> = {}): Promise<DeviceOptions & { log: RecordingLogger }> {
  const model = await openModel('tiny-random', { cacheDir });
  const tokenizer = await openTokenizer(model);
  return {
    device: 'gpu:0',
    precision: 'auto',
    slots: { dims: model.dims, slotRows: 16, slotTokens: 2048 },
    model,
    tokenizer,
    cacheDir,
    threads: 1,
    environment: {},
    ...given,
    log: new RecordingLogger(),
  };
}

test('without a library auto goes on to ONNX Runtime with one line; who asked for it is told the reason', async () => {
  const asked = await options();
  expect(await nativeEncoder(asked, MISSING)).toBeUndefined();
  expect(asked.log.lines).toEqual([
    expect.objectContaining({
      level: 'info',
      message: expect.stringContaining('ONNX Runtime is'),
      fields: expect.objectContaining({ reason: expect.stringMatching(/^[^\n]+$/) }),
    }),
  ]);
  await expect(nativeEncoder(await options({ encoder: 'native' }), MISSING)).rejects.toThrow(
    /native encoder was asked for and cannot be used/,
  );
});

test('is not looked at where ONNX Runtime was asked for', async () => {
  const asked = await options({ encoder: 'ort' });
  expect(await nativeEncoder(asked, MISSING)).toBeUndefined();
  expect(asked.log.lines).toEqual([]);
});

describe.runIf(hasCompiler)('with a library', () => {
  test('serves once its vectors are those of fp32, and its budget knows memory and the knee of the card', async () => {
    const asked = await options({ encoder: 'native', sessions: 2 });
    const backend = await nativeEncoder(asked, {
      ...REFERENCE,
      deviceKind: 'NVIDIA H200',
      probe: { read: async () => ({ freeBytes: 1e11, totalBytes: 1.4e11 }) },
    });
    expect(asked.log.lines.map(({ message }) => message)).toEqual([
      'device gives the vectors of fp32',
      'the native encoder serves',
    ]);
    expect(backend).toBeInstanceOf(EncoderBackend);
    expect(backend).toMatchObject({ device: 'cuda:0', precision: 'fp16', sessions: 2, prefersFewShapes: false });
    const limits = {
      maxRows: 16,
      maxPaddedTokens: 2048,
      windowRows: 1,
      maxWaitMs: 1,
      minRows: 1,
      maxRowAgeMs: 1,
      memoryFraction: 0.8,
      latencyTargetMs: 100,
      maxDeviceBytes: undefined,
    };
    const { budget, stop } = await openDeviceBudget({
      backend: backend!,
      model: asked.model,
      maxTokens: 256,
      settings: { limits, threads: 1, cacheDir },
      clock: systemClock,
      log: asked.log,
    });
    expect(budget.current()).toMatchObject({ source: 'fitted', maxPaddedTokens: 2048 });
    expect(budget.peakBytes({ rows: 16, width: 128 })).toBeGreaterThan((backend as EncoderBackend).laneBytes(2048, 16));
    stop();
    await backend!.stop();
  });

  test('what others take of the card while it runs leaves less for its runs', async () => {
    const asked = await options({ encoder: 'native' });
    const [totalBytes, free] = [20e9, { bytes: 20e9 }];
    const place = {
      deviceKind: 'NVIDIA H200',
      probe: { read: async () => ({ freeBytes: free.bytes, totalBytes }) },
      readMemory: async () => ({
        liveBytes: undefined,
        footprintBytes: 1e9 + totalBytes - free.bytes,
        source: 'driver' as const,
      }),
    };
    const backend = (await nativeEncoder(asked, { ...REFERENCE, ...place }))!;
    const clock = new ManualClock();
    const limits = {
      maxRows: 16,
      maxPaddedTokens: 2048,
      windowRows: 1,
      maxWaitMs: 1,
      minRows: 1,
      maxRowAgeMs: 1,
      memoryFraction: 0.8,
      latencyTargetMs: 100,
      maxDeviceBytes: undefined,
    };
    const { budget, stop } = await openDeviceBudget({
      backend,
      model: asked.model,
      maxTokens: 256,
      settings: { limits, threads: 1, cacheDir },
      clock,
      log: asked.log,
    });
    expect(budget.rowsAt(128)).toBe(16);
    free.bytes = 1e9;
    await clock.advance(5_001);
    await expect.poll(() => budget.current().limitedBy).toBe('memory');
    stop();
    await backend.stop();
  });

  test('rows that fp16 cannot say run at ONNX Runtime, here on the CPU', async () => {
    const backend = (await nativeEncoder(await options({ encoder: 'native' }), REFERENCE))!;
    const slot = backend.lend()!;
    slot.ids.set([2, 9, 12, 3]);
    slot.lengths[0] = 4;
    expect(await backend.runExact!(slot, { rows: 1, width: 8 })).toMatchObject({ ok: true });
    expect(Math.hypot(...slot.embeddings.subarray(0, backend.dims))).toBeCloseTo(1, 4);
    await backend.stop();
  });

  test('no row runs again where the fp32 device gives a known text another vector', async () => {
    const asked = await options({ encoder: 'native' });
    const { ids } = asked.tokenizer.encode(CANARY_TEXT);
    const canary = { ids: [...ids], vector: new Float32Array(asked.model.dims).fill(1) };
    const backend = (await nativeEncoder({ ...asked, model: { ...asked.model, canary } }, REFERENCE))!;
    const slot = backend.lend()!;
    slot.ids.set([2, 9, 12, 3]);
    slot.lengths[0] = 4;
    await expect(backend.runExact!(slot, { rows: 1, width: 8 })).rejects.toMatchObject({ code: 'CANARY_FAILED' });
    await backend.stop();
  });

  test('computes in nothing but fp16', async () => {
    await expect(nativeEncoder(await options({ encoder: 'native', precision: 'bf16' }), REFERENCE)).rejects.toThrow(
      /bf16 was asked for/,
    );
  });
});
