// Ids of byte pair encodings against the official package: the small ones of the fixtures, trained like those of RoBERTa,
// ModernBERT, Qwen, Llama 3, Gemma and Mistral, and those with every step and option that such files have.
// SHOAL_TEST_NIGHTLY=1 runs the long forms. SHOAL_TEST_TOKENIZERS=a.json:b.json adds real files to all of them.

import { readFileSync } from 'node:fs';
import { basename } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Golden, versionOf } from '../testing/golden.ts';
import { madeTokenizer } from '../testing/made-models.ts';
import { ReferenceTokenizer } from '../testing/reference-tokenizer.ts';
import { NIGHT, everyCodePoint, hostileStrings, randomStrings, realLines } from '../testing/texts.ts';
import { expectSameIds } from '../testing/token-ids.ts';
import { makeTokenizer } from './make-tokenizer.ts';
import { parseTokenizerJson } from './tokenizer-json.ts';

const PACKAGES = new URL('../../../../node_modules', import.meta.url).pathname;
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] === '1';
const REAL = (process.env['SHOAL_TEST_TOKENIZERS'] ?? '').split(':').filter((path) => path !== '');
const KINDS = ['roberta', 'modernbert', 'qwen', 'llama3', 'gemma', 'mistral'];

const golden = new Golden<string>('bpe-ids', versionOf('tokenizers'));
afterAll(() => golden.save());

async function compare(file: string, texts: readonly string[], maxTokens?: number): Promise<number> {
  const facts = parseTokenizerJson(file, 'tokenizer.json');
  const ours = makeTokenizer(facts, { hash: '', maxTokens: maxTokens ?? Number.MAX_SAFE_INTEGER });
  const theirs = new ReferenceTokenizer(file, maxTokens === undefined ? {} : { maxTokens });
  const comparesTruncation = facts.ends.before.length + facts.ends.behind.length > 0;
  return expectSameIds(ours, theirs, texts, { golden, comparesTruncation });
}

/** What the regexes, the cuts and the merges of these models look at. */
const TRAPS = [
  ['', ' ', '  ', '\n', ' \n ', '\r\n\r\n  x', 'a\n\n\n b', 'x \t\u00a0\u3000y', ' \u0085\u2028a', '\ufeffbom'],
  ["it's IT'S I'LL 'Re 'vE 'ſ x'ſ 'd''t '' 'l 'r", "don’t 'tis", "('s", " 's", "a 'LL'", "'re're've'm'", "'K"],
  ['12345678 1 22 333 4444', '٣٤٥٦ ⅷⅸ ²³¹ 1a2b', 'x1.5e-10%', '\u{1d7ce}\u{1d7cf}\u{1d7d0}\u{1d7d1}'],
  ['e\u0301\u0323 e\u0301', '\u212b \u0958 \u1100\u1161\u11a8 \uac00\u11a8', 'a\u0301'.repeat(60), '\u0344\u0301x'],
  ['>  </a>  >\n </b>', '▁▁a ▁ b▁', '<0x41> <0xE2>', '<bos> x <eos>', '<s>a</s> <unk>', '<|endoftext|>a<|im_start|> b'],
  [
    '\u{1e030}\u0301 \u{10d4e}\u{10d69}',
    '\u{105d2}\u0307 \u{16d63}\u{16d67}',
    'ᱼ꟎',
    '你好世界，模型的性能',
    'ㅎㅎㅎ 한국어',
  ],
  ['👨‍👩‍👧‍👦🇩🇪', '\ud800 \udc00a', 'x'.repeat(300), 'ab'.repeat(200), ' '.repeat(200), '-=-='.repeat(40)],
].flat();

