// Ids of Unigram tokenizers against the official package: the small one trained like XLM-R's, and that one with every
// step and option that such files have. SHOAL_TEST_NIGHTLY=1 runs the long forms.

import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Golden, versionOf } from '../testing/golden.ts';
import { madeTokenizer } from '../testing/made-models.ts';
import { ReferenceTokenizer } from '../testing/reference-tokenizer.ts';
import { NIGHT, everyCodePoint, hostileStrings, randomStrings, realLines } from '../testing/texts.ts';
import { expectSameIds } from '../testing/token-ids.ts';
import { makeTokenizer } from './make-tokenizer.ts';
import { parseTokenizerJson } from './tokenizer-json.ts';

const PACKAGES = new URL('../../../../node_modules', import.meta.url).pathname;
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;

interface Root {
  added_tokens: { content: string; [flag: string]: unknown }[];
  normalizer: object | null;
  pre_tokenizer: object | null;
  post_processor: object | null;
  model: { vocab: [string, number][]; unk_id: number; byte_fallback: boolean };
}

let json: string;
let charsmap: object;

beforeAll(async () => {
  json = await madeTokenizer('xlmr');
  charsmap = (JSON.parse(json) as { normalizer: { normalizers: object[] } }).normalizer.normalizers[0]!;
});

const golden = new Golden<string>('unigram-ids', versionOf('tokenizers'));
afterAll(() => golden.save());

async function compare(file: string, texts: readonly string[], maxTokens?: number): Promise<number> {
  const facts = parseTokenizerJson(file, 'tokenizer.json');
  const ours = makeTokenizer(facts, { hash: '', maxTokens: maxTokens ?? Number.MAX_SAFE_INTEGER });
  const theirs = new ReferenceTokenizer(file, maxTokens === undefined ? {} : { maxTokens });
  return expectSameIds(ours, theirs, texts, { golden, comparesTruncation: facts.ends.behind.length > 0 });
}

describe('ids are those of the official package', () => {
  test('of every code point among others', async () => {
    expect(await compare(json, everyCodePoint(isNightly ? 3 : 19))).toBeGreaterThan(0);
  });

  test('of hostile and random strings', async () => {
    const count = isNightly ? 20_000 : 3_000;
    expect(
      await compare(json, [...hostileStrings(count, 17 + NIGHT), ...randomStrings(count, 3 + NIGHT)]),
    ).toBeGreaterThan(0);
  });

  test('of real lines', async () => {
    const lines = realLines(PACKAGES, isNightly ? 25_000 : 3_000);
    const compared = await compare(json, lines);
    console.log(`${lines.length} real lines, ${compared} token ids compared`);
    expect(compared).toBeGreaterThan(lines.length);
  });

  test.each([3, 8, 16, 256])('truncated at %i tokens', async (maxTokens) => {
    const lines = realLines(PACKAGES, isNightly ? 8_000 : 1_000);
    const long = Array.from({ length: 50 }, (_, at) => lines.slice(at * 5, at * 5 + 1 + (at % 20)).join(' '));
    expect(
      await compare(json, [...lines, ...long, ...hostileStrings(isNightly ? 8_000 : 1_000, 5 + NIGHT)], maxTokens),
    ).toBeGreaterThan(0);
  });
});

const BLANKS = { type: 'Replace', pattern: { Regex: ' {2,}' }, content: ' ' };
const metaspace = (more: object = {}): object => ({
  type: 'Metaspace',
  replacement: '▁',
  prepend_scheme: 'always',
  split: true,
  ...more,
});
const sequence = (...normalizers: object[]): object => ({ type: 'Sequence', normalizers });

