// The tokenizer of a stored model, ready to use in about 40 ms (most of it JSON.parse of 466 kB). Refuses row lengths
// that the model has no positions for, vocabularies that name rows the model does not have, and a lowercasing outside
// of it.

import { join } from 'node:path';
import { ShoalError, invariant, tokenizerHash } from '@shoal/contract';
import type { EncodedPair, Tokenizer } from '@shoal/core';
import { CheckedJson } from '../checked-json.ts';
import { readModelFile, type StoredModel, type StoredReranker } from '../store/stored-model.ts';
import { endsLength } from './ends.ts';
import { makeTokenizer } from './make-tokenizer.ts';
import { Pairs } from './pairs.ts';
import { StaticTokenizer } from './static-tokenizer.ts';
import { parseTokenizerJson } from './tokenizer-json.ts';

export interface TokenizerOptions {
  /** Longest row in tokens, special tokens included. Default: where the model's authors truncate. */
  readonly maxTokens?: number;
}

/** That of a reranker takes pairs as well. CONFIG_INVALID, MODEL_CORRUPT. */
export async function openTokenizer(model: StoredModel, options: TokenizerOptions = {}): Promise<Tokenizer> {
  const path = join(model.folder, 'tokenizer.json');
  const bytes = await readModelFile(path);
  const facts = parseTokenizerJson(bytes.toString(), path);
  const { maxTokens = model.defaultMaxTokens } = options;
  const least = endsLength(facts.ends) + 1; // the special tokens and one of the text
  if (!Number.isInteger(maxTokens) || maxTokens < least || maxTokens > model.positionLimit) {
    throw new ShoalError(
      'CONFIG_INVALID',
      `maxTokens is ${maxTokens}; ${model.name} takes rows of ${least} to ${model.positionLimit} tokens`,
      { maxTokens, positionLimit: model.positionLimit },
    );
  }
  if (facts.vocabularySize > model.vocabularySize) {
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${path} has ids up to ${facts.vocabularySize - 1}, but the model has only ${model.vocabularySize} rows for them`,
      { path },
    );
  }
  if (facts.kind === 'WordPiece' && !facts.normalizer.lowercase) await refuseLowercasing(model, path);
  const tokenizer = makeTokenizer(facts, { hash: tokenizerHash(bytes), maxTokens });
  if (model.kind === 'reranker') return withPairs(tokenizer, new Pairs(tokenizer, facts.ends, path), model, path);
  const { staticTexts } = model;
  if (staticTexts === undefined) return tokenizer;
  return new StaticTokenizer(tokenizer, { ...staticTexts, unknownId: facts.model.unknownId });
}

/** One row per text, each behind the query, by the tokenizer of a reranker. */
export function encodePairs(
  { encodePair }: Pick<Tokenizer, 'encodePair'>,
  query: string,
  texts: readonly string[],
): EncodedPair[] {
  invariant(encodePair !== undefined, 'pairs are asked of the tokenizer of a reranker');
  return texts.map((text) => encodePair(query, text));
}

/** The tokenizer of a reranker, which takes pairs. */
function withPairs(tokenizer: Tokenizer, pairs: Pairs, { head }: StoredReranker, path: string): Tokenizer {
  if (head.hasTypes && !pairs.hasTypes)
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${path}: post_processor: "pair" does not give type 1 to the second text and what is behind it, and type 0 to what ` +
        'is before it, which is what a reranker with token types is computed with',
      { path },
    );
  return Object.assign(tokenizer, {
    encodePair: (first: string, second: string): EncodedPair => pairs.encodePair(first, second),
  });
}

/**
 * sentence-transformers lowercases texts before a tokenizer that keeps capitals, by rules of Python that are not the
 * tokenizer's.
 */
async function refuseLowercasing(model: StoredModel, tokenizer: string): Promise<void> {
  const path = join(model.folder, 'sentence_bert_config.json');
  const limits = CheckedJson.parse((await readModelFile(path)).toString(), path);
  if (!limits.has('do_lower_case') || !limits.boolean('do_lower_case')) return;
  throw new ShoalError(
    'MODEL_CORRUPT',
    `${path} has "do_lower_case": true, but ${tokenizer} keeps capitals, and Shoal changes no text before its ` +
      'tokenizer: set "lowercase" to true in the normalizer of tokenizer.json, or "do_lower_case" to false if ' +
      'texts shall keep their capitals',
    { path },
  );
}
