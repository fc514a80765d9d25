// Measures what a model can do on a device: how much memory runs need, and the token budget at which the standard
// length mix gives most texts per second (budget-bench.ts). Ends within two minutes. Stores what it found. Where the
// native encoder serves, that is measured instead (tune-encoder.ts).

import { toFailure } from '@shoal/contract';
import {
  sizesOf,
  type DeviceProfileKey,
  type Logger,
  type MemoryLaw,
  type Settings,
  type Tokenizer,
} from '@shoal/core';
import { EncoderBackend, OrtBackend, type OrtBackendOptions } from '@shoal/inference';
import { readEncoder, type StoredModel } from '@shoal/models';
import { BudgetBench, MOST_TOKENS } from './budget-bench.ts';
import { encoderPreset, graphPreset } from './card-presets.ts';
import { CPU_KNEE_TOKENS } from './host-budget.ts';
import { measureMemory } from './measure-memory.ts';
import type { SlotSizes } from '../device/device-options.ts';
import { openDevice } from '../device/open-device.ts';
import { cpuKind, encoderKey, profileKey, storeProfile } from './profile-store.ts';
import { beats, choose, together, type TriedBudget } from './tried-budgets.ts';
import { tuneEncoder } from './tune-encoder.ts';

export interface TuneOptions {
  readonly model: StoredModel;
  readonly tokenizer: Tokenizer;
  readonly device: string;
  /** Default: auto. */
  readonly precision?: Settings['precision'];
  /** Default: auto. */
  readonly encoder?: Settings['encoder'];
  /** Lanes of the native encoder, sessions on a CPU. Unset: what is best. */
  readonly sessions?: Settings['deviceSessions'];
  readonly cacheDir: string;
  readonly threads: number;
  /** Unset: as the device that is found. */
  readonly maxRows?: number | undefined;
  readonly poolTokens?: number | undefined;
  readonly log: Logger;
  /** Hears how much is done, from 0 to 1. */
  readonly onProgress?: (done: number) => void;
  readonly signal?: AbortSignal;
}

export interface TuneReport {
  readonly device: string;
  readonly key: DeviceProfileKey;
  /** Few lanes first, then small budgets. */
  readonly tried: readonly TriedBudget[];
  readonly kneeTokens: number;
  /** Lanes of the native encoder, where that serves. */
  readonly lanes?: number;
  /** The budget with which a worker would begin without this; undefined where nothing is known of the device. */
  readonly presetTokens: number | undefined;
  /** Undefined where nothing tells what a run holds; then the reason is in `memoryReason`. */
  readonly memory: MemoryLaw | undefined;
  readonly memoryReason: string | undefined;
  readonly seconds: number;
  /** False: what was found lies within the spread of its rounds; the preset stays, and nothing of it is kept. */
  readonly isCertain: boolean;
  /** The file in which it is stored; undefined where nothing is kept. */
  readonly path: string | undefined;
}

const SILENCE_MS = 120_000;
/** Lanes of the native encoder that are tried. One more than two only divides the device further. */
const LANES = [1, 2];

export async function tune(options: TuneOptions): Promise<TuneReport> {
  const startedMs = performance.now();
  const backend = await chosenBackend(options);
  options.onProgress?.(0.02);
  const found =
    backend instanceof EncoderBackend
      ? await tuneNative(options, backend)
      : await tuneRuntime(options, backend.options, startedMs);
  return { ...found, seconds: (performance.now() - startedMs) / 1000 };
}

type Found = Omit<TuneReport, 'seconds'>;

async function tuneRuntime(options: TuneOptions, backend: OrtBackendOptions, startedMs: number): Promise<Found> {
  const { cacheDir, threads, log, model, onProgress = () => undefined } = options;
  const { graphPath, provider = 'cpu', device = provider, precision = 'fp32', sessions = 1 } = backend;
  const key = profileKey({
    model,
    graphPath,
    provider,
    precision,
    deviceKind: provider === 'cpu' ? cpuKind(threads, sessions) : (backend.deviceKind ?? device),
  });
  const memory = await measuredMemory(options, backend);
  onProgress(0.2);
  // Sessions that share a CPU are alike: one of them is measured, with its threads.
  const bench = new BudgetBench(
    { ...options, ...sizesOf(options, provider) },
    provider === 'cpu' ? { ...backend, sessions: 1 } : backend,
    startedMs,
  );
  const coarse = await bench.climb((share) => onProgress(0.2 + 0.3 * share));
  const preset = await presetTokens(options, backend);
  const fine = await bench.refine(coarse, preset, (share) => onProgress(0.5 + 0.5 * share));
  // what was tried at another moment says little beside it
  const { chosen, isCertain } = choose(fine.length > 0 ? fine : coarse, preset);
  const kneeTokens = chosen.maxPaddedTokens;
  const found = {
    ...(isCertain && { kneeTokens }),
    ...(memory.law !== undefined && { memory: memory.law }),
  };
  const path = Object.keys(found).length === 0 ? undefined : await storeProfile(cacheDir, key, found, log);
  return {
    device,
    key,
    tried: together(coarse, fine),
    kneeTokens,
    isCertain,
    presetTokens: preset,
    memory: memory.law,
    memoryReason: memory.reason,
    path,
  };
}

