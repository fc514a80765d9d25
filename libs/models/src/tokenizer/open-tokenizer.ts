// The tokenizer of a stored model, ready to use in about 40 ms (most of it JSON.parse of 466 kB). Refuses row lengths that
// the model has no positions for, and vocabularies that name rows the model does not have.

import { join } from 'node:path';
import { ShoalError, tokenizerHash, type Tokenizer } from '@shoal/core';
import { readModelFile, type StoredModel } from '../store/stored-model.ts';
import { parseTokenizerJson } from './tokenizer-json.ts';
import { WordPieceTokenizer } from './word-piece-tokenizer.ts';

export interface TokenizerOptions {
  /** Longest row in tokens, special tokens included. Default: where the model's authors truncate. */
  readonly maxTokens?: number;
}

/** Two special tokens and one of the text. */
const LEAST_TOKENS = 3;

export async function openTokenizer(model: StoredModel, options: TokenizerOptions = {}): Promise<Tokenizer> {
  const { maxTokens = model.defaultMaxTokens } = options;
  if (!Number.isInteger(maxTokens) || maxTokens < LEAST_TOKENS || maxTokens > model.positionLimit) {
    throw new ShoalError('CONFIG_INVALID', `maxTokens is ${maxTokens}; ${model.name} takes rows of ${LEAST_TOKENS} to ${model.positionLimit} tokens`, { maxTokens, positionLimit: model.positionLimit });
  }
  const path = join(model.folder, 'tokenizer.json');
  const bytes = await readModelFile(path);
  const facts = parseTokenizerJson(bytes.toString(), path);
  if (facts.vocabularySize > model.vocabularySize) {
    throw new ShoalError('MODEL_CORRUPT', `${path} has ids up to ${facts.vocabularySize - 1}, but the model has only ${model.vocabularySize} rows for them`, { path });
  }
  return new WordPieceTokenizer(facts, { hash: tokenizerHash(bytes), maxTokens });
}
