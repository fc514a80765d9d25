// `shoal tune` where the native encoder serves: how many lanes and which token budget give most texts per second. Each
// pair runs the micro-batches that a worker would cut from the standard length mix, with a batch queued behind those
// that run, because that is how it serves and lanes are of no use to one batch after another. In this process: the
// encoder gives back what it took, and what it holds is known before it runs, so that nothing of memory has to be
// measured.

import { ShoalError, invariant } from '@shoal/contract';
import type { MemoryLaw, Slot } from '@shoal/core';
import type { EncoderBackend } from '@shoal/inference';
import { cutMix, type MixBatch } from './mix-plan.ts';
import { bestOf, inOrder, ofRounds, pick, together, type TriedBudget } from './tried-budgets.ts';

export interface EncoderTuneOptions {
  readonly open: (lanes: number) => Promise<EncoderBackend>;
  /** The numbers of lanes to try. */
  readonly lanes: readonly number[];
  readonly vocabularySize: number;
  /** Longest row. */
  readonly maxTokens: number;
  readonly maxRows: number;
  readonly poolTokens: number;
  readonly onProgress?: (share: number) => void;
  readonly signal?: AbortSignal | undefined;
  /** How long a pass of one pair takes, at least; given by tests alone. Default 400. */
  readonly passMs?: number;
}

export interface EncoderTuned {
  readonly tried: readonly TriedBudget[];
  readonly chosen: TriedBudget & { readonly lanes: number };
  readonly memory: MemoryLaw;
}

/** Below, a run is mostly launches. */
const FIRST_TOKENS = 4_096;
/** Doubling ends when so many budgets in a row gave less than this share of the best. */
const WORSE = 0.97;
const WORSE_IN_A_ROW = 2;
/** What came as near to the best as this is tried again, and what lies half a step beside it. */
const NEAR_THE_BEST = 0.93;
const ROUNDS = 5;
/** A pass of one pair takes about so long, and has so many micro-batches for each that can wait or run. */
const PASS_MS = 400;
const BATCHES_EACH = 4;
const MOST_ROWS = 200_000;
const MEAN_TOKENS = 70;
/** From then on no larger budget is tried, and no round begins. */
const CLIMB_END_MS = 40_000;
const END_MS = 90_000;

type Pair = Pick<Required<TriedBudget>, 'lanes' | 'maxPaddedTokens'>;

export async function tuneEncoder(options: EncoderTuneOptions): Promise<EncoderTuned> {
  const { onProgress = () => undefined } = options;
  const opened = new Map<number, EncoderBackend>();
  try {
    for (const lanes of options.lanes) opened.set(lanes, await openFilled(options, lanes));
    const bench = new PairBench(options, opened);
    const coarse: TriedBudget[] = [];
    for (const lanes of options.lanes) coarse.push(...(await bench.climb(lanes)));
    onProgress(0.4);
    if (coarse.length === 0)
      throw new ShoalError(
        'OUT_OF_VRAM',
        `not even a batch of ${FIRST_TOKENS} padded tokens runs on this device; free some of its memory or use ` +
          'a smaller model',
      );
    const fine = await bench.refine(coarse, (share) => onProgress(0.4 + 0.6 * share));
    const { lanes = 1, ...found } = pick(fine.length > 0 ? fine : inOrder(coarse));
    const backend = opened.get(lanes)!;
    await backend.shrink();
    return {
      tried: together(coarse, fine),
      chosen: { ...found, lanes },
      memory: backend.memoryLaw((await backend.memory())?.footprintBytes ?? 0),
    };
  } finally {
    await Promise.all([...opened.values()].map((backend) => backend.stop()));
  }
}

/** Every slot with words of all kinds, which no run changes. */
async function openFilled({ open, vocabularySize }: EncoderTuneOptions, lanes: number): Promise<EncoderBackend> {
  const backend = await open(lanes);
  const slots: Slot[] = [];
  for (let slot = backend.lend(); slot !== undefined; slot = backend.lend()) slots.push(slot);
  for (const slot of slots) {
    for (let i = 0; i < slot.ids.length; i++) slot.ids[i] = 1 + ((i * 104_729) % (vocabularySize - 1));
    backend.giveBack(slot);
  }
  return backend;
}

class PairBench {
  private readonly options: EncoderTuneOptions;
  private readonly opened: ReadonlyMap<number, EncoderBackend>;
  private readonly startedMs = performance.now();
  private textsPerMs = 0.05;

  constructor(options: EncoderTuneOptions, opened: ReadonlyMap<number, EncoderBackend>) {
    this.options = options;
    this.opened = opened;
  }

