// Whether the driver has this GPU, and whether it is one that the CUDA provider can use. Asks nvidia-smi; a machine
// where the tool is missing, but the driver is not, is let through: the first run will tell.

import { access } from 'node:fs/promises';
import type { MemoryProbe, MemoryReading } from '@shoal/core';
import type { DeviceReading, DevicesRead } from '@shoal/ops';

export interface NvidiaDevice {
  /** Undefined for a slice: what the tool tells is of the whole card. */
  readonly reading: DeviceReading | undefined;
  /** What whoever named it so should know. */
  readonly caution: string | undefined;
  /** What this process took from the device, if the others stayed as they were. */
  readonly readMemory: () => Promise<MemoryReading | undefined>;
  readonly probe: MemoryProbe;
}

export type NvidiaDeviceFound =
  | { readonly ok: true; readonly device: NvidiaDevice }
  | { readonly ok: false; readonly reason: string; readonly isAbsence: boolean };

/** The provider is built with CUDA 13, whose first driver is 580; its kernels begin with Turing. */
const LEAST_DRIVER = 580;
const LEAST_CAPABILITY = 7.5;
/** A reading takes 20 ms of another process. */
const MEMORY_MAX_AGE_MS = 1_000;

/** `id`: index, UUID or MIG id, as in CUDA_VISIBLE_DEVICES. */
export async function nvidiaDevice(id: string): Promise<NvidiaDeviceFound> {
  // not before a GPU is asked for: it takes a while to load
  const { cachedReader, readDevices } = await import('@shoal/ops');
  const isSlice = id.startsWith('MIG-'); // the tool lists those elsewhere
  const read = await readDevices(isSlice ? {} : { device: id });
  const refusal = await refusalOf(read, id);
  if (refusal !== undefined) return { ok: false, ...refusal };
  const [whole] = read.ok && !isSlice ? read.devices : [];
  const isCut = whole?.migMode === 'Enabled'; // by its index or UUID CUDA gives the first slice
  const reading = isCut ? undefined : whole;
  const isUnread = isSlice || isCut;
  const before = reading?.usedBytes;
  const again = cachedReader({ device: id }, MEMORY_MAX_AGE_MS);
  return {
    ok: true,
    device: {
      reading,
      caution: isCut
        ? `GPU ${id} is cut into slices (MIG): CUDA gives its first one, whose name and memory the driver does ` +
          'not tell; name a slice in CUDA_VISIBLE_DEVICES by its MIG id, see "nvidia-smi -L"'
        : undefined,
      readMemory: async () => (before === undefined ? undefined : takenSince(before, await again())),
      probe: { read: async () => (isUnread ? undefined : leftOf(await again())) },
    },
  };
}

function takenSince(before: number, read: DevicesRead): MemoryReading | undefined {
  const used = read.ok ? read.devices[0]?.usedBytes : undefined;
  return used === undefined
    ? undefined
    : { liveBytes: undefined, footprintBytes: Math.max(0, used - before), source: 'driver' };
}

function leftOf(read: DevicesRead): Awaited<ReturnType<MemoryProbe['read']>> {
  const { freeBytes, totalBytes } = (read.ok ? read.devices[0] : undefined) ?? {};
  return freeBytes === undefined || totalBytes === undefined ? undefined : { freeBytes, totalBytes };
}

async function refusalOf(read: DevicesRead, id: string): Promise<{ reason: string; isAbsence: boolean } | undefined> {
  if (!read.ok) {
    if (read.reason === 'no-tool')
      return (await hasDriver()) ? undefined : { reason: 'there is no NVIDIA driver on this machine', isAbsence: true };
    return read.reason === 'not-understood' ? undefined : { reason: read.message, isAbsence: false };
  }
  const [device] = read.devices;
  if (device === undefined) return { reason: 'the NVIDIA driver knows no GPU', isAbsence: true };
  if (id.startsWith('MIG-')) return undefined;
  return unusable(device);
}

/** A value that the driver does not tell speaks against nothing. */
export function unusable({
  index,
  name = 'GPU',
  driverVersion,
  computeCapability,
}: Pick<DeviceReading, 'index' | 'name' | 'driverVersion' | 'computeCapability'>):
  | { reason: string; isAbsence: boolean }
  | undefined {
  if (computeCapability !== undefined && Number(computeCapability) < LEAST_CAPABILITY) {
    return {
      reason:
        `${name} (index ${index}) has compute capability ${computeCapability}; the CUDA provider needs ` +
        `${LEAST_CAPABILITY} (Turing) or newer`,
      isAbsence: false,
    };
  }
  if (driverVersion !== undefined && Number.parseInt(driverVersion, 10) < LEAST_DRIVER) {
    return {
      reason: `the NVIDIA driver is ${driverVersion}; CUDA 13 needs ${LEAST_DRIVER} or newer: update the driver`,
      isAbsence: false,
    };
  }
  return undefined;
}

async function hasDriver(): Promise<boolean> {
  const found = await Promise.all(
    ['/dev/nvidiactl', '/dev/dxg'].map((path) =>
      access(path).then(
        () => true,
        () => false,
      ),
    ),
  );
  return found.includes(true);
}
