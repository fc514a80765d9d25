// tokenizer.json of a BERT-family model as checked facts. Takes BertNormalizer + BertPreTokenizer + WordPiece with one
// [CLS]-like token before and one [SEP]-like token after, and refuses everything else by name: ids of a tokenizer that
// is only nearly this one would be wrong without anybody noticing. Padding and truncation in the file are ignored on
// purpose (minilm's says 128 for both): rows are padded by the planner and truncated where the model's authors
// truncate.

import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';

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

export interface TokenizerFacts {
  readonly normalizer: NormalizerOptions;
  readonly model: WordPieceOptions;
  /** Tokens that are recognised in the text itself, such as [SEP], by content. */
  readonly addedTokens: ReadonlyMap<string, number>;
  readonly beginId: number;
  readonly endId: number;
  /** Ids run from 0 to one below this. */
  readonly vocabularySize: number;
}

const KNOWN_KEYS = [
  'version',
  'truncation',
  'padding',
  'added_tokens',
  'normalizer',
  'pre_tokenizer',
  'post_processor',
  'decoder',
  'model',
];
const NORMALIZER_KEYS = ['type', 'clean_text', 'handle_chinese_chars', 'strip_accents', 'lowercase'];
const MODEL_KEYS = ['type', 'unk_token', 'continuing_subword_prefix', 'max_input_chars_per_word', 'vocab'];
const ADDED_TOKEN_KEYS = ['id', 'content', 'single_word', 'lstrip', 'rstrip', 'normalized', 'special'];

export function parseTokenizerJson(text: string, where: string): TokenizerFacts {
  const root = CheckedJson.parse(text, where);
  root.expectKeys(KNOWN_KEYS, 'what it does to texts neither');
  root.object('pre_tokenizer').expectKeys(['type'], 'what it does to words neither');
  expectType(root.object('pre_tokenizer'), ['BertPreTokenizer']);
  const model = readModel(root.object('model'));
  const addedTokens = readAddedTokens(root);
  expectIdsOf(root, model.vocabulary, addedTokens);
  return {
    normalizer: readNormalizer(root.object('normalizer')),
    model,
    addedTokens,
    ...readEnds(root.object('post_processor'), (token) => model.vocabulary.get(token) ?? addedTokens.get(token)),
    vocabularySize: 1 + Math.max(largestId(model.vocabulary), largestId(addedTokens)),
  };
}

function largestId(tokens: ReadonlyMap<string, number>): number {
  let largest = -1;
  for (const id of tokens.values()) largest = Math.max(largest, id);
  return largest;
}

function readNormalizer(json: CheckedJson): NormalizerOptions {
  expectType(json, ['BertNormalizer']);
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
  if (json.has('type')) expectType(json, ['WordPiece']); // files older than tokenizers 0.9 leave it out
  json.expectKeys(MODEL_KEYS, 'what it does to words neither');
  const vocabulary = json.object('vocab').integerEntries();
  const unknown = json.string('unk_token');
  return {
    vocabulary,
    continuationPrefix: json.string('continuing_subword_prefix'),
    unknownId: vocabulary.get(unknown) ?? refuse(json, `unk_token ${JSON.stringify(unknown)} is not in the vocabulary`),
    maxWordChars: json.integer('max_input_chars_per_word', 1),
  };
}

function readAddedTokens(root: CheckedJson): ReadonlyMap<string, number> {
  const tokens = new Map<string, number>();
  if (!root.has('added_tokens')) return tokens;
  for (const [index, value] of root.list('added_tokens').entries()) {
    const token = CheckedJson.of(value, `${root.where}: added_tokens[${index}]`);
    for (const option of ['single_word', 'lstrip', 'rstrip', 'normalized']) {
      if (token.has(option) && token.boolean(option))
        refuse(token, `"${option}" is not supported for ${JSON.stringify(token.string('content'))}`);
    }
    const content = token.string('content');
    token.expectKeys(ADDED_TOKEN_KEYS, 'what it does to texts neither');
    if (content === '') refuse(token, 'an added token is empty');
    if (tokens.has(content)) refuse(token, `${JSON.stringify(content)} is added twice`);
    tokens.set(content, token.integer('id'));
  }
  return tokens;
}

