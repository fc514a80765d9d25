// tokenizer_config.json against a WordPiece tokenizer.json. For models of the BERT family transformers (5.24) takes the
// vocabulary from tokenizer.json and builds everything else anew from tokenizer_config.json and its own defaults; other
// tools read tokenizer.json alone. Where the two differ, the file to be stored is written as transformers would have it,
// with a note, if tokenizer_config.json says so in as many words; if it only leaves something out, nobody can know what
// was meant, and both are named in the refusal.

import { ShoalError } from '@shoal/contract';
import type { CheckedJson } from '../checked-json.ts';
import type { NormalizerOptions, WordPieceFacts } from '../tokenizer/word-piece-facts.ts';
import {
  AS_IS,
  classOf,
  givenClass,
  limitOf,
  listedToken,
  missingAddedTokens,
  namedTokens,
  refusal,
  refuseOtherSides,
  refuseOtherWays,
  type EffectiveTokenizer,
  type MissingToken,
  type Reading,
  type TokenizerSource,
} from './tokenizer-source.ts';

/** Built anew by transformers from what tokenizer_config.json says. */
const REBUILT = ['BertTokenizer', 'DistilBertTokenizer', 'MPNetTokenizer'];
/** Either, by the version of transformers: nothing may differ. */
const EITHER = ['ElectraTokenizer', 'MobileBertTokenizer', 'ConvBertTokenizer', 'SqueezeBertTokenizer'];

/** What a class has where no file names others. */
const BERT_TOKENS = new Map([
  ['unk_token', '[UNK]'],
  ['sep_token', '[SEP]'],
  ['pad_token', '[PAD]'],
  ['cls_token', '[CLS]'],
  ['mask_token', '[MASK]'],
]);
const MPNET_TOKENS = new Map([
  ['bos_token', '<s>'],
  ['eos_token', '</s>'],
  ['unk_token', '[UNK]'],
  ['sep_token', '</s>'],
  ['pad_token', '<pad>'],
  ['cls_token', '<s>'],
  ['mask_token', '<mask>'],
]);
/** transformers builds WordPiece with these, whatever the file says. */
const [OWN_PREFIX, OWN_WORD_CHARS] = ['##', 100];

/** tokenizer.json as it is to be stored. MODEL_CORRUPT, by file, key and value, where the two cannot be made one. */
export function effectiveWordPiece(source: TokenizerSource, facts: WordPieceFacts): EffectiveTokenizer {
  const { text, config } = source;
  const reading = readingOf(source);
  if (config !== undefined) refuseOtherWays(config);
  if (config !== undefined) refuseOtherWords(config);
  const notes: string[] = [];
  refuseOtherSides(source, notes);
  const own = classOf(source) === 'MPNetTokenizer' ? MPNET_TOKENS : BERT_TOKENS;
  const changes = reading === 'as it is' ? {} : normalizerChanges(source, facts.normalizer, reading, notes);
  if (reading === 'as it is') noteIgnored(config, facts.normalizer, notes);
  else expectOwnWordPiece(source, facts, own);
  const { vocabulary } = facts.model;
  const known = { addedTokens: facts.addedTokens, idOf: (token: string) => vocabulary.get(token) };
  const added = missingAddedTokens(source, known, reading, own, notes);
  return { text: changed(text, changes, added), limit: limitOf(config), notes };
}

function readingOf(source: TokenizerSource): Reading {
  const { config, where } = source;
  const name = classOf(source) ?? 'BertTokenizer';
  if (REBUILT.includes(name)) return 'rebuilt';
  if (AS_IS.includes(name)) return 'as it is';
  if (EITHER.includes(name)) return 'either';
  throw refusal(
    config?.where ?? where,
    `"tokenizer_class" is ${givenClass(source)}, and ${where} is read as one of BERT`,
  );
}

/** Keys of BERT's own tokenizers. */
function refuseOtherWords(config: CheckedJson): void {
  if (config.has('wordpieces_prefix') && config.string('wordpieces_prefix') !== OWN_PREFIX)
    throw refusal(
      config.where,
      `"wordpieces_prefix" is ${config.string('wordpieces_prefix')}; only ${OWN_PREFIX} is supported`,
    );
  // transformers' own tokenizers since 5 take neither
  if (config.has('never_split') && config.list('never_split').length > 0)
    throw refusal(config.where, '"never_split" is not empty, and no tokenizer of today keeps such words whole');
  if (config.has('do_basic_tokenize') && !config.boolean('do_basic_tokenize'))
    throw refusal(config.where, '"do_basic_tokenize" is false, and tokenizer.json splits texts into words first');
}

interface NormalizerChanges {
  lowercase?: boolean;
  handle_chinese_chars?: boolean;
  strip_accents?: boolean;
}

