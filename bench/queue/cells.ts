// What several cells give against one: each cell is a queue server and a worker on a simulated device that is held to a
// rate which the cell could give many times over, so that a machine of few cores can carry them all. Clients of the SDK
// add to the cells they are told of, take every result once, and compare each row with what the first cell gave alone.
//
//   node --conditions=@shoal/source bench/queue/cells.ts [--cells 4] [--rounds 3] [--seconds 10] [--warm 2]
//       [--tokens-per-ms 40] [--device sim] [--producers 1] [--job-texts 64] [--in-flight 64] [--away 0] [--record]
//       [--cores-each 0]
//
// `--tokens-per-ms`: what each device runs; 0: as fast as the queue goes, for a machine with cores enough. `--device
// gpu:0,gpu:1`: the workers of the cells are on these in turns. `--producers N`: so many processes, each with a client; more
// than one where one would be the limit. `--in-flight`: jobs for each cell. `--away N`: in the last turn the second cell is
// killed and stays away for N seconds; every row comes all the same, in its order. `elsewhere` is what another client gets
// that opens while it is away. `--cores-each N`: each cell and its share of the producers have N cores of their own, as a
// machine of its own would, and only the producers of cells that take part are at work; its server has one thread.
//
// Prints one JSON line: texts/s and CPU a job of each turn, what was busy in it, and the median ratio of the turns that
// followed each other. Its goal is the number of cells, within 5 %. Linux only.

