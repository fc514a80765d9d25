// The native encoder passes the suite that every backend passes, by its reference in plain C++: what lies between a
// worker and the C interface is the same for CUDA. And what is its own: memory known to the byte, limits, libraries
// that are none.

import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { afterAll, describe, expect, test } from 'vitest';
import { ShoalError, toHalves } from '@shoal/contract';
import type { RunResult, Slot } from '@shoal/core';
import { describeInferenceBackend } from '@shoal/core/testing';
import { openGraph, openModel, readEncoder, writeTinyModel, type StoredModel } from '@shoal/models';
import { ENCODER_LIBRARIES, nativeEncoderProblem } from './encoder-addon.ts';
import { EncoderBackend, type EncoderBackendOptions } from './encoder-backend.ts';
import { OrtBackend } from './ort-backend.ts';
import { buildReferenceEncoder } from './testing.ts';

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-encoder-'));
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

const hasCompiler = buildReferenceEncoder('the native encoder');

async function open(model: StoredModel, options: Partial<EncoderBackendOptions> = {}): Promise<EncoderBackend> {
  return EncoderBackend.open({
    model: await readEncoder(model),
    library: ENCODER_LIBRARIES.reference,
    precision: 'fp32',
    device: 'cpu:reference',
    slotRows: 64,
    slotTokens: 1024,
    ...options,
  });
}

async function openExact(model: StoredModel): Promise<OrtBackend> {
  return OrtBackend.open({
    graphPath: await openGraph(model, { cacheDir }),
    dims: model.dims,
    threads: 1,
    slotRows: 64,
    slotTokens: 1024,
  });
}

function fill({ ids, lengths }: Slot, rows: number, width: number): void {
  ids.fill(3, 0, rows * width);
  lengths.fill(width, 0, rows);
}

