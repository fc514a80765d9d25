// Measures what a model can do on a device: how much memory runs need, and the token budget at which the standard length mix
// gives most texts per second. Budgets are tried by running the very micro-batches that a worker would cut, in a process of its own:
// first doubling until larger ones only lose, then the best and its neighbours again, in alternating order. Stores what it found.

import { toFailure, type DeviceProfileKey, type Logger, type MemoryLaw, type RunShape, type Tokenizer } from '@shoal/core';
import { OrtBackend, type OrtBackendOptions } from '@shoal/inference';
import type { StoredModel } from '@shoal/models';
import { CPU_KNEE_TOKENS } from './device-budget.ts';
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
  readonly presetTokens: number;
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
const SAMPLE_MS = 2_000;
const LEAST_SAMPLE_ROWS = 96;
const MOST_SAMPLE_ROWS = 200_000;
/** Few batches would say more about the last one, which is not full. */
const LEAST_BATCHES = 8;
const ROUNDS = 3;
/** The smallest budget within this share of the best: it waits less and holds less. */
const GOOD_ENOUGH = 0.98;
const SILENCE_MS = 120_000;
/** On a slow or busy device: from then on no larger budget is tried, and no further round begins. */
const LATE_MS = 60_000;

export async function tune(options: TuneOptions): Promise<TuneReport> {
  const { cacheDir, threads, log, model, onProgress = () => undefined } = options;
  const startedMs = performance.now();
  const backend = await chosenBackend(options);
  const { graphPath, provider = 'cpu', device = provider, precision = 'fp32' } = backend;
  const key = profileKey({ model, graphPath, provider, precision, deviceKind: provider === 'cpu' ? cpuKind(threads) : device });
  onProgress(0.02);
  const memory = await measuredMemory(options, backend);
  onProgress(0.2);
  const bench = new BudgetBench(options, backend, startedMs);
  const coarse = await bench.climb((share) => onProgress(0.2 + 0.3 * share));
  const tried = await bench.refine(coarse, (share) => onProgress(0.5 + 0.5 * share));
  const kneeTokens = pick(tried);
  const path = await storeProfile(cacheDir, key, { kneeTokens, ...(memory.law !== undefined && { memory: memory.law }) }, log);
  return { device, key, tried, kneeTokens, presetTokens: CPU_KNEE_TOKENS, memory: memory.law, memoryReason: memory.reason, seconds: (performance.now() - startedMs) / 1000, path };
}

