// How long somebody who waits is kept waiting by bulk work, in batch times: an executor with its pool kept full by bulk
// jobs of the standard length mix, and small interactive jobs that arrive at random. Counted from the order's arrival
// at the executor to the outcome after its commit. The budget is a fixed one, so nothing but the order of work helps:
// no batch is made shorter. A real device takes longer for one batch than for another, so each wait is also held
// against what it really met: the longest run during the wait where that took longer than the median batch; and waits
// are counted in which a bulk run began after the job had come.
//
//   node --conditions=@shoal/source bench/queue/interactive-wait.ts [--device sim|fixed|tiny|minilm] [--batches 2000]
//   [--every 4] [--report]
//
// sim: a device of 0.5 ms a run and 1 ms per 1,000 padded tokens, fixed: one of 15 ms for whatever it runs, in
// simulated time; the same figures on every machine. tiny, minilm: ONNX Runtime with that model in real time; wants a
// quiet machine. `--every`: batch times between two interactive jobs, on average. Prints one JSON line. Exit 1 when a
// wait is above 1.5 batch times or bulk work keeps less than 0.9 of its throughput; with --report it only reports.

import { cpus } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { encodeTokens, openResult } from '@shoal/contract';
import {
  Executor,
  fixedBudget,
  systemClock,
  type BatchBudget,
  type Clock,
  type FromExecutor,
  type InferenceBackend,
  type JobOrder,
  type RunShape,
} from '@shoal/core';
import { noFaults } from '@shoal/core/base';
import type { JobOutcome } from '../../libs/core/src/protocol.ts';
import { FakeBackend, FakeTokenizer, ManualClock, MemoryPayloadStore, deliveredVector } from '@shoal/core/testing';
import { openModel } from '@shoal/models';
import { readArguments } from '../rig/arguments.ts';
import { normalFrom, randomFrom } from '../rig/ragged-corpus.ts';
import { cacheDir, openBackend } from '../rig/sides.ts';

const args = readArguments(import.meta.url, {
  device: { type: 'string', default: 'sim' },
  batches: { type: 'string', default: '2000' },
  every: { type: 'string', default: '4' },
  report: { type: 'boolean', default: false },
});
const MOST_BATCH_TIMES = 1.5;
const LEAST_BULK_SHARE = 0.9;
const MAX_PADDED_TOKENS = 4_096;
const MAX_ROWS = 512;
const BULK_ROWS = 64;
/** Real tokens that bulk jobs keep in the pool, and tokens of a text at most. */
const POOL_TOKENS = 65_536;
const MAX_TOKENS = 256;
const quiet = { debug() {}, info() {}, warn() {}, error() {} };

interface Bench {
  readonly backend: InferenceBackend;
  readonly clock: Clock;
  /** Where the executor is to know what a run takes. */
  readonly predictMs: BatchBudget['predictMs'] | undefined;
  /** Lets so much time pass. */
  readonly pass: (ms: number) => Promise<void>;
  /** Throws when a row's vector is not what the device gives; of a real one only its length is known. */
  readonly check: (ids: readonly number[], vector: Float32Array) => void;
}

interface Phase {
  readonly bulkTokensPerMs: number;
  /** Times of micro-batches without an interactive row. */
  readonly batchMs: readonly number[];
  readonly waits: readonly Wait[];
}

/** Of one interactive job. */
interface Wait {
  /** From its arrival to its outcome. */
  readonly ms: number;
  /** Of the runs that were at the device meanwhile. */
  readonly longestRunMs: number;
  /** Bulk runs that began after it had come and ended before it. */
  readonly overtakenBy: number;
}

type Ran = Extract<FromExecutor, { kind: 'ran' }> & { readonly endedMs: number };

/** An executor, and whoever keeps it busy. */
class Stream {
  private readonly bench: Bench;
  private readonly store = new MemoryPayloadStore();
  private readonly tokenizer = new FakeTokenizer({ maxTokens: MAX_TOKENS });
  private readonly executor: Executor;
  private readonly random = randomFrom(7);
  private readonly rows = new Map<string, readonly (readonly number[])[]>();
  private readonly arrivedMs = new Map<string, number>();
  private pooledTokens = 0;
  private made = 0;
  private isFlowing = true;
  private ran: Ran[] = [];
  private waits: Wait[] = [];
  /** Micro-batches with a row of an interactive job. */
  private readonly urgent = new Set<number>();
  private interactiveTokens = 0;

  constructor(bench: Bench) {
    const { backend, clock } = bench;
    this.bench = bench;
    this.executor = new Executor({
      store: this.store,
      backend,
      clock,
      log: quiet,
      tokenizer: this.tokenizer,
      faults: noFaults,
      isLastLane: true,
      budget: {
        ...fixedBudget({ maxPaddedTokens: MAX_PADDED_TOKENS, maxRows: MAX_ROWS }),
        ...(bench.predictMs === undefined ? {} : { predictMs: bench.predictMs }),
      },
      limits: { maxRowAgeMs: 250, windowRows: 64, maxWaitMs: 10, minRows: 8 },
      model: 'bench@0',
      prompts: { query: '', passage: '' },
      resultKey: (jobId) => jobId,
      send: (message) => this.hear(message),
    });
  }

