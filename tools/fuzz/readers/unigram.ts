// tokenizer.json of Unigram models, and the ids of some texts: the official `tokenizers` package reads the same file. It
// ends its process over damaged charsmaps and templates, so that it is asked only where those are sound; what is read of
// damaged ones counts as long as every id has a row.

import tokenizers from 'tokenizers';
import { smallCharsmap } from '../../../libs/models/src/testing/small-charsmap.ts';
import { makeTokenizer } from '../../../libs/models/src/tokenizer/make-tokenizer.ts';
import { parseTokenizerJson } from '../../../libs/models/src/tokenizer/tokenizer-json.ts';
import type { FuzzedReader, Values } from '../fuzzed-reader.ts';

const TEXTS = [
  'the queue of a batch',
  'Work,\tWORK <s> é  ﬁ中文! ',
  '',
  ' <mask>unheard-of  <mask>\u3000words\nand\u200dmarks\u0301 🙂',
  'a'.repeat(120),
];

const charsmap = {
  type: 'Precompiled',
  precompiled_charsmap: smallCharsmap({ '\t': ' ', '\n': ' ', '\u3000': ' ', ﬁ: 'fi', '\u200d': '' }),
};
const metaspace = { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true };
const template = {
  type: 'TemplateProcessing',
  single: [
    { SpecialToken: { id: '<s>', type_id: 0 } },
    { Sequence: { id: 'A', type_id: 0 } },
    { SpecialToken: { id: '</s>', type_id: 0 } },
  ],
  pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }],
  special_tokens: {
    '<s>': { id: '<s>', ids: [0], tokens: ['<s>'] },
    '</s>': { id: '</s>', ids: [2], tokens: ['</s>'] },
  },
};
const SOUND = new Set([template, null].map((part) => JSON.stringify(part)));

const PIECES = [
  '▁',
  '▁the',
  '▁a',
  '▁work',
  'que',
  'ue',
  'e',
  's',
  'a',
  '中',
  'fi',
  ',',
  '!',
  'wor',
  'ds',
  '▁batch',
  'of',
];

function small(parts: object): Buffer {
  const vocab = [
    ...['<s>', '<pad>', '</s>', '<unk>', '<mask>'].map((token) => [token, 0]),
    ...PIECES.map((piece, at) => [piece, -2 - at / 3]),
  ];
  const flags = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
  return Buffer.from(
    JSON.stringify({
      version: '1.0',
      truncation: null,
      padding: null,
      added_tokens: ['<s>', '<pad>', '</s>', '<unk>', '<mask>'].map((content, id) => ({
        id,
        content,
        ...flags,
        lstrip: id === 4,
      })),
      normalizer: charsmap,
      pre_tokenizer: { type: 'Sequence', pretokenizers: [{ type: 'WhitespaceSplit' }, metaspace] },
      post_processor: template,
      decoder: metaspace,
      model: { type: 'Unigram', unk_id: 3, vocab, byte_fallback: false },
      ...parts,
    }),
  );
}

const blanks = { type: 'Replace', pattern: { Regex: ' {2,}' }, content: '▁' };

export const unigramReader: FuzzedReader = {
  name: 'unigram',
  kind: 'text',
  extension: '.json',
  codes: ['MODEL_CORRUPT'],
  variants: 1,
  mostUndecided: 0.06, // damaged charsmaps (the package aborts), and fields that mean nothing to ids
  seeds: async () => [
    small({}),
    small({
      normalizer: {
        type: 'Sequence',
        normalizers: [
          { type: 'NFKC' },
          { type: 'Lowercase' },
          { type: 'Strip', strip_left: false, strip_right: true },
          blanks,
        ],
      },
      pre_tokenizer: metaspace,
      post_processor: null,
    }),
    small({ normalizer: { type: 'StripAccents' } }),
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
  readAgain: (bytes) => (isSafe(bytes.toString()) ? readUnigram(bytes.toString()) : 'unknown'),
};

/** Whether charsmaps and what is put around texts are those of a seed. */
function isSafe(json: string): boolean {
  try {
    const root = JSON.parse(json) as { post_processor?: unknown };
    const charsmaps = [...json.matchAll(/"precompiled_charsmap"\s*:\s*"([^"]*)"/g)].map(([, map]) => map);
    const isPlain = !/Precompiled/.test(json) || charsmaps.length > 0;
    return (
      isPlain &&
      charsmaps.every((map) => map === charsmap.precompiled_charsmap) &&
      SOUND.has(JSON.stringify(root.post_processor ?? null))
    );
  } catch {
    return false;
  }
}

/** It is stricter about fields that mean nothing to ids, so that its refusal says nothing. */
async function readUnigram(json: string): Promise<Values | 'unknown'> {
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