describe.each([...KINDS, ...REAL])('ids of %s are those of the official package', (kind) => {
  let json: string;
  beforeAll(async () => {
    json = KINDS.includes(kind) ? await madeTokenizer(kind) : readFileSync(kind, 'utf8');
  });

  test('of every code point among others', async () => {
    expect(await compare(json, everyCodePoint(isNightly ? 7 : 293))).toBeGreaterThan(0);
  });

  test('of traps, hostile and random strings', async () => {
    const count = isNightly ? 8_000 : 500;
    const texts = [...TRAPS, ...hostileStrings(count, 17 + NIGHT), ...randomStrings(count, 3 + NIGHT)];
    expect(await compare(json, texts)).toBeGreaterThan(0);
  });

  test('of real lines', async () => {
    const lines = realLines(PACKAGES, isNightly ? 25_000 : 1_000);
    const compared = await compare(json, lines);
    console.log(`${basename(kind)}: ${lines.length} real lines, ${compared} token ids compared`);
    expect(compared).toBeGreaterThan(lines.length);
  });

  test.each([4, 16, 256])('truncated at %i tokens', async (maxTokens) => {
    const lines = realLines(PACKAGES, isNightly ? 3_000 : 400);
    const long = Array.from({ length: 50 }, (_, at) => lines.slice(at * 5, at * 5 + 1 + (at % 20)).join(' '));
    const texts = [...lines, ...long, ...TRAPS, ...hostileStrings(isNightly ? 3_000 : 300, 5 + NIGHT)];
    expect(await compare(json, texts, maxTokens)).toBeGreaterThan(0);
  });
});

interface Root {
  added_tokens: { content: string; [flag: string]: unknown }[];
  normalizer: object | null;
  pre_tokenizer: object | null;
  post_processor: object | null;
  model: {
    vocab: Record<string, number>;
    merges: ([string, string] | string)[];
    unk_token: string | null;
    [option: string]: unknown;
  };
}

type Change = (root: Root) => void;

const byteLevel = (more: object = {}): object => ({
  type: 'ByteLevel',
  add_prefix_space: false,
  trim_offsets: true,
  use_regex: true,
  ...more,
});
const split = (Regex: string, more: object = {}): object => ({
  type: 'Split',
  pattern: { Regex },
  behavior: 'Isolated',
  invert: false,
  ...more,
});
const sequence = (...pretokenizers: object[]): object => ({ type: 'Sequence', pretokenizers });
const GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const QWEN =
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" +
  '\\s+(?!\\S)|\\s+';

/** Leaves out tokens of the vocabulary that the merges do not need, and gives the others ids without gaps. */
function without(root: Root, isLeftOut: (token: string) => boolean): void {
  const { model } = root;
  model.merges = model.merges.filter((merge) => ![...merge, [...merge].join('')].some((token) => isLeftOut(token)));
  model.vocab = Object.fromEntries(
    Object.keys(model.vocab)
      .filter((token) => !isLeftOut(token) || token.startsWith('<'))
      .map((token, id) => [token, id]),
  );
  for (const token of root.added_tokens) token['id'] = model.vocab[token.content];
  root.post_processor = null;
}

async function changed(kind: string, change: Change): Promise<string> {
  const root = JSON.parse(await madeTokenizer(kind)) as Root;
  change(root);
  return JSON.stringify(root);
}

