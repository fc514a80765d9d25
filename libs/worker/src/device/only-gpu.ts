// The GPU of `gpu:<index>` or `auto` for this process alone: found by the driver's tool, and from then on the only one
// that CUDA shows.

import type { Logger } from '@shoal/core';
import { visibleDevice } from './cuda-visibility.ts';
import { Refused, indexOf } from './device-refusals.ts';
import { nvidiaDevice, type NvidiaDevice } from './nvidia-device.ts';

export interface OnlyGpu {
  /** "cuda:0" */
  readonly device: string;
  readonly found: NvidiaDevice;
}

/**
 * Warns of what may not be what was meant. Sets CUDA_VISIBLE_DEVICES in `environment`, to be called before anything of
 * CUDA is loaded. Throws Refused.
 */
export async function onlyGpu(
  device: string,
  environment: Record<string, string | undefined>,
  log: Logger,
): Promise<OnlyGpu> {
  const index = indexOf(device);
  const visibility = visibleDevice(index, environment['CUDA_VISIBLE_DEVICES']);
  if ('refusal' in visibility) throw new Refused(visibility.refusal);
  const found = await nvidiaDevice(visibility.devices);
  if (!found.ok) throw new Refused(found.reason, { isAbsence: found.isAbsence });
  if (found.device.caution !== undefined) log.warn({ device: `cuda:${index}` }, found.device.caution);
  environment['CUDA_DEVICE_ORDER'] ??= 'PCI_BUS_ID'; // or index 0 of CUDA is not index 0 of the driver
  environment['CUDA_VISIBLE_DEVICES'] = visibility.devices;
  return { device: `cuda:${index}`, found: found.device };
}
