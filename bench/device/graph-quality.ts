// How near a model's int8 form comes to it on what `shoal try` reads: cosine of each passage, and how many of the ten
// nearest passages are the same, for every tenth passage as the question. The test on the frozen passages is
// int8.test.ts.
//   node --conditions=@shoal/source bench/device/graph-quality.ts [--model minilm] [--passages 3000]

import { fileURLToPath } from 'node:url';
import { nearnessOf, openModel } from '@shoal/models';
import { readCorpus } from '../../apps/cli/src/search/corpus.ts';
import { readArguments } from '../rig/arguments.ts';
import { cacheDir, openBare } from '../rig/sides.ts';

const args = readArguments(import.meta.url, {
  model: { type: 'string', default: 'minilm' },
  passages: { type: 'string', default: '3000' },
});
const EVERY = 10;

const corpus = await readCorpus(fileURLToPath(new URL('../../', import.meta.url)), {
  passages: Number(args.passages),
  words: Infinity,
});
const texts = corpus.map(({ embedded }) => embedded);
const { dims } = await openModel(args.model, { cacheDir });
const [full, whole] = [await vectorsOf(args.model), await vectorsOf(`${args.model}-int8`)];
const { meanCosine, leastCosine, recallAt10 } = nearnessOf(full, whole, { every: EVERY });
process.stdout.write(
  `${JSON.stringify({
    bench: 'graph-quality',
    model: args.model,
    passages: texts.length,
    meanCosine: Number(meanCosine.toFixed(6)),
    leastCosine: Number(leastCosine.toFixed(6)),
    questions: Math.ceil(texts.length / EVERY),
    recallAt10: Number(recallAt10.toFixed(4)),
  })}\n`,
);

async function vectorsOf(name: string): Promise<readonly Float32Array[]> {
  const side = await openBare(name, await openModel(name, { cacheDir }), 1);
  try {
    const values = await side.run(texts);
    return texts.map((_, row) => values.subarray(row * dims, (row + 1) * dims));
  } finally {
    await side.close();
  }
}
