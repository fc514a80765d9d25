// What the queue carries in front of a device that takes 15 ms for whatever it runs, three runs side by side, as the
// device of the prototype and of bare-bullmq.ts does: jobs of several sizes arrive at random moments at fixed rates,
// through the real worker, a real queue server with AOF everysec, and one client that checks every row.
//
//   node --conditions=@shoal/source bench/queue/queue-rates.ts [--rates 160x64,800x64,1250x8,5000x1] [--seconds 15]
//       [--report] [--record]
//   … --minutes 10 --rates 160x64      sustained: texts a second and the memory of every process, minute by minute.
//                                      Five minutes go before them: the header of a taken result stays for so long, and
//                                      until then the server must grow
//   … --rtt 2.4 --rates 1250x8         the worker and the client 2.4 ms of round trip away from the server
//   … --sessions 1 --rates 800x64      one run after the other
//
// Latency is from when a job was due to when its rows were checked, and bars are of that. *Told* is from the call that
// adds a job to the message that it has ended: near to what the prototype counted, whose clock ran from BullMQ's
// timestamp to the worker's event "completed".
//
// Prints a table beside facts of an earlier prototype (2026-11, another kind of machine, its loop without checks,
// admission and order; bare-bullmq.ts measures the like of it here), then one JSON line. Exit 1 when a bar is missed:
// 800x64 p50 30 ms and p99 80 ms; --minutes 10,000 texts/s and memory within 5 %; --rtt p50 60 ms. The full form takes
// two minutes; --minutes five more than it says. Wants a quiet machine. --record appends the rates as rows to
// bench/results/queue-rates.jsonl, one for each bar.

import { availableParallelism, cpus } from 'node:os';
import { createHistogram, type RecordableHistogram } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';
import { readArguments } from '../rig/arguments.ts';
import { childrenOf, residentMegabytes } from '../rig/processes.ts';
import { record } from '../rig/record.ts';
import type { Bar } from '../rig/results.ts';
import { FIXED_DEVICE, Load, openRig, type Ended, type Rig } from '../rig/rig.ts';

const args = readArguments(import.meta.url, {
  rates: { type: 'string', default: '160x64,800x64,1250x8,5000x1' },
  seconds: { type: 'string', default: '15' },
  minutes: { type: 'string', default: '0' },
  rtt: { type: 'string', default: '0' },
  sessions: { type: 'string', default: '3' },
  report: { type: 'boolean', default: false },
  record: { type: 'boolean', default: false },
});
const minutes = Number(args.minutes);
const rttMs = Number(args.rtt);

/** items/s, p50/p99 ms, CPU of server and claimer in percent of a core. */
const PROTOTYPE: Readonly<Record<string, string>> = {
  '160x64': '10,109 · 21/33 · 13 · 16',
  '800x64': '50,410 · 25/71 · 36 · 33',
  '1250x8': '9,765 · 23/48 · 27 · 29',
  '5000x1': '–',
};

interface Bars {
  readonly p50: number;
  readonly p99: number;
  readonly textsPerSecond: number;
}

function barsOf(rate: string, offered: number): Partial<Bars> {
  if (rttMs > 0) return rate === '1250x8' ? { p50: 60 } : {};
  if (minutes > 0) return { textsPerSecond: 10_000 };
  return rate === '800x64' ? { p50: 30, p99: 80, textsPerSecond: 0.97 * offered } : { textsPerSecond: 0.97 * offered };
}

/** What ended since the last `reset`, however much: a list of it would be what grows in ten minutes. */
class Tally {
  jobs = 0;
  texts = 0;
  private readonly micros: Readonly<Record<'ms' | 'toldMs', RecordableHistogram>> = {
    ms: createHistogram(),
    toldMs: createHistogram(),
  };

  add(ended: Ended): void {
    this.jobs++;
    this.texts += ended.rows;
    for (const which of ['ms', 'toldMs'] as const)
      this.micros[which].record(Math.max(1, Math.round(ended[which] * 1_000)));
  }

  /** ms. */
  percentile(part: number, which: 'ms' | 'toldMs' = 'ms'): number {
    return Math.round(this.micros[which].percentile(100 * part) / 100) / 10;
  }

  reset(): void {
    this.jobs = this.texts = 0;
    this.micros.ms.reset();
    this.micros.toldMs.reset();
  }
}

/** The header of a taken result stays in the server for so long. */
const SETTLING_SECONDS = 300;

