// Token ids against the official package: by hand, over real lines, over random Unicode, with and without truncation.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Encoded, Tokenizer } from '@shoal/core';
import { seededRandom } from '@shoal/core/base';
import type { StoredModel } from '../store/stored-model.ts';
import { FETCH_TIMEOUT_MS, openMinilm } from '../testing/minilm.ts';
import { Golden, hashOf, versionOf } from '../testing/golden.ts';
import { ReferenceTokenizer } from '../testing/reference-tokenizer.ts';
import { randomStrings, realLines } from '../testing/texts.ts';
import { openTokenizer } from './open-tokenizer.ts';
import { parseTokenizerJson } from './tokenizer-json.ts';
import { makeTokenizer } from './make-tokenizer.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const PACKAGES = new URL('../../../../node_modules', import.meta.url).pathname;

let model: StoredModel;
let json: string;
let whole: Tokenizer; // never truncates

beforeAll(async () => {
  model = await openMinilm();
  json = await readFile(join(model.folder, 'tokenizer.json'), 'utf8');
  whole = makeTokenizer(parseTokenizerJson(json, 'tokenizer.json'), {
    hash: '',
    maxTokens: Number.MAX_SAFE_INTEGER,
  });
}, FETCH_TIMEOUT_MS);

/** What the official package gave in an earlier run, as a hash of all ids of a thousand texts. */
const golden = new Golden<string>('token-ids', versionOf('tokenizers'));
afterAll(() => golden.save());

/** Fails with the first texts whose ids differ; returns how many ids were compared. */
async function expectSameIds(ours: Tokenizer, theirs: ReferenceTokenizer, texts: readonly string[]): Promise<number> {
  const differing: unknown[] = [];
  let compared = 0;
  for (let start = 0; start < texts.length; start += 1_000) {
    const group = texts.slice(start, start + 1_000);
    const encoded = group.map((text) => ours.encode(text));
    compared += encoded.reduce((sum, { ids }) => sum + ids.length, 0);
    const known = await golden.get(hashOf(theirs.about, ...group), async () => digestOf(await theirs.encode(group)));
    if (digestOf(encoded) === known) continue;
    const expected = await theirs.encode(group);
    for (const [at, text] of group.entries()) {
      const found = encoded[at]!;
      const isSame = String(found.ids) === String(expected[at]!.ids) && found.isTruncated === expected[at]!.isTruncated;
      if (!isSame && differing.length < 3) differing.push({ text, found, expected: expected[at] });
    }
  }
  expect(differing).toEqual([]);
  return compared;
}

const digestOf = (encoded: readonly { readonly ids: ArrayLike<number>; readonly isTruncated: boolean }[]): string =>
  hashOf(...encoded.map(({ ids, isTruncated }) => `${String(isTruncated)} ${Array.from(ids).join(' ')}`));

