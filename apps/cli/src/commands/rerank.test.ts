// `shoal rerank` with a made cross-encoder: a worker that the command starts, Valkey and ONNX Runtime give the scores of
// sentence-transformers, in rank order for people and as JSON lines for programs. What cannot be is refused before
// anything starts.

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { madeModel, madeTexts, madeVectors } from '@shoal/models/testing';
import { Sandbox } from '../testing/shoal-process.ts';

const FAMILY = 'cross-encoder-bert';
const NAME = 'made-reranker';

let box: Sandbox;
let texts: readonly string[];

beforeAll(async () => {
  box = new Sandbox();
  texts = await madeTexts();
  await madeModel(FAMILY, box.path('model'));
  const { code, stderr } = await box.run(['model', 'import', box.path('model'), '--name', NAME]);
  if (code !== 0) throw new Error(stderr);
}, 120_000);
afterAll(() => box.remove());

test('texts come out by their scores, which are those of sentence-transformers', async () => {
  const [query, answer] = texts as [string, string];
  const documents = [...texts.slice(2, 14), answer, ''];
  writeFileSync(box.path('docs.jsonl'), documents.map((text, id) => `${JSON.stringify({ id, text })}\n`).join(''));
  const asked = ['rerank', query, 'docs.jsonl', '--model', NAME, '-o', 'ranked.jsonl'];
  const { code, stdout, stderr } = await box.run(asked);
  expect([code, stdout]).toEqual([0, '']);
  expect(stderr).toContain(`no worker serves rerank-${NAME}; starting one on the CPU`);
  expect(stderr).toContain('1 text is empty; all empty texts have one and the same score');
  expect(stderr).toMatch(/14 texts by made-reranker@[0-9a-f]{12} in .* → ranked\.jsonl/);
  const lines = readFileSync(box.path('ranked.jsonl'), 'utf8').trim().split('\n');
  const ranked = lines.map((line) => JSON.parse(line) as Ranked);
  expect(ranked.map(({ rank }) => rank)).toEqual(documents.map((_, at) => at + 1));
  expect(ranked.map(({ score }) => score)).toEqual(ranked.map(({ score }) => score).toSorted((a, b) => b - a));
  expect(ranked.map(({ index }) => index).toSorted((a, b) => a - b)).toEqual(documents.map((_, at) => at));
  for (const { index, id, file, line, text } of ranked)
    expect([id, file, line, text]).toEqual([index, 'docs.jsonl', index + 1, documents[index]]);
  const [logits] = (await madeVectors(FAMILY, 'scores')) as [Float32Array];
  const expected = 1 / (1 + Math.exp(-logits[0]!)); // of the first text and the second
  expect(Math.abs(ranked.find(({ text }) => text === answer)!.score - expected)).toBeLessThanOrEqual(1e-5);
}, 180_000);

interface Ranked {
  readonly rank: number;
  readonly score: number;
  readonly index: number;
  readonly id: number;
  readonly file: string;
  readonly line: number;
  readonly text: string;
}

test('the best are shown to people with their places, of standard input as well', async () => {
  const input = `${texts[1]}\nsomething else\n${texts[2]}\n`;
  const { code, stdout, stderr } = await box.run(['rerank', texts[0]!, '-', '-n', '2', '--model', NAME], { input });
  expect(code).toBe(0);
  expect(stdout).toMatch(
    /^1\. standard input, line [123] {2}\(0\.\d{4}\)\n {3}[^]*\n\n2\. standard input, line [123] {2}\(0/,
  );
  expect(stdout).not.toContain('3. ');
  expect(stderr).toContain('3 texts by');
  expect(stderr).toContain('the best 2 are shown');
}, 180_000);

test.each([
  ['an empty question', ['rerank', ' ', 'docs.txt'], 'nothing to weigh the texts against: give a question'],
  ['a file that is not there', ['rerank', 'a', 'strange.txt', '--model', NAME], 'strange.txt'],
  ['a model that gives vectors', ['rerank', 'a', 'docs.txt'], `the model tiny-random gives vectors and no scores`],
  ['another output', ['rerank', 'a', 'docs.txt', '-o', 'out.npy'], 'is not called .jsonl'],
  [
    'a field of lines',
    ['rerank', 'a', 'docs.txt', '--text-field', 'b'],
    '--text-field is about fields of JSONL, JSON, CSV and Parquet',
  ],
])('%s is refused before anything starts', async (_, args, message) => {
  writeFileSync(box.path('docs.txt'), 'one\ntwo\n');
  const { code, stdout, stderr } = await box.run(args);
  expect([code, stdout]).toEqual([expect.toSatisfy((found) => found === 1 || found === 2), '']);
  expect(stderr).toContain(message);
  expect(stderr).not.toContain('starting');
  expect(existsSync(box.path('out.npy'))).toBe(false);
});
