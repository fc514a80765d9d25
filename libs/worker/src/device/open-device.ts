// The device a worker runs on: the first of CUDA, WebGPU and the CPU that exists, runs the model where it says it does,
// and gives the vectors it should. Whoever asked for a GPU gets one or a refusal that names every reason; only `auto`
// goes on to the next. Nothing is claimed before this has answered.

import { access, stat } from 'node:fs/promises';
import type { InferenceBackend, Logger, Precision, Settings } from '@shoal/core';
import { OrtBackend, cudaProviderProblem, type OrtBackendOptions, type Provider } from '@shoal/inference';
import { openGraph, type GraphKind, type StoredModel } from '@shoal/models';
import { onlyGpu } from './only-gpu.ts';
import { openCanary, type Canary, type CanaryOptions } from './canary.ts';
import { cpuSessions, threadsEach } from './cpu-sessions.ts';
import { linkKeptProvider } from './cuda-provider.ts';
import { Refused, noDevice, refusalOf, tellForcedCpu, tellRefusals, type Refusal } from './device-refusals.ts';
import { hostMemory } from './host-memory.ts';
import { nativeEncoder } from './open-native-encoder.ts';
import { LEAST_COSINE, accepted } from './truth-gate.ts';
import { visibleDevice } from './cuda-visibility.ts';

export type SlotSizes = Pick<OrtBackendOptions, 'dims' | 'slotRows' | 'slotTokens'>;

export interface DeviceOptions extends CanaryOptions {
  /** auto, cpu or gpu:<index> */
  readonly device: string;
  readonly precision: 'auto' | Precision;
  /**
   * What computes on CUDA. Default auto: the native encoder where it was built and gives the vectors, else ONNX
   * Runtime.
   */
  readonly encoder?: Settings['encoder'] | undefined;
  readonly slots: SlotSizes;
  /**
   * Sessions or lanes side by side; undefined: on a GPU what was measured, else as many as its memory allows without a
   * thought; on a CPU cpuSessions.
   */
  readonly sessions?: number | undefined;
  /** Of this process: CUDA_VISIBLE_DEVICES is set in it. */
  readonly environment: Record<string, string | undefined>;
  readonly log: Logger;
}

/** Of a precision that somebody chose knowingly. Below, the device computes nonsense. */
const LEAST_COSINE_CHOSEN = 0.99;