/** The device a worker would choose, closed again: probes open it anew. */
async function chosenBackend({ model, tokenizer, device, cacheDir, threads, maxRows, log }: TuneOptions): Promise<OrtBackendOptions> {
  const slots = { dims: model.dims, slotRows: maxRows, slotTokens: MOST_TOKENS };
  const backend = await openDevice({ device, precision: 'auto', slots, model, tokenizer, cacheDir, threads, log, environment: process.env });
  await backend.stop();
  if (backend instanceof OrtBackend) return backend.options;
  throw new TypeError('openDevice opens backends of ONNX Runtime alone');
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
    for (let budget = FIRST_TOKENS; budget <= MOST_TOKENS && worse < WORSE_IN_A_ROW && !(tried.length > 0 && this.isLate()); budget *= 2) {
      const [found] = await this.measure([budget], 1);
      if (found === undefined) break; // no memory for it
      tried.push(found);
      this.textsPerMs = found.textsPerSecond / 1000;
      worse = found.textsPerSecond < WORSE * best ? worse + 1 : 0;
      best = Math.max(best, found.textsPerSecond);
      onProgress(Math.min(1, tried.length / 8));
    }
    return tried;
  }

  /** The best again with its neighbours, half a step and a step away, several rounds in one process. */
  async refine(coarse: readonly TriedBudget[], onProgress: (share: number) => void): Promise<readonly TriedBudget[]> {
    const best = coarse.reduce((most, other) => (other.textsPerSecond > most.textsPerSecond ? other : most)).maxPaddedTokens;
    const largest = coarse.at(-1)!.maxPaddedTokens;
    const budgets = [best / 2, best * 0.75, best, best * 1.5, best * 2].filter((budget) => budget >= FIRST_TOKENS && budget <= largest);
    const fine = await this.measure(budgets, ROUNDS, onProgress);
    const rest = coarse.filter(({ maxPaddedTokens }) => fine.every((other) => other.maxPaddedTokens !== maxPaddedTokens));
    return [...rest, ...fine].sort((a, b) => a.maxPaddedTokens - b.maxPaddedTokens);
  }

  /** Budgets in the order given, then in the reverse, and so on; each one's rate is the median of its rounds. */
  private async measure(budgets: readonly number[], rounds: number, onProgress: (share: number) => void = () => undefined): Promise<readonly TriedBudget[]> {
    const plans = budgets.map((budget) => this.plan(budget));
    const rates = new Map<number, number[]>();
    for (let round = 0; round < rounds && !(round > 0 && this.isLate()); round++) {
      const found = await this.runOnce(round % 2 === 0 ? plans : plans.toReversed(), (share) => onProgress((round + share) / rounds));
      for (const { maxPaddedTokens, textsPerSecond } of found) rates.set(maxPaddedTokens, [...(rates.get(maxPaddedTokens) ?? []), textsPerSecond]);
    }
    return [...rates].map(([maxPaddedTokens, found]) => ({ maxPaddedTokens, textsPerSecond: found.toSorted((a, b) => a - b)[found.length >> 1]! }));
  }

  /** One process, every plan once. Nothing when memory ran out on the way. */
  private async runOnce(plans: readonly Plan[], onProgress: (share: number) => void): Promise<readonly TriedBudget[]> {
    const warm = warmUp(plans);
    const shapes = [...warm, ...plans.flatMap((plan) => plan.shapes)];
    const ran = await this.probe(shapes, onProgress);
    if (ran.length < shapes.length) return [];
    let at = warm.length;
    return plans.map(({ maxPaddedTokens, rows, shapes: planned }) => {
      const ms = ran.slice(at, at + planned.length).reduce((sum, { runMs }) => sum + runMs[0]!, 0);
      at += planned.length;
      return { maxPaddedTokens, textsPerSecond: (rows * 1000) / ms };
    });
  }

  private isLate(): boolean {
    return performance.now() - this.startedMs > LATE_MS;
  }

  private plan(maxPaddedTokens: number): Plan {
    const { maxRows, poolTokens, tokenizer: { maxTokens } } = this.options;
    const rows = Math.round(Math.max(LEAST_SAMPLE_ROWS, (LEAST_BATCHES * maxPaddedTokens) / 80, Math.min(MOST_SAMPLE_ROWS, SAMPLE_MS * this.textsPerMs)));
    return { maxPaddedTokens, rows, shapes: planMix({ rows, maxTokens, maxPaddedTokens, maxRows, poolTokens: Math.max(poolTokens, 4 * maxPaddedTokens) }) };
  }

  private probe(shapes: readonly RunShape[], onProgress: (share: number) => void): Promise<readonly ProbedShape[]> {
    const { signal } = this.options;
    let done = 0;
    return probeShapes({ backend: this.backend, shapes, repeats: 1, timeoutMs: SILENCE_MS, onShape: () => onProgress(++done / shapes.length), ...(signal !== undefined && { signal }) });
  }
}

/** The first runs of a process are slow: the largest batch of each plan once, uncounted. */
function warmUp(plans: readonly Plan[]): readonly RunShape[] {
  return plans.map(({ shapes }) => shapes.reduce((most, shape) => (shape.rows * shape.width > most.rows * most.width ? shape : most)));
}

function pick(tried: readonly TriedBudget[]): number {
  const best = Math.max(...tried.map(({ textsPerSecond }) => textsPerSecond));
  return tried.find(({ textsPerSecond }) => textsPerSecond >= GOOD_ENOUGH * best)!.maxPaddedTokens;
}
