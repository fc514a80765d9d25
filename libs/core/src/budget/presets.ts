// Where a budget begins on a GPU nobody has measured yet: memory for a BERT-like graph by its sizes, and a first guess
// of the knee by the card's name. Both are starting points: warm-up measures the memory, running finds the knee, and
// `shoal tune` prints what it measured beside these. Reads no device.

import type { MemoryLaw } from './memory-model.ts';
import type { Precision } from '../ports/device.ts';

export interface ModelSizes {
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly heads: number;
  readonly weightsBytes: number;
  /** Longest row in tokens. */
  readonly maxTokens: number;
}

export interface PresetQuestion {
  /** As the driver says it: "NVIDIA GeForce RTX 3060". */
  readonly deviceName: string;
  readonly totalBytes: number | undefined;
  readonly model: ModelSizes;
  readonly precision: Precision;
  /** Whether attention keeps its scores in memory; fused attention with key lengths in fp16 does not. */
  readonly keepsScores: boolean;
}

export interface Preset {
  readonly law: MemoryLaw;
  readonly startTokens: number;
  readonly isKnown: boolean;
  /** For the log and for `shoal tune`. */
  readonly line: string;
}

/**
 * Dense fp16 rate of each card, as a share of an H200's: what every run costs is the same on all, so the knee moves
 * with the rate. Only the H200's knee was measured (64 k padded tokens with MiniLM, 2026-11-21); the others follow from
 * data sheets. The first pattern that matches counts: "4070 Ti" stands before "4070".
 */
const CARDS: readonly (readonly [pattern: RegExp, rate: number])[] = [
  [/\bB[123]00\b/i, 2],
  [/\bG?H[12]00\b|\bH800\b|\bH20\b/i, 1],
  [/\bA(100|800)\b/i, 0.32],
  [/\bL40S?\b/i, 0.3],
  [/\bL4\b/i, 0.12],
  [/\bA40\b|\bA6000\b/i, 0.15],
  [/\bA10G?\b/i, 0.12],
  [/\bA30\b/i, 0.16],
  [/\bV100\b/i, 0.11],
  [/\bT4\b/i, 0.06],
  [/RTX 6000 Ada/i, 0.33],
  [/RTX PRO 6000/i, 0.4],
  [/\b5090\b/i, 0.4],
  [/\b5080\b/i, 0.22],
  [/\b5070\b/i, 0.14],
  [/\b5060\b/i, 0.1],
  [/\b4090\b/i, 0.32],
  [/\b4080\b/i, 0.2],
  [/\b4070 Ti\b/i, 0.16],
  [/\b4070\b/i, 0.12],
  [/\b4060\b/i, 0.08],
  [/\b3090\b/i, 0.14],
  [/\b3080\b/i, 0.12],
  [/\b3070\b/i, 0.08],
  [/\b3060\b/i, 0.05],
  [/\b3050\b/i, 0.04],
  [/\b2080\b/i, 0.08],
  [/\b2070\b/i, 0.06],
  [/\b2060\b/i, 0.05],
];
const H200_KNEE_TOKENS = 65_536;
/** What a card can do that nobody knows: little padding, no more than a third slower than its best on most. */
const SAFE_START_TOKENS = 4_096;
const LEAST_START_TOKENS = 2_048;
const MINILM_HIDDEN = 384;

/** Driver, runtime and kernels before the first tensor (H200, 2026-11-21). */
const CONTEXT_BYTES = 547 * 2 ** 20;
/** What libraries take for themselves at the first run. */
const WORKSPACE_BYTES = 64 * 2 ** 20;
/**
 * Vectors of the hidden size that one token keeps at the widest point: 15.6 measured with fused operators, half of them
 * in the feed-forward layer (CPU provider, 2026-11-21).
 */
const VECTORS_PER_TOKEN = 8;
const FEED_FORWARD_VECTORS = 8;
/** Copies of the scores: 1.5 measured with fused attention, 2.4 with plain operators. */
const COPIES_OF_SCORES = 2.4;

export function presetFor({ deviceName, totalBytes, model, precision, keepsScores }: PresetQuestion): Preset {
  const rate = CARDS.find(([pattern]) => pattern.test(deviceName))?.[1];
  const startTokens =
    rate === undefined
      ? SAFE_START_TOKENS
      : Math.max(
          LEAST_START_TOKENS,
          roundDown(H200_KNEE_TOKENS * rate * Math.min(1, (MINILM_HIDDEN / model.hiddenSize) ** 2)),
        );
  const memory = totalBytes === undefined ? 'memory unknown' : `${(totalBytes / 1e9).toFixed(0)} GB`;
  const line =
    rate === undefined
      ? `no preset for "${deviceName}" (${memory}): beginning with ${startTokens} padded tokens, the knee is ` +
        'found while running; shoal tune measures it'
      : `preset for "${deviceName}" (${memory}): beginning with ${startTokens} padded tokens`;
  return { law: presetLaw(model, precision, keepsScores), startTokens, isKnown: rate !== undefined, line };
}

function presetLaw(
  { hiddenSize, intermediateSize, heads, weightsBytes, maxTokens }: ModelSizes,
  precision: Precision,
  keepsScores: boolean,
): MemoryLaw {
  // int8 graphs keep their activations in fp32
  const elementBytes = precision === 'fp16' || precision === 'bf16' ? 2 : 4;
  const vectors = VECTORS_PER_TOKEN + (FEED_FORWARD_VECTORS * intermediateSize) / (4 * hiddenSize);
  const tokenBytes = vectors * hiddenSize * elementBytes;
  const pairBytes = keepsScores ? COPIES_OF_SCORES * heads * elementBytes : 0;
  const widths = [...new Set([64, 128, 256, 512, maxTokens].filter((width) => width <= maxTokens))].sort(
    (a, b) => a - b,
  );
  const perToken = widths.map((width) => ({ width, bytes: Math.max(tokenBytes, tokenBytes / 2 + pairBytes * width) }));
  return {
    loadedBytes: CONTEXT_BYTES + weightsBytes,
    floorBytes: WORKSPACE_BYTES,
    slackBytes: 0,
    perToken,
    arena: 'doubling',
  };
}

/** To a power of two. */
function roundDown(tokens: number): number {
  return 2 ** Math.floor(Math.log2(tokens));
}
