// tokenizer_config.json against tokenizer.json. For models of the BERT family transformers (5.24) takes the vocabulary
// from tokenizer.json and builds everything else anew from tokenizer_config.json and its own defaults; other tools read
// tokenizer.json alone. Where the two differ, the file to be stored is written as transformers would have it, with a
// note, if tokenizer_config.json says so in as many words; if it only leaves something out, nobody can know what was
// meant, and both are named in the refusal. What moves tokens about (padding or truncation on the left) is refused.

import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';
import type { AddedToken } from '../tokenizer/added-tokens.ts';
import { parseTokenizerJson } from '../tokenizer/tokenizer-json.ts';
import type { NormalizerOptions, WordPieceFacts } from '../tokenizer/word-piece-facts.ts';

export interface TokenizerSource {
  /** tokenizer.json and where it lies. */
  readonly text: string;
  readonly where: string;
  readonly config: CheckedJson | undefined;
  /** special_tokens_map.json and added_tokens.json, which older models have beside it. */
  readonly specialTokens: CheckedJson | undefined;
  readonly addedTokens: CheckedJson | undefined;
  /** Of config.json. */
  readonly modelTokenizerClass: string | undefined;
}

export interface EffectiveTokenizer {
  /** tokenizer.json as it is stored: unchanged unless a note says otherwise. */
  readonly text: string;
  /** model_max_length, where it is a limit. */
  readonly limit: number | undefined;
  readonly notes: readonly string[];
}

/** Built anew by transformers from what tokenizer_config.json says. */
const REBUILT = ['BertTokenizer', 'DistilBertTokenizer'];
/** Read from tokenizer.json as it is. */
const AS_IS = ['PreTrainedTokenizer', 'TokenizersBackend'];
/** Either, by the version of transformers: nothing may differ. */
const EITHER = ['ElectraTokenizer', 'MobileBertTokenizer', 'ConvBertTokenizer', 'SqueezeBertTokenizer'];

const OWN_SPECIAL_TOKENS: Readonly<Record<string, string>> = {
  unk_token: '[UNK]',
  sep_token: '[SEP]',
  pad_token: '[PAD]',
  cls_token: '[CLS]',
  mask_token: '[MASK]',
};
/** transformers builds WordPiece with these, whatever the file says. */
const [OWN_PREFIX, OWN_WORD_CHARS] = ['##', 100];

type Reading = 'rebuilt' | 'as it is' | 'either';

export function effectiveTokenizer(source: TokenizerSource): EffectiveTokenizer {
  const { text, where, config } = source;
  const facts = parseTokenizerJson(text, where);
  if (facts.kind !== 'WordPiece') throw refusal(where, `a ${facts.kind} tokenizer is not imported yet`);
  const reading = readingOf(source);
  refuseOtherSides(source);
  if (config !== undefined) refuseOtherWays(config);
  const notes: string[] = [];
  const changes = reading === 'as it is' ? {} : normalizerChanges(source, facts.normalizer, reading, notes);
  if (reading === 'as it is') noteIgnored(config, facts.normalizer, notes);
  else expectOwnWordPiece(source, facts);
  const added = missingAddedTokens(source, facts, reading, notes);
  return { text: changed(text, changes, added), limit: limitOf(config), notes };
}

function readingOf({ config, modelTokenizerClass, where }: TokenizerSource): Reading {
  const given = config?.has('tokenizer_class') === true ? config.string('tokenizer_class') : modelTokenizerClass;
  const name = (given ?? 'BertTokenizer').replace(/Fast$/, '');
  if (REBUILT.includes(name)) return 'rebuilt';
  if (AS_IS.includes(name)) return 'as it is';
  if (EITHER.includes(name)) return 'either';
  throw refusal(config?.where ?? where, `"tokenizer_class" is ${given}, and ${where} is read as one of BERT`);
}

