// tokenizer.json, and the ids of some texts: the official `tokenizers` package reads the same file. Ids that a model has
// no row for are wrong whatever the texts.

import tokenizers from 'tokenizers';
import { parseTokenizerJson } from '../../../libs/models/src/tokenizer/tokenizer-json.ts';
import { makeTokenizer } from '../../../libs/models/src/tokenizer/make-tokenizer.ts';
import { tinyModelFiles } from '../../../libs/models/src/store/tiny-model.ts';
import type { FuzzedReader, Values } from '../fuzzed-reader.ts';

const TEXTS = [
  'the queue of a batch',
  'Work, WORK [SEP] é 中文!',
  '',
  'unheard-of  words\tand\u200dmarks 🙂',
  'a'.repeat(120),
];

/** A small vocabulary, so that damage lands where it matters. */
function small(post: object): Buffer {
  const words = [
    '[PAD]',
    '[UNK]',
    '[CLS]',
    '[SEP]',
    '[MASK]',
    'the',
    'queue',
    'of',
    'a',
    'batch',
    'work',
    '##s',
    '中',
    ',',
  ];
  const added = words.slice(0, 5).map((content, id) => ({ id, content, special: true, normalized: false }));
  return Buffer.from(
    JSON.stringify({
      version: '1.0',
      truncation: null,
      padding: null,
      added_tokens: added.map((token) => ({ ...token, single_word: false, lstrip: false, rstrip: false })),
      normalizer: {
        type: 'BertNormalizer',
        clean_text: true,
        handle_chinese_chars: true,
        strip_accents: null,
        lowercase: true,
      },
      pre_tokenizer: { type: 'BertPreTokenizer' },
      post_processor: post,
      decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
      model: {
        type: 'WordPiece',
        unk_token: '[UNK]',
        continuing_subword_prefix: '##',
        max_input_chars_per_word: 100,
        vocab: Object.fromEntries(words.map((word, id) => [word, id])),
      },
    }),
  );
}

const template = {
  type: 'TemplateProcessing',
  single: [
    { SpecialToken: { id: '[CLS]', type_id: 0 } },
    { Sequence: { id: 'A', type_id: 0 } },
    { SpecialToken: { id: '[SEP]', type_id: 0 } },
  ],
  pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
  special_tokens: {
    '[CLS]': { id: '[CLS]', ids: [2], tokens: ['[CLS]'] },
    '[SEP]': { id: '[SEP]', ids: [3], tokens: ['[SEP]'] },
  },
};

export const tokenizerReader: FuzzedReader = {
  name: 'tokenizer',
  kind: 'text',
  extension: '.json',
  codes: ['MODEL_CORRUPT'],
  variants: 1,
  mostUndecided: 0.06, // the official package is stricter about fields that mean nothing to ids
  seeds: async () => [
    small(template),
    small({ type: 'BertProcessing', cls: ['[CLS]', 2], sep: ['[SEP]', 3] }),
    Buffer.from(tinyModelFiles({ seed: 1 }).contents.get('tokenizer.json')!),
  ],
  read: async (bytes) => {
    const facts = parseTokenizerJson(bytes.toString(), 'tokenizer.json');
    const tokenizer = makeTokenizer(facts, { hash: 'any', maxTokens: 10_000 });
    return TEXTS.map((text) => {
      const { ids } = tokenizer.encode(text);
      const odd = ids.find((id) => id >= facts.vocabularySize);
      if (odd !== undefined) throw new Error(`id ${odd} is taken for a token of ${facts.vocabularySize}`);
      return [...ids].join();
    });
  },
  readAgain: (bytes) => readTokenizer(bytes.toString()),
};

/** It is stricter about fields that mean nothing to ids, so that its refusal says nothing. */
async function readTokenizer(json: string): Promise<Values | 'unknown'> {
  try {
    const tokenizer = tokenizers.Tokenizer.fromString(json);
    tokenizer.disablePadding();
    tokenizer.disableTruncation();
    const encodings = await tokenizer.encodeBatch(TEXTS);
    return encodings.map((encoding) => [...encoding.getIds()].join());
  } catch {
    return 'unknown';
  }
}
