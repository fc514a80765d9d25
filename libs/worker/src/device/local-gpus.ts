// The GPUs of this machine that a worker each could run on, for whoever starts them all. Looks; opens nothing, so that
// a GPU named here may still refuse its worker.

import { cudaProviderProblem, nativeEncoderProblem } from '@shoal/inference';
import { readDevices, readSlices, type DeviceReading, type ReadDevicesOptions } from '@shoal/ops';
import { linkKeptProvider } from './cuda-provider.ts';
import { listedDevices } from './cuda-visibility.ts';
import { unusable } from './nvidia-device.ts';

export interface LocalGpus {
  /** Indexes, UUIDs and MIG ids: as CUDA_VISIBLE_DEVICES they make gpu:0, gpu:1, … of themselves. */
  readonly ids: readonly string[];
  /** Why GPUs that are here stay idle, a sentence each. */
  readonly refusals: readonly string[];
}

export interface LocalGpusOptions {
  readonly cacheDir: string;
  /** Its CUDA_VISIBLE_DEVICES says which there are, where it is set. */
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly tool?: ReadDevicesOptions;
  /** Why the CUDA provider cannot be loaded. */
  readonly providerProblem?: () => Promise<string | undefined>;
}

export async function localGpus({
  cacheDir,
  environment,
  tool = {},
  providerProblem = cudaProviderProblem,
}: LocalGpusOptions): Promise<LocalGpus> {
  const read = await readDevices(tool);
  if (!read.ok)
    return { ids: [], refusals: read.reason === 'no-tool' || read.reason === 'no-device' ? [] : [read.message] };
  const { fit, refusals: unfit } = sorted(read.devices);
  const given = environment['CUDA_VISIBLE_DEVICES'];
  const { present, refusals: absent } = known(given === undefined ? [] : listedDevices(given), read.devices);
  const ids =
    given === undefined ? await withSlices(fit, tool) : present.filter((id) => !isRefused(id, read.devices, fit));
  const refusals = [...unfit, ...absent];
  if (ids.length === 0) return { ids, refusals };
  await linkKeptProvider(cacheDir);
  const missing = await providerProblem();
  // either of the two is enough
  const problem = missing !== undefined && nativeEncoderProblem() === undefined ? undefined : missing;
  return problem === undefined ? { ids, refusals } : { ids: [], refusals: [...refusals, problem] };
}

function sorted(devices: readonly DeviceReading[]): {
  readonly fit: readonly DeviceReading[];
  readonly refusals: readonly string[];
} {
  const checked = devices.map((device) => ({ device, refusal: unusable(device)?.reason }));
  return {
    fit: checked.flatMap(({ device, refusal }) => (refusal === undefined ? [device] : [])),
    refusals: [...new Set(checked.flatMap(({ refusal }) => refusal ?? []))],
  };
}

/** A GPU cut into slices is as many devices, and none as a whole. */
async function withSlices(devices: readonly DeviceReading[], tool: ReadDevicesOptions): Promise<string[]> {
  const slices = devices.some(isCut) ? await readSlices(tool) : [];
  return devices.flatMap((device) =>
    isCut(device)
      ? slices.filter(({ deviceIndex }) => deviceIndex === device.index).map(({ id }) => id)
      : [String(device.index)],
  );
}

function isCut({ migMode }: DeviceReading): boolean {
  return migMode === 'Enabled';
}

/**
 * As CUDA reads the list: the first entry that names no GPU ends it, and what stands behind it is not seen by any
 * process. A GPU that is named twice, or by index and UUID, is one. Slices are not looked up: the driver lists them
 * elsewhere, and their worker will tell.
 */
function known(
  listed: readonly string[],
  devices: readonly DeviceReading[],
): { readonly present: readonly string[]; readonly refusals: readonly string[] } {
  const absent = listed.findIndex((id) => isAbsent(id, devices));
  const seen = absent === -1 ? listed : listed.slice(0, absent);
  const numbers = seen.map((id) => named(id, devices)?.index ?? id);
  return {
    present: seen.filter((_, at) => numbers.indexOf(numbers[at]!) === at),
    refusals:
      absent === -1
        ? []
        : [
            `CUDA_VISIBLE_DEVICES names ${listed[absent]}, which the driver does not know; CUDA sees nothing ` +
              'from there on',
          ],
  };
}

/** None that is named by its UUID is absent while the driver does not tell them all. */
function isAbsent(id: string, devices: readonly DeviceReading[]): boolean {
  return (
    !id.startsWith('MIG-') &&
    named(id, devices) === undefined &&
    (!id.startsWith('GPU-') || devices.every(({ uuid }) => uuid !== undefined))
  );
}

function named(id: string, devices: readonly DeviceReading[]): DeviceReading | undefined {
  return devices.find(({ index, uuid }) =>
    /^\d+$/.test(id) ? index === Number(id) : id.startsWith('GPU-') && uuid?.startsWith(id),
  );
}

function isRefused(id: string, all: readonly DeviceReading[], fit: readonly DeviceReading[]): boolean {
  return named(id, all) !== undefined && named(id, fit) === undefined;
}
