// What a worker ends up on, and what it says on the way, on a machine without a GPU: refusals carry their reasons, and
// only `auto` goes on. What a GPU does is shown by bench/gpu.

import { readdirSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { RecordingLogger } from '@shoal/core/testing';
import { OrtBackend, cudaProviderProblem } from '@shoal/inference';
import { openGraph, openModel, openTokenizer, type GraphKind } from '@shoal/models';
import { openCanary } from './canary.ts';
import { nvidiaDevice, unusable } from './nvidia-device.ts';
import type { DeviceOptions } from './device-options.ts';
import { openDevice } from './open-device.ts';

/** Without the line about the text that every device is asked for. */
const linesOf = ({ lines }: RecordingLogger): RecordingLogger['lines'] =>
  lines.filter(({ message }) => message !== 'the canary text has its vector');

let cacheDir: string;
const hasGpu = (await nvidiaDevice('0')).ok && (await cudaProviderProblem()) === undefined;

beforeAll(async () => {
  cacheDir = await mkdtemp(join(tmpdir(), 'shoal-device-'));
});
afterAll(() => rm(cacheDir, { recursive: true, force: true }));

async function options(
  device: string,
  environment: Record<string, string | undefined> = {},
): Promise<DeviceOptions & { log: RecordingLogger }> {
  const model = await openModel('tiny-random', { cacheDir });
  const tokenizer = await openTokenizer(model);
  return {
    device,
    precision: 'auto',
    slots: { dims: model.dims, slotRows: 16, slotTokens: 2048 },
    model,
    tokenizer,
    cacheDir,
    threads: 1,
    environment,
    log: new RecordingLogger(),
  };
}

describe('without a GPU', () => {
  test.runIf(!hasGpu)('gpu:0 is refused, with what was tried and why', async () => {
    await expect(openDevice(await options('gpu:0'))).rejects.toMatchObject({
      code: 'SETUP_FAILED',
      message: expect.stringMatching(/gpu:0 was asked for.*cuda: .+; webgpu: .+--device cpu/s),
    });
  });

  test.runIf(!hasGpu)('auto runs on the CPU and says once what was tried', async () => {
    const asked = await options('auto');
    const backend = await openDevice(asked);
    expect(backend.device).toBe('cpu');
    expect(linesOf(asked.log)).toHaveLength(1);
    expect(linesOf(asked.log)[0]!.fields).toMatchObject({
      device: 'cpu',
      tried: { cuda: expect.any(String), webgpu: expect.any(String) },
    });
    await backend.stop();
  });
});

test('with CUDA hidden a GPU label is refused with the reason, whatever is here', async () => {
  await expect(openDevice(await options('gpu:0', { CUDA_VISIBLE_DEVICES: '' }))).rejects.toMatchObject({
    message: expect.stringMatching(/CUDA_VISIBLE_DEVICES is "", which hides every GPU/),
  });
  await expect(openDevice(await options('gpu:3', { CUDA_VISIBLE_DEVICES: '0,1' }))).rejects.toMatchObject({
    message: expect.stringMatching(/gpu:3 is none of them/),
  });
});

test('a simulated device is opened when it is named, with slots of its own size', async () => {
  const asked = await options('sim:24GB');
  const slots = (found: string) => ({ ...asked.slots, slotRows: found === 'sim:24GB' ? 7 : 0 });
  const withMemory = await openDevice({ ...asked, slots });
  expect(withMemory).toMatchObject({ device: 'sim:24GB', slotRows: 7 });
  const paced = await openDevice({ ...asked, device: 'sim:8000+15', sessions: 2 });
  expect(paced).toMatchObject({ device: 'sim:8000', sessions: 2 });
  await Promise.all([withMemory.stop(), paced.stop()]);
});

test.runIf(!hasGpu)(
  'slots are as large as the device that was found asks for, not the one that was asked for',
  async () => {
    const asked = await options('auto');
    const sizes: Readonly<Record<string, number>> = { cuda: 99, webgpu: 98, cpu: 3 };
    const backend = await openDevice({
      ...asked,
      slots: (found) => ({ ...asked.slots, slotRows: sizes[found] ?? 0 }),
    });
    expect(backend).toMatchObject({ device: 'cpu', slotRows: 3 });
    await backend.stop();
  },
);

test('with CUDA hidden auto runs on the CPU with one warning', async () => {
  const asked = await options('auto', { CUDA_VISIBLE_DEVICES: '-1' });
  const backend = await openDevice(asked);
  expect(backend.device).toBe('cpu');
  expect(linesOf(asked.log).map(({ level, message }) => [level, message])).toEqual([
    ['warn', expect.stringMatching(/a GPU is not used/)],
  ]);
  await backend.stop();
});

test.each([
  [undefined, 2, 8],
  [1, 1, 17],
  [3, 3, 5],
])('on a CPU %s sessions of 17 threads that were asked for are %i with %i each', async (sessions, open, threads) => {
  const backend = await openDevice({ ...(await options('cpu')), threads: 17, sessions });
  expect(backend).toMatchObject({ device: 'cpu', sessions: open, options: { threads } });
  await backend.stop();
});

test('SHOAL_FORCE_CPU=1 is said aloud', async () => {
  const asked = await options('cpu', { SHOAL_FORCE_CPU: '1' });
  const backend = await openDevice(asked);
  expect(linesOf(asked.log)).toEqual([
    expect.objectContaining({ level: 'warn', message: expect.stringMatching(/SHOAL_FORCE_CPU=1/) }),
  ]);
  await backend.stop();
});

describe('a GPU that the driver has is refused', () => {
  test.each([
    [{ computeCapability: '6.1', driverVersion: '580.1' }, /compute capability 6\.1; the CUDA provider needs 7\.5/],
    [{ computeCapability: '9.0', driverVersion: '550.54.14' }, /driver is 550\.54\.14; CUDA 13 needs 580/],
  ])('when it is %j', (told, reason) => {
    expect(unusable({ index: 0, name: 'NVIDIA X', ...told })?.reason).toMatch(reason);
  });

  test('but not for what the driver does not tell', () => {
    expect(
      unusable({ index: 0, name: undefined, computeCapability: undefined, driverVersion: undefined }),
    ).toBeUndefined();
    expect(
      unusable({ index: 0, name: 'NVIDIA H200', computeCapability: '9.0', driverVersion: '580.159.04' }),
    ).toBeUndefined();
  });
});

async function cosineOf(kind: GraphKind): Promise<number> {
  const { model, tokenizer } = await options('cpu');
  const canary = await openCanary({ model, tokenizer, cacheDir, threads: 1, log: new RecordingLogger() });
  const backend = await OrtBackend.open({
    graphPath: await openGraph(model, { cacheDir, kind }),
    dims: model.dims,
    threads: 1,
    slotRows: 4,
    slotTokens: 512,
  });
  const cosine = await canary(backend);
  await backend.stop();
  return cosine;
}

describe('the canary', () => {
  test('finds fp16 to give the vectors of fp32', async () => {
    expect(await cosineOf('fused-fp16')).toBeGreaterThan(0.9999);
    // kept for the next start
    expect(readdirSync(join(cacheDir, 'graphs')).filter((name) => /\.canary-.*\.f32$/.test(name))).toHaveLength(1);
  });

  test('finds a coarser graph out', async () => {
    expect(await cosineOf('int8')).toBeLessThan(0.9999);
  });
});
