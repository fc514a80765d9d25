// Rows as long as a model takes: vectors frozen from torch (fixtures/long-rows.json), of made models with learned
// positions, with turned queries and keys beyond the length of their training, and with windows. By day the shortest.

import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { readDescription } from '../store/stored-model.ts';
import { madeModel } from '../testing/made-models.ts';
import { ReferencePooling } from '../testing/reference-pooling.ts';
import { StatesRunner } from '../testing/states-run.ts';
import { useTensors } from './named-tensors.ts';

interface LongRow {
  readonly name: string;
  readonly tokens: number;
  readonly vector: readonly number[];
}

const MOST_DIFFERENCE = 2e-6;
/** Plain operators keep several squares of the row's tokens. */
const MOST_PLAIN_TOKENS = 2048;
const isNightly = process.env['SHOAL_TEST_NIGHTLY'] === '1';
const FIXTURE = new URL('../../fixtures/long-rows.json', import.meta.url);
const rows = JSON.parse(await readFile(FIXTURE, 'utf8')) as readonly LongRow[];
const tried = rows.filter(({ tokens }) => isNightly || tokens <= MOST_PLAIN_TOKENS);
if (!isNightly) console.log('rows of 8,192 tokens are left to SHOAL_TEST_NIGHTLY=1: they take seconds and gigabytes');

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-long-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const cases = tried.flatMap((row) =>
  (['fused-fp32', 'plain-fp32'] as const)
    .filter((kind) => kind === 'fused-fp32' || row.tokens <= MOST_PLAIN_TOKENS)
    .map((kind) => [row.name, row.tokens, kind, row] as const),
);

test.each(cases)(
  'a row of %s, %d tokens long, has the vector of torch (%s)',
  async (name, tokens, kind, { vector }) => {
    await madeModel(name, folder);
    const encoder = await readDescription(folder);
    expect(encoder.rowLimit).toBe(tokens);
    const ids = Array.from({ length: tokens }, (_, at) => 5 + ((at * 37) % (encoder.vocabularySize - 10)));
    const states = await useTensors(folder, async (tensors) => {
      const runner = await StatesRunner.open(encoder, tensors, join(folder, 'states.onnx'), kind);
      const found = await runner.run([ids]);
      await runner.release();
      return found[0]!;
    });
    const found = (await ReferencePooling.open(folder)).vector(states);
    const apart = found.map((value, at) => Math.abs(value - vector[at]!));
    expect(apart).toHaveLength(64);
    expect(Math.max(...apart)).toBeLessThan(MOST_DIFFERENCE);
  },
  300_000,
);
