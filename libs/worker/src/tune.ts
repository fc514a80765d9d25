// Measures what a model can do on a device: how much memory runs need, and the token budget at which the standard length mix
// gives most texts per second. Budgets are tried by running the very micro-batches that a worker would cut, in a process of its own:
// first doubling until larger ones only lose, then those near the best again and again, their micro-batches in turns, and the choice is
// among these. What each micro-batch takes is the median of its rounds: a moment in which somebody else wanted the machine slows single
// runs, not a budget. Ends within two minutes, with fewer rounds where the device is slow. Stores what it found.

import { ShoalError, median, toFailure, type DeviceProfileKey, type Logger, type MemoryLaw, type RunShape, type Tokenizer } from '@shoal/core';
import { OrtBackend, type OrtBackendOptions } from '@shoal/inference';
import type { StoredModel } from '@shoal/models';
import { CPU_KNEE_TOKENS, gpuPreset } from './device-budget.ts';
import { inTurns } from './in-turns.ts';
import { measureMemory } from './measure-memory.ts';
import { planMix } from './mix-plan.ts';
import { openDevice } from './open-device.ts';
import { cpuKind, profileKey, storeProfile } from './profile-store.ts';
import { probeShapes, type ProbedShape } from './shape-probe.ts';

export interface TuneOptions {
  readonly model: StoredModel;
  readonly tokenizer: Tokenizer;
  readonly device: string;
  readonly cacheDir: string;
  readonly threads: number;
  readonly maxRows: number;
  readonly poolTokens: number;
  readonly log: Logger;
  /** From 0 to 1. */
  readonly onProgress?: (done: number) => void;
  readonly signal?: AbortSignal;
}

export interface TriedBudget {
  readonly maxPaddedTokens: number;
  readonly textsPerSecond: number;
}

