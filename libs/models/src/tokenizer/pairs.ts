// Pairs of texts (a query and a passage) as one row, as cross-encoders take them: each text's own tokens, those that
// tokenizer.json puts around and between them, and the type of every token. Too long a pair is cut as the official
// package's strategy longest_first cuts it (truncation.rs): only the longer text as long as the other one fits into half
// of the row, both to halves else.

import { ShoalError } from '@shoal/contract';
import type { EncodedPair } from '@shoal/core';
import type { Ends, PairPart } from './ends.ts';
import type { TextTokenizer } from './text-tokenizer.ts';

export interface TypedPair extends EncodedPair {
  /** The token type of each id. */
  readonly types: readonly number[];
}

export class Pairs {
  /** Tokens of both texts that have room in a row. */
  readonly room: number;
  readonly #tokenizer: TextTokenizer;
  readonly #parts: readonly PairPart[];

  /**
   * MODEL_CORRUPT where `where`, the tokenizer.json, says nothing usable of pairs; CONFIG_INVALID where a row has no room
   * for a token of each text.
   */
  constructor(tokenizer: TextTokenizer, ends: Ends, where: string) {
    const { pair } = ends;
    if (pair === undefined) {
      throw new ShoalError(
        'MODEL_CORRUPT',
        `${where}: post_processor: "pair" should have the first text once, and then the second text once`,
        { where },
      );
    }
    const around = pair.reduce((sum, part) => sum + ('ids' in part ? part.ids.length : 0), 0);
    this.#tokenizer = tokenizer;
    this.#parts = pair;
    this.room = tokenizer.maxTokens - around;
    if (this.room < 2) {
      throw new ShoalError(
        'CONFIG_INVALID',
        `maxTokens is ${tokenizer.maxTokens}; pairs of texts take rows of at least ${around + 2} tokens`,
        { maxTokens: tokenizer.maxTokens },
      );
    }
  }

  /** Whether ids have type 0 before the second text, and type 1 from there on. */
  get hasTypes(): boolean {
    const at = this.#parts.findIndex((part) => 'text' in part && part.text === 'second');
    return this.#parts.every(({ type }, index) => type === (index < at ? 0 : 1));
  }

  /** Refuses nothing: every pair of strings has ids. */
  encodePair(first: string, second: string): TypedPair {
    const texts = { first: this.#idsOf(first), second: this.#idsOf(second) };
    const kept = longestFirst(texts.first.length, texts.second.length, this.room);
    const isTruncated = texts.first.length > kept.first || texts.second.length > kept.second;
    const ids: number[] = [];
    const types: number[] = [];
    let secondFrom = 0;
    for (const part of this.#parts) {
      if ('text' in part && part.text === 'second') secondFrom = ids.length;
      const own = 'ids' in part ? part.ids : texts[part.text];
      const count = 'ids' in part ? own.length : kept[part.text];
      for (let at = 0; at < count; at++) {
        ids.push(own[at]!);
        types.push(part.type);
      }
    }
    return { ids, types, second: secondFrom, isTruncated };
  }

  /**
   * To the end of the word with which a text alone would fill a row: about as far as the official package reads, too. It
   * compares that, not the lengths of the texts: of two such texts and an odd room the longer half may be another one's.
   */
  #idsOf(text: string): readonly number[] {
    const ids: number[] = [];
    this.#tokenizer.appendText(text.toWellFormed(), ids, this.#tokenizer.maxTokens - 1);
    return ids;
  }
}

interface Lengths {
  readonly first: number;
  readonly second: number;
}

/** How many tokens of each text are kept, if both together have room for `room`. */
export function longestFirst(first: number, second: number, room: number): Lengths {
  if (first + second <= room) return { first, second };
  const shorter = Math.min(first, second);
  const half = Math.floor(room / 2);
  const [less, more] = shorter <= half ? [shorter, room - shorter] : [half, room - half];
  return first > second ? { first: more, second: less } : { first: less, second: more };
}