async function measure(rig: Rig, rate: string): Promise<Row> {
  const [jobs = 0, rows = 0] = rate.split('x').map(Number);
  const [all, lastMinute] = [new Tally(), new Tally()];
  const load = await Load.connect({
    url: rig.url,
    name: `rate-${rate}-${process.pid}`,
    rows,
    class: 'bulk',
    isKeeping: false,
    onEnded: (ended) => {
      all.add(ended);
      lastMinute.add(ended);
    },
  });
  await load.offer(Math.min(jobs, 200), 2); // checks the answers before the clock starts
  // code that runs for the first time takes three times as long
  await load.offer(jobs, minutes > 0 ? SETTLING_SECONDS : Number(args.seconds) / 2);
  for (const tally of [all, lastMinute]) tally.reset();
  const seconds = minutes > 0 ? minutes * 60 : Number(args.seconds);
  const watch = minutes > 0 ? watchMemory(rig, lastMinute) : undefined;
  const before = rig.cpuMs();
  const startedMs = performance.now();
  await load.offer(jobs, seconds);
  const ms = performance.now() - startedMs;
  const after = rig.cpuMs();
  const memory = watch?.stop();
  if (load.failed > 0) throw new Error(`${load.failed} jobs failed`);
  const percent = (part: keyof typeof after): number => Math.round((100 * (after[part] - before[part])) / ms);
  await load.close();
  const result = {
    rate,
    ...(rig.roundTripMs === undefined ? {} : { roundTripMs: rig.roundTripMs }),
    textsPerSecond: Math.round((all.texts * 1_000) / ms),
    p50: all.percentile(0.5),
    p99: all.percentile(0.99),
    told: { p50: all.percentile(0.5, 'toldMs'), p99: all.percentile(0.99, 'toldMs') },
    cpu: {
      server: percent('server'),
      claimer: percent('claimer'),
      executor: percent('executor'),
      client: percent('client'),
    },
    serverMicrosPerJob: Math.round((1_000 * (after.server - before.server)) / all.jobs),
    ...(memory === undefined ? {} : { memory }),
  };
  return { ...result, missed: missedOf(result, barsOf(rate, jobs * rows)) };
}

type Figures = {
  readonly textsPerSecond: number;
  readonly p50: number;
  readonly p99: number;
  readonly memory?: Memory;
};
type Row = Figures & {
  readonly rate: string;
  readonly told: { readonly p50: number; readonly p99: number };
  readonly cpu: Readonly<Record<string, number>>;
  readonly serverMicrosPerJob: number;
  readonly missed: string[];
};

function missedOf({ textsPerSecond, p50, p99, memory }: Figures, bars: Partial<Bars>): string[] {
  return [
    ...(p50 > (bars.p50 ?? Infinity) ? [`p50 ${p50} ms > ${bars.p50}`] : []),
    ...(p99 > (bars.p99 ?? Infinity) ? [`p99 ${p99} ms > ${bars.p99}`] : []),
    ...(textsPerSecond < (bars.textsPerSecond ?? 0) ? [`${textsPerSecond} texts/s < ${bars.textsPerSecond}`] : []),
    ...Object.entries(memory?.driftPercent ?? {}).flatMap(([name, drift]) =>
      Math.abs(drift) > 5 ? [`memory of the ${name} moved by ${drift} %`] : [],
    ),
  ];
}

interface Memory {
  /** MB at each minute. */
  readonly minutes: Readonly<Record<string, readonly number[]>>;
  /** Mean of the last third of the minutes against the mean of the first. */
  readonly driftPercent: Readonly<Record<string, number>>;
}

