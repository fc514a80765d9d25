// The tokenizer that some facts describe. One class a kind of model.

import type { Tokenizer } from '@shoal/core';
import type { TokenizerFacts } from './tokenizer-json.ts';
import { WordPieceTokenizer } from './word-piece-tokenizer.ts';

export interface RowOptions {
  /** Of tokenizer.json. */
  readonly hash: string;
  /** Longest row in tokens, special tokens included. */
  readonly maxTokens: number;
}

export function makeTokenizer(facts: TokenizerFacts, options: RowOptions): Tokenizer {
  switch (facts.kind) {
    case 'WordPiece':
      return new WordPieceTokenizer(facts, options);
  }
}
