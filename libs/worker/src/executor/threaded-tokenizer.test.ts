import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Tokenizer } from '@shoal/core';
import { openModel, openTokenizer } from '@shoal/models';
import { ThreadedTokenizer } from './threaded-tokenizer.ts';

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-tokenizer-'));
const MAX_TOKENS = 64;
let tokenizer: Tokenizer;

beforeAll(async () => {
  tokenizer = await openTokenizer(await openModel('tiny-random', { cacheDir }), { maxTokens: MAX_TOKENS });
});
afterAll(() => rmSync(cacheDir, { recursive: true, force: true }));

const texts = Array.from(
  { length: 200 },
  (_, i) => `a shoal of ${i} fish, näive — ${'swims past the reef '.repeat(i % 9)}`,
);

function expected(all: readonly string[]): { ids: number[]; isTruncated: boolean }[] {
  return all.map((text) => {
    const { ids, isTruncated } = tokenizer.encode(text);
    return { ids: Array.from(ids), isTruncated };
  });
}

test('rows are the same on threads as here, in order, with several requests under way', async () => {
  const threaded = new ThreadedTokenizer({
    tokenizer,
    model: 'tiny-random',
    cacheDir,
    maxTokens: MAX_TOKENS,
    threads: 2,
  });
  const requests = [texts, texts.toReversed(), texts.slice(0, 150), ['one short text'], []];
  const answers = await Promise.all(requests.map((request) => threaded.encodeAll(request)));
  for (const [i, rows] of answers.entries())
    expect(rows.map(({ ids, isTruncated }) => ({ ids: Array.from(ids), isTruncated }))).toEqual(expected(requests[i]!));
  expect(answers[0]!.some((row) => row.isTruncated)).toBe(true);
  await threaded.stop();
  await threaded.stop();
});

test('without threads everything is tokenized here', async () => {
  const threaded = new ThreadedTokenizer({
    tokenizer,
    model: 'tiny-random',
    cacheDir,
    maxTokens: MAX_TOKENS,
    threads: 0,
  });
  const rows = await threaded.encodeAll(texts);
  expect(rows.map(({ ids, isTruncated }) => ({ ids: Array.from(ids), isTruncated }))).toEqual(expected(texts));
});
