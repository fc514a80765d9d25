// The device a worker runs on: the first of CUDA, WebGPU and the CPU that exists, runs the model where it says it does, and
// gives the vectors it should. Whoever asked for a GPU gets one or a refusal that names every reason; only `auto` goes on to
// the next. Nothing is claimed before this has answered.

import { access } from 'node:fs/promises';
import { ShoalError, type InferenceBackend, type Logger, type Precision } from '@shoal/core';
import { OrtBackend, cudaProviderProblem, type OrtBackendOptions, type Provider } from '@shoal/inference';
import { openGraph, type GraphKind, type StoredModel } from '@shoal/models';
import { openCanary, type Canary, type CanaryOptions } from './canary.ts';
import { linkKeptProvider } from './cuda-provider.ts';
import { nvidiaDevice } from './nvidia-device.ts';
import { visibleDevice } from './cuda-visibility.ts';

export interface DeviceOptions extends CanaryOptions {
  /** auto, cpu or gpu:<index> */
  readonly device: string;
  readonly precision: 'auto' | Precision;
  /** Sizes of the slots. */
  readonly slots: Pick<OrtBackendOptions, 'dims' | 'slotRows' | 'slotTokens'>;
  /** Sessions side by side on a GPU; undefined: as many as its memory allows without a thought. */
  readonly sessions?: number | undefined;
  /** What ONNX Runtime is called through. Default: auto. */
  readonly binding?: OrtBackendOptions['binding'];
  /** Of this process: CUDA_VISIBLE_DEVICES is set in it. */
  readonly environment: Record<string, string | undefined>;
  readonly log: Logger;
}

/** Below this a precision is not what was asked for: the vectors of one job would depend on who ran it. */
const LEAST_COSINE = 0.9999;
/** Of a precision that somebody chose knowingly. Below, the device computes nonsense. */
const LEAST_COSINE_CHOSEN = 0.99;

interface Refusal {
  readonly provider: Provider;
  readonly reason: string;
  /** There is nothing of the kind here, which is no news to anybody. */
  readonly isAbsence: boolean;
}

class Refused extends Error {
  readonly isAbsence: boolean;
  constructor(reason: string, { isAbsence = false } = {}) {
    super(reason);
    this.isAbsence = isAbsence;
  }
}

export async function openDevice(options: DeviceOptions): Promise<InferenceBackend> {
  const { device, environment, log } = options;
  if (environment['SHOAL_FORCE_CPU'] === '1') log.warn({ device: 'cpu' }, 'SHOAL_FORCE_CPU=1: running on the CPU, whatever else is here');
  const refusals: Refusal[] = [];
  for (const provider of providersFor(device)) {
    try {
      const backend = await openers[provider](options);
      tell(log, refusals, backend.device);
      return backend;
    } catch (error) {
      refusals.push({ provider, reason: error instanceof Error ? error.message : String(error), isAbsence: error instanceof Refused && error.isAbsence });
      if (provider === 'cpu') throw error;
    }
  }
  throw new ShoalError('SETUP_FAILED', `device ${device} was asked for and cannot be used; ${inWords(refusals)}. "shoal doctor" looks closer; --device cpu runs on the CPU`, { device });
}

/** WebGPU has no choice of adapter, so that it can only be the first GPU. */
function providersFor(device: string): readonly Provider[] {
  if (device === 'cpu') return ['cpu'];
  if (device === 'auto') return ['cuda', 'webgpu', 'cpu'];
  return device === 'gpu:0' ? ['cuda', 'webgpu'] : ['cuda'];
}

const openers: Readonly<Record<Provider, (options: DeviceOptions) => Promise<InferenceBackend>>> = { cuda: openCuda, webgpu: openWebGpu, cpu: openCpu };

/** One line: a warning when a GPU is here and does not serve, else what everybody expects. */
function tell(log: Logger, refusals: readonly Refusal[], device: string): void {
  if (refusals.length === 0) return;
  const facts = { device, tried: Object.fromEntries(refusals.map(({ provider, reason }) => [provider, reason])) };
  if (refusals.every(({ isAbsence }) => isAbsence)) log.info(facts, 'there is no GPU here that could be used');
  else log.warn(facts, 'a GPU is not used; "shoal doctor" says what to do');
}

function inWords(refusals: readonly Refusal[]): string {
  return refusals.map(({ provider, reason }) => `${provider}: ${reason}`).join('; ');
}

/** From here on a second session is worth its copy of weights and arena: 5 % more texts per second on an H200. */
const LARGE_CARD_BYTES = 40e9;

// ---- cuda -------------------------------------------------------------------------------------------------------

async function openCuda(options: DeviceOptions): Promise<InferenceBackend> {
  const { environment, model } = options;
  const index = indexOf(options.device);
  if (model.graphKind === 'int8') throw new Refused(`${model.name} is an int8 model, and those run on CPUs alone`, { isAbsence: true });
  const visibility = visibleDevice(index, environment['CUDA_VISIBLE_DEVICES']);
  if ('refusal' in visibility) throw new Refused(visibility.refusal);
  const found = await nvidiaDevice(visibility.devices);
  if (!found.ok) throw new Refused(found.reason, { isAbsence: found.isAbsence });
  await linkKeptProvider(options.cacheDir);
  const problem = await cudaProviderProblem();
  if (problem !== undefined) throw new Refused(problem);
  environment['CUDA_DEVICE_ORDER'] ??= 'PCI_BUS_ID'; // or index 0 of CUDA is not index 0 of the driver
  environment['CUDA_VISIBLE_DEVICES'] = visibility.devices;
  const totalBytes = found.device.reading?.totalBytes ?? 0;
  const sessions = options.sessions ?? (totalBytes >= LARGE_CARD_BYTES ? 2 : 1);
  return firstPrecise({ ...options, sessions }, CUDA_KINDS, { provider: 'cuda', device: `cuda:${index}`, deviceKind: found.device.reading?.name, readMemory: found.device.readMemory, probe: found.device.probe });
}

