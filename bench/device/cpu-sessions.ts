// How the cores of a CPU worker are divided best: sessions of one graph side by side, with some threads each, on a
// ragged corpus without the queue. Vectors are compared with those of the first division before the clock starts;
// rounds alternate in one process.
//   node --conditions=@shoal/source bench/device/cpu-sessions.ts [--texts 1000] [--rounds 3] [--divisions
//   1x16,2x8,4x4,8x2,16x1] [--tokens 1024] [--model minilm]
// --divisions: sessions × threads of each; unset: all that use every core. --tokens: of a micro-batch, padded;
//   several with commas.

import { availableParallelism, cpus, loadavg } from 'node:os';
import { join } from 'node:path';
import { median } from '@shoal/core/base';
import { openModel, openTokenizer } from '@shoal/models';
import { readArguments } from '../rig/arguments.ts';
import { leastCosine } from '../similarity/cosine.ts';
import { raggedCorpus } from '../rig/ragged-corpus.ts';
import { MAX_TOKENS, cacheDir, openBackend, runRows } from '../rig/sides.ts';

const args = readArguments(import.meta.url, {
  texts: { type: 'string', default: '1000' },
  rounds: { type: 'string', default: '3' },
  divisions: { type: 'string' },
  tokens: { type: 'string', default: '1024' },
  model: { type: 'string', default: 'minilm' },
});
const cores = availableParallelism();
const divisions =
  args.divisions?.split(',') ??
  Array.from({ length: cores }, (_, i) => i + 1)
    .filter((sessions) => cores % sessions === 0)
    .map((sessions) => `${sessions}x${cores / sessions}`);
const budgets = args.tokens.split(',').map(Number);
const LEAST_COSINE = 0.9999;

const model = await openModel(args.model, { cacheDir });
const tokenizer = await openTokenizer(model, { maxTokens: MAX_TOKENS });
const rows = raggedCorpus(join(model.folder, 'tokenizer.json'), Number(args.texts)).map(
  ({ text }) => tokenizer.encode(text).ids,
);
const loadBefore = loadavg()[0]!;
const sides = [];
for (const division of divisions) {
  const [sessions, threads] = division.split('x').map(Number) as [number, number];
  const backend = await openBackend(model, threads, undefined, Math.max(...budgets), sessions);
  for (const tokens of budgets)
    sides.push({
      division,
      tokens,
      backend,
      limits: { maxPaddedTokens: tokens, maxRows: backend.slotRows },
      rates: [] as number[],
      cosine: 0,
    });
}
let first: Float32Array | undefined;
for (const side of sides) {
  const { vectors } = await runRows(side.backend, rows, side.limits);
  first ??= vectors;
  side.cosine = leastCosine(first, vectors, model.dims);
  if (!(side.cosine >= LEAST_COSINE))
    throw new Error(
      `${side.division} with ${side.tokens} tokens disagrees with ${divisions[0]}: least cosine ${side.cosine}`,
    );
}
for (let round = 0; round < Number(args.rounds); round++) {
  for (const { backend, limits, rates } of sides) {
    const startedMs = performance.now();
    await runRows(backend, rows, limits);
    rates.push(rows.length / ((performance.now() - startedMs) / 1_000));
  }
}
for (const backend of new Set(sides.map((side) => side.backend))) await backend.stop();
const base = median(sides[0]!.rates);
process.stdout.write(
  `${JSON.stringify({
    bench: 'cpu-sessions',
    cpu: cpus()[0]?.model,
    cores,
    model: args.model,
    texts: rows.length,
    loadBefore: Number(loadBefore.toFixed(2)),
    divisions: sides.map(({ division, tokens, rates, cosine }) => ({
      division,
      tokens,
      textsPerSecond: rates.map((rate) => Number(rate.toFixed(1))),
      ratio: Number((median(rates) / base).toFixed(3)),
      leastCosine: Number(cosine.toFixed(7)),
    })),
  })}\n`,
);
