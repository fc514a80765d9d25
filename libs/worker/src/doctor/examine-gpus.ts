// What `shoal doctor` finds out about GPUs: driver, cards, permission, provider. Looks at everything that can be looked
// at before the first thing that fails, so that one visit is enough. Changes nothing.

import { access, constants, readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { nativeCure } from '@shoal/core/base';
import { cudaProviderProblem, findsCudnn, installedRuntime, nativeEncoderProblem } from '@shoal/inference';
import {
  readDetails,
  readDevices,
  readProcesses,
  readSlices,
  type DeviceDetails,
  type DeviceReading,
  type ReadDevicesOptions,
} from '@shoal/ops';
import type { Finding } from './finding.ts';
import { linkKeptProvider } from '../device/cuda-provider.ts';
import { visibleDevice } from '../device/cuda-visibility.ts';
import { unusable } from '../device/nvidia-device.ts';

export interface ExamineGpusOptions extends ReadDevicesOptions {
  /** Where `shoal gpu install` keeps what it fetches. */
  readonly cacheDir?: string;
  readonly environment: Readonly<Record<string, string | undefined>>;
  /** The folder of device files; given by tests alone. */
  readonly deviceFolder?: string;
  /** Given by tests alone: root may open everything. */
  readonly mayOpen?: (path: string) => Promise<boolean>;
  /** Why the provider cannot be loaded; given by tests alone. */
  readonly providerProblem?: () => Promise<string | undefined>;
  /** Why the native encoder cannot be used; given by tests alone. */
  readonly encoderProblem?: () => string | undefined;
  /** The CUDA kernels for similarity. Unset: beside the native code. */
  readonly cudaLibrary?: string | undefined;
}

const SLOW_WITHOUT_PERSISTENCE =
  'sudo nvidia-smi -pm 1 keeps the driver loaded between processes, so that workers start faster';

export async function examineGpus(options: ExamineGpusOptions): Promise<readonly Finding[]> {
  const read = await readDevices(options);
  if (!read.ok) return [driverFinding(read), ...(await providerFindings(options, false))];
  if (read.devices.length === 0)
    return [{ about: 'driver', state: 'absent', found: 'the NVIDIA driver is installed and knows no GPU' }];
  const [details, slices, processes] = await Promise.all([
    readDetails(options),
    readSlices(options),
    readProcesses(options),
  ]);
  const cards = read.devices.flatMap((device) => {
    const own = details.find(({ index }) => index === device.index);
    const others = processes.filter(({ deviceUuid }) => deviceUuid !== undefined && deviceUuid === device.uuid);
    const mig = slices
      .filter(({ deviceIndex }) => deviceIndex === device.index)
      .map(({ id, profile }) => `${id} (${profile})`);
    return [
      cardFinding(device),
      memoryFinding(device, others.length),
      ...(own === undefined ? [] : stateFindings(device, own, mig)),
    ];
  });
  return [
    {
      about: 'driver',
      state: 'ok',
      found:
        `NVIDIA driver ${read.devices[0]?.driverVersion ?? 'of unknown version'}, ` +
        `${read.devices.length === 1 ? 'one GPU' : `${read.devices.length} GPUs`}`,
    },
    ...cards,
    ...(await permissionFindings(options)),
    ...visibilityFindings(options),
    encoderFinding(options),
    await similarityFinding(options),
    ...(await providerFindings(options, true)),
  ];
}

function driverFinding(read: Extract<Awaited<ReturnType<typeof readDevices>>, { ok: false }>): Finding {
  if (read.reason === 'no-tool') return { about: 'driver', state: 'absent', found: read.message };
  const cure =
    read.reason === 'no-answer'
      ? 'look at dmesg for Xid errors; a hung driver needs a restart of the machine'
      : 'reinstall the NVIDIA driver, or restart the machine after an update of it';
  return { about: 'driver', state: 'broken', found: read.message, cure };
}

function cardFinding(device: DeviceReading): Finding {
  const about = `gpu:${device.index}`;
  const problem = unusable(device);
  const { name = 'a GPU of unknown name', computeCapability = 'unknown' } = device;
  const found = `${name}, compute capability ${computeCapability}`;
  return problem === undefined
    ? { about, state: 'ok', found }
    : {
        about,
        state: 'broken',
        found: problem.reason,
        cure: 'use --device cpu for this machine, or another card or driver',
      };
}

const LITTLE_BYTES = 2 ** 30;

function memoryFinding({ index, totalBytes, freeBytes }: DeviceReading, processes: number): Finding {
  const about = `gpu:${index} memory`;
  if (totalBytes === undefined || freeBytes === undefined)
    return {
      about,
      state: 'warning',
      found: 'the driver does not tell how much memory is free',
      cure: 'set maxPaddedTokens (or maxDeviceBytes); the budget grows by trial',
    };
  const found =
    `${gigabytes(freeBytes)} of ${gigabytes(totalBytes)} GB ` +
    `free${processes === 0 ? '' : `, ${processes} other ${processes === 1 ? 'process' : 'processes'} on it`}`;
  return freeBytes < LITTLE_BYTES
    ? { about, state: 'warning', found, cure: 'stop what else runs on this GPU, or expect small batches' }
    : { about, state: 'ok', found };
}

/** What the driver says of the card's state; nothing of what it does not tell or what is as usual. */
function stateFindings(
  { index }: DeviceReading,
  details: DeviceDetails,
  slices: readonly string[],
): readonly Finding[] {
  const found = [eccState(details), migState(details, slices), modeState(details), persistenceState(details)];
  return found.flatMap((state) => (state === undefined ? [] : [{ ...state, about: `gpu:${index} ${state.about}` }]));
}

function eccState({ isEccOn, uncorrectedErrors = 0 }: DeviceDetails): Finding {
  if (uncorrectedErrors > 0)
    return {
      about: 'ECC',
      state: 'broken',
      found: `${uncorrectedErrors} uncorrected memory errors since the driver was loaded`,
      cure: 'restart the machine; if they come back the card is to be replaced',
    };
  const found = isEccOn === undefined ? 'not told' : isEccOn ? 'on, no uncorrected errors' : 'off';
  return { about: 'ECC', state: 'ok', found };
}

function migState({ isMigOn }: DeviceDetails, slices: readonly string[]): Finding | undefined {
  if (isMigOn !== true) return undefined;
  if (slices.length === 0)
    return {
      about: 'MIG',
      state: 'broken',
      found: 'MIG is on and there is no slice, so nothing can run here',
      cure: 'make slices (nvidia-smi mig -cgi … -C) or switch MIG off',
    };
  const found = `sliced: ${slices.join(', ')}; name one in CUDA_VISIBLE_DEVICES for each worker`;
  return { about: 'MIG', state: 'ok', found };
}

function modeState({ computeMode }: DeviceDetails): Finding | undefined {
  if (computeMode === 'Prohibited')
    return {
      about: 'mode',
      state: 'broken',
      found: 'compute mode is Prohibited',
      cure: 'an administrator has to set it to Default',
    };
  if (computeMode === 'Exclusive_Process')
    return {
      about: 'mode',
      state: 'warning',
      found: 'compute mode is Exclusive_Process: one worker at a time, and nothing beside it',
      cure: 'an administrator can set it to Default',
    };
  return undefined;
}

function persistenceState({ isPersistent }: DeviceDetails): Finding | undefined {
  if (isPersistent !== false) return undefined;
  return {
    about: 'persistence',
    state: 'warning',
    found: 'persistence mode is off',
    cure: SLOW_WITHOUT_PERSISTENCE,
  };
}

async function permissionFindings({ deviceFolder = '/dev', mayOpen = mayUse }: ExamineGpusOptions): Promise<Finding[]> {
  const names = (await readdir(deviceFolder).catch(() => [])).filter((name) => /^nvidia(\d+|ctl|-uvm)$/.test(name));
  const closed = (
    await Promise.all(names.map(async (name) => ((await mayOpen(join(deviceFolder, name))) ? [] : [name])))
  ).flat();
  if (closed.length === 0) return [];
  return [
    {
      about: 'permission',
      state: 'broken',
      found: `this user may not open ${closed.map((name) => join(deviceFolder, name)).join(', ')}`,
      cure: 'add the user to the group that owns them (often video or render), or start the container with --gpus',
    },
  ];
}

function mayUse(path: string): Promise<boolean> {
  return access(path, constants.R_OK | constants.W_OK).then(
    () => true,
    () => false,
  );
}

function visibilityFindings({ environment }: ExamineGpusOptions): Finding[] {
  const given = environment['CUDA_VISIBLE_DEVICES'];
  if (given === undefined) return [];
  const visibility = visibleDevice(0, given);
  return [
    'refusal' in visibility
      ? {
          about: 'CUDA_VISIBLE_DEVICES',
          state: 'broken',
          found: visibility.refusal,
          cure: 'unset CUDA_VISIBLE_DEVICES, or list the GPUs that may be used',
        }
      : { about: 'CUDA_VISIBLE_DEVICES', state: 'ok', found: `${given}: gpu:0 is ${visibility.devices}` },
  ];
}

async function providerFindings(
  { providerProblem = cudaProviderProblem, environment, cacheDir }: ExamineGpusOptions,
  hasGpu: boolean,
): Promise<Finding[]> {
  if (cacheDir !== undefined) await linkKeptProvider(cacheDir);
  const problem = await providerProblem();
  if (!hasGpu) return [];
  if (problem === undefined)
    return [
      {
        about: 'CUDA provider',
        state: 'ok',
        found: `of ONNX Runtime ${installedRuntime().version}, and everything its loader needs`,
      },
      ...(await cudnnFindings(environment)),
    ];
  return [
    {
      about: 'CUDA provider',
      state: 'broken',
      found: problem,
      cure: problem.includes('not installed')
        ? 'shoal gpu install'
        : 'install CUDA 13 and cuDNN 9 (the packages nvidia-cublas, nvidia-cuda-runtime, nvidia-cudnn-cu13 … of ' +
          'pip hold them too)',
    },
  ];
}

/** Workers run without it, at about half the rate. */
function encoderFinding({ encoderProblem = nativeEncoderProblem }: ExamineGpusOptions): Finding {
  const problem = encoderProblem();
  if (problem === undefined) return { about: 'native encoder', state: 'ok', found: 'built, and finds a device' };
  return {
    about: 'native encoder',
    state: 'absent',
    found: `${problem}; ONNX Runtime serves`,
    cure: nativeCure(
      'cuda',
      '"shoal gpu install" builds it where there are CUDA\'s compiler (nvcc) and a C++ compiler',
    ),
  };
}

/**
 * Similarity workers run without it, on the CPU. Opens the library, which refuses another version of its interface, and
 * the driver.
 */
async function similarityFinding({ cudaLibrary }: ExamineGpusOptions): Promise<Finding> {
  const about = 'CUDA similarity';
  // not before a GPU is looked at: it takes a while to load
  const { cudaLibraryProblem, openCuda } = await import('@shoal/similarity');
  const absence = await cudaLibraryProblem(cudaLibrary);
  if (absence !== undefined)
    return {
      about,
      state: 'absent',
      found: `${absence}; the CPU compares`,
      cure: nativeCure(
        'cuda',
        '"shoal gpu install" builds it where there are CUDA\'s compiler (nvcc) and a C++ compiler; "npm run ' +
          'fetch-nvcc" fetches the former',
      ),
    };
  const opened = openCuda(cudaLibrary);
  if (!opened.ok)
    return {
      about,
      state: 'warning',
      found: `${opened.reason}; the CPU compares`,
      cure: 'get it anew ("shoal gpu install"), or see the lines above for driver and GPUs',
    };
  const { path, devices } = opened.cuda;
  const cards = devices.map(
    ({ name, compute, totalBytes }) => `${name} (${(compute / 10).toFixed(1)}, ${gigabytes(totalBytes)} GB)`,
  );
  return { about, state: 'ok', found: `${path} has the interface asked for and sees ${cards.join(', ')}` };
}

async function cudnnFindings(environment: ExamineGpusOptions['environment']): Promise<Finding[]> {
  if (await findsCudnn(environment)) return [];
  return [
    {
      about: 'cuDNN',
      state: 'warning',
      found: 'libcudnn.so.9 is neither known to the loader nor in LD_LIBRARY_PATH',
      cure: 'install cuDNN 9 for CUDA 13, should the model not open on the GPU',
    },
  ];
}

function gigabytes(bytes: number): string {
  return (bytes / 1e9).toFixed(1);
}