/** Measures nothing of the encoder's memory: it is known. */
async function tuneNative(options: TuneOptions, encoder: EncoderBackend): Promise<Found> {
  const { options: backend, device, precision } = encoder;
  const { cacheDir, log, model, tokenizer, sessions, signal, onProgress } = options;
  const key = encoderKey(model, backend);
  const {
    tried,
    chosen: best,
    memory,
  } = await tuneEncoder({
    ...sizesOf(options, device),
    signal,
    ...(onProgress !== undefined && { onProgress }),
    open: async (wanted) => EncoderBackend.open({ ...backend, model: await readEncoder(model), lanes: wanted }),
    lanes: sessions === undefined ? LANES : [sessions],
    vocabularySize: model.vocabularySize,
    maxTokens: tokenizer.maxTokens,
  });
  const {
    card: { name, probe },
    sizes,
  } = encoder.memoryPlan();
  const totalBytes = (await probe?.read())?.totalBytes;
  const { startTokens } = encoderPreset({ name, precision, totalBytes }, sizes, tokenizer.maxTokens);
  const preset = tried.find(({ lanes, maxPaddedTokens }) => lanes === best.lanes && maxPaddedTokens === startTokens);
  const isCertain = preset === undefined || preset.maxPaddedTokens === best.maxPaddedTokens || beats(best, preset);
  const { lanes } = best;
  const kneeTokens = isCertain ? best.maxPaddedTokens : startTokens;
  const path = isCertain ? await storeProfile(cacheDir, key, { kneeTokens, lanes }, log) : undefined;
  return {
    device,
    key,
    tried,
    kneeTokens,
    isCertain,
    lanes,
    presetTokens: startTokens,
    memory,
    memoryReason: undefined,
    path,
  };
}

/** What a worker would choose, closed again: it is opened anew to be measured. */
async function chosenBackend({
  model,
  tokenizer,
  device,
  precision = 'auto',
  encoder = 'auto',
  sessions,
  cacheDir,
  threads,
  log,
  ...sizes
}: TuneOptions): Promise<OrtBackend | EncoderBackend> {
  const slots = (found: string): SlotSizes => ({
    dims: model.dims,
    hidden: model.hidden,
    slotRows: sizesOf(sizes, found).maxRows,
    slotTokens: MOST_TOKENS,
  });
  const backend = await openDevice({
    device,
    precision,
    encoder,
    sessions,
    slots,
    model,
    tokenizer,
    cacheDir,
    threads,
    log,
    environment: process.env,
  });
  await backend.stop();
  if (backend instanceof OrtBackend || backend instanceof EncoderBackend) return backend;
  throw new TypeError('openDevice opens what is of ONNX Runtime or the native encoder');
}

async function presetTokens(
  { model, tokenizer }: TuneOptions,
  { provider = 'cpu', deviceKind: name, precision = 'fp32', probe, graphPath }: OrtBackendOptions,
): Promise<number | undefined> {
  if (provider === 'cpu') return CPU_KNEE_TOKENS;
  if (name === undefined) return undefined;
  const totalBytes = (await probe?.read())?.totalBytes;
  return (await graphPreset({ name, precision, totalBytes }, model, graphPath, tokenizer.maxTokens)).startTokens;
}

async function measuredMemory(
  { tokenizer, signal }: TuneOptions,
  backend: OrtBackendOptions,
): Promise<{ readonly law: MemoryLaw | undefined; readonly reason: string | undefined }> {
  try {
    return {
      law: await measureMemory({
        backend,
        maxWidth: tokenizer.maxTokens,
        timeoutMs: SILENCE_MS,
        ...(signal !== undefined && { signal }),
      }),
      reason: undefined,
    };
  } catch (error) {
    if (signal?.aborted === true) throw error;
    return { law: undefined, reason: toFailure(error).message };
  }
}