describe('token ids are those of the official package', () => {
  test.each([
    ['nothing', ''],
    ['a space', ' '],
    ['only spaces of all kinds', ' \t\n\r\u00a0\u3000\u2028'],
    ['punctuation', 'Hello, World! $100 +5% ^caret `tick` ~til'],
    ['accents', 'naïve café Ångström e\u0301 Việt'],
    ['Chinese', '你好，世界 mixed 中文text'],
    ['kana', '日本語テキスト ｶﾞ'],
    ['Hangul', '한국어 한'],
    ['emoji', '😀👍🏽 text 👨‍👩‍👧‍👦'],
    ['controls', 'a\u0000b\u0007c\u200bd\ufeffe\u00ad'],
    ['vertical tab, form feed, next line', 'a\u000bb\u000cc\u0085d'],
    ['special tokens', '[CLS] in text [SEP] [MASK]ed[PAD] [cls] [MASK'],
    ['a word of 100 characters', 'x'.repeat(100)],
    ['a word of 101 characters', 'x'.repeat(101)],
    ['100 characters in 200 code units', '𝕏'.repeat(100)],
    ['lower case of its own', 'ß ẞ İ ı ŉ ﬁ ΣΊΣΥΦΟΣ'],
    ['a lone surrogate', 'a\ud800b \udc00'],
    ['hashes', '##ing ## # ##'],
    ['marks without a letter', '\u0301\u0302 x'],
    ['decomposes to punctuation', 'a≠b \u037e \u1fef'],
    ['astral Chinese', 'a𠀀b𫠠c'],
    ['right to left', 'العربية עברית'],
    ['Indic', 'ไทย हिन्दी தமிழ்'],
  ])('%s', async (_, text) => {
    await expectSameIds(whole, new ReferenceTokenizer(json), [text]);
  });

  test('on 25,000 real lines', async () => {
    const lines = realLines(PACKAGES, 25_000);
    expect(lines.length).toBeGreaterThanOrEqual(20_000);
    const compared = await expectSameIds(whole, new ReferenceTokenizer(json), lines);
    console.log(`${lines.length} real lines, ${compared} token ids compared`);
  });

  test('on random Unicode strings', async () => {
    const strings = randomStrings(isNightly ? 20_000 : 4_000, 3);
    const compared = await expectSameIds(whole, new ReferenceTokenizer(json), strings);
    console.log(`${strings.length} random strings, ${compared} token ids compared`);
  });

  // Of what never fills a row, or only after long: read in pieces, whatever is cut where.
  test('on texts too long for one piece, of whatever moves, decomposes, is dropped or splits', async () => {
    const theirs = new ReferenceTokenizer(json, { maxTokens: 40 });
    const ours = await openTokenizer(model, { maxTokens: 40 });
    const texts = longTexts();
    const taken = (text: string): Encoded => {
      for (let steps = ours.encodeSteps!(text), count = 0; ; count += 1) {
        const { done, value } = steps.next();
        if (done !== true) continue;
        expect(count).toBeGreaterThan(0);
        return value;
      }
    };
    await expectSameIds({ ...ours, encode: taken }, theirs, texts);
    await expectSameIds(ours, theirs, texts);
  });

  test.each([3, 8, 16, 256])('truncated at %i tokens', async (maxTokens) => {
    const ours = await openTokenizer(model, { maxTokens });
    const theirs = new ReferenceTokenizer(json, { maxTokens });
    const lines = realLines(PACKAGES, isNightly ? 4_000 : 1_500);
    const long = Array.from({ length: 200 }, (_, at) => lines.slice(at * 5, at * 5 + 1 + (at % 20)).join(' '));
    const exact = [252, 253, 254, 255, 256].map((words) => 'the '.repeat(words));
    await expectSameIds(ours, theirs, [...lines, ...long, ...exact, ...randomStrings(lines.length, 5)]);
  });
});

/** Each with a word before and words behind what is long. */
function longTexts(): readonly string[] {
  const kinds = [
    'a',
    ' ',
    'é',
    '한',
    'Σ',
    '😀',
    '\u200b',
    '\u0301',
    '\u0301\u0323',
    '\u302e\u{1d165}',
    '\u{1d165}\u0301\u302e',
  ];
  const random = seededRandom(34);
  const one = (of: readonly string[]): string => of[Math.floor(random() * of.length)]!;
  const odd = [
    'é',
    '한',
    'Σ',
    '\u0301',
    '\u302e',
    '\u{1d165}',
    '\u{1d160}',
    '\u0f73',
    '\u00ad',
    '\u037e',
    '\u2260',
    '\u1e9b\u0323',
    'a',
  ];
  const mixtures = Array.from({ length: 30 }, (_, at) => {
    const few = odd.slice(at % odd.length).slice(0, 2 + (at % 4));
    return Array.from({ length: 20_000 + 97 * at }, () => one(few)).join('');
  });
  const same = kinds.flatMap((kind) => [16_384, 40_001].map((units) => kind.repeat(Math.ceil(units / kind.length))));
  return [...same, ...mixtures].map((long) => `e${long}\u0323x Ärger, ${long.slice(0, 9_000)} end [SEP]`);
}

type Root = Record<string, Record<string, unknown>>;

