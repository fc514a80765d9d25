// How near a model's int8 form comes to it on what `shoal try` reads: cosine of each passage, and how many of the ten
// nearest passages are the same, for every tenth passage as the question. The test on the frozen passages is
// int8.test.ts.
//   node --conditions=@shoal/source bench/device/graph-quality.ts [--model minilm] [--passages 3000]

import { fileURLToPath } from 'node:url';
import { openModel } from '@shoal/models';
import { readCorpus } from '../../apps/cli/src/search/corpus.ts';
import { readArguments } from '../rig/arguments.ts';
import { leastCosine } from '../similarity/cosine.ts';
import { cacheDir, openBare } from '../rig/sides.ts';

const args = readArguments(import.meta.url, {
  model: { type: 'string', default: 'minilm' },
  passages: { type: 'string', default: '3000' },
});
const EVERY = 10;
const NEAREST = 10;

const corpus = await readCorpus(fileURLToPath(new URL('../../', import.meta.url)), {
  passages: Number(args.passages),
  words: Infinity,
});
const texts = corpus.map(({ embedded }) => embedded);
const { dims } = await openModel(args.model, { cacheDir });
const [full, whole] = [await vectorsOf(args.model), await vectorsOf(`${args.model}-int8`)];

const cosines = texts.map((_, row) => dot(full, row, whole, row));
let same = 0;
let questions = 0;
for (let row = 0; row < texts.length; row += EVERY) {
  const expected = new Set(nearest(full, row));
  same += nearest(whole, row).filter((other) => expected.has(other)).length;
  questions += 1;
}
process.stdout.write(
  `${JSON.stringify({
    bench: 'graph-quality',
    model: args.model,
    passages: texts.length,
    meanCosine: Number((cosines.reduce((sum, value) => sum + value, 0) / cosines.length).toFixed(6)),
    leastCosine: Number(leastCosine(full, whole, dims).toFixed(6)),
    questions,
    recallAt10: Number((same / (questions * NEAREST)).toFixed(4)),
  })}\n`,
);

async function vectorsOf(name: string): Promise<Float32Array> {
  const side = await openBare(name, await openModel(name, { cacheDir }), 1);
  try {
    return await side.run(texts);
  } finally {
    await side.close();
  }
}

/** Rows have length 1. */
function dot(a: Float32Array, rowA: number, b: Float32Array, rowB: number): number {
  let sum = 0;
  for (let at = 0; at < dims; at++) sum += a[rowA * dims + at]! * b[rowB * dims + at]!;
  return sum;
}

function nearest(vectors: Float32Array, row: number): number[] {
  const scores = texts.map((_, other) => ({
    other,
    score: other === row ? -Infinity : dot(vectors, row, vectors, other),
  }));
  return scores
    .toSorted((a, b) => b.score - a.score)
    .slice(0, NEAREST)
    .map(({ other }) => other);
}
