// ONNX Runtime's WebGPU provider, on the driver that VK_DRIVER_FILES names: the suite of every backend, on graphs in
// fp32 and in fp16, and that a worker chooses it before the CPU and after CUDA. `sh tools/vulkan.sh` fetches a driver
// that computes in software.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import type { Precision } from '@shoal/core';
import { RecordingLogger, describeInferenceBackend } from '@shoal/core/testing';
import { OrtBackend, cudaProviderProblem } from '@shoal/inference';
import { openGraph, openModel, openTokenizer, type GraphKind } from '@shoal/models';
import { nvidiaDevice } from './nvidia-device.ts';
import type { DeviceOptions } from './device-options.ts';
import { openDevice } from './open-device.ts';

const isHere = process.env['VK_DRIVER_FILES'] !== undefined;
if (!isHere)
  console.warn(
    'WebGPU is not tested: no Vulkan driver is named. "sh tools/vulkan.sh" fetches one; ' +
      'SHOAL_TEST_VULKAN=<what it prints> npm test -- webgpu',
  );

const hasGpu = (await nvidiaDevice('0')).ok && (await cudaProviderProblem()) === undefined;

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-webgpu-'));
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

const GRAPHS: readonly (readonly [GraphKind, Precision, number])[] = [
  ['plain-fp32', 'fp32', 0.999_999],
  ['plain-fp16', 'fp16', 0.9999],
];

async function options(
  device: string,
  more: Partial<DeviceOptions> = {},
): Promise<DeviceOptions & { log: RecordingLogger }> {
  const model = await openModel('tiny-random', { cacheDir });
  const environment = { ...process.env };
  return {
    device,
    precision: 'auto',
    slots: { dims: model.dims, slotRows: 16, slotTokens: 2048 },
    model,
    tokenizer: await openTokenizer(model),
    cacheDir,
    threads: 1,
    environment,
    ...more,
    log: new RecordingLogger(),
  };
}

describe.runIf(isHere)('WebGPU', () => {
  for (const [kind, precision, minCosine] of GRAPHS) {
    describeInferenceBackend(`ONNX Runtime on WebGPU in ${precision}`, async () => {
      const model = await openModel('tiny-random', { cacheDir });
      const graphPath = await openGraph(model, { cacheDir, kind });
      const backend = await OrtBackend.open({
        graphPath,
        precision,
        provider: 'webgpu',
        device: 'webgpu:0',
        dims: model.dims,
        threads: 1,
        slotRows: 8,
        slotTokens: 256,
      });
      return { backend, vocabularySize: model.vocabularySize, maxTokens: 32, minCosine };
    });
  }

  test.runIf(!hasGpu).each(['auto', 'gpu:0'])(
    '%s runs on it, in fp16 and with the vectors of fp32, where there is no CUDA',
    async (device) => {
      const asked = await options(device);
      const backend = await openDevice({
        ...asked,
        slots: (provider) => ({ ...asked.slots, slotRows: provider === 'webgpu' ? 24 : 3 }),
      });
      expect(backend).toMatchObject({ device: 'webgpu:0', precision: 'fp16', prefersFewShapes: true, slotRows: 24 });
      const proof = asked.log.lines.find(({ message }) => message === 'device gives the vectors of fp32');
      expect(proof?.fields).toMatchObject({ device: 'webgpu:0', precision: 'fp16', leastCosine: expect.any(Number) });
      expect(Number(Reflect.get(proof!.fields, 'leastCosine'))).toBeGreaterThanOrEqual(0.9999);
      await backend.stop();
    },
  );

  test('what it has no graph for goes to the CPU under auto, and is refused under its label', async () => {
    const asked = await options('auto', { precision: 'bf16' });
    const backend = await openDevice(asked);
    expect(backend.device).toBe('cpu');
    await backend.stop();
    await expect(openDevice(await options('gpu:0', { precision: 'bf16' }))).rejects.toMatchObject({
      code: 'SETUP_FAILED',
      message: expect.stringContaining('webgpu: webgpu has no graph in bf16'),
    });
  });

  test('a GPU that is hidden from CUDA is hidden from it', async () => {
    await expect(
      openDevice(await options('gpu:0', { environment: { ...process.env, CUDA_VISIBLE_DEVICES: '' } })),
    ).rejects.toMatchObject({ message: expect.stringMatching(/webgpu: .*hides every GPU/) });
  });
});
