// The standard length mix: log-normal, median 52 tokens, σ 0.98, clipped to 8..512 (special tokens included). Texts are
// words of the vocabulary that are one token each, so that every length is exact in a WordPiece vocabulary and nearly
// so in others. Seeded: the same texts on every machine.

import { readFileSync } from 'node:fs';

export interface RaggedText {
  readonly text: string;
  /** Tokens with [CLS] and [SEP]. */
  readonly tokens: number;
}

export function raggedCorpus(tokenizerJsonPath: string, count: number, seed = 1): RaggedText[] {
  const words = wholeWords(tokenizerJsonPath);
  const random = randomFrom(seed);
  return Array.from({ length: count }, () => {
    const tokens = Math.max(8, Math.min(512, Math.round(Math.exp(Math.log(52) + 0.98 * normalFrom(random)))));
    const text = Array.from({ length: tokens - 2 }, () => words[Math.floor(random() * words.length)]!).join(' ');
    return { text, tokens };
  });
}

/** Pieces of lower-case letters that begin a word; Unigram and BPE mark them by the blank before it. */
function wholeWords(path: string): string[] {
  const { model } = JSON.parse(readFileSync(path, 'utf8')) as {
    model: { type?: string; vocab: Record<string, number> | [piece: string, score: number][] };
  };
  const pieces = Array.isArray(model.vocab) ? model.vocab.map(([piece]) => piece) : Object.keys(model.vocab);
  const isMarked = model.type === 'BPE' || model.type === 'Unigram';
  const begins = isMarked ? pieces.filter((piece) => /^[▁Ġ]/u.test(piece)).map((piece) => piece.slice(1)) : pieces;
  return begins.filter((word) => /^[a-z]{3,}$/.test(word));
}

/** mulberry32 */
export function randomFrom(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export function normalFrom(random: () => number): number {
  return Math.sqrt(-2 * Math.log(random() + 1e-12)) * Math.cos(2 * Math.PI * random());
}
