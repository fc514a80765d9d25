// The files beside tokenizer.json: what all kinds of tokenizer read in them, and refuse.

import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';
import type { AddedToken } from '../tokenizer/added-tokens.ts';
import type { Ends } from '../tokenizer/ends.ts';

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

/**
 * How transformers takes a tokenizer.json: it builds the tokenizer anew from the vocabulary, it takes the file as it is,
 * or one or the other by its version, so that nothing may differ.
 */
export type Reading = 'rebuilt' | 'as it is' | 'either';

/** Read from tokenizer.json as it is, whatever its kind. */
export const AS_IS = ['PreTrainedTokenizer', 'TokenizersBackend'];

/** What the classes of RoBERTa, XLM-R and CamemBERT have where no file names others. */
export const ROBERTA_TOKENS = new Map([
  ['bos_token', '<s>'],
  ['eos_token', '</s>'],
  ['sep_token', '</s>'],
  ['cls_token', '<s>'],
  ['unk_token', '<unk>'],
  ['pad_token', '<pad>'],
  ['mask_token', '<mask>'],
]);

/** The tokenizer's class as a file names it. */
export function givenClass({ config, modelTokenizerClass }: TokenizerSource): string | undefined {
  return config?.has('tokenizer_class') === true ? config.string('tokenizer_class') : modelTokenizerClass;
}

/** The same without "Fast", which makes no difference since transformers 5. */
export function classOf(source: TokenizerSource): string | undefined {
  return givenClass(source)?.replace(/Fast$/, '');
}

/**
 * In tokenizer.json they count where tokenizer_config.json leaves them out. Padding on the left moves learned positions by
 * the length of a text's neighbours: rows are never padded there, and have the vectors that they have alone.
 */
export function refuseOtherSides(source: TokenizerSource, notes: string[]): void {
  const padding = sideOf(source, 'padding_side', 'padding');
  if (padding.side === 'left')
    notes.push(
      `${padding.where} pads on the left; nothing is padded there: texts have the vectors that they have alone`,
    );
  else if (padding.side !== 'right')
    throw refusal(padding.where, `"${padding.key}" is ${JSON.stringify(padding.side)}, which is no side`);
  const truncation = sideOf(source, 'truncation_side', 'truncation');
  if (truncation.side !== 'right')
    throw refusal(
      truncation.where,
      `"${truncation.key}" is ${JSON.stringify(truncation.side)}; only "right" is supported: the beginning of a long ` +
        'text is kept here, and with this its end would be',
    );
}

interface Side {
  readonly where: string;
  readonly key: string;
  readonly side: string;
}

function sideOf({ text, where, config }: TokenizerSource, key: string, part: string): Side {
  if (config?.has(key) === true) return { where: config.where, key, side: config.string(key).toLowerCase() };
  const json = CheckedJson.parse(text, where);
  const direction =
    json.has(part) && json.object(part).has('direction') ? json.object(part).string('direction') : 'right';
  return { where: `${where}: ${part}`, key: 'direction', side: direction.toLowerCase() };
}

export function refuseOtherWays(config: CheckedJson): void {
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
}

/** Of both files: "cls_token" and the like, by key. A token is a text, or an object with its content. */
export function namedTokens({ config, specialTokens }: TokenizerSource): ReadonlyMap<string, string> {
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

export interface MissingToken {
  readonly id: number;
  readonly content: string;
}

/** Of tokenizer.json. */
export interface KnownTokens {
  readonly addedTokens: readonly AddedToken[];
  /** By the model's own vocabulary. */
  idOf(token: string): number | undefined;
}

/**
 * Tokens that transformers finds whole in a text and tokenizer.json does not list. `ownTokens`: the special
 * tokens that the class has where no file names others, by key.
 */
export function missingAddedTokens(
  source: TokenizerSource,
  { addedTokens, idOf }: KnownTokens,
  reading: Reading,
  ownTokens: ReadonlyMap<string, string>,
  notes: string[],
): readonly MissingToken[] {
  const { config, where } = source;
  const named = namedTokens(source);
  const known = new Map(addedTokens.map((token) => [token.content, token]));
  const said = new Set([...named.values(), ...extraTokens(config), ...extraTokens(source.specialTokens)]);
  for (const content of expectSameIds(source, known, reading)) said.add(content);
  const own = reading === 'as it is' ? [] : [...ownTokens].map(([key, token]) => named.get(key) ?? token);
  const missing: MissingToken[] = [];
  for (const content of new Set([...said, ...own])) {
    if (content === '' || known.has(content)) continue;
    const id = idOf(content);
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
function expectSameIds(
  source: TokenizerSource,
  addedTokens: ReadonlyMap<string, AddedToken>,
  reading: Reading,
): readonly string[] {
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
      if (
        reading !== 'as it is' &&
        !listed.has(content) &&
        ![...namedTokens(source).values(), ...extraTokens(config)].includes(content)
      )
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
export function limitOf(config: CheckedJson | undefined): number | undefined {
  if (config?.has('model_max_length') !== true) return undefined;
  const limit = config.positive('model_max_length');
  if (limit > Number.MAX_SAFE_INTEGER) return undefined;
  return config.integer('model_max_length', 1);
}

/**
 * "add_bos_token" and "add_eos_token" of tokenizer_config.json against what tokenizer.json puts around texts. transformers 5
 * builds it anew from both as soon as one is there; a key that is not there is left to tokenizer.json, as before 5, with a
 * note.
 */
export function expectOwnEnds(
  source: TokenizerSource,
  { before, behind }: Ends,
  { addedTokens, idOf }: KnownTokens,
  notes: string[],
): void {
  const { config, where } = source;
  const keys = [
    { key: 'add_bos_token', token: 'bos_token', found: before, place: 'before' },
    { key: 'add_eos_token', token: 'eos_token', found: behind, place: 'behind' },
  ] as const;
  if (config === undefined || !keys.some(({ key }) => config.has(key))) return;
  for (const { key, token, found, place } of keys) {
    const name = namedTokens(source).get(token);
    const id = name === undefined ? undefined : (idOf(name) ?? addedTokens.find(({ content }) => content === name)?.id);
    if (!config.has(key)) {
      if (found.length > 0)
        notes.push(`${where} puts tokens ${place} texts, and ${config.where} has no "${key}": they are put there`);
      continue;
    }
    const wanted = config.boolean(key) && id !== undefined ? [id] : [];
    if (String(wanted) === String(found)) continue;
    throw refusal(
      config.where,
      `"${key}" is ${String(config.boolean(key))}, which puts ${wanted.length === 0 ? 'nothing' : name} ${place} texts, and ` +
        `${where} puts ${found.length === 0 ? 'nothing' : `the ids ${found.join(', ')}`} there`,
    );
  }
}

/** As tokenizer.json lists a special token. */
export function listedToken({ id, content }: MissingToken): object {
  return { id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
}

export function refusal(where: string, problem: string): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${where}: ${problem}`, { where });
}
