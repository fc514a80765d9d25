// What several cells give against one: each cell is a queue server and a worker on a simulated device that is held to a
// rate which the cell could give many times over, so that a machine of few cores can carry them all. Clients of the SDK
// add to the cells they are told of, take every result once, and compare each row with what the first cell gave alone.
//
//   node --conditions=@shoal/source bench/queue/cells.ts [--cells 4] [--rounds 3] [--seconds 10] [--warm 2]
//       [--tokens-per-ms 40] [--device sim] [--producers 1] [--job-texts 64] [--in-flight 64] [--away 0] [--record]
//       [--own-cores] [--controls]
//
// `--tokens-per-ms`: what each device runs; 0: as fast as the queue goes, for a machine with cores enough. `--device
// gpu:0,gpu:1`: the workers of the cells are on these in turns. `--producers N`: so many processes, each with a client; more
// than one where one would be the limit. `--in-flight`: jobs for each cell. `--away N`: in the last turn the second cell is
// killed and stays away for N seconds; every row comes all the same, in its order. `elsewhere` is what another client gets
// that opens while it is away.
//
// Cells share nothing, but on one machine they share its cores, caches and disk. `--own-cores`: each command thread has a
// core for itself, whose other half is idle, and append-only files lie in memory where there is enough. `--controls` adds
// to each round what the machine does without cells: one cell while others burn what three more cells use (`burn`), as
// many deployments of one cell that know nothing of each other (`apart`, with a producer for each at least), and at the end
// a script of no product on one server and on all (`raw`). Each turn says what a command thread spent on a job, in scripts
// and beside them.
//
// Prints one JSON line: texts/s and CPU a job of each turn, what was busy in it, and the median ratio of the turns that
// followed each other. Its goal is the number of cells, within 5 %. Linux only.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { statfsSync } from 'node:fs';
import { cpus as processors } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { median } from '@shoal/core/base';
import { OF_EVERY_STEP, readArguments } from '../rig/arguments.ts';
import { coresTold, pin, stolenTicks, type Core } from '../rig/cores.ts';
import { childrenOf, processCpuMs } from '../rig/processes.ts';
import { record } from '../rig/record.ts';
import { FIXED_DEVICE, openRig } from '../rig/rig.ts';
import { siblingsFound } from '../rig/siblings.ts';
import type { LoadAsked, LoadTold } from './cells-load.ts';
import { placesOf } from './cells-places.ts';
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
  'own-cores': { type: 'boolean', default: false },
  controls: { type: 'boolean', default: false },
  record: { type: 'boolean', default: false },
});

const jobTexts = Number(args['job-texts']);
/** At most so much in the short form, whose figures mean nothing. */
const sized = (name: 'rounds' | 'seconds' | 'warm' | 'producers' | 'in-flight' | 'away', small: number): number =>
  args.small ? Math.min(small, Number(args[name])) : Number(args[name]);
const isSimulated = args.device === 'sim';
const devices = args.device.split(',');
/** 1 ms for 1,024 rows is more than a queue server carries. */
const pace = args['tokens-per-ms'] === '0' ? '1000000+1' : args['tokens-per-ms'];
/** Of append-only files of a long run. */
const MEMORY_FOLDER = { path: '/dev/shm', leastBytes: 40e9 };

/** All cells; one; one beside others that burn as much; each by clients of its own that know of no other. */
type Way = 'all' | 'one' | 'burn' | 'apart';

interface Turn {
  readonly textsPerSecond: number;
  /** Of queue servers, workers and producers, for a job. */
  readonly cpuMicrosPerJob: number;
  /** Of command threads, of a job: all, within scripts; and calls of scripts, reads and writes of sockets for it. */
  readonly command: Readonly<Record<'microsPerJob' | 'jobsPerSecondOfIt' | keyof Told, number>>;
  /** Of a core, by cell and by producer. */
  readonly busyPercent: Readonly<Record<'commandThreads' | 'claimers' | 'executors' | 'producers', readonly number[]>>;
  /** Of all processors together, by a hypervisor; times that a file had to wait for its disk; µs of a loop of our own. */
  readonly machine: { readonly stolenPercent: number; readonly delayedFsyncs: number; readonly loopMicros: number };
  readonly rows: number;
}
type Round = Readonly<Partial<Record<Way, Turn>>> & { readonly one: Turn; readonly all: Turn };