function indexOf(device: string): number {
  return device === 'auto' ? 0 : Number(device.slice('gpu:'.length));
}

// ---- webgpu -----------------------------------------------------------------------------------------------------

async function openWebGpu(options: DeviceOptions): Promise<InferenceBackend> {
  const visibility = visibleDevice(0, options.environment['CUDA_VISIBLE_DEVICES']);
  if ('refusal' in visibility) throw new Refused(visibility.refusal); // WebGPU would see the GPU that somebody hid
  if (options.model.graphKind === 'int8') throw new Refused('int8 models run on CPUs alone', { isAbsence: true });
  if (process.platform === 'linux' && !(await exists('/dev/dri')) && !(await exists('/dev/dxg'))) throw new Refused('no graphics device in /dev/dri', { isAbsence: true });
  return firstPrecise(options, WEBGPU_KINDS, { provider: 'webgpu', device: 'webgpu:0' });
}

function exists(path: string): Promise<boolean> {
  return access(path).then(() => true, () => false);
}

// ---- cpu --------------------------------------------------------------------------------------------------------

async function openCpu({ model, slots, threads, cacheDir, binding, environment }: DeviceOptions): Promise<InferenceBackend> {
  return OrtBackend.open({ ...slots, binding, arenaBytes: faultyArenaBytes(environment), threads, precision: model.precision, graphPath: await openGraph(model, { cacheDir }) });
}

/** For tests and benches: an arena that is smaller than anybody is told, so that runs find no room. */
function faultyArenaBytes({ SHOAL_FAULT_ARENA_BYTES: bytes }: DeviceOptions['environment']): number | undefined {
  return bytes === undefined ? undefined : Number(bytes);
}

// ---- precision --------------------------------------------------------------------------------------------------

type Kinds = Readonly<Partial<Record<Precision, GraphKind>>>;

/** Of the graphs in fp16 the fused one was the fastest on an H200, in bulk by 2 % and alone by 6 %, at the same least cosine (bench/results/gpu.md). */
const CUDA_KINDS: Kinds = { fp16: 'fused-fp16', fp32: 'cuda-fp32', bf16: 'cuda-bf16' };
const WEBGPU_KINDS: Kinds = { fp16: 'plain-fp16', fp32: 'plain-fp32' };

type Place = Pick<OrtBackendOptions, 'provider' | 'device' | 'deviceKind' | 'readMemory' | 'probe'>;

/** fp16 where it gives the vectors of fp32, else fp32; or what was asked for, if the device can do it at all. */
async function firstPrecise(options: DeviceOptions, kinds: Kinds, place: Place): Promise<InferenceBackend> {
  const { model, precision, log } = options;
  const canary = await openCanary(options);
  if (model.graphKind === 'imported') return accepted(await openIn(options, model.precision, 'imported', kinds, place), canary, LEAST_COSINE_CHOSEN, log);
  const chosen = precision === 'auto' ? undefined : precision;
  const wanted: readonly Precision[] = chosen === undefined ? ['fp16', 'fp32'] : [chosen];
  for (const [attempt, tried] of wanted.entries()) {
    const kind = kinds[tried];
    if (kind === undefined) throw new Refused(`${String(place.provider)} has no graph in ${tried}`);
    const isLast = attempt === wanted.length - 1;
    try {
      return await accepted(await openIn(options, tried, kind, kinds, place), canary, chosen === undefined ? LEAST_COSINE : LEAST_COSINE_CHOSEN, log);
    } catch (error) {
      if (isLast) throw error;
      log.warn({ device: place.device, precision: tried, reason: error instanceof Error ? error.message : String(error) }, 'precision refused, trying the next');
    }
  }
  throw new Refused('no precision was left to try');
}

async function openIn({ model, slots, cacheDir, sessions, binding, environment }: DeviceOptions, precision: Precision, kind: StoredModel['graphKind'], kinds: Kinds, place: Place): Promise<OrtBackend> {
  const graphPath = await openGraph(model, { cacheDir, kind });
  const exactGraphPath = precision === 'fp32' || kind === 'imported' || kinds.fp32 === undefined ? undefined : await openGraph(model, { cacheDir, kind: kinds.fp32 });
  return OrtBackend.open({ ...slots, ...place, binding, arenaBytes: faultyArenaBytes(environment), threads: 1, precision, graphPath, exactGraphPath, ...(sessions !== undefined && { sessions }) });
}

/** The backend, if it gives the vectors that the CPU gives in fp32; else it is closed again. */
async function accepted(backend: OrtBackend, canary: Canary, least: number, log: Logger): Promise<OrtBackend> {
  const cosine = await canary(backend).catch(async (error: unknown) => {
    await backend.stop();
    throw error;
  });
  if (cosine >= least) {
    log.info({ device: backend.device, precision: backend.precision, leastCosine: cosine }, 'device gives the vectors of fp32');
    return backend;
  }
  await backend.stop();
  throw new Refused(`its vectors in ${backend.precision} are not those of fp32: least cosine ${cosine.toFixed(6)} where ${least} is asked for`);
}
