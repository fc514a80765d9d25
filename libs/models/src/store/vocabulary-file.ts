// A tokenizer.json for a model that has vocab.txt alone, as models of before 2020 do: a WordPiece of BERT, built from the
// words and tokenizer_config.json as transformers (5.24) builds its BertTokenizer. Refuses other classes, whose vocab.txt
// is read in another way.

import { ShoalError } from '@shoal/contract';
import type { CheckedJson } from '../checked-json.ts';

export const VOCABULARY = 'vocab.txt';

/** Built alike from vocab.txt. */
const CLASSES = ['BertTokenizer', 'DistilBertTokenizer', 'ElectraTokenizer', 'MobileBertTokenizer'];
/** What a model is where no file names a class. */
const MODEL_TYPES = ['bert', 'distilbert', 'electra', 'mobilebert'];
const SPECIAL_TOKENS = {
  pad_token: '[PAD]',
  unk_token: '[UNK]',
  cls_token: '[CLS]',
  sep_token: '[SEP]',
  mask_token: '[MASK]',
} as const;

export interface VocabularyFile {
  readonly text: string;
  /** Where it lies. */
  readonly where: string;
  /** tokenizer_config.json, where there is one. */
  readonly config: CheckedJson | undefined;
  /** config.json. */
  readonly model: CheckedJson;
}

/** Text of a tokenizer.json. MODEL_CORRUPT for another class, and for a special token that the words lack. */
export function tokenizerOfVocabulary({ text, where, config, model }: VocabularyFile): string {
  expectBert(where, config, model);
  const words = linesOf(text);
  const vocabulary = Object.fromEntries(words.map((word, id) => [word, id]));
  const said = (key: string, otherwise: boolean): boolean =>
    config?.has(key) === true ? config.boolean(key) : otherwise;
  const lowercase = said('do_lower_case', true);
  const named = Object.entries(SPECIAL_TOKENS).map(([key, otherwise]) => [key, tokenOf(config, key) ?? otherwise]);
  const special = new Map(named.map(([key, token]) => [key!, token!]));
  const idOf = (key: string): number => {
    const token = special.get(key)!;
    if (Object.hasOwn(vocabulary, token)) return vocabulary[token]!;
    throw corrupt(where, `it has no ${JSON.stringify(token)}, which a text needs ("${key}")`);
  };
  const ends = [special.get('cls_token')!, special.get('sep_token')!] as const;
  return JSON.stringify({
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: [...special.values()]
      .filter((token, at, all) => Object.hasOwn(vocabulary, token) && all.indexOf(token) === at)
      .map((content) => ({ id: vocabulary[content]!, content, ...PLAIN_TOKEN }))
      .toSorted((a, b) => a.id - b.id),
    normalizer: {
      type: 'BertNormalizer',
      clean_text: true,
      handle_chinese_chars: said('tokenize_chinese_chars', true),
      strip_accents: config?.has('strip_accents') === true ? config.boolean('strip_accents') : null,
      lowercase,
    },
    pre_tokenizer: { type: 'BertPreTokenizer' },
    post_processor: {
      type: 'BertProcessing',
      sep: [ends[1], idOf('sep_token')],
      cls: [ends[0], idOf('cls_token')],
    },
    decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
    model: {
      type: 'WordPiece',
      unk_token: words[idOf('unk_token')],
      continuing_subword_prefix: '##',
      max_input_chars_per_word: 100,
      vocab: vocabulary,
    },
  });
}

const PLAIN_TOKEN = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true } as const;

function expectBert(where: string, config: CheckedJson | undefined, model: CheckedJson): void {
  const from = [config, model].find((json) => json?.has('tokenizer_class') === true);
  const given = from?.string('tokenizer_class');
  if (given !== undefined && CLASSES.includes(given.replace(/Fast$/, ''))) return;
  const type = model.has('model_type') ? model.string('model_type') : 'bert';
  if (given === undefined && MODEL_TYPES.includes(type)) return;
  throw corrupt(
    where,
    `there is no tokenizer.json, and vocab.txt alone is read of ${CLASSES.join(', ')}: ` +
      (given === undefined ? `"model_type" is ${type}` : `"tokenizer_class" in ${from!.where} is ${given}`) +
      '. Save the tokenizer with transformers, which writes tokenizer.json',
  );
}

/** As Python reads lines: any of the three ends, and the last line with or without one. */
function linesOf(text: string): readonly string[] {
  const lines = text.split(/\r\n|\r|\n/);
  return lines.at(-1) === '' ? lines.slice(0, -1) : lines;
}

/** A token is a text, or an object with its content. */
function tokenOf(config: CheckedJson | undefined, key: string): string | undefined {
  if (config?.has(key) !== true) return undefined;
  return typeof config.raw(key) === 'object' ? config.object(key).string('content') : config.string(key);
}

function corrupt(where: string, problem: string): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${where}: ${problem}`, { where });
}