describe('every step and option gives the ids of the official package', () => {
  test.each<[string, (root: Root) => void]>([
    ['Metaspace alone', (root) => (root.pre_tokenizer = metaspace())],
    [
      'Metaspace without blanks put together',
      (root) => Object.assign(root, { normalizer: charsmap, pre_tokenizer: metaspace() }),
    ],
    [
      'as transformers converts SentencePiece files',
      (root) => {
        root.normalizer = sequence(
          charsmap,
          { type: 'Strip', strip_left: false, strip_right: true },
          { ...BLANKS, content: '▁' },
        );
        root.pre_tokenizer = metaspace();
        for (const token of root.added_tokens) if (token.content === '<mask>') token['normalized'] = true;
      },
    ],
    [
      'as ALBERT',
      (root) => {
        root.normalizer = sequence(
          { type: 'Replace', pattern: { String: '``' }, content: '"' },
          { type: 'Replace', pattern: { String: "''" }, content: '"' },
          { type: 'NFKD' },
          { type: 'StripAccents' },
          { type: 'Lowercase' },
          charsmap,
          BLANKS,
        );
        root.pre_tokenizer = metaspace();
      },
    ],
    ['prepend_scheme first', (root) => (root.pre_tokenizer = metaspace({ prepend_scheme: 'first' }))],
    [
      'prepend_scheme never',
      (root) => (root.pre_tokenizer = metaspace({ prepend_scheme: 'never', add_prefix_space: false })),
    ],
    ['split false', (root) => (root.pre_tokenizer = metaspace({ split: false }))],
    ['another mark', (root) => (root.pre_tokenizer = metaspace({ replacement: 'é' }))],
    ['WhitespaceSplit alone', (root) => (root.pre_tokenizer = { type: 'WhitespaceSplit' })],
    ['no pre-tokenizer', (root) => (root.pre_tokenizer = null)],
    ['no normalizer', (root) => (root.normalizer = null)],
    ['no normalizer, Metaspace alone', (root) => Object.assign(root, { normalizer: null, pre_tokenizer: metaspace() })],
    ['NFC', (root) => (root.normalizer = { type: 'NFC' })],
    ['NFD', (root) => (root.normalizer = { type: 'NFD' })],
    [
      'NFKC and Metaspace alone',
      (root) => Object.assign(root, { normalizer: { type: 'NFKC' }, pre_tokenizer: metaspace() }),
    ],
    ['NFKD', (root) => (root.normalizer = { type: 'NFKD' })],
    ['Nmt and Lowercase', (root) => (root.normalizer = sequence({ type: 'Nmt' }, { type: 'Lowercase' }))],
    [
      'Strip on both sides and Prepend',
      (root) => {
        root.normalizer = sequence(
          { type: 'Strip', strip_left: true, strip_right: true },
          { type: 'Prepend', prepend: '▁' },
        );
        root.pre_tokenizer = metaspace({ prepend_scheme: 'never' });
      },
    ],
    [
      'replacements over blanks',
      (root) => {
        root.normalizer = sequence(
          { type: 'Replace', pattern: { String: 'x ' }, content: 'é' },
          { type: 'Replace', pattern: { Regex: '\\s{2,}|[\\n\\r\\t]' }, content: ' ' },
        );
        root.pre_tokenizer = metaspace();
      },
    ],
    [
      'blanks that become a word',
      (root) => {
        root.normalizer = sequence(
          { ...BLANKS, content: 'é' },
          { type: 'Replace', pattern: { String: 'th' }, content: ' ' },
        );
        root.pre_tokenizer = metaspace();
      },
    ],
    [
      'blanks that become a mark behind WhitespaceSplit',
      (root) => (root.normalizer = sequence(charsmap, { ...BLANKS, content: '▁' })),
    ],
    [
      'blanks that vanish, and letters that do',
      (root) => {
        root.normalizer = sequence(
          { type: 'Replace', pattern: { Regex: '\\s{2,}' }, content: '' },
          { type: 'Replace', pattern: { String: 'the' }, content: '' },
          { type: 'Replace', pattern: { String: '▁x' }, content: 'é' },
        );
        root.pre_tokenizer = metaspace();
      },
    ],
    [
      'byte_fallback with all bytes',
      (root) => {
        root.model.byte_fallback = true;
        for (let byte = 0; byte < 256; byte++)
          root.model.vocab.push([`<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`, -20]);
        moveMask(root);
      },
    ],
    [
      'byte_fallback with some bytes',
      (root) => {
        root.model.byte_fallback = true;
        for (const byte of ['F0', '9F', '91', 'A9', 'E2', '84', 'A2']) root.model.vocab.push([`<0x${byte}>`, -20]);
        moveMask(root);
      },
    ],
    [
      'an unknown token that is a word, too',
      (root) => (root.model.unk_id = root.model.vocab.findIndex(([piece]) => piece === 'e')),
    ],
    [
      'equal scores',
      (root) => {
        for (const entry of root.model.vocab) entry[1] = Math.round(entry[1]);
      },
    ],
    [
      'pieces that are there twice',
      (root) => {
        root.model.vocab.push(['e', -1], ['▁the', -30]);
        moveMask(root);
      },
    ],
    [
      'added tokens with every flag',
      (root) => {
        const flags: Record<string, object> = {
          '<s>': { rstrip: true },
          '</s>': { lstrip: true, single_word: true },
          '<pad>': { normalized: true, lstrip: true, rstrip: true, single_word: true },
          '<unk>': { normalized: true, rstrip: true },
        };
        for (const token of root.added_tokens) Object.assign(token, flags[token.content]);
      },
    ],
    [
      'added tokens with every flag, Metaspace alone',
      (root) => {
        root.pre_tokenizer = metaspace();
        const flags: Record<string, object> = {
          '<s>': { normalized: true, rstrip: true },
          '<pad>': { lstrip: true, rstrip: true },
          '<unk>': { normalized: true, single_word: true },
        };
        for (const token of root.added_tokens) Object.assign(token, flags[token.content]);
      },
    ],
    ['nothing put around', (root) => (root.post_processor = null)],
  ])('%s', async (_, change) => {
    const root = JSON.parse(json) as Root;
    change(root);
    const file = JSON.stringify(root);
    const [hostile, random] = isNightly ? [4_000, 4_000] : [1_500, 300];
    const texts = [...hostileStrings(hostile, 23 + NIGHT), ...randomStrings(random, 29 + NIGHT)];
    expect(await compare(file, texts)).toBeGreaterThan(0);
    expect(await compare(file, texts.slice(0, 500), 8)).toBeGreaterThan(0);
    if (isNightly) await compare(file, everyCodePoint(31));
  });
});

