// tokenizer_config.json against tokenizer.json, by the kind of tokenizer: what is stored is one file that says what
// transformers (5.24) would do with both, or the two are refused by name. What moves tokens about (truncation on the left,
// and padding there before positions that are counted from the padding) is refused.

import { parseTokenizerJson } from '../tokenizer/tokenizer-json.ts';
import { effectiveBpe } from './bpe-config.ts';
import type { EffectiveTokenizer, TokenizerSource } from './tokenizer-source.ts';
import { effectiveUnigram } from './unigram-config.ts';
import { effectiveWordPiece } from './word-piece-config.ts';

/** MODEL_CORRUPT, by file, key and value, for what is not known and for what contradicts itself. */
export function effectiveTokenizer(source: TokenizerSource): EffectiveTokenizer {
  const facts = parseTokenizerJson(source.text, source.where);
  switch (facts.kind) {
    case 'WordPiece':
      return effectiveWordPiece(source, facts);
    case 'Unigram':
      return effectiveUnigram(source, facts);
    case 'BPE':
      return effectiveBpe(source, facts);
  }
}
