// Texts far longer than a row, of what never fills one or only after long: read in steps, with the ids of the official
// package, wherever the steps fall. SHOAL_TEST_NIGHTLY=1 reads three megabytes of each.

import { setImmediate } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Encoded, Tokenizer } from '@shoal/core';
import { Golden, versionOf } from '../testing/golden.ts';
import { madeTokenizer } from '../testing/made-models.ts';
import { ReferenceTokenizer } from '../testing/reference-tokenizer.ts';
import { randomStrings } from '../testing/texts.ts';
import { expectSameIds } from '../testing/token-ids.ts';
import { makeTokenizer } from './make-tokenizer.ts';
import { parseTokenizerJson } from './tokenizer-json.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] === '1';
const golden = new Golden<string>('long-text-ids', versionOf('tokenizers'));
afterAll(() => golden.save());

const REPEATED = [
  'a',
  'aaaa=',
  ' ',
  '\n',
  '7',
  '=',
  '😀',
  '你',
  'é',
  '\u0301',
  'e\u0301 ',
  'x y',
  '\r\n ',
  "'s",
  '<s>',
  '\u00a0 a',
];
/** Words that no blank parts, digits and blanks of every kind, over and over. */
const MIXED = randomStrings(2_000, 35).join('');

function longTexts(units: number): readonly string[] {
  const repeated = REPEATED.map((char) => char.repeat(Math.ceil(units / char.length)));
  return [...repeated, MIXED.slice(0, units), MIXED.replaceAll(/\s/g, '').slice(0, units)].map(
    (long) => `Once ${long} upon a time`,
  );
}

interface Taken extends Encoded {
  readonly steps: number;
}

function taken(tokenizer: Tokenizer, text: string): Taken {
  for (let steps = tokenizer.encodeSteps!(text), count = 1; ; count += 1) {
    const { done, value } = steps.next();
    if (done === true) return { ...value, steps: count };
  }
}

/**
 * The official package keeps up to a gigabyte for what it cut off of such a text, which V8 does not see and so does not
 * free: seven texts took 7 GB.
 */
async function collectGarbage(): Promise<void> {
  setFlagsFromString('--expose-gc');
  (runInNewContext('gc') as () => void)();
  await setImmediate(); // finalizers of native objects run here
}

function open(json: string, maxTokens: number): Tokenizer {
  return makeTokenizer(parseTokenizerJson(json, 'tokenizer.json'), { hash: '', maxTokens });
}

interface TokenizerJson {
  readonly added_tokens: readonly { readonly id: number; readonly content: string }[];
  readonly model: { readonly vocab: Record<string, number>; readonly merges: (string | readonly string[])[] };
}

/** With tokens of 2 to 32 times one character, as real files have them: what repeats one is then a single part. */
function withRuns(json: string, chars: readonly string[]): string {
  const root = JSON.parse(json) as TokenizerJson;
  const { vocab, merges } = root.model;
  for (const { content, id } of root.added_tokens) vocab[content] = id;
  let next = 1 + Math.max(...Object.values(vocab));
  for (const char of chars.filter((one) => one in vocab))
    for (let half = char; half.length < 32; half += half) {
      vocab[half + half] ??= next++;
      merges.push(typeof merges[0] === 'string' ? `${half} ${half}` : [half, half]);
    }
  return JSON.stringify(root);
}

const RUNS = ['a', '=', '7', 'Ġ', '▁'];

/** As `withRuns`, of a Unigram model, whose pieces have scores. */
function withPieces(json: string, chars: readonly string[]): string {
  const root = JSON.parse(json) as { readonly model: { readonly vocab: [string, number][] } };
  const { vocab } = root.model;
  const known = new Set(vocab.map(([piece]) => piece));
  for (const char of chars)
    for (let piece = char + char; piece.length <= 32; piece += piece) if (!known.has(piece)) vocab.push([piece, -8]);
  return JSON.stringify(root);
}

describe.each(['roberta', 'modernbert', 'qwen', 'llama3', 'gemma', 'mistral', 'xlmr'])('long texts of %s', (kind) => {
  let json: string;
  beforeAll(async () => {
    const made = await madeTokenizer(kind);
    json = kind === 'xlmr' ? withPieces(made, RUNS) : withRuns(made, RUNS);
  });

  test.each([40, 1_000_000_000])('have the ids of the official package, up to %i tokens', async (maxTokens) => {
    const ours = open(json, maxTokens);
    const theirs = new ReferenceTokenizer(json, { maxTokens });
    const texts = longTexts(17_001);
    await expectSameIds({ ...ours, encode: (text: string) => taken(ours, text) }, theirs, texts, { golden });
    await expectSameIds(ours, theirs, texts, { golden });
  });

  test('are read in steps, and eight times the text in no more than ten times as many', () => {
    const ours = open(json, 40);
    for (const char of ['a', '=', '7', ' ']) {
      const [once, eightfold] = [20_000, 160_000].map((units) => taken(ours, char.repeat(units)).steps);
      expect(once).toBeGreaterThan(1);
      expect(eightfold! / once!).toBeLessThan(10);
    }
  });

  test.runIf(isNightly)('of three megabytes have the ids of the official package', { timeout: 900_000 }, async () => {
    const ours = open(json, 512);
    const theirs = new ReferenceTokenizer(json, { maxTokens: 512 });
    for (const text of longTexts(3_000_000)) {
      await expectSameIds({ ...ours, encode: (long: string) => taken(ours, long) }, theirs, [text]);
      await collectGarbage();
    }
  });
});