  /** Bulk work alone, or with an interactive job every `everyMs` on average. */
  async phase(ms: number, everyMs: number | undefined): Promise<Phase> {
    this.fillUp();
    await this.bench.pass(ms / 20);
    this.ran = [];
    this.waits = [];
    this.interactiveTokens = 0;
    const startedMs = this.bench.clock.nowMs();
    if (everyMs === undefined) await this.bench.pass(ms);
    else {
      while (this.bench.clock.nowMs() < startedMs + ms) {
        await this.bench.pass(-Math.log(1 - this.random()) * everyMs);
        this.order('interactive', 1 + Math.floor(this.random() * 8), () => 8 + Math.floor(this.random() * 17));
      }
    }
    const tokens = this.ran.reduce((sum, run) => sum + run.tokens, 0) - this.interactiveTokens;
    const full = this.ran.filter((run) => run.rows * run.width > MAX_PADDED_TOKENS / 2);
    return {
      bulkTokensPerMs: tokens / (this.bench.clock.nowMs() - startedMs),
      batchMs: full.map((run) => run.runMs),
      waits: this.waits,
    };
  }

  async stop(): Promise<void> {
    this.isFlowing = false;
    await this.executor.stop();
  }

  private fillUp(): void {
    while (this.isFlowing && this.pooledTokens < POOL_TOKENS)
      this.order('bulk', BULK_ROWS, () =>
        Math.max(8, Math.min(MAX_TOKENS, Math.round(52 * Math.exp(0.98 * normalFrom(this.random))))),
      );
  }

  private order(jobClass: JobOrder['class'], rows: number, tokensOf: () => number): void {
    const jobId = `${jobClass}-${this.made++}`;
    const ids = Array.from({ length: rows }, () =>
      Array.from({ length: tokensOf() }, () => 1 + Math.floor(this.random() * 100)),
    );
    const tokens = ids.reduce((sum, row) => sum + row.length, 0);
    this.rows.set(jobId, ids);
    this.store.inputs.set(jobId, encodeTokens(ids));
    this.store.locks.set(jobId, 'token');
    if (jobClass === 'interactive') this.arrivedMs.set(jobId, this.bench.clock.nowMs());
    else this.pooledTokens += tokens;
    this.executor.handle({
      kind: 'run',
      isQueueDrained: false,
      jobs: [
        {
          jobId,
          token: 'token',
          queuedMs: 0,
          class: jobClass,
          input: { form: 'tokens', rows, tokens, tokenizer: this.tokenizer.hash },
          fingerprint: undefined,
          truncate: 'end',
          prompt: undefined,
          output: { dtype: 'f32', dimensions: undefined },
          resultTtlMs: 1_000,
          remainingMs: undefined,
        },
      ],
    });
  }

  private hear(message: FromExecutor): void {
    if (message.kind === 'outcomes') return message.outcomes.forEach((outcome) => this.end(outcome));
    if (message.kind === 'began' && message.jobIds.some((jobId) => this.arrivedMs.has(jobId)))
      this.urgent.add(message.batch);
    if (message.kind !== 'ran') return;
    this.ran.push({ ...message, endedMs: this.bench.clock.nowMs() });
    this.pooledTokens = message.poolTokens;
    this.fillUp();
  }

  private waitSince(arrivedMs: number): Wait {
    const meanwhile = this.ran.slice(this.ran.findLastIndex(({ endedMs }) => endedMs <= arrivedMs) + 1);
    const overtakers = meanwhile.filter(
      ({ batch, endedMs, runMs }) => !this.urgent.has(batch) && endedMs - runMs > arrivedMs + this.slackMs(runMs),
    );
    return {
      ms: this.bench.clock.nowMs() - arrivedMs,
      longestRunMs: Math.max(...meanwhile.map(({ runMs }) => runMs)),
      overtakenBy: overtakers.length,
    };
  }

  /**
   * What the main thread may be late in hearing of an end: a run that seems to have begun so shortly after may have
   * begun before.
   */
  private slackMs(runMs: number): number {
    return this.bench.clock === systemClock ? runMs / 10 : 0;
  }

  private end(outcome: JobOutcome): void {
    const { jobId, kind } = outcome;
    if (kind === 'unstarted' && !this.isFlowing) return;
    if (kind !== 'committed') throw new Error(`${jobId}: ${JSON.stringify(outcome)}`);
    const ids = this.rows.get(jobId)!;
    const arrivedMs = this.arrivedMs.get(jobId);
    if (arrivedMs !== undefined) {
      this.waits.push(this.waitSince(arrivedMs));
      this.interactiveTokens += ids.reduce((sum, row) => sum + row.length, 0);
    }
    const { header, body } = openResult(this.store.results.get(jobId)!);
    const values = new Float32Array(Uint8Array.from(body).buffer);
    for (const row of [0, ids.length - 1])
      this.bench.check(ids[row]!, values.subarray(row * header.dims, (row + 1) * header.dims));
    for (const map of [this.rows, this.arrivedMs, this.store.inputs, this.store.locks, this.store.results])
      map.delete(jobId);
    this.store.commits.length = 0;
  }
}

