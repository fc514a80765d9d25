// Search by meaning, with the real model: ten fixed questions over a small frozen corpus; and the way of `shoal try` on
// this checkout, with a made model of many languages.

import { readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { importModel } from '@shoal/models';
import { madeModel } from '@shoal/models/testing';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { passagesOf } from '../search/corpus.ts';
import { topK } from '../search/top-k.ts';
import { Sandbox, type Result } from '../testing/shoal-process.ts';

const CORPUS = fileURLToPath(new URL('../../fixtures/corpus/', import.meta.url));
const ROOT = fileURLToPath(new URL('../../../../', import.meta.url));
const DIMS = 384;

/** None of them uses the words of its passage's heading. */
const QUESTIONS: readonly (readonly [question: string, file: string])[] = [
  ['why does the water at the beach come and go every half day', 'tides.md'],
  ['what should I do after touching a hot stove', 'first-aid-burns.md'],
  ['how do insects tell each other where flowers are', 'bees-dance.md'],
  ['what makes money in a savings account grow faster and faster', 'compound-interest.md'],
  ['is it safe to ride if the cables of the cabin snap', 'elevator.md'],
  ['how can strangers send each other encrypted messages', 'public-key.md'],
  ['my kitchen waste pile stinks, what is wrong', 'composting.md'],
  ['why does a plant in the desert not dry out', 'desert-plants.md'],
  ['coffee tastes too bitter', 'espresso.md'],
  ['what causes earthquakes', 'plate-tectonics.md'],
];

let box: Sandbox;
beforeAll(() => {
  box = new Sandbox();
  box.shareModels();
});
afterAll(() => box.remove());

const minilm = { environment: { SHOAL_MODEL: 'minilm', SHOAL_THREADS: '0' } };

function vectorsOf(npy: Buffer): Float32Array {
  return new Float32Array(Uint8Array.from(npy.subarray(128)).buffer);
}

test('ten questions find the right file among the first three, at least nine times', async () => {
  const passages = (
    await Promise.all(
      readdirSync(CORPUS)
        .sort()
        .map((file) => passagesOf(CORPUS, file)),
    )
  ).flat();
  const lines = [...passages.map((passage) => passage.embedded), ...QUESTIONS.map(([question]) => question)];
  writeFileSync(box.path('lines.jsonl'), lines.map((text) => `${JSON.stringify({ text })}\n`).join(''));
  const result = await box.run(['embed', 'lines.jsonl', '-o', 'lines.npy'], minilm);
  expect(result).toMatchObject({ code: 0 });
  const vectors = vectorsOf(readFileSync(box.path('lines.npy')));
  const matrix = vectors.subarray(0, passages.length * DIMS);
  const missed = QUESTIONS.filter(([, file], at) => {
    const query = vectors.subarray((passages.length + at) * DIMS, (passages.length + at + 1) * DIMS);
    return !topK(matrix, query, 3).some((hit) => passages[hit.row]?.file === file);
  });
  expect(passages.length).toBeGreaterThanOrEqual(30);
  expect(missed.length, `missed: ${missed.map(([question]) => question).join('; ')}`).toBeLessThanOrEqual(1);
});

// Random weights answer nonsense at once; what is tested is the way, not the answers. real-models.test.ts has answers.
let made: Sandbox;
beforeAll(async () => {
  made = new Sandbox();
  const folder = made.path('e5');
  await madeModel('e5-multilingual-small', folder);
  rmSync(join(folder, 'config_sentence_transformers.json'));
  await importModel(folder, { cacheDir: made.cacheDir, prompts: { query: 'query: ', passage: 'passage: ' } });
});
afterAll(() => made.remove());

const QUESTION = 'wie werden verlorene Aufträge wiederhergestellt? 怎么恢复';
const ask = (...flags: string[]): Promise<Result> => made.run(['try', QUESTION, '--model', 'e5', ...flags]);

interface Report {
  readonly answers: readonly { readonly score: number; readonly file: string; readonly passage: string }[];
}

test('try answers from this checkout with the prompts of its model, and then embeds the question only', async () => {
  const first = await ask();
  expect(first).toMatchObject({
    code: 0,
    stderr: expect.stringMatching(/embedding [\d,]+ of [\d,]+ passages from \d+ Markdown files/),
  });
  expect(first.stderr).toMatch(
    /searching with e5@[\da-f]{12}, which has "query: " before a question and "passage: " before a passage\n/,
  );
  expect(first.stdout).toMatch(/^1\. .+\.md.*\(-?\d\.\d{3}\)\n {3}\S[\s\S]*\n2\. [\s\S]*\n3\. /i);
  const second = await ask('--json', '-k', '5');
  expect(second.stderr).not.toContain('embedding');
  const report = JSON.parse(second.stdout) as Report;
  expect(report).toMatchObject({
    model: expect.stringMatching(/^e5@[\da-f]{12}$/),
    query: QUESTION,
    answers: [
      {
        rank: 1,
        score: expect.any(Number),
        file: expect.any(String),
        heading: expect.any(String),
        passage: expect.any(String),
      },
      {},
      {},
      {},
      {},
    ],
  });
  await expectScoresOf(report, { query: 'query: ', passage: 'passage: ' });
});

/** The scores are those of these words before the question and before what is shown, put there by hand. */
async function expectScoresOf({ answers }: Report, before: { query: string; passage: string }): Promise<void> {
  const shown = await Promise.all(
    answers.map(
      async ({ file, passage }) => (await passagesOf(ROOT, file)).find(({ text }) => text === passage)!.embedded,
    ),
  );
  const lines = [before.query + QUESTION, ...shown.map((text) => before.passage + text)];
  writeFileSync(made.path('lines.jsonl'), lines.map((text) => `${JSON.stringify({ text })}\n`).join(''));
  expect(await made.run(['embed', 'lines.jsonl', '-o', 'lines.npy', '--model', 'e5'])).toMatchObject({ code: 0 });
  const vectors = vectorsOf(readFileSync(made.path('lines.npy')));
  const dims = vectors.length / lines.length;
  const scores = topK(vectors.subarray(dims), vectors.subarray(0, dims), answers.length).map(({ score }) => score);
  for (const [at, { score }] of answers.entries()) expect(Math.abs(score - scores[at]!)).toBeLessThan(1e-4);
}