function watchMemory(rig: Rig, lastMinute: Tally): { stop(): Memory } {
  const seen: Record<string, number[]> = { server: [], claimer: [], executor: [], client: [] };
  const look = (): void => {
    const [executor] = childrenOf(rig.worker.pid!);
    const now = { server: rig.server.pid, claimer: rig.worker.pid!, executor: executor!, client: process.pid };
    for (const [name, pid] of Object.entries(now)) seen[name]!.push(Math.round(residentMegabytes(pid) * 10) / 10);
    const megabytes = Object.fromEntries(Object.entries(seen).map(([name, values]) => [name, values.at(-1)]));
    const minute = { jobs: lastMinute.jobs, p99: lastMinute.percentile(0.99), megabytes };
    process.stderr.write(`${JSON.stringify(minute)}\n`);
    lastMinute.reset();
  };
  const timer = setInterval(look, Math.min(60_000, (minutes * 60_000) / 10));
  return {
    stop: () => {
      clearInterval(timer);
      const third = Math.floor(seen['server']!.length / 3);
      const drift = Object.entries(seen).map(
        ([name, values]) =>
          [name, Math.round((1_000 * mean(values.slice(-third))) / mean(values.slice(0, third)) - 1_000) / 10] as const,
      );
      return { minutes: seen, driftPercent: Object.fromEntries(drift) };
    },
  };
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

/** The rows of one rate for bench/results: all figures with the first bar, then each further bar. */
function keep({ rate, textsPerSecond, p50, p99, cpu, memory }: Row): void {
  const [jobs, rowsOfJob] = rate.split('x').map(Number) as [number, number];
  const growth = Object.entries(memory?.driftPercent ?? {}).map(([name, drift]) => [`${name}_growth_percent`, drift]);
  const load = Object.entries(cpu).map(([name, percent]) => [`${name}_cpu_percent`, percent]);
  const figures: Record<string, number> = {
    texts_per_s: textsPerSecond,
    p50_ms: p50,
    p99_ms: p99,
    ...(Object.fromEntries([...load, ...growth]) as Record<string, number>),
  };
  const what = [
    `${jobs.toLocaleString('en-US')} jobs/s of ${rowsOfJob} ${rowsOfJob === 1 ? 'row' : 'rows'}`,
    ...(rttMs > 0 ? [`over a wire of ${rttMs} ms`] : []),
    ...(minutes > 0 ? [`for ${minutes === 10 ? 'ten' : minutes} minutes`] : []),
  ].join(' ');
  const sessions =
    args.sessions === '3'
      ? ''
      : args.sessions === '1'
        ? ', one run after the other'
        : `, ${args.sessions} runs side by side`;
  const [first, ...others] = recordedBars(barsOf(rate, jobs * rowsOfJob), memory !== undefined);
  const named = { bench: 'queue-rates', case: `${what}${sessions}` };
  record({ ...named, figures, ...(first === undefined ? {} : { bar: first }) });
  for (const bar of others) record({ ...named, figures: { [bar.figure]: figures[bar.figure]! }, bar });
}

function recordedBars({ p50, p99, textsPerSecond }: Partial<Bars>, hasMemory: boolean): Bar[] {
  return [
    ...(hasMemory ? [{ figure: 'server_growth_percent', at_most: 5 }] : []),
    ...(p50 === undefined ? [] : [{ figure: 'p50_ms', at_most: p50 }]),
    ...(p99 === undefined ? [] : [{ figure: 'p99_ms', at_most: p99 }]),
    ...(textsPerSecond === undefined ? [] : [{ figure: 'texts_per_s', at_least: textsPerSecond }]),
  ];
}

const rows: Row[] = [];
for (const rate of args.rates.split(',')) {
  // A worker of its own for each rate: sizes of jobs that it learned do not travel.
  const rig = await openRig({ ...FIXED_DEVICE, SHOAL_DEVICE_SESSIONS: args.sessions }, { roundTripMs: rttMs });
  try {
    rows.push(await measure(rig, rate));
    await sleep(200);
  } finally {
    await rig.stop();
  }
}

process.stderr.write(
  `\n${'jobs × rows'.padEnd(12)} ${'texts/s · p50/p99 ms · CPU % server · claimer'.padEnd(48)} prototype\n`,
);
for (const { rate, textsPerSecond, p50, p99, told, cpu, missed } of rows) {
  process.stderr.write(
    `${rate.padEnd(12)} ` +
      `${(
        `${textsPerSecond} · ${p50}/${p99} (told ${told.p50}/${told.p99}) · ${cpu['server']} · ` +
        `${cpu['claimer']} (executor ${cpu['executor']}, client ${cpu['client']})`
      ).padEnd(48)} ` +
      `${PROTOTYPE[rate] ?? ''} ${missed.length > 0 ? `MISSED: ${missed.join('; ')}` : ''}\n`,
  );
}
const missed = rows.flatMap((row) => row.missed);
const machine = { cpu: cpus()[0]?.model, cores: availableParallelism() };
const report = { bench: 'queue-rates', ...machine, rttMs, sessions: Number(args.sessions), rows, missed };
process.stdout.write(`${JSON.stringify(report)}\n`);
for (const row of rows) keep(row);
if (missed.length > 0 && !args.report) process.exitCode = 1;
