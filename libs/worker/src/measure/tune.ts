// Measures what a model can do on a device: how much memory runs need, and the token budget at which the standard
// length mix gives most texts per second. Budgets are tried by running the very micro-batches that a worker would cut,
// in a process of its own: first doubling until larger ones only lose, then those near the best again and again, their
// micro-batches in turns, and the choice is among these. What each micro-batch takes is the median of its rounds: a
// moment in which somebody else wanted the machine slows single runs, not a budget. Ends within two minutes, with fewer
// rounds where the device is slow. Stores what it found. Where the native encoder serves, that is measured instead
// (tune-encoder.ts).

import { ShoalError, toFailure } from '@shoal/contract';
import {
  median,
  sizesOf,
  type DeviceProfileKey,
  type Logger,
  type MemoryLaw,
  type RunShape,
  type Settings,
  type Sizes,
  type Tokenizer,
} from '@shoal/core';
import { EncoderBackend, OrtBackend, type OrtBackendOptions } from '@shoal/inference';
import { readEncoder, type StoredModel } from '@shoal/models';
import { CPU_KNEE_TOKENS, encoderPreset, gpuPreset } from './device-budget.ts';
import { inTurns } from '../claimer/in-turns.ts';
import { measureMemory } from './measure-memory.ts';
import { planMix } from './mix-plan.ts';
import { openDevice, type SlotSizes } from '../device/open-device.ts';
import { cpuKind, encoderKey, profileKey, storeProfile } from './profile-store.ts';
import { probeShapes, type ProbedShape } from './shape-probe.ts';
import { bestOf, pick, together, type TriedBudget } from './tried-budgets.ts';
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
  /** From 0 to 1. */
  readonly onProgress?: (done: number) => void;
  readonly signal?: AbortSignal;
}

export interface TuneReport {
  readonly device: string;
  readonly key: DeviceProfileKey;
  /** Few lanes first, then small budgets. */
  readonly tried: readonly TriedBudget[];
  readonly kneeTokens: number;
  /** Of the native encoder, where that serves. */
  readonly lanes?: number;
  /** Where a worker would begin without this; undefined where nothing is known of the device. */
  readonly presetTokens: number | undefined;
  /** Undefined where nothing tells what a run holds; then the reason is in `memoryReason`. */
  readonly memory: MemoryLaw | undefined;
  readonly memoryReason: string | undefined;
  readonly seconds: number;
  /** Where it is stored. */
  readonly path: string;
}

const FIRST_TOKENS = 256;
const MOST_TOKENS = 262_144;
/** Doubling ends when so many budgets in a row gave less than this share of the best. */
const WORSE = 0.97;
const WORSE_IN_A_ROW = 2;
/** A sample of one budget takes about so long. */
const SAMPLE_MS = 1_500;
const LEAST_SAMPLE_ROWS = 96;
const MOST_SAMPLE_ROWS = 200_000;
const ROUNDS = 5;
/** A single round is off by so much now and then: what came as near as this is tried again. */
const NEAR_THE_BEST = 0.8;
const SILENCE_MS = 120_000;
/** On a slow or busy device no larger budget is tried from then on, so that time is left for a second look. */
const CLIMB_END_MS = 50_000;
/** Two minutes are promised: no round begins that would end later. */
const END_MS = 105_000;
/** Of the native encoder. One more than two only divides the device further. */
const LANES = [1, 2];
/** A process opens its graph and warms up beside what it measures. */
const ROUND_OVERHEAD = 1.5;

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
  const fine = await bench.refine(coarse, (share) => onProgress(0.5 + 0.5 * share));
  // what was tried at another moment says little beside it
  const { maxPaddedTokens: kneeTokens } = pick(fine.length > 0 ? fine : coarse);
  const path = await storeProfile(
    cacheDir,
    key,
    { kneeTokens, ...(memory.law !== undefined && { memory: memory.law }) },
    log,
  );
  return {
    device,
    key,
    tried: together(coarse, fine),
    kneeTokens,
    presetTokens: await presetTokens(options, backend),
    memory: memory.law,
    memoryReason: memory.reason,
    path,
  };
}