const VARIANTS: readonly (readonly [string, string, Change])[] = [
  ['a blank put before', 'roberta', (root) => (root.pre_tokenizer = byteLevel({ add_prefix_space: true }))],
  [
    'a blank put before each word',
    'qwen',
    (root) => {
      root.pre_tokenizer = sequence(split(QWEN), byteLevel({ add_prefix_space: true, use_regex: false }));
    },
  ],
  ['no regex at all', 'roberta', (root) => (root.pre_tokenizer = byteLevel({ use_regex: false }))],
  [
    'the regex of GPT-2 as a Split',
    'roberta',
    (root) => {
      root.pre_tokenizer = sequence(split(GPT2), byteLevel({ use_regex: false }));
    },
  ],
  [
    'what is not in a word removed',
    'qwen',
    (root) => {
      root.pre_tokenizer = sequence(
        split(QWEN, { behavior: 'Removed', invert: true }),
        byteLevel({ use_regex: false }),
      );
    },
  ],
  [
    'numbers of any length',
    'llama3',
    (root) => {
      root.pre_tokenizer = sequence(split(QWEN.replace('\\p{N}|', '\\p{N}+|')), byteLevel({ use_regex: false }));
    },
  ],
  [
    'single digits before ByteLevel',
    'roberta',
    (root) => {
      root.pre_tokenizer = sequence({ type: 'Digits', individual_digits: true }, byteLevel());
    },
  ],
  [
    'runs of digits, and two regexes one after the other',
    'modernbert',
    (root) => {
      root.pre_tokenizer = sequence({ type: 'Digits', individual_digits: false }, sequence(split(QWEN), byteLevel()));
    },
  ],
  ['another normal form', 'roberta', (root) => (root.normalizer = { type: 'NFKC' })],
  [
    'merges written as strings',
    'qwen',
    (root) => {
      root.model.merges = ['#version: 0.2', ...root.model.merges.map((merge) => [...merge].join(' '))];
    },
  ],
  [
    'words that are tokens, not merged',
    'roberta',
    (root) => {
      root.model['ignore_merges'] = true;
      root.model.merges = root.model.merges.filter((_, rank) => rank % 5 !== 2 || rank < 200);
    },
  ],
  ['merges in another order', 'modernbert', (root) => (root.model.merges = root.model.merges.toReversed())],
  ['bytes without a token, which vanish', 'roberta', (root) => without(root, (token) => /[zQĠÃĤ]/.test(token))],
  [
    'bytes without a token, one unknown token each',
    'roberta',
    (root) => {
      without(root, (token) => /[zQĠÃĤ]/.test(token));
      root.model.unk_token = '<unk>';
    },
  ],
  [
    'bytes without a token, fused',
    'roberta',
    (root) => {
      without(root, (token) => /[zQĠÃĤ]/.test(token));
      Object.assign(root.model, { unk_token: '<unk>', fuse_unk: true });
    },
  ],
  [
    'normalized added tokens',
    'modernbert',
    (root) => {
      for (const [content, flags] of [
        ['e\u0301', {}],
        ['Ab', { single_word: true }],
        [' x', { lstrip: true }],
      ] as const)
        root.added_tokens.push({ ...root.added_tokens[0]!, ...flags, content, normalized: true, id: 1200 });
      root.added_tokens.splice(5).forEach((token, at) => root.added_tokens.push({ ...token, id: 1200 + at }));
    },
  ],
  ['no byte fallback, unknown fused', 'gemma', (root) => (root.model['byte_fallback'] = false)],
  [
    'no byte fallback, unknown apart',
    'gemma',
    (root) => {
      Object.assign(root.model, { byte_fallback: false, fuse_unk: false });
    },
  ],
  [
    'no unknown token: characters vanish',
    'mistral',
    (root) => {
      Object.assign(root.model, { byte_fallback: false, unk_token: null });
    },
  ],
  ['a few bytes without a token', 'gemma', (root) => without(root, (token) => /^<0x[8F]\d>$/.test(token))],
  [
    'the same, unknown apart',
    'gemma',
    (root) => {
      without(root, (token) => /^<0x[8F]\d>$/.test(token));
      root.model['fuse_unk'] = false;
    },
  ],
  [
    'merges of byte tokens',
    'gemma',
    (root) => {
      for (const [left, right] of [
        ['<0xF0>', '<0x9F>'],
        ['<0xE2>', '<0x80>'],
        ['<0x80>', '<0xE2>'],
      ] as const) {
        root.model.vocab[left + right] = Object.keys(root.model.vocab).length;
        root.model.merges.unshift([left, right]);
      }
      root.added_tokens = root.added_tokens.filter(({ content }) => content in root.model.vocab);
    },
  ],
  ['texts that are tokens, not merged', 'gemma', (root) => (root.model['ignore_merges'] = true)],
  ['blanks that end words', 'gemma', (root) => (root.normalizer = null)],
  [
    'Metaspace first',
    'mistral',
    (root) => {
      root.normalizer = null;
      root.pre_tokenizer = { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: false };
    },
  ],
  [
    'Metaspace always',
    'mistral',
    (root) => {
      root.normalizer = null;
      root.pre_tokenizer = { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: false };
    },
  ],
  [
    'Metaspace that splits',
    'mistral',
    (root) => {
      root.normalizer = null;
      root.pre_tokenizer = { type: 'Metaspace', replacement: '▁', prepend_scheme: 'never', split: true };
    },
  ],
];

