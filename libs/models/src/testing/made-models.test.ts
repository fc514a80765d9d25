// Weights of the fixtures are those that the reference vectors were computed with.

import { createHash } from 'node:crypto';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { madeModel, madeNames, madeTexts, madeVectors } from './made-models.ts';

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-made-'));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

test('weights are the bytes that Python wrote', async () => {
  await madeModel('gemma3-embedding', folder);
  const sha256 = createHash('sha256')
    .update(await readFile(join(folder, 'model.safetensors')))
    .digest('hex');
  expect(sha256).toBe('6dc45d0865efdc95006f200550a25d7dec3c5b3e42d9bfcfdbcde52b478e2750');
});

test('there are 62 models, and a vector of every text for each embedder', async () => {
  const names = await madeNames();
  expect(names).toHaveLength(62);
  const texts = await madeTexts();
  for (const name of ['bert-mean', 'bert-cls-and-mean', 'gemma3-embedding', 'llama-last', 'static-bytes'])
    expect(await madeVectors(name)).toHaveLength(texts.length);
});
