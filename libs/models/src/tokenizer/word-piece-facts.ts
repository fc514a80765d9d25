// The facts of a WordPiece tokenizer of the BERT family: BertNormalizer, BertPreTokenizer, WordPiece. Another normalizer
// or pre-tokenizer is refused by name.

import { ShoalError } from '@shoal/contract';
import { quoted, type CheckedJson } from '../checked-json.ts';
import { readShared, type SharedFacts } from './shared-facts.ts';

export interface NormalizerOptions {
  readonly cleanText: boolean;
  readonly handleChineseChars: boolean;
  readonly stripAccents: boolean;
  readonly lowercase: boolean;
}

export interface WordPieceOptions {
  /** Pieces by id; a continuation begins with `continuationPrefix`. */
  readonly vocabulary: ReadonlyMap<string, number>;
  readonly continuationPrefix: string;
  readonly unknownId: number;
  readonly maxWordChars: number;
}

export interface WordPieceFacts extends SharedFacts {
  readonly kind: 'WordPiece';
  readonly normalizer: NormalizerOptions;
  readonly model: WordPieceOptions;
}

const NORMALIZER_KEYS = ['type', 'clean_text', 'handle_chinese_chars', 'strip_accents', 'lowercase'];
const MODEL_KEYS = ['type', 'unk_token', 'continuing_subword_prefix', 'max_input_chars_per_word', 'vocab'];

/** MODEL_CORRUPT for what this tokenizer would read otherwise than the official package. */
export function readWordPiece(root: CheckedJson): WordPieceFacts {
  root.object('pre_tokenizer').expectKeys(['type'], 'what it does to words neither');
  expectType(root.object('pre_tokenizer'), 'BertPreTokenizer');
  const model = readModel(root.object('model'));
  const { vocabulary } = model;
  let largest = -1;
  for (const id of vocabulary.values()) largest = Math.max(largest, id);
  return {
    kind: 'WordPiece',
    normalizer: readNormalizer(root.object('normalizer')),
    model,
    ...readShared(root, { size: vocabulary.size, idOf: (token) => vocabulary.get(token) }, largest),
  };
}

function readNormalizer(json: CheckedJson): NormalizerOptions {
  expectType(json, 'BertNormalizer');
  json.expectKeys(NORMALIZER_KEYS, 'what it does to texts neither');
  const lowercase = json.boolean('lowercase');
  return {
    cleanText: json.boolean('clean_text'),
    handleChineseChars: json.boolean('handle_chinese_chars'),
    // null means "as lowercase says"
    stripAccents: json.has('strip_accents') ? json.boolean('strip_accents') : lowercase,
    lowercase,
  };
}

function readModel(json: CheckedJson): WordPieceOptions {
  json.expectKeys(MODEL_KEYS, 'what it does to words neither');
  const vocabulary = json.object('vocab').integerEntries();
  const unknown = json.string('unk_token');
  return {
    vocabulary,
    continuationPrefix: json.string('continuing_subword_prefix'),
    unknownId: vocabulary.get(unknown) ?? refuse(json, `unk_token ${quoted(unknown)} is not in the vocabulary`),
    maxWordChars: json.integer('max_input_chars_per_word', 1),
  };
}

function expectType(json: CheckedJson, wanted: string): void {
  const type = json.string('type');
  if (type !== wanted) refuse(json, `type ${quoted(type)} is not supported, only ${wanted}`);
}

function refuse(json: CheckedJson, problem: string): never {
  throw new ShoalError('MODEL_CORRUPT', `${json.where}: ${problem} for a WordPiece model`, { where: json.where });
}