/** What tokenizer_config.json has otherwise than tokenizer.json. */
function normalizerChanges(
  { config, where }: TokenizerSource,
  found: NormalizerOptions,
  reading: Reading,
  notes: string[],
): NormalizerChanges {
  const said = (key: string, otherwise: boolean): boolean =>
    config?.has(key) === true ? config.boolean(key) : otherwise;
  const lowercase = said('do_lower_case', true);
  const wanted = [
    { option: 'lowercase', key: 'do_lower_case', value: lowercase, found: found.lowercase },
    {
      option: 'handle_chinese_chars',
      key: 'tokenize_chinese_chars',
      value: said('tokenize_chinese_chars', true),
      found: found.handleChineseChars,
    },
    // nothing said means "as do_lower_case says", in either file
    {
      option: 'strip_accents',
      key: 'strip_accents',
      value: said('strip_accents', lowercase),
      found: found.stripAccents,
    },
  ] as const;
  if (!found.cleanText)
    throw refusal(
      `${where}: normalizer`,
      '"clean_text" is false; transformers cleans texts of every model of this kind',
    );
  const changes: NormalizerChanges = {};
  for (const { option, key, value, found: inFile } of wanted) {
    if (value === inFile) continue;
    const isSaid = config?.has(key) === true || (key === 'strip_accents' && config?.has('do_lower_case') === true);
    const both =
      `${where} has "${option}": ${String(inFile)}, ${whatIsSaid(config, key, isSaid)}, ` +
      `and transformers takes ${String(value)}`;
    if (!isSaid || reading === 'either')
      throw new ShoalError(
        'MODEL_CORRUPT',
        `${both}: say in tokenizer_config.json what is meant, "${key}": ${String(inFile)} or ${String(value)}`,
        { where, key },
      );
    changes[option] = value;
    notes.push(`${both}; so does the imported model`);
  }
  return changes;
}

function whatIsSaid(config: CheckedJson | undefined, key: string, isSaid: boolean): string {
  if (config === undefined) return 'there is no tokenizer_config.json';
  return `${config.where} has ${isSaid ? `"${key}": ${String(config.raw(key) ?? null)}` : `no "${key}"`}`;
}

/** transformers passes over them for a tokenizer that is read as it is. */
function noteIgnored(config: CheckedJson | undefined, found: NormalizerOptions, notes: string[]): void {
  if (config?.has('do_lower_case') === true && config.boolean('do_lower_case') !== found.lowercase)
    notes.push(
      `${config.where} has "do_lower_case": ${String(!found.lowercase)} beside a "tokenizer_class" that ` +
        `reads tokenizer.json as it is; capitals are ${found.lowercase ? 'lowered' : 'kept'}, as in transformers`,
    );
}

function expectOwnWordPiece(
  source: TokenizerSource,
  { model, ends }: WordPieceFacts,
  ownTokens: ReadonlyMap<string, string>,
): void {
  const { where, config } = source;
  if (model.continuationPrefix !== OWN_PREFIX || model.maxWordChars !== OWN_WORD_CHARS)
    throw refusal(
      `${where}: model`,
      `"continuing_subword_prefix" is ${JSON.stringify(model.continuationPrefix)} and "max_input_chars_per_word" ` +
        `${model.maxWordChars}; transformers takes "${OWN_PREFIX}" and ${OWN_WORD_CHARS} for a ` +
        `${config?.has('tokenizer_class') === true ? config.string('tokenizer_class') : 'BertTokenizer'}: with ` +
        '"tokenizer_class": "PreTrainedTokenizerFast" in tokenizer_config.json the file is taken as it is',
    );
  const ids = { unk_token: model.unknownId, cls_token: ends.before[0], sep_token: ends.behind[0] };
  if (ends.before.length !== 1 || ends.behind.length !== 1)
    throw refusal(
      `${where}: post_processor`,
      'transformers puts one token before a text of this kind and one behind it',
    );
  for (const [key, id] of Object.entries(ids)) {
    const token = namedTokens(source).get(key) ?? ownTokens.get(key)!;
    if (model.vocabulary.get(token) !== id)
      throw refusal(
        config?.where ?? where,
        `"${key}" is ${JSON.stringify(token)}, whose id is ${model.vocabulary.get(token) ?? 'none'}, but ${where} ` +
          `puts the id ${id} in its place`,
      );
  }
}

function changed(text: string, changes: NormalizerChanges, added: readonly MissingToken[]): string {
  if (Object.keys(changes).length === 0 && added.length === 0) return text;
  const file = JSON.parse(text) as { normalizer: object; added_tokens?: readonly object[] };
  return JSON.stringify({
    ...file,
    normalizer: { ...file.normalizer, ...changes },
    added_tokens: [...(file.added_tokens ?? []), ...added.map(listedToken)],
  });
}