/** The mask is the last piece, and is looked for by its id. */
function moveMask(root: Root): void {
  const at = root.model.vocab.findIndex(([piece]) => piece === '<mask>');
  for (const token of root.added_tokens) if (token.content === '<mask>') token['id'] = at;
}

describe('files that are not read', () => {
  test.each<[string, (root: Root) => void, string]>([
    [
      'another step',
      (root) => (root.normalizer = sequence(charsmap, { type: 'BertNormalizer' })),
      'normalizer: normalizers[1]: type "BertNormalizer" is not supported',
    ],
    [
      'another key of a step',
      (root) => (root.normalizer = { ...BLANKS, count: 3 }),
      'normalizer: "count" is not known here',
    ],
    [
      'an unknown regular expression',
      (root) => (root.normalizer = { ...BLANKS, pattern: { Regex: '(?<=a) ' } }),
      'normalizer: pattern: the Regex "(?<=a) " is not known here',
    ],
    [
      'another pre-tokenizer',
      (root) => (root.pre_tokenizer = { type: 'Digits' }),
      'pre_tokenizer: type "Digits" is not supported',
    ],
    [
      'another scheme',
      (root) => (root.pre_tokenizer = metaspace({ prepend_scheme: 'last' })),
      '"prepend_scheme" is "last"',
    ],
    [
      'prepend_scheme first behind WhitespaceSplit',
      (root) =>
        (root.pre_tokenizer = {
          type: 'Sequence',
          pretokenizers: [{ type: 'WhitespaceSplit' }, metaspace({ prepend_scheme: 'first' })],
        }),
      '"prepend_scheme" is "first" behind another step',
    ],
    [
      'a charsmap that is cut',
      (root) => (root.normalizer = { ...charsmap, precompiled_charsmap: 'AAAA' }),
      '"precompiled_charsmap" says 0 bytes of trie',
    ],
    [
      'a charsmap that is no base64',
      (root) => (root.normalizer = { ...charsmap, precompiled_charsmap: 'x!' }),
      '"precompiled_charsmap" is not base64',
    ],
    ['no unknown token', (root) => (root.model.unk_id = 1e6), 'model: "unk_id" is 1000000, and "vocab" has only'],
    [
      'a piece without a score',
      (root) => root.model.vocab.push(['x'] as unknown as [string, number]),
      '"vocab" should be a list of [piece, score]',
    ],
  ])('%s', (_, change, message) => {
    const root = JSON.parse(json) as Root;
    change(root);
    expect(() => parseTokenizerJson(JSON.stringify(root), 'tokenizer.json')).toThrow(message);
  });
});

describe('words of thousands of characters', () => {
  test.each([
    ['letters and characters', 'queue机器学习x☃é\u{20000}workモデルction'],
    ['unknown characters', '☃'],
    ['one character', 'x'],
    ['marks', 'a\u0301\u0323'],
  ])('of %s have the same ids, whole and cut', async (_, piece) => {
    const words = [4_095, 4_096, 4_097, 8_193, 20_000].map((chars) =>
      piece.repeat(chars / piece.length + 1).slice(0, chars),
    );
    const texts = words.flatMap((word) => [word.toWellFormed(), `a ${word.toWellFormed()} b`]);
    for (const maxTokens of [undefined, 8, 600, 3_000])
      expect(await compare(json, texts, maxTokens)).toBeGreaterThan(0);
  });
});

test('a text of megabytes costs what its beginning costs', () => {
  const tokenizer = makeTokenizer(parseTokenizerJson(json, 'tokenizer.json'), { hash: '', maxTokens: 64 });
  const seconds = (text: string): number => {
    const cpu = process.cpuUsage();
    for (let run = 0; run < 50; run++) expect(tokenizer.encode(text).isTruncated).toBe(true);
    return process.cpuUsage(cpu).user / 1e6;
  };
  const text = 'A queue keeps work until somebody has time for it. ';
  seconds(text.repeat(1_000));
  const short = Math.min(seconds(text.repeat(1_000)), seconds(text.repeat(1_000)));
  // 200 times as long: reading it all would take 200 times as long, with room for what others do meanwhile
  expect(Math.min(seconds(text.repeat(200_000)), seconds(text.repeat(200_000)))).toBeLessThan(
    40 * Math.max(short, 0.002),
  );
});