const cores = args['own-cores'] ? await coresHere() : [];
const places = args['own-cores'] ? placesOf(cores, Number(args.cells)) : undefined;
if (args['own-cores'] && places === undefined)
  process.stderr.write(`cells: nothing has cores of its own, ${cores.length} are too few\n`);
const isInMemory = args['own-cores'] && freeBytes(MEMORY_FOLDER.path) >= MEMORY_FOLDER.leastBytes;
if (isInMemory) process.env['TMPDIR'] = MEMORY_FOLDER.path;

const rigs = await Promise.all(
  Array.from({ length: Number(args.cells) }, (_, at) =>
    openRig(
      isSimulated
        ? { ...FIXED_DEVICE, SHOAL_DEVICE: `sim:${pace}` }
        : { SHOAL_DEVICE: devices[at % devices.length]!, SHOAL_WORKER_NAME: `cell${at}` },
      { serverArgs: args['own-cores'] ? ['--io-threads', '1'] : [] },
    ),
  ),
);
const cells = rigs.map(({ url }, at): Cell => ({ name: `c${at}`, address: url }));
const producers = Array.from({ length: sized('producers', 2) }, () => fromHere('cells-producer'));
const others = args.controls ? burners() : [];
const clock = args.controls && places !== undefined ? fromHere('cells-load') : undefined;
const model = isSimulated ? 'minilm-sim' : 'minilm';
const children = [...producers, ...others.map(({ child }) => child), ...(clock === undefined ? [] : [clock])];
const died = Promise.race(
  children.map(async (child) => {
    const [code] = (await once(child, 'exit')) as [number | null];
    throw new Error(`a producer or a load beside it ended: ${String(code)}`);
  }),
);
died.catch(() => undefined);
try {
  await askAll(producers.map(() => ({ ask: 'expect', cells: cells.slice(0, 1), model, jobTexts })));
  if (places !== undefined) takePlaces();
  const ways: readonly Way[] = [
    ...(args.controls ? (['all', 'burn', 'one'] as const) : (['all', 'one'] as const)),
    ...(args.controls && producers.length >= cells.length ? (['apart'] as const) : []),
  ];
  const rounds: Round[] = [];
  let last: Turn | undefined;
  for (let round = 0; round < sized('rounds', 1); round++) {
    const told: Partial<Record<Way, Turn>> = {};
    for (const way of round % 2 === 0 ? ways : ways.toReversed()) {
      told[way] = await turn(way, sized('seconds', 1), last);
      last = told.all ?? last;
      process.stderr.write(`cells: ${way} ${Math.round(told[way].textsPerSecond)} texts/s\n`);
    }
    rounds.push(told as Round);
  }
  const awaySeconds = sized('away', 2);
  let elsewhere: Elsewhere | undefined;
  const meanwhile = async (): Promise<void> => {
    elsewhere = await killed(awaySeconds);
  };
  const away = awaySeconds === 0 ? undefined : await turn('all', 20 + awaySeconds, undefined, meanwhile);
  const raw = args.controls ? await rawCalls() : undefined;
  const found = {
    cells: cells.length,
    producers: producers.length,
    jobTexts,
    inFlight: Number(args['in-flight']),
    machine: { cores, places, isInMemory },
    ...(rounds.length > 0 && ratiosOf(rounds)),
    raw,
    rounds,
    away,
    elsewhere,
  };
  process.stdout.write(`${JSON.stringify({ bench: 'cells', part: 'cells', devices, pace, ...found })}\n`);
  if (args.record && rounds.length > 0) keep(rounds, raw);
  if (args.record && rounds.length > 0 && away !== undefined && elsewhere !== undefined)
    keepAway(rounds, away, elsewhere);
} finally {
  for (const child of children) child.removeAllListeners('exit').kill('SIGKILL');
  await Promise.all(rigs.map((rig) => rig.stop()));
}
process.exit(0);

