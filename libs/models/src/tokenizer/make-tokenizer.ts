// The tokenizer that some facts describe. One class a kind of model.

import { BpeTokenizer } from './bpe-tokenizer.ts';
import type { RowOptions } from './row-options.ts';
import type { TextTokenizer } from './text-tokenizer.ts';
import type { TokenizerFacts } from './tokenizer-json.ts';
import { UnigramTokenizer } from './unigram-tokenizer.ts';
import { WordPieceTokenizer } from './word-piece-tokenizer.ts';

export function makeTokenizer(facts: TokenizerFacts, options: RowOptions): TextTokenizer {
  switch (facts.kind) {
    case 'BPE':
      return new BpeTokenizer(facts, options);
    case 'Unigram':
      return new UnigramTokenizer(facts, options);
    case 'WordPiece':
      return new WordPieceTokenizer(facts, options);
  }
}
