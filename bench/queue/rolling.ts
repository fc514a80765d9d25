// What interactive requests notice of a rolling restart: real workers on simulated devices, kept as a supervisor keeps
// them (whoever leaves with exit code 75 is started again), under a steady load of bulk and interactive jobs, every row
// checked. Each round has the load alone and then the same with `shoal fleet restart --rolling` under it, until all
// workers are replaced. Latency counts on a quiet machine only: what ran beside is told by the load average.
//
//   node --conditions=@shoal/source bench/queue/rolling.ts [--workers 4] [--texts 5000] [--interactive 50] [--seconds 30]
//   [--rounds 3] [--at-once 1] [--report]
//
// With SHOAL_TEST_PROGRAMS=dist the workers are those of the build, which start in half the time. --texts: rows a second, of which --interactive are jobs of one row. Prints one JSON line. Exit 1 when a job failed, or
// when the p99 of interactive jobs is, in the median of the rounds, more than twice what it is without a restart; with
// --report it only reports.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { loadavg } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { programOf } from '@shoal/core/testing';
import { REPLACE_ME } from '@shoal/ops/service';
import { tuning } from '@shoal/private-server';
import { Fleet, planRestart, rollingRestart, type RestartedWorker } from '@shoal/queue';
import { startTestServer } from '@shoal/queue/testing';
import { readArguments } from '../rig/arguments.ts';
import { FIXED_DEVICE, Load, QUEUE, percentile, type Ended } from '../rig/rig.ts';

const args = readArguments(import.meta.url, {
  workers: { type: 'string', default: '4' },
  texts: { type: 'string', default: '5000' },
  interactive: { type: 'string', default: '50' },
  seconds: { type: 'string', default: '30' },
  rounds: { type: 'string', default: '3' },
  'at-once': { type: 'string', default: '1' },
  report: { type: 'boolean', default: false },
});
const WORKERS = Number(args.workers);
const BULK_ROWS = 64;
const INTERACTIVE = Number(args.interactive);
const BULK_JOBS = Math.max(0, Number(args.texts) - INTERACTIVE) / BULK_ROWS;
const SECONDS = Number(args.seconds);
const MOST_TIMES = 2;
/** Before the restart begins, so that the load is as it was. */
const BEFORE_MS = 1_000;

/** A worker that is started again when it says so, as a supervisor would. */
class KeptWorker {
  private readonly url: string;
  private readonly name: string;
  private child: ChildProcess | undefined;
  private isStopping = false;
  starts = 0;

  constructor(url: string, name: string) {
    this.url = url;
    this.name = name;
  }

  /** Resolves when it can serve. */
  async start(): Promise<void> {
    this.starts++;
    const { main: program, execArgv } = programOf('gpu-worker');
    const child = fork(program, [], {
      execArgv: [...execArgv],
      env: {
        ...process.env,
        ...FIXED_DEVICE,
        REDIS_URL: this.url,
        SHOAL_MODEL: 'minilm',
        SHOAL_MAX_TOKENS: '512',
        SHOAL_LOG_LEVEL: 'warn',
        SHOAL_METRICS_PORT: '0',
        SHOAL_TOKENIZER_THREADS: '1',
        SHOAL_WORKER_NAME: this.name,
      },
      stdio: ['ignore', 2, 2, 'ipc'],
    });
    this.child = child;
    child.once('exit', (code) => {
      if (this.isStopping) return;
      if (code !== REPLACE_ME) throw new Error(`${this.name} ended with ${String(code)}`);
      void this.start();
    });
    const [message] = (await once(child, 'message')) as [{ kind: string; failure?: { message: string } }];
    if (message.kind !== 'ready') throw new Error(message.failure?.message ?? `${this.name} did not start`);
  }

  async stop(): Promise<void> {
    this.isStopping = true;
    const { child } = this;
    if (child === undefined || child.exitCode !== null) return;
    const gone = once(child, 'exit');
    child.kill('SIGTERM');
    await gone;
  }

  kill(): void {
    this.child?.kill('SIGKILL');
  }
}

interface Phase {
  readonly interactive: readonly number[];
  readonly texts: number;
  readonly seconds: number;
}

interface Round {
  readonly alone: Phase;
  readonly restarted: Phase;
  readonly workers: readonly RestartedWorker[];
  readonly loadAverage: number;
}

class Bench {
  private readonly fleet: Fleet;
  readonly bulk: Load;
  readonly interactive: Load;

  constructor(fleet: Fleet, bulk: Load, interactive: Load) {
    this.fleet = fleet;
    this.bulk = bulk;
    this.interactive = interactive;
  }

