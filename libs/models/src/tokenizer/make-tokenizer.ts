// The tokenizer that some facts describe. One class a kind of model.

import type { Tokenizer } from '@shoal/core';
import { BpeTokenizer } from './bpe-tokenizer.ts';
import type { RowOptions } from './row-options.ts';
import type { TokenizerFacts } from './tokenizer-json.ts';
import { UnigramTokenizer } from './unigram-tokenizer.ts';
import { WordPieceTokenizer } from './word-piece-tokenizer.ts';

export function makeTokenizer(facts: TokenizerFacts, options: RowOptions): Tokenizer {
  switch (facts.kind) {
    case 'BPE':
      return new BpeTokenizer(facts, options);
    case 'Unigram':
      return new UnigramTokenizer(facts, options);
    case 'WordPiece':
      return new WordPieceTokenizer(facts, options);
  }
}