/** In tokenizer.json they count where tokenizer_config.json leaves them out. */
function refuseOtherSides({ text, where, config }: TokenizerSource): void {
  const json = CheckedJson.parse(text, where);
  for (const [key, part] of [
    ['padding_side', 'padding'],
    ['truncation_side', 'truncation'],
  ] as const) {
    const own = config?.has(key) === true ? config.string(key) : undefined;
    const other =
      json.has(part) && json.object(part).has('direction') ? json.object(part).string('direction') : undefined;
    const side = (own ?? other ?? 'right').toLowerCase();
    if (side === 'right') continue;
    throw refusal(
      own === undefined ? `${where}: ${part}` : config!.where,
      `${own === undefined ? '"direction"' : `"${key}"`} is ${JSON.stringify(side)}; only "right" is supported: ` +
        (part === 'padding'
          ? 'padding before a text moves its positions by the length of its neighbours'
          : 'the beginning of a long text is kept here, and with this its end would be'),
    );
  }
}

function refuseOtherWays(config: CheckedJson): void {
  if (config.has('split_special_tokens') && config.boolean('split_special_tokens'))
    throw refusal(
      config.where,
      '"split_special_tokens" is true: special tokens in a text are always taken as such here',
    );
  if (config.has('auto_map'))
    throw refusal(config.where, '"auto_map" names a tokenizer in code of the model’s own, which is not run here');
  if (config.has('model_input_names') && !config.list('model_input_names').includes('attention_mask'))
    throw refusal(
      config.where,
      '"model_input_names" leaves the attention mask out, so that padding would be read as text',
    );
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

function expectOwnWordPiece(source: TokenizerSource, { model, ends }: WordPieceFacts): void {
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
    const token = namedTokens(source).get(key) ?? OWN_SPECIAL_TOKENS[key]!;
    if (model.vocabulary.get(token) !== id)
      throw refusal(
        config?.where ?? where,
        `"${key}" is ${JSON.stringify(token)}, whose id is ${model.vocabulary.get(token) ?? 'none'}, but ${where} ` +
          `puts the id ${id} in its place`,
      );
  }
}

/** Of both files: "cls_token" and the like, by key. A token is a text, or an object with its content. */
function namedTokens({ config, specialTokens }: TokenizerSource): ReadonlyMap<string, string> {
  const tokens = new Map<string, string>();
  // the older file is read where tokenizer_config.json does not list added tokens, and then it counts
  const files = config?.has('added_tokens_decoder') === true ? [config] : [config, specialTokens];
  for (const file of files) {
    for (const key of file?.keys() ?? []) {
      if (!key.endsWith('_token') || !file!.has(key) || key.startsWith('add_')) continue;
      const value = file!.raw(key);
      if (typeof value === 'string') tokens.set(key, value);
      else if (typeof value === 'object') tokens.set(key, file!.object(key).string('content'));
    }
  }
  return tokens;
}

interface MissingToken {
  readonly id: number;
  readonly content: string;
}

/** Tokens that transformers finds whole in a text and tokenizer.json does not list. */
function missingAddedTokens(
  source: TokenizerSource,
  { model, addedTokens }: WordPieceFacts,
  reading: Reading,
  notes: string[],
): readonly MissingToken[] {
  const { config, where } = source;
  const named = namedTokens(source);
  const known = new Map(addedTokens.map((token) => [token.content, token]));
  const said = new Set([...named.values(), ...extraTokens(config), ...extraTokens(source.specialTokens)]);
  for (const content of expectSameIds(source, known)) said.add(content);
  const own =
    reading === 'as it is' ? [] : Object.entries(OWN_SPECIAL_TOKENS).map(([key, token]) => named.get(key) ?? token);
  const missing: MissingToken[] = [];
  for (const content of new Set([...said, ...own])) {
    if (content === '' || known.has(content)) continue;
    const id = model.vocabulary.get(content);
    if (id !== undefined) missing.push({ id, content });
    else if (said.has(content) && !own.includes(content))
      throw refusal(
        config?.where ?? where,
        `it has the token ${JSON.stringify(content)}, for which ${where} has no id: transformers would give it a new ` +
          'one, which the model was not trained with',
      );
  }
  if (missing.length > 0)
    notes.push(
      `${missing.map(({ content }) => JSON.stringify(content)).join(', ')} in a text ` +
        `${missing.length === 1 ? 'is one token' : 'are one token each'}, as transformers has it, not tokenizer.json`,
    );
  return missing;
}