  async round(): Promise<Round> {
    const alone = await this.phase(() => Promise.resolve());
    let workers: readonly RestartedWorker[] = [];
    const restarted = await this.phase(async () => {
      await sleep(BEFORE_MS);
      workers = await this.restart();
    });
    return { alone, restarted, workers, loadAverage: loadavg()[0] ?? 0 };
  }

  /** The load for its time, and for as long as `meanwhile` takes. */
  private async phase(meanwhile: () => Promise<void>): Promise<Phase> {
    const loads = [this.bulk, this.interactive];
    const from = loads.map(({ ended }) => ended.length);
    const startMs = performance.now();
    const over = new AbortController();
    const done = meanwhile().finally(() => over.abort());
    const offered = async (load: Load, rate: number): Promise<void> => {
      if (rate <= 0) return;
      await load.offer(rate, SECONDS);
      while (!over.signal.aborted) await load.offer(rate, 1);
    };
    await Promise.all([done, offered(this.bulk, BULK_JOBS), offered(this.interactive, INTERACTIVE)]);
    const [bulk = [], interactive = []] = loads.map(({ ended }, at): readonly Ended[] => ended.slice(from[at]));
    const texts = [...bulk, ...interactive].reduce((sum, { rows }) => sum + rows, 0);
    return { interactive: interactive.map(({ ms }) => ms), texts, seconds: (performance.now() - startMs) / 1_000 };
  }

  private async restart(): Promise<RestartedWorker[]> {
    const { restart: workers } = planRestart(await this.fleet.look(), 'all');
    return rollingRestart({
      fleet: this.fleet,
      workers,
      atOnce: Number(args['at-once']),
      drainLimitMs: 60_000,
      returnLimitMs: 180_000,
      signal: new AbortController().signal,
      onStep: () => undefined,
    });
  }
}

const round = (value: number, digits = 1): number => Number(value.toFixed(digits));
const p99 = ({ interactive: waits }: Phase): number => percentile(waits, 0.99);
const median = (values: readonly number[]): number => percentile(values, 0.5);

function toldOf({ interactive, texts, seconds }: Phase): object {
  return {
    p50: round(median(interactive)),
    p99: round(percentile(interactive, 0.99)),
    most: round(Math.max(...interactive)),
    requests: interactive.length,
    textsPerSecond: Math.round(texts / seconds),
    seconds: round(seconds),
  };
}

async function main(): Promise<boolean> {
  const server = await startTestServer({ appendFsync: 'everysec', args: [...tuning()] });
  const { url } = server;
  const kept = Array.from({ length: WORKERS }, (_, at) => new KeptWorker(url, `sim-${at}`));
  process.once('exit', () => kept.forEach((worker) => worker.kill()));
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(1));
  await Promise.all(kept.map((worker) => worker.start()));
  const fleet = await Fleet.connect({ redisUrl: url, queue: QUEUE });
  const bulk = await Load.connect({ url, name: 'bulk', rows: BULK_ROWS, class: 'bulk' });
  const interactive = await Load.connect({ url, name: 'asking', rows: 1, class: 'interactive' });
  await Promise.all([bulk.offer(Math.max(1, BULK_JOBS), 2), interactive.offer(Math.max(1, INTERACTIVE), 2)]); // warm
  const bench = new Bench(fleet, bulk, interactive);
  const rounds: Round[] = [];
  for (let at = 0; at < Number(args.rounds); at++) rounds.push(await bench.round());
  const failed = bulk.failed + interactive.failed;
  await Promise.all([bulk.close(), interactive.close(), fleet.close()]);
  await Promise.all(kept.map((worker) => worker.stop()));
  await server.stop();
  const times = rounds.map(({ alone, restarted }) => p99(restarted) / p99(alone));
  const workers = rounds.flatMap((one) => one.workers);
  const isKept = failed === 0 && workers.length === WORKERS * rounds.length && median(times) <= MOST_TIMES;
  process.stdout.write(
    `${JSON.stringify({
      bench: 'rolling',
      workers: WORKERS,
      failed,
      restarted: workers.length,
      drainMs: {
        median: median(workers.map(({ drainMs }) => drainMs)),
        most: Math.max(...workers.map(({ drainMs }) => drainMs)),
      },
      awayMs: {
        median: median(workers.map(({ awayMs }) => awayMs)),
        most: Math.max(...workers.map(({ awayMs }) => awayMs)),
      },
      times: { median: round(median(times), 2), each: times.map((one) => round(one, 2)) },
      rounds: rounds.map(({ alone, restarted, loadAverage }) => ({
        alone: toldOf(alone),
        restarted: toldOf(restarted),
        loadAverage: round(loadAverage),
      })),
      isKept,
    })}\n`,
  );
  return isKept;
}

if (!(await main()) && !args.report) process.exitCode = 1;
