// What several cells give against one: each cell is a queue server and a worker on a simulated device that is held to a
// rate which the cell could give many times over, so that a machine of few cores can carry them all. One client of the
// SDK adds to the cells it is told of, takes every result once, and compares each row with what the first cell gave alone.
//
//   node --conditions=@shoal/source bench/queue/cells.ts [--cells 4] [--rounds 3] [--seconds 10] [--warm 2]
//       [--tokens-per-ms 40] [--away 0] [--record]
//
// `--tokens-per-ms`: what each device runs; 0: as fast as the queue goes, for a machine with cores enough. `--away N`: in
// the last turn the second cell is killed and stays away for N seconds; every row comes all the same.
//
// Prints one JSON line: texts/s and CPU a job of each turn, and the median ratio of the turns that followed each other.
// Its goal is the number of cells, within 5 %. Linux only.

import { setTimeout as sleep } from 'node:timers/promises';
import { ShoalClient } from '@shoal/client';
import { median } from '@shoal/core/base';
import { readArguments } from '../rig/arguments.ts';
import { record } from '../rig/record.ts';
import { FIXED_DEVICE, openRig, type Rig } from '../rig/rig.ts';

const args = readArguments(import.meta.url, {
  cells: { type: 'string', default: '4' },
  rounds: { type: 'string', default: '3' },
  seconds: { type: 'string', default: '10' },
  warm: { type: 'string', default: '2' },
  'tokens-per-ms': { type: 'string', default: '40' },
  away: { type: 'string', default: '0' },
  record: { type: 'boolean', default: false },
});

const ROWS = 64;
/** Texts that differ; a run takes them in turns. */
const TEXTS = Array.from({ length: 512 }, (_, at) => `${at} ${'one more word '.repeat(1 + (at % 8))}`);
const device =
  args['tokens-per-ms'] === '0' ? FIXED_DEVICE : { ...FIXED_DEVICE, SHOAL_DEVICE: `sim:${args['tokens-per-ms']}` };

interface Turn {
  readonly textsPerSecond: number;
  /** Of queue servers, workers and this client, for a job. */
  readonly cpuMicrosPerJob: number;
  readonly rows: number;
}

const rigs = await Promise.all(Array.from({ length: Number(args.cells) }, () => openRig(device)));
try {
  const expected = await vectorsOfOneCell();
  const rounds: { readonly one: Turn; readonly all: Turn }[] = [];
  for (let round = 0; round < Number(args.rounds); round++) {
    const turns = round % 2 === 0 ? [1, rigs.length] : [rigs.length, 1];
    const told: Turn[] = [];
    for (const cells of turns) told.push(await turn(cells, expected, Number(args.seconds), async () => undefined));
    rounds.push(round % 2 === 0 ? { one: told[0]!, all: told[1]! } : { one: told[1]!, all: told[0]! });
  }
  const awayMs = 1_000 * Number(args.away);
  const away = awayMs === 0 ? undefined : await turn(rigs.length, expected, 10 + 2 * Number(args.away), killed(awayMs));
  const ratio = median(rounds.map(({ one, all }) => all.textsPerSecond / one.textsPerSecond));
  const cpuRatio = median(rounds.map(({ one, all }) => all.cpuMicrosPerJob / one.cpuMicrosPerJob));
  process.stdout.write(`${JSON.stringify({ bench: 'cells', cells: rigs.length, ratio, cpuRatio, rounds, away })}\n`);
  record({
    bench: 'cells',
    case: `${rigs.length} cells ÷ one, ${ROWS} texts a job, devices of ${args['tokens-per-ms']} tokens/ms`,
    figures: {
      texts_ratio: Math.round(1_000 * ratio) / 1_000,
      cpu_per_job_ratio: Math.round(1_000 * cpuRatio) / 1_000,
      one_texts_per_s: Math.round(median(rounds.map(({ one }) => one.textsPerSecond))),
      all_texts_per_s: Math.round(median(rounds.map(({ all }) => all.textsPerSecond))),
      one_cpu_us_per_job: Math.round(median(rounds.map(({ one }) => one.cpuMicrosPerJob))),
    },
    bar: { figure: 'texts_ratio', at_least: 0.95 * rigs.length },
  });
} finally {
  await Promise.all(rigs.map((rig) => rig.stop()));
}

async function open(cells: number): Promise<ShoalClient> {
  return ShoalClient.connect({
    cells: rigs.slice(0, cells).map(({ url }, at) => ({ name: `c${at}`, address: url })),
    model: 'minilm-sim',
    jobTexts: ROWS,
    maxInFlightJobs: 64 * cells,
  });
}

/** By text. */
async function vectorsOfOneCell(): Promise<ReadonlyMap<string, Float32Array>> {
  const client = await open(1);
  try {
    const { vectors, dims } = await client.embed(TEXTS);
    return new Map(TEXTS.map((text, at) => [text, vectors.slice(at * dims, (at + 1) * dims)]));
  } finally {
    await client.close();
  }
}

/** Rows that come in `seconds`, after some that are not counted; `meanwhile` runs beside them. */
async function turn(
  cells: number,
  expected: ReadonlyMap<string, Float32Array>,
  seconds: number,
  meanwhile: () => Promise<void>,
): Promise<Turn> {
  const client = await open(cells);
  const warmMs = 1_000 * Number(args.warm);
  const startedMs = performance.now();
  let [counted, all, sinceMs, cpuBefore] = [0, 0, 0, 0];
  const beside = meanwhile();
  const isOver = (): boolean => performance.now() - startedMs > warmMs + 1_000 * seconds;
  for await (const { item, vector, index } of client.embedMany(endless(isOver))) {
    if (index !== all++) throw new Error(`row ${index} came where row ${all - 1} was due`);
    if (!expected.get(item)!.every((value, at) => value === vector[at])) throw new Error(`row ${index} is another`);
    if (isOver()) continue; // what is under way still comes, and is checked
    if (sinceMs === 0 && performance.now() - startedMs > warmMs)
      [sinceMs, cpuBefore] = [performance.now(), cpuMs(cells)];
    if (sinceMs > 0) counted++;
  }
  const cpu = cpuMs(cells) - cpuBefore;
  await client.close();
  const tookMs = 1_000 * seconds - (sinceMs - startedMs - warmMs);
  await beside;
  return {
    textsPerSecond: (1_000 * counted) / tookMs,
    cpuMicrosPerJob: (1_000 * cpu) / (counted / ROWS),
    rows: all,
  };
}

function* endless(isOver: () => boolean): Generator<string, void, undefined> {
  for (let at = 0; !isOver(); at++) yield TEXTS[at % TEXTS.length]!;
}

function cpuMs(cells: number): number {
  const { user, system } = process.cpuUsage();
  return rigs.slice(0, cells).reduce((sum, rig) => sum + cpuOf(rig), 0) + (user + system) / 1_000;
}

function cpuOf(rig: Rig): number {
  const { server, claimer, executor } = rig.cpuMs();
  return server + claimer + executor;
}

function killed(awayMs: number): () => Promise<void> {
  return async () => {
    const { server } = rigs[1]!;
    await sleep(5_000);
    await server.kill9();
    await sleep(awayMs);
    await server.restart();
  };
}