/** `slots` may depend on what is found: called with "cuda", "webgpu" or "cpu". */
export async function openDevice({
  slots,
  ...options
}: Omit<DeviceOptions, 'slots'> & {
  readonly slots: SlotSizes | ((provider: Provider) => SlotSizes);
}): Promise<InferenceBackend> {
  const { device, environment, log } = options;
  tellForcedCpu(log, environment);
  const refusals: Refusal[] = [];
  for (const provider of providersFor(device)) {
    try {
      const backend = await openers[provider]({
        ...options,
        slots: typeof slots === 'function' ? slots(provider) : slots,
      });
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

const openers: Readonly<Record<Provider, (options: DeviceOptions) => Promise<InferenceBackend>>> = {
  cuda: openCuda,
  webgpu: openWebGpu,
  cpu: openCpu,
};

/** From here on a second session is worth its copy of weights and arena: 5 % more texts per second on an H200. */
const LARGE_CARD_BYTES = 40e9;

// ---- cuda -------------------------------------------------------------------------------------------------------

async function openCuda(options: DeviceOptions): Promise<InferenceBackend> {
  const { environment, model, log } = options;
  if (model.graphKind === 'int8')
    throw new Refused(`${model.name} is an int8 model, and those run on CPUs alone`, { isAbsence: true });
  const { device, found } = await onlyGpu(options.device, environment, log);
  const totalBytes = found.reading?.totalBytes ?? 0;
  const usualLanes = totalBytes >= LARGE_CARD_BYTES ? 2 : 1;
  const place = { device, deviceKind: found.reading?.name, readMemory: found.readMemory, probe: found.probe };
  const native = await nativeEncoder(options, { ...place, usualLanes });
  if (native !== undefined) return native;
  await linkKeptProvider(options.cacheDir);
  const problem = await cudaProviderProblem();
  if (problem !== undefined) throw new Refused(problem);
  return firstPrecise({ ...options, sessions: options.sessions ?? usualLanes }, CUDA_KINDS, {
    ...place,
    provider: 'cuda',
  });
}

// ---- webgpu -----------------------------------------------------------------------------------------------------

async function openWebGpu(options: DeviceOptions): Promise<InferenceBackend> {
  const visibility = visibleDevice(0, options.environment['CUDA_VISIBLE_DEVICES']);
  if ('refusal' in visibility) throw new Refused(visibility.refusal); // WebGPU would see the GPU that somebody hid
  if (options.model.graphKind === 'int8') throw new Refused('int8 models run on CPUs alone', { isAbsence: true });
  // a driver that somebody chose may need no device, such as Mesa's in software
  const isNamed = options.environment['VK_DRIVER_FILES'] !== undefined;
  if (process.platform === 'linux' && !isNamed && !(await exists('/dev/dri')) && !(await exists('/dev/dxg')))
    throw new Refused('no graphics device in /dev/dri', { isAbsence: true });
  return firstPrecise(options, WEBGPU_KINDS, { provider: 'webgpu', device: 'webgpu:0' });
}

function exists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}

// ---- cpu --------------------------------------------------------------------------------------------------------

async function openCpu({ model, slots, threads, sessions: asked, cacheDir }: DeviceOptions): Promise<InferenceBackend> {
  const graphPath = await openGraph(model, { cacheDir });
  const sessions =
    asked ??
    cpuSessions({
      threads,
      graphBytes: (await stat(graphPath)).size,
      memoryBytes: (await hostMemory().read())?.totalBytes ?? 0,
    });
  return OrtBackend.open({
    ...slots,
    sessions,
    threads: threadsEach(threads, sessions),
    precision: model.precision,
    graphPath,
  });
}

// ---- precision --------------------------------------------------------------------------------------------------

type Kinds = Readonly<Partial<Record<Precision, GraphKind>>>;

/**
 * Of the graphs in fp16 the fused one was the fastest on an H200, in bulk by 2 % and alone by 6 %, at the same least
 * cosine (bench/results/gpu.md).
 */
const CUDA_KINDS: Kinds = { fp16: 'fused-fp16', fp32: 'cuda-fp32', bf16: 'cuda-bf16' };
const WEBGPU_KINDS: Kinds = { fp16: 'plain-fp16', fp32: 'plain-fp32' };

type Place = Pick<OrtBackendOptions, 'provider' | 'device' | 'deviceKind' | 'readMemory' | 'probe'>;

/** fp16 where it gives the vectors of fp32, else fp32; or what was asked for, if the device can do it at all. */
async function firstPrecise(options: DeviceOptions, kinds: Kinds, place: Place): Promise<InferenceBackend> {
  const { model, precision, log } = options;
  const canary = await openCanary(options);
  if (model.graphKind === 'imported')
    return openProven(options, {
      precision: model.precision,
      kind: 'imported',
      kinds,
      place,
      canary,
      least: LEAST_COSINE_CHOSEN,
    });
  const chosen = precision === 'auto' ? undefined : precision;
  const wanted: readonly Precision[] = chosen === undefined ? ['fp16', 'fp32'] : [chosen];
  for (const [attempt, tried] of wanted.entries()) {
    const kind = kinds[tried];
    if (kind === undefined) throw new Refused(`${String(place.provider)} has no graph in ${tried}`);
    const isLast = attempt === wanted.length - 1;
    try {
      return await openProven(options, {
        precision: tried,
        kind,
        kinds,
        place,
        canary,
        least: chosen === undefined ? LEAST_COSINE : LEAST_COSINE_CHOSEN,
      });
    } catch (error) {
      if (isLast) throw error;
      log.warn(
        { device: place.device, precision: tried, reason: error instanceof Error ? error.message : String(error) },
        'precision refused, trying the next',
      );
    }
  }
  throw new Refused('no precision was left to try');
}

interface Attempt {
  readonly precision: Precision;
  readonly kind: StoredModel['graphKind'];
  readonly kinds: Kinds;
  readonly place: Place;
  readonly canary: Canary;
  readonly least: number;
}

/** Opens the graph and holds its vectors against those of the CPU. */
async function openProven(options: DeviceOptions, attempt: Attempt): Promise<OrtBackend> {
  return accepted(await openIn(options, attempt), attempt.canary, attempt.least, options.log);
}

async function openIn(
  { model, slots, cacheDir, sessions }: DeviceOptions,
  { precision, kind, kinds, place }: Attempt,
): Promise<OrtBackend> {
  const graphPath = await openGraph(model, { cacheDir, kind });
  const exactGraphPath =
    precision === 'fp32' || kind === 'imported' || kinds.fp32 === undefined
      ? undefined
      : await openGraph(model, { cacheDir, kind: kinds.fp32 });
  return OrtBackend.open({
    ...slots,
    ...place,
    threads: 1,
    precision,
    graphPath,
    exactGraphPath,
    ...(sessions !== undefined && { sessions }),
  });
}