/** "extra_special_tokens", formerly "additional_special_tokens": a list of texts or objects, or such by name. */
function extraTokens(file: CheckedJson | undefined): readonly string[] {
  const key = ['extra_special_tokens', 'additional_special_tokens'].find((name) => file?.has(name) === true);
  if (file === undefined || key === undefined) return [];
  const value = file.raw(key);
  const tokens: readonly unknown[] = Array.isArray(value) ? value : Object.values(Object(value));
  return tokens.map((token) =>
    typeof token === 'string' ? token : CheckedJson.of(token, `${file.where}: ${key}`).string('content'),
  );
}

/** The tokens that older and newer lists add; MODEL_CORRUPT where one has another id or way than in tokenizer.json. */
function expectSameIds(source: TokenizerSource, addedTokens: ReadonlyMap<string, AddedToken>): readonly string[] {
  const { config, addedTokens: older, where } = source;
  const listed = new Map<string, number>();
  if (config?.has('added_tokens_decoder') === true) {
    const decoder = config.object('added_tokens_decoder');
    for (const id of decoder.keys()) {
      const token = decoder.object(id);
      expectSameFlags(token, addedTokens.get(token.string('content')), where);
      listed.set(token.string('content'), Number(id));
    }
    for (const content of addedTokens.keys())
      if (!listed.has(content) && ![...namedTokens(source).values(), ...extraTokens(config)].includes(content))
        throw refusal(
          `${config.where}: added_tokens_decoder`,
          `it has no ${JSON.stringify(content)}, which ${where} adds: transformers would split it`,
        );
  } else for (const [content, id] of older?.integerEntries() ?? []) listed.set(content, id);
  for (const [content, id] of listed) {
    const other = addedTokens.get(content)?.id;
    if (other !== undefined && other !== id)
      throw refusal(
        config?.where ?? where,
        `the token ${JSON.stringify(content)} has the id ${id}, in ${where} ${other}`,
      );
  }
  return [...listed.keys()];
}

/** Of a token in "added_tokens_decoder", and of the same one in tokenizer.json where it has it. */
function expectSameFlags(token: CheckedJson, inFile: AddedToken | undefined, where: string): void {
  const flags = {
    single_word: inFile?.isSingleWord,
    lstrip: inFile?.stripsLeft,
    rstrip: inFile?.stripsRight,
    normalized: inFile?.isNormalized,
  };
  for (const [flag, other = false] of Object.entries(flags)) {
    if (!token.has(flag) || token.boolean(flag) === other) continue;
    throw refusal(
      token.where,
      `"${flag}" is ${String(!other)} for ${JSON.stringify(token.string('content'))}, and in ${where} ` +
        (inFile === undefined ? 'there is no such token' : String(other)),
    );
  }
}

/** Enormous where a tokenizer has none, which Python writes as a number all the same. */
function limitOf(config: CheckedJson | undefined): number | undefined {
  if (config?.has('model_max_length') !== true) return undefined;
  const limit = config.positive('model_max_length');
  if (limit > Number.MAX_SAFE_INTEGER) return undefined;
  return config.integer('model_max_length', 1);
}

function changed(text: string, changes: NormalizerChanges, added: readonly MissingToken[]): string {
  if (Object.keys(changes).length === 0 && added.length === 0) return text;
  const file = JSON.parse(text) as { normalizer: object; added_tokens?: readonly object[] };
  const tokens = added.map((token) => ({
    ...token,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: true,
  }));
  return JSON.stringify({
    ...file,
    normalizer: { ...file.normalizer, ...changes },
    added_tokens: [...(file.added_tokens ?? []), ...tokens],
  });
}

function refusal(where: string, problem: string): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${where}: ${problem}`, { where });
}
