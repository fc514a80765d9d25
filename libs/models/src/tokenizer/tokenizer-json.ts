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

export function parseTokenizerJson(text: string, where: string): TokenizerFacts {
  const root = CheckedJson.parse(text, where);
  expectType(root.object('pre_tokenizer'), ['BertPreTokenizer']);
  const model = readModel(root.object('model'));
  const addedTokens = readAddedTokens(root);
  return {
    normalizer: readNormalizer(root.object('normalizer')),
    model,
    addedTokens,
    ...readEnds(root.object('post_processor')),
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
    if (content === '') refuse(token, 'an added token is empty');
    tokens.set(content, token.integer('id'));
  }
  return tokens;
}

/** The tokens put around each text: BertProcessing names them, TemplateProcessing spells them as a list. */
function readEnds(json: CheckedJson): { readonly beginId: number; readonly endId: number } {
  expectType(json, ['BertProcessing', 'TemplateProcessing']);
  if (json.string('type') === 'BertProcessing') return { beginId: pairedId(json, 'cls'), endId: pairedId(json, 'sep') };
  const [begin, text, end, ...more] = json.list('single').map((part) => CheckedJson.of(part, `${json.where}: single`));
  if (!begin?.has('SpecialToken') || !text?.has('Sequence') || !end?.has('SpecialToken') || more.length > 0) {
    return refuse(json, '"single" should be one special token, the text, one special token');
  }
  return { beginId: templateId(json, begin), endId: templateId(json, end) };
}

function pairedId(json: CheckedJson, key: string): number {
  const id = json.list(key)[1];
  return typeof id === 'number' && Number.isSafeInteger(id) && id >= 0
    ? id
    : refuse(json, `"${key}" should be [token, id]`);
}

function templateId(json: CheckedJson, part: CheckedJson): number {
  const [id, ...more] = json.object('special_tokens').object(part.object('SpecialToken').string('id')).integers('ids');
  return id !== undefined && more.length === 0 ? id : refuse(json, 'a special token should stand for one id');
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