export interface TuneReport {
  readonly device: string;
  readonly key: DeviceProfileKey;
  /** Ascending. */
  readonly tried: readonly TriedBudget[];
  readonly kneeTokens: number;
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
/** The smallest budget within this share of the best: it waits less and holds less. */
const GOOD_ENOUGH = 0.98;
const SILENCE_MS = 120_000;
/** On a slow or busy device no larger budget is tried from then on, so that time is left for a second look. */
const CLIMB_END_MS = 50_000;
/** Two minutes are promised: no round begins that would end later. */
const END_MS = 105_000;
/** A process opens its graph and warms up beside what it measures. */
const ROUND_OVERHEAD = 1.5;

export async function tune(options: TuneOptions): Promise<TuneReport> {
  const { cacheDir, threads, log, model, onProgress = () => undefined } = options;
  const startedMs = performance.now();
  const backend = await chosenBackend(options);
  const { graphPath, provider = 'cpu', device = provider, precision = 'fp32' } = backend;
  const key = profileKey({ model, graphPath, provider, precision, deviceKind: provider === 'cpu' ? cpuKind(threads) : (backend.deviceKind ?? device) });
  onProgress(0.02);
  const memory = await measuredMemory(options, backend);
  onProgress(0.2);
  const bench = new BudgetBench(options, backend, startedMs);
  const coarse = await bench.climb((share) => onProgress(0.2 + 0.3 * share));
  const fine = await bench.refine(coarse, (share) => onProgress(0.5 + 0.5 * share));
  const kneeTokens = pick(fine.length > 0 ? fine : coarse); // what was tried at another moment says little beside it
  const path = await storeProfile(cacheDir, key, { kneeTokens, ...(memory.law !== undefined && { memory: memory.law }) }, log);
  return { device, key, tried: together(coarse, fine), kneeTokens, presetTokens: await presetTokens(options, backend), memory: memory.law, memoryReason: memory.reason, seconds: (performance.now() - startedMs) / 1000, path };
}

/** The device a worker would choose, closed again: probes open it anew. Of the native encoder nothing is measured: its memory is known, and its knee is the card's preset. */
async function chosenBackend({ model, tokenizer, device, cacheDir, threads, maxRows, log }: TuneOptions): Promise<OrtBackendOptions> {
  const slots = { dims: model.dims, slotRows: maxRows, slotTokens: MOST_TOKENS };
  const backend = await openDevice({ device, precision: 'auto', encoder: 'ort', slots, model, tokenizer, cacheDir, threads, log, environment: process.env });
  await backend.stop();
  if (backend instanceof OrtBackend) return backend.options;
  throw new TypeError('openDevice opens backends of ONNX Runtime alone');
}

async function presetTokens({ model, tokenizer }: TuneOptions, { provider = 'cpu', deviceKind, probe, ...backend }: OrtBackendOptions): Promise<number | undefined> {
  if (provider === 'cpu') return CPU_KNEE_TOKENS;
  return deviceKind === undefined ? undefined : (await gpuPreset({ ...backend, deviceKind }, model, tokenizer.maxTokens, (await probe?.read())?.totalBytes)).startTokens;
}

async function measuredMemory({ tokenizer, signal }: TuneOptions, backend: OrtBackendOptions): Promise<{ readonly law: MemoryLaw | undefined; readonly reason: string | undefined }> {
  try {
    return { law: await measureMemory({ backend, maxWidth: tokenizer.maxTokens, timeoutMs: SILENCE_MS, ...(signal !== undefined && { signal }) }), reason: undefined };
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
  private readonly options: TuneOptions;
  private readonly backend: OrtBackendOptions;
  private readonly startedMs: number;
  private textsPerMs = 0.05;

  constructor(options: TuneOptions, backend: OrtBackendOptions, startedMs: number) {
    this.options = options;
    this.backend = backend;
    this.startedMs = startedMs;
  }

  async climb(onProgress: (share: number) => void): Promise<readonly TriedBudget[]> {
    const tried: TriedBudget[] = [];
    let best = 0;
    let worse = 0;
    for (let budget = FIRST_TOKENS; budget <= MOST_TOKENS && worse < WORSE_IN_A_ROW && (tried.length === 0 || this.elapsedMs() < CLIMB_END_MS); budget *= 2) {
      const [found] = await this.measure([budget], 1);
      if (found === undefined) break; // no memory for it, or no time
      tried.push(found);
      this.textsPerMs = found.textsPerSecond / 1000;
      worse = found.textsPerSecond < WORSE * best ? worse + 1 : 0;
      best = Math.max(best, found.textsPerSecond);
      onProgress(Math.min(1, tried.length / 8));
    }
    if (tried.length === 0) throw new ShoalError('OUT_OF_VRAM', `not even a batch of ${FIRST_TOKENS} padded tokens runs on this device; free some of its memory or use a smaller model`);
    return tried;
  }

  /** What came near the best again, and what lies half a step from the best. None where there was no time for it. */
  async refine(coarse: readonly TriedBudget[], onProgress: (share: number) => void): Promise<readonly TriedBudget[]> {
    const best = bestOf(coarse);
    const largest = coarse.at(-1)!.maxPaddedTokens;
    const near = coarse.filter(({ textsPerSecond }) => textsPerSecond >= NEAR_THE_BEST * best.textsPerSecond).map(({ maxPaddedTokens }) => maxPaddedTokens);
    const budgets = [...near, best.maxPaddedTokens * 0.75, best.maxPaddedTokens * 1.5].filter((budget) => budget >= FIRST_TOKENS && budget <= largest).sort((a, b) => a - b);
    this.textsPerMs = best.textsPerSecond / 1000;
    return this.measure(budgets, ROUNDS, onProgress);
  }

  /** Budgets in the order given, then in the reverse, and so on, over the same rows. Those that there was memory for. */
  private async measure(budgets: readonly number[], rounds: number, onProgress: (share: number) => void = () => undefined): Promise<readonly TriedBudget[]> {
    const plans = budgets.map((budget) => this.plan(budget));
    let roundMs = plans.reduce((sum, { rows }) => sum + rows / this.textsPerMs, 0) * ROUND_OVERHEAD;
    for (let round = 0; round < rounds && this.elapsedMs() + roundMs < END_MS; round++) {
      const beganMs = this.elapsedMs();
      await this.runOnce(round % 2 === 0 ? plans : plans.toReversed(), (share) => onProgress((round + share) / rounds));
      roundMs = this.elapsedMs() - beganMs;
    }
    return plans.filter(({ runMs }) => runMs.every((found) => found.length > 0)).map(({ maxPaddedTokens, rows, runMs }) => ({
      maxPaddedTokens, textsPerSecond: (rows * 1000) / runMs.reduce((sum, found) => sum + median(found), 0),
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
    const { maxRows, poolTokens, tokenizer: { maxTokens } } = this.options;
    const rows = Math.round(Math.max(LEAST_SAMPLE_ROWS, Math.min(MOST_SAMPLE_ROWS, SAMPLE_MS * this.textsPerMs)));
    const shapes = planMix({ rows, maxTokens, maxPaddedTokens, maxRows, poolTokens: Math.max(poolTokens, 4 * maxPaddedTokens) });
    return { maxPaddedTokens, rows, shapes, runMs: shapes.map(() => []) };
  }

  private probe(shapes: readonly RunShape[], onProgress: (share: number) => void): Promise<readonly ProbedShape[]> {
    const { signal } = this.options;
    let done = 0;
    const arenaTokens = Math.max(...shapes.map(({ rows, width }) => rows * width));
    return probeShapes({ backend: this.backend, shapes, repeats: 1, arenaTokens, timeoutMs: SILENCE_MS, onShape: () => onProgress(++done / shapes.length), ...(signal !== undefined && { signal }) });
  }
}

/** The first runs of a process are slow: the largest batch of each plan once, uncounted. */
function warmUp(plans: readonly Plan[]): readonly RunShape[] {
  return plans.map(({ shapes }) => shapes.reduce((most, shape) => (shape.rows * shape.width > most.rows * most.width ? shape : most)));
}

function pick(tried: readonly TriedBudget[]): number {
  const best = bestOf(tried);
  return tried.find(({ textsPerSecond }) => textsPerSecond >= GOOD_ENOUGH * best.textsPerSecond)!.maxPaddedTokens;
}

function bestOf(tried: readonly TriedBudget[]): TriedBudget {
  return tried.reduce((most, other) => (other.textsPerSecond > most.textsPerSecond ? other : most));
}

/** All that was tried, ascending. The machine may have been faster or slower in the first pass: its rates are told on the scale of the later rounds. */
function together(coarse: readonly TriedBudget[], fine: readonly TriedBudget[]): readonly TriedBudget[] {
  const again = new Map(fine.map((budget) => [budget.maxPaddedTokens, budget.textsPerSecond]));
  const ratios = coarse.flatMap(({ maxPaddedTokens, textsPerSecond }) => (again.has(maxPaddedTokens) ? [again.get(maxPaddedTokens)! / textsPerSecond] : []));
  const scale = ratios.length === 0 ? 1 : median(ratios);
  const once = coarse.filter(({ maxPaddedTokens }) => !again.has(maxPaddedTokens)).map((budget) => ({ ...budget, textsPerSecond: budget.textsPerSecond * scale }));
  return [...once, ...fine].sort((a, b) => a.maxPaddedTokens - b.maxPaddedTokens);
}