/** In simulated time: `fixed` takes 15 ms for whatever it runs. */
function simulated(kind: 'sim' | 'fixed'): Bench {
  const clock = new ManualClock();
  const runMs = kind === 'fixed' ? () => 15 : ({ rows, width }: RunShape) => 0.5 + (rows * width) / 1_000;
  const backend = new FakeBackend({ clock, slots: 6, slotRows: MAX_ROWS, slotTokens: MAX_PADDED_TOKENS, runMs });
  const check = (ids: readonly number[], vector: Float32Array): void => {
    if (String(vector) !== String(deliveredVector(ids, backend.dims)))
      throw new Error('a row is not what the device gave');
  };
  return {
    backend,
    clock,
    check,
    predictMs: kind === 'fixed' ? runMs : undefined,
    pass: async (ms) => {
      await clock.advance(ms);
      backend.runs.length = 0; // what ran is not kept
    },
  };
}

async function real(model: string): Promise<Bench> {
  const backend = await openBackend(await openModel(model, { cacheDir }), 1, undefined, MAX_PADDED_TOKENS);
  return {
    backend,
    clock: systemClock,
    check: (_, vector) => checkLength(vector),
    predictMs: undefined,
    pass: (ms) => sleep(ms),
  };
}

function checkLength(vector: Float32Array): void {
  if (!(Math.abs(Math.hypot(...vector) - 1) < 1e-5)) throw new Error('a vector is not of length 1');
}

const quantile = (numbers: readonly number[], share: number): number =>
  numbers.toSorted((a, b) => a - b)[Math.min(numbers.length - 1, Math.floor(share * numbers.length))]!;
const median = (numbers: readonly number[]): number => quantile(numbers, 0.5);
const round = (number: number): number => Math.round(number * 1_000) / 1_000;

const summaryOf = (waits: readonly number[]): object => ({
  median: round(median(waits)),
  p95: round(quantile(waits, 0.95)),
  p99: round(quantile(waits, 0.99)),
  most: round(Math.max(...waits)),
});

async function main(): Promise<boolean> {
  const bench =
    args.device === 'sim' || args.device === 'fixed'
      ? simulated(args.device)
      : await real(args.device === 'tiny' ? 'tiny-random' : args.device);
  const stream = new Stream(bench);
  const warm = await stream.phase(
    bench.clock instanceof ManualClock ? 100 : args.device === 'tiny' ? 500 : 20_000,
    undefined,
  );
  const batchMs = median(warm.batchMs);
  const phaseMs = (Number(args.batches) * batchMs) / 6;
  const [alone, together]: [Phase[], Phase[]] = [[], []];
  for (let i = 0; i < 3; i++) {
    // alternating: a real machine is not the same from one second to the next
    alone.push(await stream.phase(phaseMs, undefined));
    together.push(await stream.phase(phaseMs, Number(args.every) * batchMs));
  }
  const stopped = stream.stop();
  while ((await Promise.race([stopped.then(() => true), bench.pass(batchMs).then(() => false)])) === false);
  await Promise.all([bench.backend.stop(), bench.pass(batchMs)]);
  const unitMs = median(alone.flatMap((phase) => phase.batchMs));
  const found = together.flatMap((phase) => phase.waits);
  const waits = found.map(({ ms }) => ms / unitMs);
  const ofBatchesMet = found.map(({ ms, longestRunMs }) => ms / Math.max(unitMs, longestRunMs));
  const bulkShare = median(together.map((phase, i) => phase.bulkTokensPerMs / alone[i]!.bulkTokensPerMs));
  const mostBatchTimes = Math.max(...waits);
  const isKept = mostBatchTimes <= MOST_BATCH_TIMES && bulkShare >= LEAST_BULK_SHARE;
  process.stdout.write(
    `${JSON.stringify({
      bench: 'interactive-wait',
      device: bench.backend.device,
      cpu: cpus()[0]?.model,
      batchMs: {
        median: round(unitMs),
        most: round(Math.max(...[...alone, ...together].flatMap((phase) => phase.batchMs))),
      },
      interactiveJobs: waits.length,
      everyBatchTimes: Number(args.every),
      waitBatchTimes: summaryOf(waits),
      waitBatchesMet: summaryOf(ofBatchesMet),
      overtaken: found.filter(({ overtakenBy }) => overtakenBy > 0).length,
      bulkShare: round(bulkShare),
      isKept,
    })}\n`,
  );
  return isKept;
}

if (!(await main()) && !args.report) process.exitCode = 1;
