// Makes libs/models/canaries/canaries.json: the canary text's ids and vector for every model that Shoal knows. minilm's
// vector is the one of sentence-transformers in fixtures/; of the others it is what the CPU gives today. To be run when
// a model gets another revision, never to make a failing check pass.
//   node --conditions=@shoal/source libs/models/tools/make-canaries.ts

import { readFile, writeFile } from 'node:fs/promises';
import { cacheFolder } from '@shoal/core';
import { CANARY_TEXT, openGraph, openModel, openTokenizer, type Canary, type StoredModel } from '@shoal/models';
import { canaryText } from '../src/store/canaries.ts';
import { KNOWN_MODELS } from '../src/store/known-models.ts';
import { GraphRunner, cosine } from '../src/testing/onnx-run.ts';

const FIXTURES = new URL('../fixtures/', import.meta.url);
const cacheDir = cacheFolder(process.env['SHOAL_CACHE_DIR']);

process.env['ORT_DISABLE_TELEMETRY'] = '1';
const canaries: Record<string, ReturnType<typeof canaryText>> = {};
for (const { name } of KNOWN_MODELS) {
  const model = await openModel(name, { cacheDir });
  const ids = [...(await openTokenizer(model)).encode(CANARY_TEXT).ids];
  const computed = await compute(model, ids);
  const vector = name === 'minilm' ? await ofSentenceTransformers(model.dims) : computed;
  console.log(
    `${name}@${model.revision}: ${ids.length} tokens, cosine to what is computed ${cosine(vector, computed)}`,
  );
  canaries[`${name}@${model.revision}`] = canaryText({ ids, vector } satisfies Canary);
}
await writeFile(new URL('../canaries/canaries.json', import.meta.url), `${JSON.stringify(canaries, null, 1)}\n`);

async function compute(model: StoredModel, ids: readonly number[]): Promise<Float32Array> {
  const runner = await GraphRunner.open(await openGraph(model, { cacheDir }), model);
  const [vector] = await runner.run([ids]);
  await runner.release();
  return vector!;
}

async function ofSentenceTransformers(dims: number): Promise<Float32Array> {
  const texts = JSON.parse(await readFile(new URL('texts.json', FIXTURES), 'utf8')) as string[];
  const bytes = await readFile(new URL('vectors.f32', FIXTURES));
  const at = texts.indexOf(CANARY_TEXT) * dims * 4;
  return new Float32Array(Uint8Array.from(bytes.subarray(at, at + dims * 4)).buffer);
}