function ratiosOf(rounds: readonly Round[]) {
  const by = (under: Way, of: (turn: Turn) => number): number | undefined => {
    const found = rounds.flatMap((round) => (round[under] === undefined ? [] : [of(round.all) / of(round[under])]));
    return found.length === 0 ? undefined : median(found);
  };
  const apart = rounds.flatMap(({ apart: sides, one }) =>
    sides === undefined ? [] : [sides.textsPerSecond / one.textsPerSecond],
  );
  return {
    ratio: by('one', (one) => one.textsPerSecond)!,
    cpuRatio: by('one', (one) => one.cpuMicrosPerJob)!,
    commandCpuRatio: by('one', ({ command }) => command.microsPerJob)!,
    ratioToBurn: by('burn', (one) => one.textsPerSecond),
    ratioToApart: by('apart', (one) => one.textsPerSecond),
    cpuRatioToApart: by('apart', (one) => one.cpuMicrosPerJob),
    apartRatio: apart.length === 0 ? undefined : median(apart),
  };
}

function keep(rounds: readonly Round[], raw: Raw | undefined): void {
  const on = !isSimulated
    ? `workers on ${args.device}`
    : args['tokens-per-ms'] === '0'
      ? 'devices that are never the limit'
      : `devices of ${args['tokens-per-ms']} tokens/ms`;
  const whose = places === undefined ? '' : ', a core for each command thread';
  const { ratio, cpuRatio, commandCpuRatio, ratioToBurn, ratioToApart, cpuRatioToApart, apartRatio } = ratiosOf(rounds);
  const ratios = {
    texts_ratio: ratio,
    cpu_per_job_ratio: cpuRatio,
    command_cpu_per_job_ratio: commandCpuRatio,
    ...(ratioToBurn !== undefined && { texts_ratio_to_one_beside_burners: ratioToBurn }),
    ...(apartRatio !== undefined && { deployments_apart_ratio: apartRatio }),
    ...(ratioToApart !== undefined && { texts_ratio_to_deployments_apart: ratioToApart }),
    ...(cpuRatioToApart !== undefined && { cpu_per_job_ratio_to_deployments_apart: cpuRatioToApart }),
    ...(raw !== undefined && { plain_scripts_ratio: raw.ratio }),
  };
  const one = (of: (turn: Turn) => number): number => Math.round(median(rounds.map((round) => of(round.one))));
  record({
    bench: 'cells',
    case: `${cells.length} cells ÷ one, ${jobTexts} texts a job, ${on}${whose}`,
    figures: {
      ...Object.fromEntries(Object.entries(ratios).map(([name, value]) => [name, Math.round(1_000 * value) / 1_000])),
      one_texts_per_s: one(({ textsPerSecond }) => textsPerSecond),
      all_texts_per_s: Math.round(median(rounds.map(({ all: many }) => many.textsPerSecond))),
      one_cpu_us_per_job: one(({ cpuMicrosPerJob }) => cpuMicrosPerJob),
      one_command_us_per_job: one(({ command }) => command.microsPerJob),
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

/**
 * Rows that come in `seconds`, after some that are not counted; `meanwhile` runs beside them. All producers are at work in
 * each way. `last`: a turn of all cells, whose other cells burners stand for.
 */
async function turn(
  way: Way,
  seconds: number,
  last?: Turn,
  meanwhile = async (): Promise<void> => undefined,
): Promise<Turn> {
  const count = way === 'one' || way === 'burn' ? 1 : cells.length;
  const inFlightJobs = Math.ceil((sized('in-flight', 64) * count) / producers.length);
  const cellsOf = (at: number): readonly Cell[] =>
    way === 'apart' ? [cells[at % cells.length]!] : cells.slice(0, count);
  await askAll(producers.map((_, at) => ({ ask: 'start', cells: cellsOf(at), inFlightJobs })));
  if (way === 'burn') await burn(last);
  if (clock !== undefined) await load(clock, { ask: 'time' });
  const beside = meanwhile();
  await Promise.race([sleep(1_000 * sized('warm', 1)), died]);
  const before = await snapshot(count);
  await Promise.race([sleep(1_000 * seconds), died]);
  const after = await snapshot(count);
  await beside;
  const loopMicros = clock === undefined ? 0 : await load(clock, { ask: 'rest' });
  if (way === 'burn') await Promise.all(others.map(({ child }) => load(child, { ask: 'rest' })));
  const ended = await askAll(producers.map(() => ({ ask: 'stop' })));
  const ms = after.atMs - before.atMs;
  const rows = sum(after.rows) - sum(before.rows);
  type Who = 'commandThreads' | 'claimers' | 'executors' | 'producers' | 'servers';
  // of a server that was killed meanwhile nothing is told
  const of = (who: Who): number[] => after[who].map((cpuMs, at) => Math.max(0, cpuMs - before[who][at]!));
  const percent = (who: Who): number[] => of(who).map((cpuMs) => Math.round((100 * cpuMs) / ms));
  const jobs = rows / jobTexts;
  const told = (name: keyof Told): number =>
    sum(after.told.map((one, at) => Math.max(0, one[name] - before.told[at]![name]))) / jobs;
  return {
    textsPerSecond: (1_000 * rows) / ms,
    cpuMicrosPerJob: (1_000 * sum((['servers', 'claimers', 'executors', 'producers'] as const).flatMap(of))) / jobs,
    command: {
      microsPerJob: (1_000 * sum(of('commandThreads'))) / jobs,
      jobsPerSecondOfIt: (1_000 * jobs) / sum(of('commandThreads')),
      scriptMicros: told('scriptMicros'),
      scripts: told('scripts'),
      reads: told('reads'),
      writes: told('writes'),
    },
    busyPercent: {
      commandThreads: percent('commandThreads'),
      claimers: percent('claimers'),
      executors: percent('executors'),
      producers: percent('producers'),
    },
    machine: {
      stolenPercent: (1_000 * (after.stolen - before.stolen)) / ms / processors().length,
      delayedFsyncs: sum(after.delayedFsyncs) - sum(before.delayedFsyncs),
      loopMicros,
    },
    rows: sum(ended.map((one) => one.rows)),
  };
}

async function snapshot(count: number) {
  const [counted, told] = await Promise.all([
    askAll(producers.map(() => ({ ask: 'count' }))),
    Promise.all(rigs.slice(0, count).map(({ server }) => toldBy(server))),
  ]);
  const cpu = rigs.slice(0, count).map((rig) => rig.cpuMs());
  return {
    atMs: performance.now(),
    rows: counted.map((one) => one.rows),
    producers: counted.map(({ cpuMs }) => cpuMs),
    servers: cpu.map(({ server }) => server),
    commandThreads: rigs.slice(0, count).map(({ server }) => processCpuMs(server.pid, server.pid)),
    claimers: cpu.map(({ claimer }) => claimer),
    executors: cpu.map(({ executor }) => executor),
    stolen: stolenTicks(),
    delayedFsyncs: told.map(({ delayedFsyncs }) => delayedFsyncs),
    told,
  };
}

interface Told {
  readonly scriptMicros: number;
  readonly scripts: number;
  readonly reads: number;
  readonly writes: number;
}

/** What a server counts of itself; zeros while it is away. */
async function toldBy(server: { command(...of: string[]): Promise<unknown> }) {
  const info = String(await server.command('INFO', 'everything').catch(() => ''));
  const number = (pattern: RegExp): number => Number(pattern.exec(info)?.[1] ?? 0);
  const scripts = [...info.matchAll(/^cmdstat_(?:eval|fcall)\w*:calls=(\d+),usec=(\d+)/gm)];
  return {
    scripts: sum(scripts.map(([, calls]) => Number(calls))),
    scriptMicros: sum(scripts.map(([, , micros]) => Number(micros))),
    reads: number(/^total_reads_processed:(\d+)/m),
    writes: number(/^total_writes_processed:(\d+)/m),
    delayedFsyncs: number(/^aof_delayed_fsync:(\d+)/m),
  };
}

// ---- controls -----------------------------------------------------------------------------------------------------

interface Burner {
  readonly child: ChildProcess;
  readonly who: 'commandThreads' | 'claimers' | 'executors';
  readonly cell: number;
}

/** For the command thread, claimer and executor of each cell but the first. */
function burners(): Burner[] {
  return cells.slice(1).flatMap((_, at) =>
    (['commandThreads', 'claimers', 'executors'] as const).map((who) => {
      return { child: fromHere('cells-load'), who, cell: at + 1 };
    }),
  );
}

async function burn(like: Turn | undefined): Promise<void> {
  await Promise.all(
    others.map(({ child, who, cell }) => {
      const percent = like?.busyPercent[who][cell] ?? 100;
      return load(child, { ask: 'burn', share: Math.min(1, Math.max(0.05, percent / 100)) });
    }),
  );
}

interface Raw {
  readonly one: number;
  readonly all: number;
  readonly ratio: number;
}

/** Calls a second of a script on one server and on all at once, three times each. */
async function rawCalls(): Promise<Raw> {
  const callers = cells.map(() => fromHere('cells-load'));
  const calls = async (count: number): Promise<number> =>
    sum(
      await Promise.all(
        cells.slice(0, count).map(({ address }, at) => load(callers[at]!, { ask: 'raw', url: address, ms: 1_500 })),
      ),
    );
  try {
    if (places !== undefined) for (const { pid } of callers) pin([pid!], places.producers);
    const found: { readonly one: number; readonly all: number }[] = [];
    for (let round = 0; round < sized('rounds', 1); round++)
      found.push({ one: await calls(1), all: await calls(cells.length) });
    const one = median(found.map((round) => round.one));
    const all = median(found.map((round) => round.all));
    return { one, all, ratio: median(found.map((round) => round.all / round.one)) };
  } finally {
    for (const caller of callers) caller.kill('SIGKILL');
  }
}

/** As the kernel tells, or as it is found where it says that each processor is a core. */
async function coresHere(): Promise<readonly Core[]> {
  const told = coresTold();
  if (told.length < 8 || told.some(({ length }) => length > 1)) return told;
  const all = told.flat();
  const spinners = new Map(all.map((cpu) => [cpu, fromHere('cells-load')]));
  try {
    await Promise.all([...spinners.values()].map((child) => load(child, { ask: 'spin', ms: 1 }))); // they have started
    for (const [cpu, { pid }] of spinners) pin([pid!], [cpu]);
    return await siblingsFound(all, async (cpus) => {
      const spun = await Promise.all(cpus.map((cpu) => load(spinners.get(cpu)!, { ask: 'spin', ms: 40 })));
      return spun[0]!;
    });
  } finally {
    for (const child of spinners.values()) child.kill('SIGKILL');
  }
}

function takePlaces(): void {
  const { commands, workers, producers: rest, harness } = places!;
  for (const [at, { server, worker }] of rigs.entries()) {
    pin([server.pid, worker.pid!, ...childrenOf(worker.pid!)], workers[at]!);
    pin([server.pid], [commands[at]!], 'one');
  }
  for (const { pid } of producers) pin([pid!], rest);
  for (const { child, who, cell } of others)
    pin([child.pid!], who === 'commandThreads' ? [commands[cell]!] : workers[cell]!);
  if (clock !== undefined) pin([clock.pid!], [places!.clock]);
  pin([process.pid], [harness]);
}

function freeBytes(folder: string): number {
  try {
    const { bavail, bsize } = statfsSync(folder);
    return bavail * bsize;
  } catch {
    return 0;
  }
}

// ---- processes ----------------------------------------------------------------------------------------------------

function fromHere(file: 'cells-producer' | 'cells-load'): ChildProcess {
  return fork(fileURLToPath(new URL(`./${file}.ts`, import.meta.url)), [], { stdio: ['ignore', 2, 2, 'ipc'] });
}

/** One for each producer. */
function askAll(asked: readonly Asked[]): Promise<Counted[]> {
  return Promise.race([Promise.all(producers.map((producer, at) => ask(producer, asked[at]!))), died]);
}

async function ask(producer: ChildProcess, asked: Asked): Promise<Counted> {
  const answer = once(producer, 'message');
  producer.send(asked);
  return ((await answer) as [Counted])[0];
}

async function load(child: ChildProcess, asked: LoadAsked): Promise<number> {
  const answer = once(child, 'message');
  child.send(asked);
  return ((await answer) as [LoadTold])[0].told;
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
  const other = fromHere('cells-producer');
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
