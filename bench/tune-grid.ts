// Whether `shoal tune` picks well: its token budget against every budget and row limit of a grid, by the throughput of the bare
// engine on the ragged corpus. The first round runs every cell; what is far below the best after a round is left out of the next,
// so that the time goes to those that could be the best. Rounds go through the cells in alternating order; a cell's rate is its median.
//
//   node --conditions=@shoal/source bench/tune-grid.ts [--model minilm] [--texts 192] [--rounds 7] [--minutes 10] [--threads 2] [--budgets 256,512,…] [--rows 16,…]
//
// No round begins that would end after `--minutes`, tuning included. Says on stderr after each round how it stands, then prints one
// JSON line. Exit 1 when the pick gives less than 0.95 of the best cell, when tuning took two minutes, or when there was time for less
// than three rounds: one slow moment would decide. With `--rounds 1` it only shows that it runs.

import { cpus, loadavg } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { noLog, resolveSettings } from '@shoal/core';
import { openModel, openTokenizer } from '@shoal/models';
import { tune } from '@shoal/worker';
import { leastCosine } from './cosine.ts';
import { raggedCorpus } from './ragged-corpus.ts';
import { cacheDir, median, MAX_TOKENS, openBackend, runRows } from './sides.ts';

const { values: args } = parseArgs({
  options: {
    model: { type: 'string', default: 'minilm' },
    texts: { type: 'string', default: '192' },
    rounds: { type: 'string', default: '7' },
    minutes: { type: 'string', default: '10' },
    threads: { type: 'string', default: '2' },
    budgets: { type: 'string', default: '256,512,768,1024,1536,2048,3072,4096,8192' },
    rows: { type: 'string', default: '16,64,1024' },
  },
});
const LEAST_SHARE = 0.95;
const MOST_TUNE_SECONDS = 120;
const LEAST_ROUNDS = 3;
/** Of the best cell's rate: who is below that after so many rounds is left out. Rates of one cell differ by up to 30 % between rounds, their medians by less and less. */
const STAYS_ABOVE = [0.7, 0.85, 0.9];
const startedMs = performance.now();
const threads = Number(args.threads);
const { maxRows, poolTokens } = resolveSettings({});

/** A pair of limits, and the texts per second of each round it was in. */
interface Cell {
  readonly maxPaddedTokens: number;
  readonly maxRows: number;
  readonly isPick: boolean;
  readonly rates: number[];
}

const model = await openModel(args.model, { cacheDir });
const tokenizer = await openTokenizer(model, { maxTokens: MAX_TOKENS });
const loadBefore = loadavg()[0]!;
const { kneeTokens, presetTokens, seconds, tried, path } = await tune({ model, tokenizer, device: 'cpu', cacheDir, threads, maxRows, poolTokens, log: noLog });
say(`tune: ${kneeTokens} tokens in ${seconds.toFixed(0)} s (${tried.map((budget) => `${budget.maxPaddedTokens}: ${budget.textsPerSecond.toFixed(1)}`).join(', ')})`);

const budgets = [...new Set([...args.budgets.split(',').map(Number), presetTokens ?? kneeTokens, kneeTokens])].sort((a, b) => a - b);
const cells = budgets.flatMap((maxPaddedTokens) => [...new Set([...args.rows.split(',').map(Number), maxRows])].map((rows): Cell => ({ maxPaddedTokens, maxRows: rows, isPick: maxPaddedTokens === kneeTokens && rows === maxRows, rates: [] })));
const pick = cells.find(({ isPick }) => isPick)!;
const ids = raggedCorpus(join(model.folder, 'tokenizer.json'), Number(args.texts)).map(({ text }) => tokenizer.encode(text).ids);
const backend = await openBackend(model, threads, model.graphKind, Math.max(...budgets));
try {
  const { vectors } = await runRows(backend, ids, cells.at(-1)); // the first runs of a process are slow
  const rounds = await contest(vectors);
  const best = bestOf(cells.filter(({ rates }) => rates.length === rounds));
  const share = rateOf(pick) / rateOf(best);
  const isJudged = rounds >= LEAST_ROUNDS;
  process.stdout.write(`${JSON.stringify({
    bench: 'tune-grid', cpu: cpus()[0]?.model, model: model.name, threads, texts: ids.length, loadBefore: Number(loadBefore.toFixed(2)), tuneSeconds: Math.round(seconds), path,
    pick: nameOf(pick), best: nameOf(best), share: rounded(share, 3), isJudged, rounds, seconds: Math.round((performance.now() - startedMs) / 1000),
    cells: cells.map((cell) => ({ name: nameOf(cell), textsPerSecond: rounded(rateOf(cell), 1), raw: cell.rates.map((rate) => rounded(rate, 1)) })),
  })}\n`);
  const isKept = isJudged && share >= LEAST_SHARE && seconds < MOST_TUNE_SECONDS;
  if (!isKept && Number(args.rounds) >= LEAST_ROUNDS) process.exitCode = 1;
} finally {
  await backend.stop();
}

/** How many rounds there was time for. */
async function contest(expected: Float32Array): Promise<number> {
  let racing: readonly Cell[] = cells;
  let rounds = 0;
  let roundMs = 0;
  while (rounds < Number(args.rounds) && (rounds === 0 || performance.now() - startedMs + roundMs < Number(args.minutes) * 60_000)) {
    const roundStartedMs = performance.now();
    for (const cell of rounds % 2 === 0 ? racing : racing.toReversed()) await runCell(cell, expected);
    roundMs = performance.now() - roundStartedMs;
    const best = bestOf(racing);
    const least = STAYS_ABOVE[Math.min(rounds++, STAYS_ABOVE.length - 1)]! * rateOf(best);
    say(`round ${rounds}, ${racing.length} cells, ${(roundMs / 1000).toFixed(0)} s: the pick, ${nameOf(pick)}, gives ${(rateOf(pick) / rateOf(best)).toFixed(3)} of the best, ${nameOf(best)}`);
    const next = racing.filter((cell) => cell.isPick || rateOf(cell) >= least);
    if (next.length < racing.length) say(`left out: ${racing.filter((cell) => !next.includes(cell)).map((cell) => `${nameOf(cell)} (${(rateOf(cell) / rateOf(best)).toFixed(2)})`).join('; ')}`);
    racing = next;
  }
  return rounds;
}

/** Whatever the batches, the vectors are the same. */
async function runCell(cell: Cell, expected: Float32Array): Promise<void> {
  const runStartedMs = performance.now();
  const { vectors } = await runRows(backend, ids, cell);
  cell.rates.push((ids.length * 1000) / (performance.now() - runStartedMs));
  const least = leastCosine(expected, vectors, model.dims);
  if (!(least >= 0.999999)) throw new Error(`${nameOf(cell)} gives other vectors: least cosine ${least}`);
}

function bestOf(some: readonly Cell[]): Cell {
  return some.reduce((most, other) => (rateOf(other) > rateOf(most) ? other : most));
}

function rateOf({ rates }: Cell): number {
  return median(rates);
}

function nameOf({ maxPaddedTokens, maxRows: rows }: Cell): string {
  return `${maxPaddedTokens} tokens, ${rows} rows`;
}

function rounded(number: number, digits: number): number {
  return Number(number.toFixed(digits));
}

function say(line: string): void {
  process.stderr.write(`${line}\n`);
}
