// How much memory a run will need on this device with this graph, said before it runs. The law is a table of bytes per
// token over the width of a batch, because that is what was measured; it knows no provider and reads no memory itself.
//
// What a device holds: `loaded` (context, weights and runtime, once the graph is open), then for a batch of T = rows ×
// width padded tokens
//
//   live = loaded + floor + max(0, T × bytesPerToken(width) − slack)
//
// `floor` is what the first run takes whatever its shape, `slack` what small runs find free in it. Bytes per token stay
// level while the feed-forward tensors are the largest, then rise with the width once the attention scores are; linear
// between the measured widths. A law a + b·B·S + c·B·S²·heads draws one line through both and misses the bend: on the
// CPU provider (ONNX Runtime 1.30, 41 shapes from 8 to 12,288 tokens, each in a fresh process, 2026-11) see
// memory-model.test.ts.
//
// Why: docs/decisions/memory-and-budget.md#the-memory-law-is-a-table-over-the-width

import { z } from 'zod';
import { median } from '../base/median.ts';
import { ShoalError, invariant } from '@shoal/contract';
import type { RunShape } from '../ports/run-shape.ts';

const byteCount = z.number().nonnegative().finite();

export const memoryLawSchema = z.strictObject({
  loadedBytes: byteCount,
  floorBytes: byteCount,
  slackBytes: byteCount,
  /** Ascending in width; bytes never fall with it. What profiles of a version before say besides is left out. */
  perToken: z
    .array(z.object({ width: z.number().int().positive(), bytes: byteCount.positive() }))
    .min(1)
    .max(64),
  /**
   * How the runtime's arena grows: in one region laid out before (CPU), or by doubling (CUDA), where it never shrinks
   * before the session closes. A profile of a version before may name one that grew as it was asked; the same graph
   * runs in one that doubles now.
   */
  arena: z.preprocess((arena) => (arena === 'requested' ? 'doubling' : arena), z.enum(['exact', 'doubling'])),
});

export type MemoryLaw = z.infer<typeof memoryLawSchema>;

/** One shape, run once or more by an executor that ran nothing before it. */
export interface MemoryPoint extends RunShape {
  /** Held after the graph was opened and before the first run. */
  readonly loadedBytes: number;
  /** Most that was held up to the end of the last run. */
  readonly peakBytes: number;
}

/** Most that tensors, weights and context take at once during a run of this shape. */
export function liveBytes(law: MemoryLaw, shape: RunShape): number {
  return law.loadedBytes + incrementBytes(law, shape);
}

/**
 * What is gone from the device at most, once this was the largest run since the arena was given back: context, weights
 * and the arena as large as it may have grown. Without a shape: nothing has run since. No budget is made of it while a
 * driver tells what is ours.
 */
export function footprintBytes(law: MemoryLaw, shape?: RunShape): number {
  if (shape === undefined) return law.loadedBytes;
  const increment = incrementBytes(law, shape);
  switch (law.arena) {
    case 'exact':
      return law.loadedBytes + increment;
    case 'doubling':
      return law.loadedBytes + 2 ** Math.ceil(Math.log2(Math.max(1, increment)));
  }
}

/**
 * The law of so many sessions side by side, each at its largest run at once: what one of them is not using, another
 * may. `loadedBytes` stay: they are seen, not predicted.
 */
export function lawOfSessions(law: MemoryLaw, sessions: number): MemoryLaw {
  const perToken = law.perToken.map((knot) => ({ ...knot, bytes: sessions * knot.bytes }));
  return { ...law, floorBytes: sessions * law.floorBytes, slackBytes: sessions * law.slackBytes, perToken };
}

export function incrementBytes(law: MemoryLaw, { rows, width }: RunShape): number {
  return law.floorBytes + Math.max(0, rows * width * bytesPerToken(law, width) - law.slackBytes);
}

/** Level below the first width of the table; beyond the last it goes on as between the last two. */
export function bytesPerToken({ perToken }: MemoryLaw, width: number): number {
  const after = perToken.findIndex((knot) => knot.width >= width);
  const last = perToken.length - 1;
  if (after === 0 || last === 0) return perToken[0]!.bytes;
  const [low, high] = after < 0 ? [perToken[last - 1]!, perToken[last]!] : [perToken[after - 1]!, perToken[after]!];
  return low.bytes + ((high.bytes - low.bytes) * (width - low.width)) / (high.width - low.width);
}

/**
 * Shapes worth measuring, each in need of more than those before it: narrow rows few and many, for the slack, and one
 * shape at each bend of the table. `tokens` padded tokens, or one row; 2 s of runs on two CPU cores.
 */