  async climb(lanes: number): Promise<readonly TriedBudget[]> {
    const tried: TriedBudget[] = [];
    let best = 0;
    let worse = 0;
    const most = this.opened.get(lanes)!.slotTokens;
    for (
      let maxPaddedTokens = FIRST_TOKENS;
      maxPaddedTokens <= most && worse < WORSE_IN_A_ROW && (tried.length === 0 || this.elapsedMs() < CLIMB_END_MS);
      maxPaddedTokens *= 2
    ) {
      const textsPerSecond = await this.pass({ lanes, maxPaddedTokens });
      if (textsPerSecond === undefined) break; // no memory for it
      tried.push({ lanes, maxPaddedTokens, textsPerSecond });
      this.textsPerMs = textsPerSecond / 1000;
      worse = textsPerSecond < WORSE * best ? worse + 1 : 0;
      best = Math.max(best, textsPerSecond);
    }
    return tried;
  }

  /** What came near the best, again and again in turns. None where there was no time for it. */
  async refine(coarse: readonly TriedBudget[], onProgress: (share: number) => void): Promise<readonly TriedBudget[]> {
    const best = bestOf(coarse).textsPerSecond;
    const largest = Math.max(...coarse.map(({ maxPaddedTokens }) => maxPaddedTokens));
    const near = coarse
      .filter(({ textsPerSecond }) => textsPerSecond >= NEAR_THE_BEST * best)
      .flatMap(({ lanes = 1, maxPaddedTokens }) => [
        { lanes, maxPaddedTokens },
        { lanes, maxPaddedTokens: maxPaddedTokens * 1.5 },
      ]);
    const pairs = inOrder(near.filter(({ maxPaddedTokens }) => maxPaddedTokens <= largest));
    const rates = new Map<Pair, number[]>(pairs.map((pair) => [pair, []]));
    let roundMs = pairs.length * PASS_MS;
    for (let round = 0; round < ROUNDS && this.elapsedMs() + roundMs < END_MS; round++) {
      const beganMs = this.elapsedMs();
      for (const pair of round % 2 === 0 ? pairs : pairs.toReversed()) {
        const textsPerSecond = await this.pass(pair);
        if (textsPerSecond !== undefined) rates.get(pair)!.push(textsPerSecond);
      }
      roundMs = this.elapsedMs() - beganMs;
      onProgress((round + 1) / ROUNDS);
    }
    return pairs.filter((pair) => rates.get(pair)!.length > 0).map((pair) => ofRounds(pair, rates.get(pair)!));
  }

  /** Texts per second of one pass over a plan; undefined where memory ran out. */
  private async pass({ lanes, maxPaddedTokens }: Pair): Promise<number | undefined> {
    this.options.signal?.throwIfAborted();
    const backend = this.opened.get(lanes)!;
    const { maxTokens, maxRows, poolTokens, passMs = PASS_MS } = this.options;
    const atOnce = lanes + 1;
    const rows = Math.round(
      Math.min(MOST_ROWS, Math.max(passMs * this.textsPerMs, (BATCHES_EACH * atOnce * maxPaddedTokens) / MEAN_TOKENS)),
    );
    const plan = cutMix({
      rows,
      maxTokens,
      maxPaddedTokens,
      maxRows: Math.min(maxRows, backend.slotRows),
      poolTokens: Math.max(poolTokens, 4 * maxPaddedTokens),
    });
    const largest = plan.reduce((most, batch) =>
      batch.tokens.length * batch.width > most.tokens.length * most.width ? batch : most,
    );
    if (
      !(await ranAll(
        backend,
        Array.from({ length: lanes }, () => largest),
        atOnce,
      ))
    )
      return undefined; // lanes grow with what they are given
    const beganMs = performance.now();
    return (await ranAll(backend, plan, atOnce)) ? (rows * 1000) / (performance.now() - beganMs) : undefined;
  }

  private elapsedMs(): number {
    return performance.now() - this.startedMs;
  }
}

/** So many queued or running at any time. False when one found no memory. */
async function ranAll(backend: EncoderBackend, plan: readonly MixBatch[], atOnce: number): Promise<boolean> {
  const batches = plan.values();
  const feed = async (): Promise<boolean> => {
    const slot = backend.lend();
    invariant(slot !== undefined, 'an encoder has a slot for each lane and more');
    try {
      for (const { tokens, width } of batches) {
        slot.lengths.set(tokens);
        const result = await backend.run(slot, { rows: tokens.length, width });
        if (!result.ok) return false;
      }
      return true;
    } finally {
      backend.giveBack(slot);
    }
  };
  return (await Promise.all(Array.from({ length: atOnce }, feed))).every(Boolean);
}
