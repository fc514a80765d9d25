// A text that is longer than a row of the model, cut into pieces that each fit, and the vectors of the pieces made one
// again: their mean, weighted by their tokens, and brought to length 1 where the model's vectors have that. It is what
// OpenAI's cookbook does ("Embedding texts that are longer than the model's maximum context length", 2023). No token is
// left out and none counted twice; pieces are cut where a word ends, so that their tokens are those of the whole text.

import type { Tokenizer } from '@shoal/core';
import { ShoalError } from '@shoal/contract';
import type { EmbeddedBlock, SkippedBlock, StreamBlock } from '@shoal/client';
import type { TextRecord } from '@shoal/worker/files/record';

/** One row that is embedded: a whole text, or a piece of one. */
export interface Piece {
  readonly record: TextRecord;
  /** Which piece, from 0, of how many. */
  readonly part: number;
  readonly parts: number;
  readonly text: string;
  /** Without those that stand in every row. */
  readonly tokens: number;
}

/** A piece cannot be shorter than one of these; no token is longer. */
const LEAST_CHARACTERS = 1;

/** The pieces of each record, in order. `prompt`: what the model's prompt puts before each of them. */
export async function* cutLong(
  records: AsyncIterable<TextRecord>,
  tokenizer: Tokenizer,
  prompt: string,
  onLong: (pieces: number) => void,
): AsyncGenerator<Piece> {
  const special = tokenizer.encode(prompt).ids.length;
  for await (const record of records) {
    const texts = piecesOf(record.text, tokenizer, prompt);
    if (texts.length > 1) onLong(texts.length);
    for (const [part, text] of texts.entries()) {
      const tokens = texts.length === 1 ? 1 : Math.max(1, tokenizer.encode(prompt + text).ids.length - special);
      yield { record, part, parts: texts.length, text, tokens };
    }
  }
}

/** The whole text where it fits; else as few pieces as there can be, cut behind words. */
export function piecesOf(text: string, tokenizer: Tokenizer, prompt: string): readonly string[] {
  const fits = (piece: string): boolean => !tokenizer.encode(prompt + piece).isTruncated;
  if (fits(text)) return [text];
  const pieces: string[] = [];
  // tokens have some characters each: the last piece says how many its like will have
  let guess = tokenizer.maxTokens * 4;
  for (let from = 0; from < text.length;) {
    const [length, isWhole] = longestFitting(text, from, guess, fits);
    if (length === 0)
      throw new ShoalError('INPUT_TOO_LONG', 'a text has a character that does not fit a row with the prompt');
    const end = isWhole ? text.length : from + length;
    pieces.push(text.slice(from, end));
    guess = Math.max(LEAST_CHARACTERS, end - from);
    from = end;
  }
  return pieces;
}

/** How many characters from `from` on fit a row, ending behind a word where one ends, and whether that is all. */
function longestFitting(
  text: string,
  from: number,
  guess: number,
  fits: (piece: string) => boolean,
): readonly [number, boolean] {
  const left = text.length - from;
  let [good, bad] = [0, left + 1];
  for (let tried = Math.min(guess, left); bad - good > Math.max(1, good >> 5);) {
    if (fits(text.slice(from, from + tried))) good = tried;
    else bad = tried;
    tried = bad > left ? Math.min(left, good * 2) : Math.floor((good + bad) / 2);
    if (good === left) return [left, true];
  }
  const end = wordEnd(text, from, good);
  return [end - from, false];
}

/** Behind the last word that ends before `from + length`; where there is none, between two characters. */
function wordEnd(text: string, from: number, length: number): number {
  const window = text.slice(from, from + length);
  if (/\s/u.test(text[from + length] ?? ' ')) return from + length;
  const space = /^[^]*\s(?=\S)/u.exec(window)?.[0].length ?? 0;
  if (space > 0) return from + space;
  let last = 0;
  for (const { index } of SEGMENTER.segment(window)) last = index;
  if (last > 0) return from + last;
  const half = text.charCodeAt(from + length - 1);
  return from + length - (length > 1 && half >= 0xd8_00 && half <= 0xdb_ff ? 1 : 0);
}

/** Scripts that write no spaces have words as well. */
const SEGMENTER = new Intl.Segmenter(undefined, { granularity: 'word' });

/** What is needed of a block of records. */
export type RecordBlock =
  | Pick<
      EmbeddedBlock<TextRecord>,
      'kind' | 'first' | 'rows' | 'dims' | 'items' | 'vectors' | 'truncated' | 'isSimulated'
    >
  | SkippedBlock<TextRecord>;

/**
 * Blocks of pieces into blocks of records: a record comes when its last piece has. A record of which one piece failed has
 * failed. `isUnit`: the mean is brought to length 1.
 */
export async function* pooled(
  blocks: AsyncIterable<StreamBlock<Piece>>,
  { isUnit, startAt }: { readonly isUnit: boolean; readonly startAt: number },
): AsyncGenerator<RecordBlock> {
  let first = startAt;
  let open: { readonly sum: Float64Array; tokens: number } | undefined;
  let failed: TextRecord | undefined;
  for await (const block of blocks) {
    if (block.kind === 'skipped') {
      const records = [...new Set(block.items.map(({ record }) => record))];
      open = undefined;
      // the last record may go on in the next block, the first may have failed in the one before
      const items = records.filter((record) => record !== failed);
      failed = records.at(-1);
      if (items.length > 0) yield { kind: 'skipped', first, rows: items.length, items, error: block.error };
      first += items.length;
      continue;
    }
    const { dims, vectors } = block;
    const items: TextRecord[] = [];
    const done: Float32Array[] = [];
    for (const [row, { record, part, parts, tokens }] of block.items.entries()) {
      if (record === failed) continue;
      const vector = vectors.subarray(row * dims, (row + 1) * dims);
      if (parts > 1) {
        if (part === 0 || open === undefined) open = { sum: new Float64Array(dims), tokens: 0 };
        for (let at = 0; at < dims; at++) open.sum[at]! += tokens * vector[at]!;
        open.tokens += tokens;
        if (part < parts - 1) continue;
        done.push(meanOf(open, isUnit));
        open = undefined;
      } else done.push(vector);
      items.push(record);
    }
    const all = new Float32Array(done.length * dims);
    for (const [at, vector] of done.entries()) all.set(vector, at * dims);
    const { isSimulated } = block;
    if (items.length > 0)
      yield { kind: 'embedded', first, rows: items.length, dims, items, vectors: all, truncated: [], isSimulated };
    first += items.length;
  }
}

function meanOf(
  { sum, tokens }: { readonly sum: Float64Array; readonly tokens: number },
  isUnit: boolean,
): Float32Array {
  const length = isUnit ? Math.sqrt(sum.reduce((all, value) => all + value * value, 0)) : tokens;
  return Float32Array.from(sum, (value) => (length > 0 ? value / length : 0));
}
