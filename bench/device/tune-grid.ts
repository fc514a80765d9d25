// Whether `shoal tune` picks well: its token budget against every budget and row limit of a grid, by the throughput of
// the bare engine on the ragged corpus. In a round the micro-batches of all cells take turns, two queued at the device,
// so that a moment in which somebody else wants the machine slows all cells alike. What a micro-batch takes is the time
// from the end of the one before it to its own, and of that the median of the rounds. The race: its first round runs
// every cell; what is far below the best after a round is left out of the next. The final: the pick and the three best
// of the race, measured anew, because the best of 33 cells is partly luck (where all cells were equal, the best of two
// rounds stood 7 % above the middle, 2026-11-22). Only the final is judged.
//
//   node --conditions=@shoal/source bench/device/tune-grid.ts [--model minilm] [--texts 200] [--rounds 3] [--final 11]
//   [--minutes 10] [--threads 2] [--budgets 256,512,…] [--rows 16,…]
//
// After its first round the race ends when another would leave no time for the final within `--minutes`, tuning
// included. Says on stderr after each round how it stands, then prints one JSON line. Exit 1 when the pick gives less
// than 0.95 of the best finalist or tuning took two minutes. A final of one round only shows that it runs.

import { cpus, loadavg } from 'node:os';
import { join } from 'node:path';
import { noLog, sizesOf } from '@shoal/core';
import { median } from '@shoal/core/base';
import { openModel, openTokenizer } from '@shoal/models';
import { interleaved, tune } from '@shoal/worker';
import { readArguments } from '../rig/arguments.ts';
import { leastCosine } from '../similarity/cosine.ts';
import { raggedCorpus } from '../rig/ragged-corpus.ts';
import { cacheDir, cutRows, MAX_TOKENS, openBackend, runBatch, runRows, type Limits } from '../rig/sides.ts';

const args = readArguments(import.meta.url, {
  model: { type: 'string', default: 'minilm' },
  texts: { type: 'string', default: '200' },
  rounds: { type: 'string', default: '3' },
  final: { type: 'string', default: '11' },
  minutes: { type: 'string', default: '10' },
  threads: { type: 'string', default: '2' },
  budgets: { type: 'string', default: '256,384,512,768,1024,1536,2048,3072,4096,6144,8192' },
  rows: { type: 'string', default: '16,64,1024' },
});
const LEAST_SHARE = 0.95;
const MOST_TUNE_SECONDS = 120;
/** Of the race, beside the pick. */
const FINALISTS = 3;
const finalRounds = Number(args.final);
/** Of the best cell's rate: who is below that after so many rounds is left out. */
const STAYS_ABOVE = [0.7, 0.85];
const startedMs = performance.now();
const threads = Number(args.threads);
const { maxRows, poolTokens } = sizesOf({}, 'cpu');

/** A pair of limits, its micro-batches, and what each took in each round the cell was in. */
interface Cell extends Limits {
  readonly isPick: boolean;
  readonly batches: ReturnType<typeof cutRows>;
  readonly batchMs: readonly number[][];
}

const model = await openModel(args.model, { cacheDir });
const tokenizer = await openTokenizer(model, { maxTokens: MAX_TOKENS });
const loadBefore = loadavg()[0]!;
const { kneeTokens, presetTokens, seconds, tried, path } = await tune({
  model,
  tokenizer,
  device: 'cpu',
  cacheDir,
  threads,
  maxRows,
  poolTokens,
  log: noLog,
});
say(
  `tune: ${kneeTokens} tokens in ${seconds.toFixed(0)} s ` +
    `(${tried.map((budget) => `${budget.maxPaddedTokens}: ${budget.textsPerSecond.toFixed(1)}`).join(', ')})`,
);

const ids = raggedCorpus(join(model.folder, 'tokenizer.json'), Number(args.texts)).map(
  ({ text }) => tokenizer.encode(text).ids,
);
const budgets = [...new Set([...args.budgets.split(',').map(Number), presetTokens ?? kneeTokens, kneeTokens])].sort(
  (a, b) => a - b,
);
const cells = budgets.flatMap((maxPaddedTokens) =>
  [...new Set([...args.rows.split(',').map(Number), maxRows])].map((rows) =>
    cellOf({ maxPaddedTokens, maxRows: rows }),
  ),
);
const pick = cells.find(({ isPick }) => isPick)!;
const backend = await openBackend(model, threads, undefined, Math.max(...budgets));
try {
  const { vectors } = await runRows(backend, ids, cells.at(-1)); // the first runs of a process are slow
  const best = await race(vectors);
  const finalists = [...new Set([pick, ...best])].map(cellOf);
  for (let round = 0; round < finalRounds; round++) {
    await runRound(round % 2 === 0 ? finalists : finalists.toReversed(), vectors);
    say(`final ${round + 1}: ${finalists.map((cell) => `${nameOf(cell)} ${rateOf(cell).toFixed(1)}`).join('; ')}`);
  }
  const share = rateOf(finalists[0]!) / rateOf(bestOf(finalists));
  const isJudged = finalRounds > 1;
  process.stdout.write(
    `${JSON.stringify({
      bench: 'tune-grid',
      cpu: cpus()[0]?.model,
      model: model.name,
      threads,
      texts: ids.length,
      loadBefore: Number(loadBefore.toFixed(2)),
      tuneSeconds: Math.round(seconds),
      path,
      pick: nameOf(pick),
      best: nameOf(bestOf(finalists)),
      share: rounded(share, 3),
      isJudged,
      final: finalists.map(resultOf),
      seconds: Math.round((performance.now() - startedMs) / 1000),
      race: cells.map(resultOf),
    })}\n`,
  );
  if ((isJudged && share < LEAST_SHARE) || seconds >= MOST_TUNE_SECONDS) process.exitCode = 1;
} finally {
  await backend.stop();
}