/** minilm's tokenizer.json with a vocabulary in which every option matters, changed by `change`. */
function smallTokenizer(change: (root: Root) => void): string {
  const pieces = [
    '[PAD]',
    '[UNK]',
    '[CLS]',
    '[SEP]',
    'Ab',
    'ab',
    '##c',
    '##C',
    'é',
    'e',
    '中',
    '文',
    '中文',
    'x',
    '##x',
    '$',
    '\u0000',
    'a',
    '##b',
    'ς',
    'σ',
    '<add>',
  ];
  const added = (id: number): unknown => ({
    id,
    content: pieces[id],
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: id === 3,
  });
  const root = JSON.parse(json) as Root & Record<string, unknown>;
  root['model']!['vocab'] = Object.fromEntries(pieces.map((piece, id) => [piece, id]));
  Object.assign(root, {
    added_tokens: [added(3), added(21)],
    post_processor: { type: 'BertProcessing', sep: ['[SEP]', 3], cls: ['[CLS]', 2] },
  });
  change(root);
  return JSON.stringify(root);
}

describe('fields of tokenizer.json that change ids', () => {
  const texts = [
    'Abc abC ABC',
    'é e\u0301 É',
    '中文 中 x中文x',
    'xxxxx xxxxxx',
    'a\u0000b\u000bc $',
    'ΑΣ σς',
    '<add>x<add><ad[SEP]',
    'a\tb\u00a0c',
    '\u2000x\ufeffx',
  ];

  test.each<[string, (root: Root) => void]>([
    ['as they are', () => undefined],
    [
      'lowercase: false keeps case and accents',
      (root) => {
        root['normalizer']!['lowercase'] = false;
      },
    ],
    [
      'strip_accents: false keeps accents',
      (root) => {
        root['normalizer']!['strip_accents'] = false;
      },
    ],
    [
      'strip_accents: true without lowercase',
      (root) => {
        Object.assign(root['normalizer']!, { strip_accents: true, lowercase: false });
      },
    ],
    [
      'handle_chinese_chars: false',
      (root) => {
        root['normalizer']!['handle_chinese_chars'] = false;
      },
    ],
    [
      'clean_text: false',
      (root) => {
        root['normalizer']!['clean_text'] = false;
      },
    ],
    [
      'max_input_chars_per_word: 5',
      (root) => {
        root['model']!['max_input_chars_per_word'] = 5;
      },
    ],
  ])('%s', async (_, change) => {
    const changed = smallTokenizer(change);
    const ours = makeTokenizer(parseTokenizerJson(changed, 'tokenizer.json'), { hash: '', maxTokens: 512 });
    await expectSameIds(ours, new ReferenceTokenizer(changed), [...texts, ...randomStrings(2_000, 11)]);
  });
});

describe('long texts', () => {
  test.each([
    ['one word', 'a'],
    ['one odd word', 'é'],
    ['spaces', ' '],
    ['characters that decompose to punctuation', '≠'],
    ['words', 'lorem ipsum dolor '],
    ['nothing but dropped characters', '\u200b'],
  ])('eight times as much of %s takes eight times as long, not 64', async (_, piece) => {
    const tokenizer = await openTokenizer(model);
    const seconds = (bytes: number): number => {
      const text = piece.repeat(Math.ceil(bytes / Buffer.byteLength(piece)));
      const cpu = process.cpuUsage();
      expect(tokenizer.encode(text).ids.length).toBeLessThanOrEqual(256);
      return process.cpuUsage(cpu).user / 1e6;
    };
    seconds(1_000_000); // code that runs for the first time is slow
    const short = Math.min(seconds(1_000_000), seconds(1_000_000), seconds(1_000_000));
    const long = Math.min(seconds(8_000_000), seconds(8_000_000));
    // between the two laws, with room for caches that others use
    expect(long).toBeLessThan(24 * Math.max(short, 0.005));
  });

  test('ids end where the row is full, and say so', async () => {
    const tokenizer = await openTokenizer(model, { maxTokens: 5 });
    expect(tokenizer.encode('the the the')).toEqual({ ids: [101, 1996, 1996, 1996, 102], isTruncated: false });
    expect(tokenizer.encode('the the the   \n')).toEqual({ ids: [101, 1996, 1996, 1996, 102], isTruncated: false });
    expect(tokenizer.encode('the the the the')).toEqual({ ids: [101, 1996, 1996, 1996, 102], isTruncated: true });
  });
});