export function fitShapes({
  maxWidth,
  tokens = 2048,
}: {
  readonly maxWidth: number;
  readonly tokens?: number;
}): RunShape[] {
  const shape = (part: number, most: number): RunShape => {
    const width = Math.max(8, Math.round((maxWidth * part) / 8) * 8);
    return { rows: Math.max(1, Math.floor(most / width)), width };
  };
  return [
    shape(1 / 16, tokens / 4),
    shape(1 / 4, tokens / 2),
    shape(1 / 16, tokens),
    shape(1 / 2, tokens),
    shape(3 / 4, tokens),
    shape(1, tokens),
  ];
}

export interface FitOptions {
  readonly arena?: MemoryLaw['arena'];
  /** Default: the least increment of all points. */
  readonly floorBytes?: number;
}

/**
 * The law that misses the points least, relative to each one's increment over its loaded state. Throws SETUP_FAILED
 * when they do not add up to one.
 */
export function fitMemoryModel(
  points: readonly MemoryPoint[],
  { arena = 'exact', ...given }: FitOptions = {},
): MemoryLaw {
  const increments = points.map(({ rows, width, peakBytes, loadedBytes }) => ({
    width,
    tokens: rows * width,
    bytes: peakBytes - loadedBytes,
  }));
  if (increments.length < MIN_POINTS || increments.some(({ bytes, tokens }) => !(bytes > 0) || !(tokens > 0))) {
    throw new ShoalError(
      'SETUP_FAILED',
      `the memory of a model is fitted to at least ${MIN_POINTS} shapes that each took more than the open ` +
        `graph; measured were ${JSON.stringify(points)}`,
      { points },
    );
  }
  const loadedBytes = median(points.map((point) => point.loadedBytes));
  const { floorBytes = Math.min(...increments.map((point) => point.bytes)) } = given;
  let best: { law: MemoryLaw; misfit: number } | undefined;
  for (let step = 0; step <= SLACK_STEPS; step++) {
    const slackBytes = (floorBytes * MAX_SLACK * step) / SLACK_STEPS;
    const perToken = perTokenTable(floorBytes, slackBytes, increments);
    const law = { loadedBytes, floorBytes, slackBytes, arena, perToken };
    const misfit = increments.reduce(
      (sum, { tokens, width, bytes }) => sum + (incrementBytes(law, { rows: tokens / width, width }) / bytes - 1) ** 2,
      0,
    );
    if (best === undefined || misfit < best.misfit) best = { law, misfit };
  }
  invariant(best !== undefined, 'at least one slack was tried');
  return best.law;
}

const MIN_POINTS = 3;
/** Slack is looked for between none and this many floors: one and a half on the fp32 graph, a third on the int8 one. */
const MAX_SLACK = 3;
const SLACK_STEPS = 48;

interface Increment {
  readonly width: number;
  readonly tokens: number;
  readonly bytes: number;
}

/** At each width, relative least squares of floor − slack + x·tokens = bytes, with the one unknown x. */
function perTokenTable(floorBytes: number, slackBytes: number, points: readonly Increment[]): MemoryLaw['perToken'] {
  const above = points.filter((point) => point.bytes > floorBytes);
  const widths = [...new Set((above.length > 0 ? above : points).map((point) => point.width))].sort((a, b) => a - b);
  return neverFalling(
    widths.map((width) => {
      const here = points.filter((point) => point.width === width);
      const over = here.reduce(
        (sum, { tokens, bytes }) => sum + (tokens / bytes) * ((bytes - floorBytes + slackBytes) / bytes),
        0,
      );
      const under = here.reduce((sum, { tokens, bytes }) => sum + (tokens / bytes) ** 2, 0);
      return { width, bytes: Math.max(1, over / under) };
    }),
  );
}

/** Neighbours that fall are drawn to their common mean, so that a wider batch never counts for less. */
export function neverFalling(knots: MemoryLaw['perToken']): MemoryLaw['perToken'] {
  const levels: { readonly widths: readonly number[]; readonly bytes: number }[] = [];
  for (const { width, bytes } of knots) {
    let level = { widths: [width], bytes };
    for (let before = levels.at(-1); before !== undefined && before.bytes > level.bytes; before = levels.at(-1)) {
      levels.pop();
      const widths = [...before.widths, ...level.widths];
      level = {
        widths,
        bytes: (before.bytes * before.widths.length + level.bytes * level.widths.length) / widths.length,
      };
    }
    levels.push(level);
  }
  return levels.flatMap(({ widths, bytes }) => widths.map((width) => ({ width, bytes })));
}