describe('every step and option gives the ids of the official package', () => {
  test.each(VARIANTS)('%s (%s)', async (_, kind, change) => {
    const count = isNightly ? 2_000 : 150;
    const made = [...hostileStrings(count, 23 + NIGHT), ...randomStrings(count, 7 + NIGHT)];
    const texts = [...TRAPS, ...made, ...realLines(PACKAGES, count)];
    expect(await compare(await changed(kind, change), texts)).toBeGreaterThan(0);
  });
});

describe('files that are read otherwise are refused by name', () => {
  test.each<[string, string, Change, string]>([
    ['dropout', 'qwen', (root) => (root.model['dropout'] = 0.1), '"dropout" is "0.1"'],
    [
      'a prefix',
      'qwen',
      (root) => (root.model['continuing_subword_prefix'] = '##'),
      '"continuing_subword_prefix" is "##"',
    ],
    ['a suffix', 'qwen', (root) => (root.model['end_of_word_suffix'] = '</w>'), '"end_of_word_suffix" is "</w>"'],
    ['an unknown key', 'qwen', (root) => (root.model['greedy'] = true), '"greedy" is not known here'],
    ['a merge of what is no token', 'qwen', (root) => root.model.merges.push(['Ġt', '€€']), 'asks for "€€"'],
    ['a merge of three', 'qwen', (root) => root.model.merges.push('a b c'), 'should be two tokens, found "a b c"'],
    ['an unknown token that is none', 'gemma', (root) => (root.model.unk_token = '<none>'), '"unk_token" is "<none>"'],
    [
      'another regex',
      'qwen',
      (root) => (root.pre_tokenizer = sequence(split('\\w+'), byteLevel())),
      'the Regex "\\\\w+"',
    ],
    [
      'another behaviour',
      'qwen',
      (root) => {
        root.pre_tokenizer = sequence(split(QWEN, { behavior: 'Contiguous' }), byteLevel());
      },
      '"behavior" is "Contiguous"',
    ],
    [
      'a step behind ByteLevel',
      'qwen',
      (root) => {
        root.pre_tokenizer = sequence(byteLevel(), split(QWEN));
      },
      'Split behind ByteLevel',
    ],
    [
      'a step that is not known',
      'qwen',
      (root) => {
        root.pre_tokenizer = sequence({ type: 'Punctuation', behavior: 'Isolated' }, byteLevel());
      },
      'type "Punctuation" is not supported',
    ],
    ['a regex without ByteLevel', 'gemma', (root) => (root.pre_tokenizer = split(QWEN)), 'only a String'],
  ])('%s', async (_, kind, change, message) => {
    const file = await changed(kind, change);
    expect(() => parseTokenizerJson(file, 'tokenizer.json')).toThrow(message);
  });
});

describe('long texts', () => {
  test.each([
    ['qwen', 'a'],
    ['qwen', ' '],
    ['qwen', 'ab12'],
    ['qwen', 'a\u0301\u0323'],
    ['qwen', '\u0301\u0323'],
    ['qwen', '\u1161'],
    ['gemma', 'the '],
    ['gemma', ' '],
    ['mistral', 'é'],
    ['mistral', '한'],
  ])(
    '%s: 2 MB of %j fill a row in time: by the square of their length they would take a quarter of an hour',
    async (kind, piece) => {
      const facts = parseTokenizerJson(await madeTokenizer(kind), 'tokenizer.json');
      const tokenizer = makeTokenizer(facts, { hash: '', maxTokens: 512 });
      const { ids, isTruncated } = tokenizer.encode(piece.repeat(Math.ceil(2e6 / Buffer.byteLength(piece))));
      expect(ids).toHaveLength(512);
      expect(isTruncated).toBe(true);
    },
    60_000,
  );

  test.each(KINDS)('a word of 200,000 characters has the ids of the official package (%s)', async (kind) => {
    const letters = 'thequickbrownfoxäöü한국';
    const word = Array.from({ length: 200_000 }, (_, at) => letters[(at * at + (at >> 3)) % letters.length]).join('');
    expect(await compare(await madeTokenizer(kind), [word, 'a'.repeat(50_001), word.slice(7, 90_000)])).toBeGreaterThan(
      0,
    );
  });
});