/** Of its memory nothing is measured: it is known. */
async function tuneNative(options: TuneOptions, { options: backend, device }: EncoderBackend): Promise<Found> {
  const { cacheDir, log, model, tokenizer, sessions, signal, onProgress } = options;
  const key = encoderKey(model, backend);
  const {
    tried,
    chosen: { lanes, maxPaddedTokens: kneeTokens },
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
  const path = await storeProfile(cacheDir, key, { kneeTokens, lanes }, log);
  const { startTokens } = encoderPreset(backend, tokenizer.maxTokens, (await backend.probe?.read())?.totalBytes);
  return { device, key, tried, kneeTokens, lanes, presetTokens: startTokens, memory, memoryReason: undefined, path };
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
  { provider = 'cpu', deviceKind, probe, ...backend }: OrtBackendOptions,
): Promise<number | undefined> {
  if (provider === 'cpu') return CPU_KNEE_TOKENS;
  return deviceKind === undefined
    ? undefined
    : (await gpuPreset({ ...backend, deviceKind }, model, tokenizer.maxTokens, (await probe?.read())?.totalBytes))
        .startTokens;
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

interface Plan {
  readonly maxPaddedTokens: number;
  readonly rows: number;
  readonly shapes: readonly RunShape[];
  /** Of each shape, in each round. */
  readonly runMs: readonly number[][];
}

/** Runs the micro-batches that budgets make of the standard mix. */
class BudgetBench {
  private readonly options: TuneOptions & Sizes;
  private readonly backend: OrtBackendOptions;
  private readonly startedMs: number;
  private textsPerMs = 0.05;

  constructor(options: TuneOptions & Sizes, backend: OrtBackendOptions, startedMs: number) {
    this.options = options;
    this.backend = backend;
    this.startedMs = startedMs;
  }

  async climb(onProgress: (share: number) => void): Promise<readonly TriedBudget[]> {
    const tried: TriedBudget[] = [];
    let best = 0;
    let worse = 0;
    for (
      let budget = FIRST_TOKENS;
      budget <= MOST_TOKENS && worse < WORSE_IN_A_ROW && (tried.length === 0 || this.elapsedMs() < CLIMB_END_MS);
      budget *= 2
    ) {
      const [found] = await this.measure([budget], 1);
      if (found === undefined) break; // no memory for it, or no time
      tried.push(found);
      this.textsPerMs = found.textsPerSecond / 1000;
      worse = found.textsPerSecond < WORSE * best ? worse + 1 : 0;
      best = Math.max(best, found.textsPerSecond);
      onProgress(Math.min(1, tried.length / 8));
    }
    if (tried.length === 0)
      throw new ShoalError(
        'OUT_OF_VRAM',
        `not even a batch of ${FIRST_TOKENS} padded tokens runs on this device; free some of its memory or use ` +
          'a smaller model',
      );
    return tried;
  }

  /** What came near the best again, and what lies half a step from the best. None where there was no time for it. */
  async refine(coarse: readonly TriedBudget[], onProgress: (share: number) => void): Promise<readonly TriedBudget[]> {
    const best = bestOf(coarse);
    const largest = coarse.at(-1)!.maxPaddedTokens;
    const near = coarse
      .filter(({ textsPerSecond }) => textsPerSecond >= NEAR_THE_BEST * best.textsPerSecond)
      .map(({ maxPaddedTokens }) => maxPaddedTokens);
    const budgets = [...near, best.maxPaddedTokens * 0.75, best.maxPaddedTokens * 1.5]
      .filter((budget) => budget >= FIRST_TOKENS && budget <= largest)
      .sort((a, b) => a - b);
    this.textsPerMs = best.textsPerSecond / 1000;
    return this.measure(budgets, ROUNDS, onProgress);
  }

  /**
   * Budgets in the order given, then in the reverse, and so on, over the same rows. Those that there was memory for.
   */
  private async measure(
    budgets: readonly number[],
    rounds: number,
    onProgress: (share: number) => void = () => undefined,
  ): Promise<readonly TriedBudget[]> {
    const plans = budgets.map((budget) => this.plan(budget));
    let roundMs = plans.reduce((sum, { rows }) => sum + rows / this.textsPerMs, 0) * ROUND_OVERHEAD;
    for (let round = 0; round < rounds && this.elapsedMs() + roundMs < END_MS; round++) {
      const beganMs = this.elapsedMs();
      await this.runOnce(round % 2 === 0 ? plans : plans.toReversed(), (share) => onProgress((round + share) / rounds));
      roundMs = this.elapsedMs() - beganMs;
    }
    return plans
      .filter(({ runMs }) => runMs.every((found) => found.length > 0))
      .map(({ maxPaddedTokens, rows, runMs }) => ({
        maxPaddedTokens,
        textsPerSecond: (rows * 1000) / runMs.reduce((sum, found) => sum + median(found), 0),
      }));
  }

  /** One process, every plan once. Counts for nothing when memory ran out on the way. */
  private async runOnce(plans: readonly Plan[], onProgress: (share: number) => void): Promise<void> {
    const warm = warmUp(plans);
    const turns = inTurns(plans.map(({ shapes, runMs }) => shapes.map((shape, i) => ({ shape, runMs: runMs[i]! }))));
    const shapes = [...warm, ...turns.map(({ shape }) => shape)];
    const ran = await this.probe(shapes, onProgress);
    if (ran.length < shapes.length) return;
    for (const [i, { runMs }] of turns.entries()) runMs.push(ran[warm.length + i]!.runMs[0]!);
  }

  private elapsedMs(): number {
    return performance.now() - this.startedMs;
  }

  private plan(maxPaddedTokens: number): Plan {
    const {
      maxRows,
      poolTokens,
      tokenizer: { maxTokens },
    } = this.options;
    const rows = Math.round(Math.max(LEAST_SAMPLE_ROWS, Math.min(MOST_SAMPLE_ROWS, SAMPLE_MS * this.textsPerMs)));
    const shapes = planMix({
      rows,
      maxTokens,
      maxPaddedTokens,
      maxRows,
      poolTokens: Math.max(poolTokens, 4 * maxPaddedTokens),
    });
    return { maxPaddedTokens, rows, shapes, runMs: shapes.map(() => []) };
  }

  private probe(shapes: readonly RunShape[], onProgress: (share: number) => void): Promise<readonly ProbedShape[]> {
    const { signal } = this.options;
    let done = 0;
    const arenaTokens = Math.max(...shapes.map(({ rows, width }) => rows * width));
    return probeShapes({
      backend: this.backend,
      shapes,
      repeats: 1,
      arenaTokens,
      timeoutMs: SILENCE_MS,
      onShape: () => onProgress(++done / shapes.length),
      ...(signal !== undefined && { signal }),
    });
  }
}

/** The first runs of a process are slow: the largest batch of each plan once, uncounted. */
function warmUp(plans: readonly Plan[]): readonly RunShape[] {
  return plans.map(({ shapes }) =>
    shapes.reduce((most, shape) => (shape.rows * shape.width > most.rows * most.width ? shape : most)),
  );
}
