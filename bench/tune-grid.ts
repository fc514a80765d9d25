// Whether `shoal tune` picks well: its token budget against every budget and row limit of a grid, by the throughput of the bare
// engine on the ragged corpus. Cells run in alternating order, each one's rate is its median; the pick is a cell among them.
//   node --conditions=@shoal/source bench/tune-grid.ts [--model minilm] [--texts 300] [--rounds 3] [--threads 2] [--budgets 256,512,…] [--rows 16,…]
// Exit 1 when the pick gives less than 0.95 of the best cell. A single round is not judged: one slow moment would decide.

import { cpus, loadavg } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { noLog, resolveSettings } from '@shoal/core';
import { openModel, openTokenizer } from '@shoal/models';
import { tune } from '@shoal/worker';
import { leastCosine } from './cosine.ts';
import { raggedCorpus } from './ragged-corpus.ts';
import { alternate, cacheDir, median, MAX_TOKENS, openBackend, runRows, type Measured, type Side } from './sides.ts';

const { values: args } = parseArgs({
  options: {
    model: { type: 'string', default: 'minilm' },
    texts: { type: 'string', default: '300' },
    rounds: { type: 'string', default: '3' },
    threads: { type: 'string', default: '2' },
    budgets: { type: 'string', default: '256,512,768,1024,1536,2048,3072,4096,8192' },
    rows: { type: 'string', default: '16,64,1024' },
  },
});
const LEAST_SHARE = 0.95;
const threads = Number(args.threads);
const isJudged = Number(args.rounds) > 1;
const { maxRows, poolTokens } = resolveSettings({});

const model = await openModel(args.model, { cacheDir });
const tokenizer = await openTokenizer(model, { maxTokens: MAX_TOKENS });
const loadBefore = loadavg()[0]!;
const { kneeTokens, presetTokens, seconds, path } = await tune({ model, tokenizer, device: 'cpu', cacheDir, threads, maxRows, poolTokens, log: noLog });

const budgets = [...new Set([...args.budgets.split(',').map(Number), presetTokens ?? kneeTokens, kneeTokens])].sort((a, b) => a - b);
const cells = budgets.flatMap((maxPaddedTokens) => [...new Set([...args.rows.split(',').map(Number), maxRows])].map((rows) => ({ maxPaddedTokens, maxRows: rows })));
const backend = await openBackend(model, threads, model.graphKind, Math.max(...budgets));
try {
  const texts = raggedCorpus(join(model.folder, 'tokenizer.json'), Number(args.texts)).map(({ text }) => text);
  const measured = await alternate(cells.map(sideOf), texts, Number(args.rounds), check);
  const rates = measured.map(({ name, rates: found }) => ({ name, textsPerSecond: Number(median(found).toFixed(1)), raw: found.map((rate) => Number(rate.toFixed(1))) }));
  const best = rates.reduce((most, other) => (other.textsPerSecond > most.textsPerSecond ? other : most));
  const pick = rates.find(({ name }) => name === nameOf({ maxPaddedTokens: kneeTokens, maxRows }))!;
  const share = pick.textsPerSecond / best.textsPerSecond;
  process.stdout.write(`${JSON.stringify({
    bench: 'tune-grid', cpu: cpus()[0]?.model, model: model.name, threads, texts: texts.length, loadBefore: Number(loadBefore.toFixed(2)), tuneSeconds: Math.round(seconds), path,
    pick: pick.name, best: best.name, share: Number(share.toFixed(3)), isJudged, cells: rates,
  })}\n`);
  if (isJudged && share < LEAST_SHARE) process.exitCode = 1;
} finally {
  await backend.stop();
}

function sideOf(limits: { readonly maxPaddedTokens: number; readonly maxRows: number }): Side {
  return { name: nameOf(limits), run: async (texts) => (await runRows(backend, texts.map((text) => tokenizer.encode(text).ids), limits)).vectors, close: async () => undefined };
}

function nameOf({ maxPaddedTokens, maxRows: rows }: { readonly maxPaddedTokens: number; readonly maxRows: number }): string {
  return `${maxPaddedTokens} tokens, ${rows} rows`;
}

/** Whatever the batches, the vectors are the same. */
function check(first: readonly Measured[]): void {
  for (const { name, vectors } of first) {
    const least = leastCosine(first[0]!.vectors, vectors, model.dims);
    if (!(least >= 0.999999)) throw new Error(`${name} gives other vectors: least cosine ${least}`);
  }
}