describe.runIf(hasCompiler)('with a compiler', () => {
  describeInferenceBackend('the native encoder', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const maxTokens = Math.floor(model.positionLimit / 8) * 8;
    return {
      backend: await open(model, { slotTokens: Math.max(1024, maxTokens) }),
      vocabularySize: model.vocabularySize,
      maxTokens,
    };
  });

  describeInferenceBackend('the native encoder with exact runs elsewhere', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    return {
      backend: await open(model, { precision: 'fp16', openExact: () => openExact(model) }),
      vocabularySize: model.vocabularySize,
      maxTokens: 64,
    };
  });

  test('gives the vectors of ONNX Runtime, for both ways of pooling, of length 1 or their own, with a prefix', async () => {
    for (const { isNormalized, ...options } of [
      { seed: 3, pooling: 'mean', isNormalized: true },
      { seed: 4, pooling: 'cls', prefix: 'bert.', isNormalized: true },
      { seed: 5, pooling: 'mean', isNormalized: false },
      { seed: 6, pooling: 'cls', isNormalized: false },
    ] as const) {
      const tiny = await writeTinyModel(join(cacheDir, `tiny-${options.seed}`), options);
      const modules = isNormalized ? tiny.head.modules : [];
      const model = { ...tiny, isNormalized, head: { ...tiny.head, modules } };
      const [native, runtime] = [await open(model), await openExact(model)];
      const [a, b] = [native.lend()!, runtime.lend()!];
      for (const slot of [a, b]) {
        slot.ids.set([2, 9, 40, 41, 3, 0, 0, 0, 2, 77, 3, 0, 0, 0, 0, 0]);
        slot.lengths.set([5, 3]);
      }
      expect(await native.run(a, { rows: 2, width: 8 })).toMatchObject({ ok: true });
      expect(await runtime.run(b, { rows: 2, width: 8 })).toMatchObject({ ok: true });
      for (let i = 0; i < 2 * model.dims; i++) expect(a.embeddings[i]).toBeCloseTo(b.embeddings[i]!, 5);
      expect(native.givesUnitRows).toBe(isNormalized);
      expect(Math.abs(Math.hypot(...a.embeddings.subarray(0, model.dims)) - 1) < 1e-5).toBe(isNormalized);
      await Promise.all([native.stop(), runtime.stop()]);
    }
  });

  test('two lanes share what is queued, and urgent runs overtake it', async () => {
    const backend = await open(await openModel('tiny-random', { cacheDir }), { lanes: 2 });
    const order: string[] = [];
    const run = (name: string, isUrgent: boolean): Promise<unknown> => {
      const slot = backend.lend()!;
      fill(slot, 8, 128);
      return backend.run(slot, { rows: 8, width: 128 }, { isUrgent }).finally(() => order.push(name));
    };
    await Promise.all([run('first', false), run('second', false), run('queued', false), run('urgent', true)]);
    expect(order.indexOf('urgent')).toBeLessThan(order.indexOf('queued'));
    await backend.stop();
  });

  test('memory is what was predicted, to the byte, and never more than the law for planning says', async () => {
    const backend = await open(await openModel('tiny-random', { cacheDir }), { slotRows: 512, slotTokens: 65_536 });
    const before = (await backend.memory())!;
    expect(before.footprintBytes).toBe(before.liveBytes);
    const law = backend.memoryLaw(before.footprintBytes!);
    const slot = backend.lend()!;
    for (const { rows, width } of [
      { rows: 1, width: 8 },
      { rows: 7, width: 40 },
      { rows: 300, width: 8 },
      { rows: 64, width: 104 },
      { rows: 500, width: 128 },
    ]) {
      fill(slot, rows, width);
      await backend.shrink();
      expect(await backend.run(slot, { rows, width })).toMatchObject({ ok: true });
      const { footprintBytes } = (await backend.memory())!;
      expect(footprintBytes! - before.footprintBytes!).toBe(backend.laneBytes(rows * width, rows));
      expect(footprintBytes! - before.footprintBytes!).toBeLessThanOrEqual(
        law.floorBytes + rows * width * law.perToken[0]!.bytes,
      );
    }
    await backend.stop();
  });

  test(
    'a run beyond the limit is refused as a result, the next smaller one runs, and what was held can be given ' +
      'back',
    async () => {
      const model = await openModel('tiny-random', { cacheDir });
      const probe = await open(model);
      const memoryLimit = (await probe.memory())!.footprintBytes! + probe.laneBytes(512, 16);
      await probe.stop();
      const backend = await open(model, { memoryLimit });
      const slot = backend.lend()!;
      fill(slot, 8, 128);
      expect(await backend.run(slot, { rows: 8, width: 128 })).toMatchObject({
        ok: false,
        outOfVram: { message: expect.stringContaining('out of memory') },
      });
      expect(await backend.run(slot, { rows: 4, width: 128 })).toMatchObject({ ok: true });
      expect(await backend.shrink()).toBe(true);
      expect(await backend.shrink()).toBe(false);
      expect(await backend.run(slot, { rows: 4, width: 128 })).toMatchObject({ ok: true });
      await backend.stop();
    },
  );

  test('an exact backend that could not be opened is opened by the next run; want of memory is a result', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const failures = [
      new Error('no such graph'),
      new ShoalError('INFERENCE_FAILED', 'ONNX Runtime does not open it: CUDA failure 2: out of memory'),
      new ShoalError('OUT_OF_VRAM', 'no room for the weights'),
    ];
    const backend = await open(model, {
      openExact: async () => {
        const failure = failures.shift();
        if (failure !== undefined) throw failure;
        return openExact(model);
      },
    });
    const slot = backend.lend()!;
    fill(slot, 1, 8);
    const run = () => backend.runExact!(slot, { rows: 1, width: 8 });
    await expect(run()).rejects.toThrow('no such graph');
    expect(await run()).toMatchObject({
      ok: false,
      outOfVram: { message: expect.stringContaining('out of memory') },
    });
    expect(await run()).toMatchObject({ ok: false, outOfVram: { message: 'no room for the weights' } });
    expect(await run()).toMatchObject({ ok: true });
    await backend.stop();
  });

  test('an exact run that hangs is seen', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const exact = await openExact(model);
    const begun = Promise.withResolvers<void>();
    const ended = Promise.withResolvers<RunResult>();
    exact.run = () => (begun.resolve(), ended.promise);
    exact.runningMs = () => 99_999;
    const backend = await open(model, { openExact: async () => exact });
    expect(backend.runningMs()).toBe(0);
    const slot = backend.lend()!;
    fill(slot, 1, 8);
    const run = backend.runExact!(slot, { rows: 1, width: 8 });
    await begun.promise;
    expect(backend.runningMs()).toBe(99_999);
    ended.resolve({ ok: true, runMs: 1 });
    await run;
    await backend.stop();
  });

  test('an exact backend that never opens is seen like a run that hangs; one that opens or fails is not', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const openings = [Promise.withResolvers<OrtBackend>(), Promise.withResolvers<OrtBackend>()];
    const [failing, opening] = openings;
    let asked = 0;
    const backend = await open(model, { openExact: () => openings[asked++]!.promise });
    const slot = backend.lend()!;
    fill(slot, 1, 8);
    const refused = backend.runExact!(slot, { rows: 1, width: 8 }).catch((error: Error) => error.message);
    await expect.poll(() => backend.runningMs()).toBeGreaterThan(20);
    failing!.reject(new Error('no such graph'));
    expect(await refused).toBe('no such graph');
    expect(backend.runningMs()).toBe(0);
    const run = backend.runExact!(slot, { rows: 1, width: 8 });
    await expect.poll(() => backend.runningMs()).toBeGreaterThan(20);
    opening!.resolve(await openExact(model));
    expect(await run).toMatchObject({ ok: true });
    expect(backend.runningMs()).toBe(0);
    await backend.stop();
  });

  test('a token id outside the vocabulary fails that run alone', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const backend = await open(model);
    const slot = backend.lend()!;
    fill(slot, 1, 8);
    slot.ids[3] = model.vocabularySize + 5;
    await expect(backend.run(slot, { rows: 1, width: 8 })).rejects.toMatchObject({
      code: 'INFERENCE_FAILED',
      message: expect.stringContaining('vocabulary'),
    });
    slot.ids[3] = 1;
    expect(await backend.run(slot, { rows: 1, width: 8 })).toMatchObject({ ok: true });
    await backend.stop();
  });

  test('halves are those of the core, to the bit, for every exponent and on both sides of every middle', async ({
    skip,
  }) => {
    const backend = await open(await openModel('tiny-random', { cacheDir }));
    const { toHalves: toHalvesHere } = backend;
    await backend.stop();
    if (toHalvesHere === undefined) return skip('this processor has no instruction for halves');
    const words = Uint32Array.from({ length: 1 << 20 }, (_, at) => (at << 12) + [0, 1, 0xfff, 0x800][at % 4]!);
    const values = new Float32Array(words.buffer).filter((value) => !Number.isNaN(value));
    const found = new Uint16Array(values.length);
    toHalvesHere(values, found);
    expect(Buffer.from(found.buffer).equals(Buffer.from(toHalves(values).buffer))).toBe(true);
    const few = new Uint16Array(11);
    // not a multiple of what goes at once, and nothing beside it
    toHalvesHere(values.subarray(5, 14), few.subarray(1, 10));
    expect([...few]).toEqual([0, ...toHalves(values.subarray(5, 14)), 0]);
  });

  test('checksums are those of zlib, of any length and from any place on', async ({ skip }) => {
    const backend = await open(await openModel('tiny-random', { cacheDir }));
    const { checksum } = backend;
    await backend.stop();
    if (checksum === undefined) return skip('this processor has no instruction for carry-less products');
    const bytes = Buffer.alloc(400_000, 0);
    for (let at = 0, state = 1; at < bytes.length; at++)
      bytes[at] = (state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0) >>> 24;
    for (let length = 0; length <= 400; length++)
      expect([length, checksum(bytes.subarray(length % 17, (length % 17) + length))]).toEqual([
        length,
        crc32(bytes.subarray(length % 17, (length % 17) + length)),
      ]);
    for (const length of [393_216, 399_983, 400_000])
      expect(checksum(bytes.subarray(0, length))).toBe(crc32(bytes.subarray(0, length)));
    for (const same of [0x00, 0xff]) expect(checksum(Buffer.alloc(4_099, same))).toBe(crc32(Buffer.alloc(4_099, same)));
  });

  test('a library that is missing, is none, or speaks another version is one clear line', async () => {
    const broken = join(cacheDir, 'libbroken.so');
    writeFileSync(broken, 'not a library');
    const other = join(cacheDir, 'libother.so');
    const source = join(cacheDir, 'other.c');
    writeFileSync(source, 'int shoal_encoder_abi(void) { return 999; }');
    expect(spawnSync(process.env['CXX'] ?? 'c++', ['-x', 'c', '-shared', '-fPIC', source, '-o', other]).status).toBe(0);
    const model = await openModel('tiny-random', { cacheDir });
    for (const [library, words] of [
      [join(cacheDir, 'libnone.so'), 'cannot open shared object'],
      [broken, 'libbroken.so'],
      [other, 'version 999'],
    ] as const) {
      expect(nativeEncoderProblem(library)).toMatch(/^[^\n]+$/);
      await expect(open(model, { library })).rejects.toMatchObject({
        code: 'SETUP_FAILED',
        message: expect.stringContaining(words),
      });
    }
  });
});