/** The best cells of as many rounds as there is time for. */
async function race(expected: Float32Array): Promise<readonly Cell[]> {
  let racing: readonly Cell[] = cells;
  let cellMs = 0;
  const endMs = (): number => performance.now() - startedMs + cellMs * (racing.length + finalRounds * (FINALISTS + 1));
  for (
    let round = 0;
    round < Number(args.rounds) && (round === 0 || endMs() < Number(args.minutes) * 60_000);
    round++
  ) {
    const roundStartedMs = performance.now();
    await runRound(round % 2 === 0 ? racing : racing.toReversed(), expected);
    cellMs = (performance.now() - roundStartedMs) / racing.length;
    const best = bestOf(racing);
    const stays = racing.filter(
      (cell) => rateOf(cell) >= STAYS_ABOVE[Math.min(round, STAYS_ABOVE.length - 1)]! * rateOf(best),
    );
    say(
      `round ${round + 1}, ${racing.length} cells, ${((cellMs * racing.length) / 1000).toFixed(0)} s: the ` +
        `pick, ${nameOf(pick)}, gives ${(rateOf(pick) / rateOf(best)).toFixed(3)} of the best, ${nameOf(best)}`,
    );
    const left = racing.filter((cell) => !stays.includes(cell));
    if (left.length > 0)
      say(
        `left out: ${left.map((cell) => `${nameOf(cell)} (${(rateOf(cell) / rateOf(best)).toFixed(2)})`).join('; ')}`,
      );
    racing = stays;
  }
  return racing.toSorted((a, b) => rateOf(b) - rateOf(a)).slice(0, FINALISTS);
}

/**
 * Every micro-batch of these cells once, spread evenly over the round. Whatever the batches, the vectors are the same.
 */
async function runRound(racing: readonly Cell[], expected: Float32Array): Promise<void> {
  const turns = interleaved(
    racing.map(({ batches, batchMs }) => {
      const vectors = new Float32Array(expected.length);
      return batches.map((batch, i) => ({ batch, vectors, took: batchMs[i]! }));
    }),
  );
  const waiting = turns.values();
  let lastEndMs = performance.now();
  const lane = async (): Promise<void> => {
    for (const { batch, vectors, took } of waiting) {
      await runBatch(backend, batch, vectors);
      const endMs = performance.now();
      took.push(endMs - lastEndMs);
      lastEndMs = endMs;
    }
  };
  await Promise.all([lane(), lane()]);
  for (const vectors of new Set(turns.map((turn) => turn.vectors))) {
    const least = leastCosine(expected, vectors, model.dims);
    if (!(least >= 0.999999)) throw new Error(`some batches give other vectors: least cosine ${least}`);
  }
}

function cellOf(limits: Limits): Cell {
  const batches = cutRows(ids, limits);
  return {
    ...limits,
    isPick: limits.maxPaddedTokens === kneeTokens && limits.maxRows === maxRows,
    batches,
    batchMs: batches.map(() => []),
  };
}

function resultOf(cell: Cell): object {
  return {
    name: nameOf(cell),
    textsPerSecond: rounded(rateOf(cell), 1),
    rounds: cell.batchMs[0]!.length,
    batches: cell.batches.length,
  };
}

function bestOf(some: readonly Cell[]): Cell {
  return some.reduce((most, other) => (rateOf(other) > rateOf(most) ? other : most));
}

/** Texts per second. */
function rateOf({ batchMs }: Cell): number {
  return (ids.length * 1000) / batchMs.reduce((sum, took) => sum + median(took), 0);
}

function nameOf({ maxPaddedTokens, maxRows: rows }: Limits): string {
  return `${maxPaddedTokens} tokens, ${rows} rows`;
}

function rounded(number: number, digits: number): number {
  return Number(number.toFixed(digits));
}

function say(line: string): void {
  process.stderr.write(`${line}\n`);
}
