// A tokenizer for tests: a word is a token, between a first and a last special token as in BERT. No vocabulary to load.

import type { BatchTokenizer, Encoded, EncodedPair, Tokenizer } from '../ports/tokenizer.ts';

const FIRST = 101;
const LAST = 102;

export class FakeTokenizer implements Tokenizer, BatchTokenizer {
  readonly hash: string;
  readonly maxTokens: number;
  readonly vocabularySize = 30_522;

  constructor({
    maxTokens = 64,
    hash = '0123456789abcdef',
  }: { readonly maxTokens?: number; readonly hash?: string } = {}) {
    this.maxTokens = maxTokens;
    this.hash = hash;
  }

  async encodeAll(texts: readonly string[]): Promise<Encoded[]> {
    return texts.map((text) => this.encode(text));
  }

  async encodePairs(query: string, texts: readonly string[]): Promise<EncodedPair[]> {
    return texts.map((text) => this.encodePair(query, text));
  }

  /** Of too long a pair only the second text is cut. */
  encodePair(first: string, second: string): EncodedPair {
    const [before, { ids }] = [this.encode(first).ids, this.encode(second)];
    const whole = [...before, ...ids.slice(1)];
    const isTruncated = whole.length > this.maxTokens;
    if (isTruncated) whole.splice(this.maxTokens - 1, whole.length, LAST);
    return { ids: Uint16Array.from(whole), second: Math.min(before.length, whole.length), isTruncated };
  }

  encode(text: string): Encoded {
    const words = text.split(/\s+/).filter((word) => word !== '');
    const kept = words.slice(0, this.maxTokens - 2);
    return {
      ids: Uint16Array.from([FIRST, ...kept.map((word) => idOf(word, this.vocabularySize)), LAST]),
      isTruncated: kept.length < words.length,
    };
  }
}

function idOf(word: string, vocabularySize: number): number {
  let state = 7;
  for (let i = 0; i < word.length; i++) state = (Math.imul(state, 31) + word.charCodeAt(i)) >>> 0;
  return 1_000 + (state % (vocabularySize - 1_000));
}
