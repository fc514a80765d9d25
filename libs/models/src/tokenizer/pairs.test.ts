// Pairs of texts against the official package, by every kind of tokenizer that the fixtures have.

import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import tokenizers from 'tokenizers';
import { Golden, hashOf, versionOf } from '../testing/golden.ts';
import { madeTokenizer } from '../testing/made-models.ts';
import { hostileStrings, randomStrings, realLines } from '../testing/texts.ts';
import { makeTokenizer } from './make-tokenizer.ts';
import { longestFirst, Pairs, type TypedPair } from './pairs.ts';
import { parseTokenizerJson } from './tokenizer-json.ts';

const PACKAGES = new URL('../../../../node_modules', import.meta.url).pathname;
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] === '1';
const KINDS = ['wordpiece', 'mpnet', 'xlmr', 'roberta', 'modernbert', 'qwen', 'llama3', 'gemma', 'mistral'];

const golden = new Golden<string>('pairs', versionOf('tokenizers'));
afterAll(() => golden.save());

function pairsOf(json: string, maxTokens: number): Pairs {
  const facts = parseTokenizerJson(json, 'tokenizer.json');
  return new Pairs(makeTokenizer(facts, { hash: '', maxTokens }), facts.ends, 'tokenizer.json');
}

type Row = Pick<TypedPair, 'ids' | 'types'>;

async function packagesRows(
  json: string,
  maxTokens: number,
  pairs: readonly (readonly [string, string])[],
): Promise<Row[]> {
  const tokenizer = tokenizers.Tokenizer.fromString(json);
  tokenizer.disablePadding();
  tokenizer.disableTruncation();
  tokenizer.setTruncation(maxTokens);
  const rows: Row[] = [];
  for (const [first, second] of pairs) {
    const encoding = await tokenizer.encode(first, second);
    rows.push({ ids: encoding.getIds(), types: encoding.getTypeIds() });
  }
  return rows;
}

/** Every text with the next one, and with one far from it, of other length. */
function somePairs(count: number): readonly (readonly [string, string])[] {
  const lines = realLines(PACKAGES, count);
  const short = ['', ' ', 'a', 'the queue', 'e\u0301 x', '<s> b', '[SEP]', '12 34'];
  const texts = [
    ...short,
    ...lines,
    ...lines.map((line) => line.slice(0, 9)),
    ...hostileStrings(count, 29),
    ...randomStrings(count, 13),
  ];
  const joined = texts.map((text, at) => (at % 3 === 0 ? `${text} ${texts[(at * 7) % texts.length]!}` : text));
  return joined.map((text, at) => [text, joined[(at * (at % 2 === 0 ? 1 : 31) + 1) % joined.length]!]);
}

const rowText = ({ ids, types }: Row): string => `${ids.join(' ')}/${types.join(' ')}`;

let pairs: readonly (readonly [string, string])[];
beforeAll(() => {
  pairs = somePairs(isNightly ? 1_000 : 100);
});

describe.each(KINDS)('pairs of %s have the ids and types of the official package', (kind) => {
  let json: string;
  let lengthOf: (text: string) => number;
  beforeAll(async () => {
    json = await madeTokenizer(kind);
    const whole = makeTokenizer(parseTokenizerJson(json, 'tokenizer.json'), { hash: '', maxTokens: 1e9 });
    const lengths = new Map<string, number>();
    lengthOf = (text) => {
      const known = lengths.get(text);
      if (known !== undefined) return known;
      const ids: number[] = [];
      whole.appendText(text.toWellFormed(), ids, 1e9);
      lengths.set(text, ids.length);
      return ids.length;
    };
  });

  test.each([1e9, 8, 21, 64, 512])('in rows of up to %d tokens', async (maxTokens) => {
    const ours = pairsOf(json, maxTokens);
    // Where each of the two texts would fill a row by itself, the package compares how far it has read, not how long they
    // are, and how far that is depends on its own steps: where the halves are not equal, one token may be another.
    const settled = pairs.filter(
      ([first, second]) => ours.room % 2 === 0 || lengthOf(first) < maxTokens || lengthOf(second) < maxTokens,
    );
    expect(settled.length).toBeGreaterThan(pairs.length / 5);
    const found = settled.map(([first, second]) => ours.encodePair(first, second));
    const rows = (): Promise<Row[]> => packagesRows(json, maxTokens, settled);
    const compute = async (): Promise<string> => hashOf(...(await rows()).map(rowText));
    const known = await golden.get(hashOf(json, String(maxTokens), ...settled.flat()), compute);
    if (hashOf(...found.map(rowText)) === known) return;
    const wanted = await rows();
    const differing = settled.filter((_, at) => rowText(found[at]!) !== rowText(wanted[at]!));
    expect(differing.slice(0, 3)).toEqual([]);
  });
});

describe('too long a pair', () => {
  test.each([
    [3, 4, 8, 3, 4],
    [3, 9, 8, 3, 5],
    [9, 3, 8, 5, 3],
    [9, 9, 8, 4, 4],
    [9, 9, 7, 3, 4],
    [10, 9, 7, 4, 3],
    [4, 9, 7, 3, 4],
    [0, 9, 7, 0, 7],
  ])('of %d and %d tokens in a room of %d keeps %d and %d', (first, second, room, keptFirst, keptSecond) => {
    expect(longestFirst(first, second, room)).toEqual({ first: keptFirst, second: keptSecond });
  });

  test('says that it was cut', async () => {
    const ours = pairsOf(await madeTokenizer('wordpiece'), 8);
    expect(ours.encodePair('a', 'b').isTruncated).toBe(false);
    expect(ours.encodePair('a a a a a a', 'b b b b b').isTruncated).toBe(true);
    expect(ours.encodePair('a a a a a a', 'b b b b b').ids).toHaveLength(8);
  });
});

describe('a file or a row that pairs have no place in is refused', () => {
  test('by what the file has for pairs', async () => {
    const root = JSON.parse(await madeTokenizer('modernbert')) as { post_processor: { pair: unknown[] } };
    root.post_processor.pair.reverse();
    expect(() => pairsOf(JSON.stringify(root), 64)).toThrow('"pair" should have the first text once');
  });

  test('by the row’s length', async () => {
    const json = await madeTokenizer('modernbert');
    expect(() => pairsOf(json, 4)).toThrow('pairs of texts take rows of at least 5 tokens');
  });
});