import { execFileSync, fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { median } from '@shoal/core/base';
import { OF_EVERY_STEP, readArguments } from '../rig/arguments.ts';
import { childrenOf, processCpuMs } from '../rig/processes.ts';
import { record } from '../rig/record.ts';
import { FIXED_DEVICE, openRig } from '../rig/rig.ts';
import type { Asked, Cell, Counted } from './cells-producer.ts';

const args = readArguments(import.meta.url, {
  ...OF_EVERY_STEP,
  cells: { type: 'string', default: '4' },
  rounds: { type: 'string', default: '3' },
  seconds: { type: 'string', default: '10' },
  warm: { type: 'string', default: '2' },
  'tokens-per-ms': { type: 'string', default: '40' },
  device: { type: 'string', default: 'sim' },
  producers: { type: 'string', default: '1' },
  'job-texts': { type: 'string', default: '64' },
  'in-flight': { type: 'string', default: '64' },
  away: { type: 'string', default: '0' },
  'cores-each': { type: 'string', default: '0' },
  record: { type: 'boolean', default: false },
});

const jobTexts = Number(args['job-texts']);
/** At most so much in the short form, whose figures mean nothing. */
const sized = (name: 'rounds' | 'seconds' | 'warm' | 'producers' | 'away', small: number): number =>
  args.small ? Math.min(small, Number(args[name])) : Number(args[name]);
const isSimulated = args.device === 'sim';
const devices = args.device.split(',');
const coresEach = Number(args['cores-each']);
/** 1 ms for 1,024 rows is more than a queue server carries. */
const pace = args['tokens-per-ms'] === '0' ? '1000000+1' : args['tokens-per-ms'];

interface Turn {
  readonly textsPerSecond: number;
  /** Of queue servers, workers and producers, for a job. */
  readonly cpuMicrosPerJob: number;
  /** Of a core, by cell and by producer. */
  readonly busyPercent: Readonly<Record<'commandThreads' | 'claimers' | 'executors' | 'producers', readonly number[]>>;
  readonly rows: number;
}

const rigs = await Promise.all(
  Array.from({ length: Number(args.cells) }, (_, at) =>
    openRig(
      isSimulated
        ? { ...FIXED_DEVICE, SHOAL_DEVICE: `sim:${pace}` }
        : { SHOAL_DEVICE: devices[at % devices.length]!, SHOAL_WORKER_NAME: `cell${at}` },
      { serverArgs: coresEach === 0 ? [] : ['--io-threads', '1'] },
    ),
  ),
);
const cells = rigs.map(({ url }, at): Cell => ({ name: `c${at}`, address: url }));
const fromHere = (): ChildProcess =>
  fork(fileURLToPath(new URL('./cells-producer.ts', import.meta.url)), [], { stdio: ['ignore', 2, 2, 'ipc'] });
const producers = Array.from({ length: sized('producers', 2) }, fromHere);
const model = isSimulated ? 'minilm-sim' : 'minilm';
const died = Promise.race(
  producers.map(async (producer) => {
    const [code] = (await once(producer, 'exit')) as [number | null];
    throw new Error(`a producer ended: ${String(code)}`);
  }),
);
died.catch(() => undefined);
if (coresEach > 0) {
  for (const [at, { server, worker }] of rigs.entries()) pin(at, [server.pid, worker.pid!, ...childrenOf(worker.pid!)]);
  for (const [at, producer] of producers.entries()) pin(at % rigs.length, [producer.pid!]);
}
try {
  await askAll({ ask: 'expect', cells: cells.slice(0, 1), model, jobTexts });
  const rounds: { readonly one: Turn; readonly all: Turn }[] = [];
  for (let round = 0; round < sized('rounds', 1); round++) {
    const turns = round % 2 === 0 ? [1, cells.length] : [cells.length, 1];
    const told: Turn[] = [];
    for (const count of turns) told.push(await turn(count, sized('seconds', 1)));
    rounds.push(round % 2 === 0 ? { one: told[0]!, all: told[1]! } : { one: told[1]!, all: told[0]! });
  }
  const awaySeconds = sized('away', 2);
  let elsewhere: Elsewhere | undefined;
  const meanwhile = async (): Promise<void> => {
    elsewhere = await killed(awaySeconds);
  };
  const away = awaySeconds === 0 ? undefined : await turn(cells.length, 20 + awaySeconds, meanwhile);
  const ratio = median(rounds.map(({ one, all: many }) => many.textsPerSecond / one.textsPerSecond));
  const cpuRatio = median(rounds.map(({ one, all: many }) => many.cpuMicrosPerJob / one.cpuMicrosPerJob));
  const found = {
    cells: cells.length,
    producers: producers.length,
    jobTexts,
    ratio,
    cpuRatio,
    rounds,
    away,
    elsewhere,
  };
  process.stdout.write(`${JSON.stringify({ bench: 'cells', part: 'cells', devices, pace, ...found })}\n`);
  if (rounds.length > 0) keep(ratio, cpuRatio, rounds);
  if (rounds.length > 0 && away !== undefined && elsewhere !== undefined) keepAway(rounds, away, elsewhere);
} finally {
  for (const producer of producers) producer.removeAllListeners('exit').kill('SIGKILL');
  await Promise.all(rigs.map((rig) => rig.stop()));
}
process.exit(0);

function keep(ratio: number, cpuRatio: number, rounds: readonly { readonly one: Turn; readonly all: Turn }[]): void {
  const on = isSimulated ? `devices of ${args['tokens-per-ms']} tokens/ms` : `workers on ${args.device}`;
  record({
    bench: 'cells',
    case: `${cells.length} cells ÷ one, ${jobTexts} texts a job, ${on}`,
    figures: {
      texts_ratio: Math.round(1_000 * ratio) / 1_000,
      cpu_per_job_ratio: Math.round(1_000 * cpuRatio) / 1_000,
      one_texts_per_s: Math.round(median(rounds.map(({ one }) => one.textsPerSecond))),
      all_texts_per_s: Math.round(median(rounds.map(({ all: many }) => many.textsPerSecond))),
      one_cpu_us_per_job: Math.round(median(rounds.map(({ one }) => one.cpuMicrosPerJob))),
    },
    ...(isSimulated && { bar: { figure: 'texts_ratio', at_least: 0.95 * cells.length } }),
  });
}

/** Nothing is kept of a run in which a row was lost, another, or twice: its producer ends. */
function keepAway(rounds: readonly { readonly one: Turn }[], away: Turn, elsewhere: Elsewhere): void {
  const ratio = elsewhere.textsPerSecond / median(rounds.map(({ one }) => one.textsPerSecond));
  record({
    bench: 'cells',
    case: `one of ${cells.length} cells killed and away ${args.away} s: a client that opens then ÷ one cell`,
    figures: {
      texts_ratio: Math.round(1_000 * ratio) / 1_000,
      rows_of_that_client: elsewhere.rows,
      rows_of_one_that_was_there: away.rows,
      lost: 0,
    },
    bar: { figure: 'texts_ratio', at_least: 0.95 * (cells.length - 1) },
  });
}

/** Rows that come in `seconds`, after some that are not counted; `meanwhile` runs beside them. */
async function turn(count: number, seconds: number, meanwhile = async (): Promise<void> => undefined): Promise<Turn> {
  const atWork = producersOf(count);
  const inFlightJobs = Math.ceil((Number(args['in-flight']) * count) / atWork.length);
  await askAll({ ask: 'start', cells: cells.slice(0, count), inFlightJobs }, atWork);
  const beside = meanwhile();
  await Promise.race([sleep(1_000 * sized('warm', 1)), died]);
  const before = await snapshot(count);
  await Promise.race([sleep(1_000 * seconds), died]);
  const after = await snapshot(count);
  await beside;
  const ended = await askAll({ ask: 'stop' }, atWork);
  const ms = after.atMs - before.atMs;
  const rows = sum(after.rows) - sum(before.rows);
  const spent = { commandThreads: 0, claimers: 0, executors: 0, producers: 0, servers: 0 };
  type Who = keyof typeof spent;
  // of a server that was killed meanwhile nothing is told
  const of = (who: Who): number[] => after[who].map((cpuMs, at) => Math.max(0, cpuMs - before[who][at]!));
  const percent = (who: Who): number[] => of(who).map((cpuMs) => Math.round((100 * cpuMs) / ms));
  return {
    textsPerSecond: (1_000 * rows) / ms,
    cpuMicrosPerJob:
      (1_000 * sum((['servers', 'claimers', 'executors', 'producers'] as const).flatMap(of))) / (rows / jobTexts),
    busyPercent: {
      commandThreads: percent('commandThreads'),
      claimers: percent('claimers'),
      executors: percent('executors'),
      producers: percent('producers'),
    },
    rows: sum(ended.map((one) => one.rows)),
  };
}

async function snapshot(count: number) {
  const counted = await askAll({ ask: 'count' }, producersOf(count));
  const cpu = rigs.slice(0, count).map((rig) => rig.cpuMs());
  return {
    atMs: performance.now(),
    rows: counted.map((one) => one.rows),
    producers: counted.map(({ cpuMs }) => cpuMs),
    servers: cpu.map(({ server }) => server),
    commandThreads: rigs.slice(0, count).map(({ server }) => processCpuMs(server.pid, server.pid)),
    claimers: cpu.map(({ claimer }) => claimer),
    executors: cpu.map(({ executor }) => executor),
  };
}

/** All of them, or with cores of their own those that so many cells have. */
function producersOf(count: number): readonly ChildProcess[] {
  return coresEach === 0 ? producers : producers.filter((_, at) => at % rigs.length < count);
}

/** Holds all threads of these processes to the cores of a cell. */
function pin(cell: number, pids: readonly number[]): void {
  const from = cell * coresEach;
  for (const pid of pids)
    execFileSync('taskset', ['--all-tasks', '--cpu-list', '--pid', `${from}-${from + coresEach - 1}`, `${pid}`]);
}

function askAll(asked: Asked, of: readonly ChildProcess[] = producers): Promise<Counted[]> {
  return Promise.race([Promise.all(of.map((producer) => ask(producer, asked))), died]);
}

async function ask(producer: ChildProcess, asked: Asked): Promise<Counted> {
  const answer = once(producer, 'message');
  producer.send(asked);
  return ((await answer) as [Counted])[0];
}

function sum(figures: readonly number[]): number {
  return figures.reduce((total, one) => total + one, 0);
}

interface Elsewhere {
  readonly textsPerSecond: number;
  readonly rows: number;
}

async function killed(awaySeconds: number): Promise<Elsewhere> {
  const { server } = rigs[1]!;
  await sleep(5_000);
  await server.kill9();
  const back = sleep(1_000 * awaySeconds);
  const other = fromHere();
  try {
    await ask(other, { ask: 'expect', cells: cells.slice(0, 1), model, jobTexts });
    await ask(other, { ask: 'start', cells, inFlightJobs: Number(args['in-flight']) * cells.length });
    await sleep(1_000 * sized('warm', 1));
    const [before, beganMs] = [await ask(other, { ask: 'count' }), performance.now()];
    await sleep(Math.max(500, 600 * awaySeconds));
    const after = await ask(other, { ask: 'count' });
    const seconds = (performance.now() - beganMs) / 1_000;
    const ended = await ask(other, { ask: 'stop' });
    return { textsPerSecond: (after.rows - before.rows) / seconds, rows: ended.rows };
  } finally {
    other.kill('SIGKILL');
    await back;
    await server.restart();
  }
}
