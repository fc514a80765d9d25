// The device a worker runs on: the first of CUDA, WebGPU and the CPU that exists, runs the model where it says it does,
// and gives the vectors it should (canary.ts); or the simulated one that was named. Whoever asked for a GPU gets one or a refusal
// that names every reason; only `auto` goes on to the next. Nothing is claimed before this has answered.

import type { InferenceBackend } from '@shoal/core';
import type { Provider } from '@shoal/inference';
import type { DeviceOptions, OpenProvider, SlotSizes } from './device-options.ts';
import { expectCanary } from './canary.ts';
import { noDevice, refusalOf, tellForcedCpu, tellRefusals, type Refusal } from './device-refusals.ts';
import { openCpu } from './providers/cpu.ts';
import { openCuda } from './providers/cuda.ts';
import { openWebGpu } from './providers/webgpu.ts';

export type OpenDeviceOptions = Omit<DeviceOptions, 'slots'> & {
  /** May depend on what is found: called with "cuda", "webgpu", "cpu", or the name of the simulated device. */
  readonly slots: SlotSizes | ((found: string) => SlotSizes);
};

const PROVIDERS: Readonly<Record<Provider, OpenProvider>> = { cuda: openCuda, webgpu: openWebGpu, cpu: openCpu };

export async function openDevice({ slots, ...options }: OpenDeviceOptions): Promise<InferenceBackend> {
  const { device, environment, log } = options;
  const optionsFor = (found: string): DeviceOptions => ({
    ...options,
    slots: typeof slots === 'function' ? slots(found) : slots,
  });
  // loaded by whoever names one: no other worker carries it
  if (device.startsWith('sim:')) return (await import('./providers/simulated.ts')).openSimulated(optionsFor(device));
  tellForcedCpu(log, environment);
  const refusals: Refusal[] = [];
  for (const provider of providersFor(device)) {
    try {
      const backend = await expectCanary(await PROVIDERS[provider](optionsFor(provider)), options);
      tellRefusals(log, refusals, backend.device);
      return backend;
    } catch (error) {
      refusals.push(refusalOf(provider, error));
      if (provider === 'cpu') throw error;
    }
  }
  throw noDevice(device, refusals);
}

/** WebGPU has no choice of adapter, so that it can only be the first GPU. */
function providersFor(device: string): readonly Provider[] {
  if (device === 'cpu') return ['cpu'];
  if (device === 'auto') return ['cuda', 'webgpu', 'cpu'];
  return device === 'gpu:0' ? ['cuda', 'webgpu'] : ['cuda'];
}
