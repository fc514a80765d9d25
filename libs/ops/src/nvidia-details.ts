// What a person wants to know of an NVIDIA GPU before trusting it with work: error correction, slices, modes, who else
// is on it. Asked once and not while serving; nvidia-smi.ts has what workers ask. What the driver does not tell is
// undefined, which is neither yes nor no.

import { askTool, hasAnswered, numberIn, textIn, type ReadDevicesOptions } from './nvidia-smi.ts';

export interface DeviceDetails {
  readonly index: number;
  readonly isEccOn: boolean | undefined;
  /** Since the driver was loaded; more than 0 means that results may have been wrong. */
  readonly uncorrectedErrors: number | undefined;
  readonly isMigOn: boolean | undefined;
  /** "Default"; in "Exclusive_Process" one process at a time, in "Prohibited" none. */
  readonly computeMode: string | undefined;
  readonly isPersistent: boolean | undefined;
  readonly powerLimitWatts: number | undefined;
  readonly reservedBytes: number | undefined;
}

export interface DeviceProcess {
  readonly pid: number;
  readonly deviceUuid: string | undefined;
  /** Undefined inside containers and on drivers that do not tell. */
  readonly usedBytes: number | undefined;
  readonly name: string | undefined;
}

export interface DeviceSlice {
  readonly deviceIndex: number;
  /** "1g.18gb" */
  readonly profile: string;
  /** For CUDA_VISIBLE_DEVICES. */
  readonly id: string;
}

const FIELDS = [
  'index',
  'ecc.mode.current',
  'ecc.errors.uncorrected.volatile.total',
  'mig.mode.current',
  'compute_mode',
  'persistence_mode',
  'power.limit',
  'memory.reserved',
] as const;
const MEBIBYTE = 1_048_576;

/** Empty when the tool does not answer, or not in this form. */
export async function readDetails(options: ReadDevicesOptions = {}): Promise<readonly DeviceDetails[]> {
  const lines = await linesOf([`--query-gpu=${FIELDS.join(',')}`, '--format=csv,noheader,nounits'], options);
  return lines.flatMap((line) => {
    const [index, ecc, errors, mig, computeMode, persistence, power, reserved] = line
      .split(',')
      .map((cell) => cell.trim());
    const number = numberIn(index);
    if (number === undefined || reserved === undefined) return [];
    return [
      {
        index: number,
        isEccOn: stateIn(ecc),
        uncorrectedErrors: numberIn(errors),
        isMigOn: stateIn(mig),
        computeMode: textIn(computeMode),
        isPersistent: stateIn(persistence),
        powerLimitWatts: numberIn(power),
        reservedBytes: mebibytes(reserved),
      },
    ];
  });
}

/**
 * Processes that compute on any GPU. Empty is no proof: inside virtual machines and containers the driver shows none.
 */
export async function readProcesses(options: ReadDevicesOptions = {}): Promise<readonly DeviceProcess[]> {
  const lines = await linesOf(
    ['--query-compute-apps=pid,gpu_uuid,used_gpu_memory,process_name', '--format=csv,noheader,nounits'],
    options,
  );
  return lines.flatMap((line) => {
    const [pid, uuid, used, ...name] = line.split(',').map((cell) => cell.trim());
    const number = numberIn(pid);
    return number === undefined || used === undefined
      ? []
      : [{ pid: number, deviceUuid: textIn(uuid), usedBytes: mebibytes(used), name: textIn(name.join(', ')) }];
  });
}

/** MIG slices, in the order of their GPUs. */
export async function readSlices(options: ReadDevicesOptions = {}): Promise<readonly DeviceSlice[]> {
  let deviceIndex = -1;
  return (await linesOf(['-L'], options)).flatMap((line) => {
    const gpu = /^GPU (\d+):/.exec(line)?.[1];
    if (gpu !== undefined) deviceIndex = Number(gpu);
    const slice = /^\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)/.exec(line);
    return slice === null ? [] : [{ deviceIndex, profile: slice[1]!, id: slice[2]! }];
  });
}

async function linesOf(args: readonly string[], options: ReadDevicesOptions): Promise<readonly string[]> {
  const answer = await askTool(args, options);
  return answer.ok && hasAnswered(answer.ended)
    ? answer.ended.output.split(/\r?\n/).filter((line) => line.trim() !== '')
    : [];
}

function stateIn(cell: string | undefined): boolean | undefined {
  const text = textIn(cell);
  return text === 'Enabled' ? true : text === 'Disabled' ? false : undefined;
}

function mebibytes(cell: string): number | undefined {
  const number = numberIn(cell);
  return number === undefined ? undefined : number * MEBIBYTE;
}