/**
 * The official package looks an added token up in the vocabulary, and gives a new one the next free id, whatever id the
 * file has for it.
 */
function expectIdsOf(
  json: CheckedJson,
  vocabulary: ReadonlyMap<string, number>,
  added: ReadonlyMap<string, number>,
): void {
  let largest = -1; // of the added tokens so far
  for (const [content, id] of added) {
    const own = vocabulary.get(content) ?? Math.max(largest + 1, vocabulary.size);
    if (own !== id)
      refuse(json, `the added token ${JSON.stringify(content)} has the id ${id}, and by its place ${own}`);
    largest = Math.max(largest, id);
  }
}

type IdOf = (token: string) => number | undefined;

/** The tokens put around each text: BertProcessing names them, TemplateProcessing spells them as a list. */
function readEnds(json: CheckedJson, idOf: IdOf): { readonly beginId: number; readonly endId: number } {
  expectType(json, ['BertProcessing', 'TemplateProcessing']);
  if (json.string('type') === 'BertProcessing') {
    json.expectKeys(['type', 'cls', 'sep'], 'what it puts around texts neither');
    return { beginId: pairedId(json, 'cls', idOf), endId: pairedId(json, 'sep', idOf) };
  }
  json.expectKeys(['type', 'single', 'pair', 'special_tokens'], 'what it puts around texts neither');
  const [begin, text, end, ...more] = json.list('single').map((part) => CheckedJson.of(part, `${json.where}: single`));
  if (!begin?.has('SpecialToken') || !text?.has('Sequence') || !end?.has('SpecialToken') || more.length > 0) {
    return refuse(json, '"single" should be one special token, the text, one special token');
  }
  for (const part of [begin.object('SpecialToken'), text.object('Sequence'), end.object('SpecialToken')])
    if (part.has('type_id') && part.integer('type_id') !== 0)
      refuse(part, `its type is ${part.integer('type_id')}; only 0 is supported in a text alone`);
  return { beginId: templateId(json, begin, idOf), endId: templateId(json, end, idOf) };
}

function pairedId(json: CheckedJson, key: string, idOf: IdOf): number {
  const [token, id] = json.list(key);
  if (typeof id !== 'number' || !Number.isSafeInteger(id) || id < 0 || typeof token !== 'string')
    return refuse(json, `"${key}" should be [token, id]`);
  return expectOwnId(json, token, id, idOf);
}

function templateId(json: CheckedJson, part: CheckedJson, idOf: IdOf): number {
  const name = part.object('SpecialToken').string('id');
  const special = json.object('special_tokens').object(name);
  const [id, ...more] = special.integers('ids');
  if (id === undefined || more.length > 0) return refuse(json, 'a special token should stand for one id');
  return expectOwnId(json, name, id, idOf);
}

function expectOwnId(json: CheckedJson, token: string, id: number, idOf: IdOf): number {
  const own = idOf(token);
  return own === id
    ? id
    : refuse(json, `${JSON.stringify(token)} stands for the id ${id}, and in the vocabulary for ${own ?? 'none'}`);
}

function expectType(json: CheckedJson, allowed: readonly string[]): void {
  const type = json.string('type');
  if (!allowed.includes(type))
    refuse(json, `type ${JSON.stringify(type)} is not supported, only ${allowed.join(' or ')}`);
}

function refuse(json: CheckedJson, problem: string): never {
  throw new ShoalError(
    'MODEL_CORRUPT',
    `${json.where}: ${problem}. Shoal reads WordPiece tokenizers of the BERT family`,
    { where: json.where },
  );
}
