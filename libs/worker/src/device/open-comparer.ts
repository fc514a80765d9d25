// What a similarity worker computes with: the CPU alone, or a GPU with the CPU beside it for what is sooner done there
// and for the day the GPU fails. Whoever asked for a GPU gets one or a refusal that names every reason; `auto` goes on
// to the CPU. Both give known answers first (proveEngine).

import type { ShoalError } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { Thresholds, type MeasuredThresholds } from '@shoal/core/similarity';
import {
  CudaEngine,
  HybridEngine,
  cpuEngine,
  kernelsOn,
  measureThresholds,
  openCuda,
  proveEngine,
  type Engine,
  type Isa,
  type Kernels,
  type OpenedCuda,
} from '@shoal/similarity';
import { keepThresholds, readThresholds } from '../measure/threshold-store.ts';
import { onlyGpu } from './only-gpu.ts';
import { Refused, noDevice, refusalOf, tellForcedCpu, tellRefusals } from './device-refusals.ts';
import { cpuKind } from '../measure/profile-store.ts';

export interface ComparerOptions {
  /** auto, cpu or gpu:<index> */
  readonly device: string;
  readonly kernels: 'auto' | Isa;
  readonly threads: number;
  /** never: what a GPU can do it does, however small. */
  readonly smallOnCpu: 'auto' | 'never';
  /** Unset: beside the native code. */
  readonly cudaLibrary?: string | undefined;
  readonly memoryFraction: number;
  readonly maxDeviceBytes?: number | undefined;
  readonly cacheDir: string;
  /** The environment of this process: CUDA_VISIBLE_DEVICES is set in it. */
  readonly environment: Record<string, string | undefined>;
  readonly log: Logger;
  readonly onFellBack?: (error: ShoalError) => void;
}

export interface Comparer {
  readonly kernels: Kernels;
  /** "cuda:0", "cpu:avx512" */
  readonly device: string;
  readonly cpu: Engine;
  readonly gpu?: OpenGpu | undefined;
}

export interface OpenGpu {
  readonly engine: CudaEngine;
  readonly hybrid: HybridEngine;
  /** "NVIDIA H200" */
  readonly name: string;
  /** Names the two and this machine: thresholds are stored under it. */
  readonly key: string;
}

/** For the context, the kernels, and what the library keeps for its own calls beside what it is told it may use. */
const RESERVED_BYTES = 512 * 2 ** 20;
/** Of what may be used, for the work of a call and for rows that pass by. */
const WORK_SHARE = 1 / 8;
const MOST_WORK_BYTES = 2 ** 31;
const LEAST_WORK_BYTES = 1 << 20;

export async function openComparer(options: ComparerOptions): Promise<Comparer> {
  const { device, kernels, threads, environment, log } = options;
  const cpu = cpuEngine({ threads, ...(kernels === 'auto' ? {} : { isa: kernels }) });
  await proveEngine(cpu);
  const onCpu: Comparer = { kernels: kernelsOn(cpu), device: `cpu:${cpu.isa}`, cpu };
  tellForcedCpu(log, environment);
  if (device === 'cpu') return onCpu;
  try {
    return await openGpu(options, cpu);
  } catch (error) {
    const refusals = [refusalOf('cuda', error)];
    if (device !== 'auto') throw noDevice(device, refusals);
    tellRefusals(log, refusals, onCpu.device);
    return onCpu;
  }
}

async function openGpu(options: ComparerOptions, cpu: Engine): Promise<Comparer> {
  const { cudaLibrary, log, smallOnCpu: chooses, onFellBack, threads } = options;
  const { device, found } = await onlyGpu(options.device, options.environment, log);
  const opened = openCuda(cudaLibrary);
  if (!opened.ok) throw new Refused(opened.reason, { isAbsence: opened.isAbsence });
  const { cuda } = opened;
  const [{ name } = { name: 'GPU' }] = cuda.devices;
  const engine = new CudaEngine({ cuda, device: 0, ...budgetOf(options, found.reading ?? {}, cuda) });
  await proveEngine(engine).catch((error: unknown) => closed(engine, error));
  const key = `${name}, ${cpuKind(threads)}, ${cpu.isa}`;
  const measured =
    chooses === 'auto'
      ? await measuredThresholds(options, key, cpu, engine).catch((error: unknown) => closed(engine, error))
      : undefined;
  const hybrid = new HybridEngine({
    cpu,
    gpu: engine,
    chooses,
    thresholds: new Thresholds(measured),
    ...(onFellBack === undefined ? {} : { onFellBack }),
  });
  log.info({ device, name, residentBytes: engine.residents.budgetBytes, workBytes: engine.workBytes }, 'GPU compares');
  return { kernels: kernelsOn(hybrid), device, cpu, gpu: { engine, hybrid, name, key } };
}

/**
 * What is left for this worker of the share that it and all others may use together; the library's own word where the
 * driver's tool says nothing.
 */
function budgetOf(
  { memoryFraction, maxDeviceBytes = Infinity }: ComparerOptions,
  reading: { readonly totalBytes?: number | undefined; readonly freeBytes?: number | undefined },
  { devices: [first] }: OpenedCuda,
): { residentBytes: number; workBytes: number } {
  const totalBytes = reading.totalBytes ?? first?.totalBytes ?? 0;
  const freeBytes = Math.min(reading.freeBytes ?? Infinity, first?.freeBytes ?? Infinity);
  const left = Math.min(memoryFraction * totalBytes - (totalBytes - freeBytes) - RESERVED_BYTES, maxDeviceBytes);
  if (left < 2 * LEAST_WORK_BYTES)
    throw new Refused(
      `of its ${totalBytes} bytes of memory ${freeBytes} are free, which leaves this worker nothing after a ` +
        `reserve of ${RESERVED_BYTES}; others use it, or memoryFraction (${memoryFraction}) is small`,
    );
  const workBytes = Math.floor(Math.min(MOST_WORK_BYTES, Math.max(LEAST_WORK_BYTES, left * WORK_SHARE)));
  return { residentBytes: Math.floor(left - workBytes), workBytes };
}

/** What measuring or proving left on the device is no use to whoever goes on with the CPU. */
function closed(engine: CudaEngine, error: unknown): never {
  engine.close();
  throw error;
}

/** Measured once on a machine, then kept in the cache folder. */
async function measuredThresholds(
  { cacheDir, log }: ComparerOptions,
  key: string,
  cpu: Engine,
  gpu: CudaEngine,
): Promise<MeasuredThresholds> {
  const stored = await readThresholds(cacheDir, key, log);
  if (stored !== undefined) return stored;
  const startedMs = performance.now();
  const measured = await measureThresholds({ cpu, gpu });
  await keepThresholds(cacheDir, key, measured, log);
  log.info({ durationMs: Math.round(performance.now() - startedMs) }, 'measured from which sizes on the GPU is faster');
  return measured;
}
