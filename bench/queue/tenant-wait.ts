// Where the time goes of a tenant with little beside one with much: claimer and executor on a simulated device, in
// simulated time, so the figures are the same on every machine. A always has jobs waiting, B adds some at random
// moments; the line is the queue's rule (libs/queue/src/worker/fair-order.ts) in memory, and every round trip takes its
// time. Told for the job of B that is done last: how long until its row was in the pool, waited there, waited at the
// device, ran, and was committed and settled; and what was cut before it: rows that were claimed before it, and rows
// that came later than it.
//
//   node --conditions=@shoal/source bench/queue/tenant-wait.ts [--run-ms 32] [--run-rows 36] [--pool-tokens 2232]
//   [--rows 1] [--jobs 40] [--hop-ms 3] [--looks 200] [--mix short|standard]
//   [--tokens-per-ms 0] [--padded-tokens N] [--report]
//
// --tokens-per-ms: what a padded token costs besides --run-ms; 0: nothing. --mix short: 8 to 48 tokens, even;
// standard: log-normal, median 52, to 256. One JSON line; exit 1 when B, in the median, takes more than twice what it
// takes alone.

import { encodeTokens } from '@shoal/contract';
import {
  KEPT_SLOTS,
  Pipeline,
  fixedBudget,
  type CommitRequest,
  type WantedPayload,
  type CommitResult,
  type FromExecutor,
  type InputRead,
  type JobSource,
  type RawClaim,
  type RunShape,
  type SettleResult,
  type Settlement,
} from '@shoal/core';
import { noFaults } from '@shoal/core/base';
import { FakeBackend, FakeTokenizer, InProcessExecutor, ManualClock, MemoryPayloadStore } from '@shoal/core/testing';
import { readArguments } from '../rig/arguments.ts';
import { normalFrom, randomFrom } from '../rig/ragged-corpus.ts';

const args = readArguments(import.meta.url, {
  'run-ms': { type: 'string', default: '32' },
  'run-rows': { type: 'string', default: '36' },
  'pool-tokens': { type: 'string', default: '2232' },
  rows: { type: 'string', default: '1' },
  jobs: { type: 'string', default: '40' },
  'hop-ms': { type: 'string', default: '3' },
  looks: { type: 'string', default: '200' },
  mix: { type: 'string', default: 'short' },
  'tokens-per-ms': { type: 'string', default: '0' },
  'padded-tokens': { type: 'string' },
  report: { type: 'boolean', default: false },
});
const RUN_MS = Number(args['run-ms']);
const RUN_ROWS = Number(args['run-rows']);
const TOKENS_PER_MS = Number(args['tokens-per-ms']) || Number.POSITIVE_INFINITY;
const JOB_ROWS = Number(args.rows);
const B_JOBS = Number(args.jobs);
const HOP_MS = Number(args['hop-ms']);
const LOOKS = Number(args.looks);
const MAX_TOKENS = args.mix === 'short' ? 48 : 256;
const MAX_PADDED_TOKENS = Number(args['padded-tokens'] ?? MAX_TOKENS * RUN_ROWS);
const FULL_RUN_MS = RUN_MS + MAX_PADDED_TOKENS / TOKENS_PER_MS;
const A_WAITING = Math.ceil((8 * RUN_ROWS) / JOB_ROWS);
const LEAD_TOKENS = 2 ** 18;
const MOST_TIMES = 2;
const quiet = { debug() {}, info() {}, warn() {}, error() {} };

type Tenant = 'A' | 'B';

interface Waiting {
  readonly claim: RawClaim;
  readonly place: number;
}

/** What became of a job, by the clock. */
interface Course {
  readonly tenant: Tenant;
  readonly tokens: number;
  readonly addedMs: number;
  pooledMs: number;
  cutMs: number;
  ranMs: number;
  runMs: number;
}

/** The queue: places by tenant, and a server that is a hop away. */
class Line implements JobSource {
  private readonly clock: ManualClock;
  private readonly waiting: Waiting[] = [];
  private readonly ends = new Map<string, number>();
  private now = 0;
  private made = 0;
  private wake: () => void = () => undefined;
  onSettled: (jobId: string) => void = () => undefined;

  constructor(clock: ManualClock) {
    this.clock = clock;
  }

  get length(): number {
    return this.waiting.length;
  }

  add(jobId: string, tenant: Tenant, tokens: number, rows: number): void {
    const first = this.waiting[0];
    if (first !== undefined) this.now = Math.max(this.now, first.place);
    const place = Math.max(
      first === undefined ? this.now : this.now - LEAD_TOKENS,
      this.ends.get(tenant) ?? Number.NEGATIVE_INFINITY,
    );
    this.ends.set(tenant, place + tokens);
    const claim = {
      jobId,
      token: `t${this.made++}`,
      name: 'embed',
      data: { v: 1, input: { form: 'tokens', rows, tokens, tokenizer: TOKENIZER.hash }, tenant, class: 'bulk' },
      attempt: 0,
      queuedMs: 0,
      mustFail: undefined,
    };
    const at = this.waiting.findLastIndex((other) => other.place <= place) + 1;
    this.waiting.splice(at, 0, { claim, place });
    this.wake();
  }

  async claim(limit: number): Promise<readonly RawClaim[]> {
    await this.pass(HOP_MS);
    while (this.waiting.length === 0) await new Promise<void>((resolve) => (this.wake = resolve));
    const taken = this.waiting.splice(0, limit).map(({ claim }) => claim);
    await this.pass(HOP_MS);
    return taken;
  }

  async claimUrgent(): Promise<readonly RawClaim[]> {
    await this.pass(2 * HOP_MS);
    return [];
  }

  async settle(claim: RawClaim, settlement: Settlement): Promise<SettleResult> {
    if (settlement.kind !== 'complete') throw new Error(`${claim.jobId}: ${JSON.stringify(settlement)}`);
    await this.pass(HOP_MS);
    this.onSettled(claim.jobId);
    await this.pass(HOP_MS);
    return 'settled';
  }

  async claimable(): Promise<number> {
    return this.waiting.length;
  }

  async start(): Promise<void> {}
  onLeaseLost(): void {}
  onCancelled(): void {}
  async stopClaiming(): Promise<void> {}
  async stop(): Promise<void> {}

  private pass(ms: number): Promise<void> {
    return new Promise((resolve) => void this.clock.after(ms, resolve));
  }
}

/** A store that is a hop away as well, and forgets what was read. */
class FarStore extends MemoryPayloadStore {
  private readonly clock: ManualClock;

  constructor(clock: ManualClock) {
    super();
    this.clock = clock;
  }

  override async read(jobs: readonly WantedPayload[]): Promise<readonly InputRead[]> {
    await new Promise<void>((resolve) => void this.clock.after(2 * HOP_MS, resolve));
    return super.read(jobs);
  }

  override async commit(requests: readonly CommitRequest[]): Promise<readonly CommitResult[]> {
    await new Promise<void>((resolve) => void this.clock.after(2 * HOP_MS, resolve));
    for (const { jobId, token } of requests) this.locks.set(jobId, token);
    const answers = await super.commit(requests);
    for (const { jobId } of requests) for (const map of [this.results, this.inputs, this.locks]) map.delete(jobId);
    this.commits.length = 0;
    return answers;
  }
}

function runMs({ rows, width }: RunShape): number {
  return RUN_MS + (rows * width) / TOKENS_PER_MS;
}

const TOKENIZER = new FakeTokenizer({ maxTokens: MAX_TOKENS });
const random = randomFrom(7);

function tokensOfRow(): number {
  return args.mix === 'short'
    ? 8 + Math.floor(41 * random())
    : Math.max(8, Math.min(MAX_TOKENS, Math.round(52 * Math.exp(0.98 * normalFrom(random)))));
}

/** Of one look at B. Milliseconds, and rows that were cut while its last one was in the pool. */
interface Look {
  readonly ms: number;
  readonly untilPooled: number;
  readonly inPool: number;
  readonly atDevice: number;
  readonly run: number;
  readonly toEnd: number;
  readonly rowsClaimedBefore: number;
  readonly rowsClaimedLater: number;
  readonly runsWithB: number;
}

class Bench {
  private readonly clock = new ManualClock();
  private readonly store = new FarStore(this.clock);
  private readonly line = new Line(this.clock);
  private readonly courses = new Map<string, Course>();
  private readonly pipeline: Pipeline;
  private keepsA = false;
  private made = 0;
  private openB = 0;
  private last: Course | undefined;
  private lastEndMs = 0;
  private cuts: { readonly atMs: number; readonly jobIds: readonly string[] }[] = [];
  private batches = new Map<number, readonly string[]>();
  ran = { real: 0, padded: 0, rows: 0, runs: 0 };

  constructor() {
    const executor = new InProcessExecutor({
      clock: this.clock,
      store: this.store,
      tokenizer: TOKENIZER,
      log: quiet,
      isLastLane: true,
      limits: { maxRowAgeMs: 250, windowRows: 64, maxWaitMs: 10, minRows: 8 },
      newBudget: () => ({
        ...fixedBudget({ maxPaddedTokens: MAX_PADDED_TOKENS, maxRows: RUN_ROWS }),
        predictMs: runMs,
      }),
      newBackend: (clock) =>
        new FakeBackend({ clock, slots: 3 + KEPT_SLOTS, slotRows: RUN_ROWS, slotTokens: MAX_PADDED_TOKENS, runMs }),
      latencyMs: () => 0.5,
    });
    executor.onMessage((message) => this.hear(message));
    this.line.onSettled = (jobId) => this.end(jobId);
    this.pipeline = new Pipeline({
      source: this.line,
      announcer: { announce: async () => undefined },
      executor,
      clock: this.clock,
      serverNowMs: () => 0,
      log: quiet,
      faults: noFaults,
      limits: {
        poolTokens: Number(args['pool-tokens']),
        executorTimeoutMs: 1e9,
        drainTimeoutMs: 1e9,
        claimTimeoutMs: 1e9,
      },
    });
  }

  async start(): Promise<void> {
    await this.clock.advanceUntilSettled(this.pipeline.start());
  }

  keepA(): void {
    this.keepsA = true;
    this.fillUp();
  }

  async pass(ms: number): Promise<void> {
    await this.clock.advance(ms);
  }

  /** Rows and tokens a millisecond from now on. */
  async rate(
    ms: number,
  ): Promise<{ readonly tokensPerMs: number; readonly efficiency: number; readonly rowsPerRun: number }> {
    this.ran = { real: 0, padded: 0, rows: 0, runs: 0 };
    await this.clock.advance(ms);
    const { real, padded, rows, runs } = this.ran;
    return { tokensPerMs: round(real / ms), efficiency: round(real / padded), rowsPerRun: round(rows / runs) };
  }

  async look(): Promise<Look> {
    await this.clock.advance(random() * 4 * FULL_RUN_MS);
    const startedMs = this.clock.nowMs();
    this.cuts = [];
    this.openB = B_JOBS;
    for (let i = 0; i < B_JOBS; i++) this.add('B');
    await this.clock.advanceUntil(() => this.openB === 0);
    const { last } = this;
    if (last === undefined) throw new Error('no job of B ended');
    const before = this.cuts
      .filter(({ atMs }) => atMs > last.pooledMs && atMs < last.cutMs)
      .flatMap(({ jobIds }) => jobIds.map((jobId) => this.courses.get(jobId)!))
      .filter(({ tenant }) => tenant === 'A');
    const claimedBefore = before.filter(({ pooledMs }) => pooledMs < last.pooledMs).length;
    return {
      ms: this.lastEndMs - startedMs,
      untilPooled: last.pooledMs - startedMs,
      inPool: last.cutMs - last.pooledMs,
      atDevice: last.ranMs - last.runMs - last.cutMs,
      run: last.runMs,
      toEnd: this.lastEndMs - last.ranMs,
      rowsClaimedBefore: claimedBefore,
      rowsClaimedLater: before.length - claimedBefore,
      runsWithB: this.cuts.filter(({ jobIds }) => jobIds.some((jobId) => this.courses.get(jobId)?.tenant === 'B'))
        .length,
    };
  }

  private add(tenant: Tenant): void {
    const jobId = `${tenant}-${this.made++}`;
    const ids = Array.from({ length: JOB_ROWS }, () =>
      Array.from({ length: tokensOfRow() }, () => 1 + Math.floor(random() * 30_000)),
    );
    const tokens = ids.reduce((sum, row) => sum + row.length, 0);
    this.store.inputs.set(jobId, encodeTokens(ids));
    this.store.locks.set(jobId, '');
    this.courses.set(jobId, { tenant, tokens, addedMs: this.clock.nowMs(), pooledMs: 0, cutMs: 0, ranMs: 0, runMs: 0 });
    this.line.add(jobId, tenant, tokens, JOB_ROWS);
  }

  private fillUp(): void {
    while (this.keepsA && this.line.length < A_WAITING) this.add('A');
  }

  private hear(message: FromExecutor): void {
    const nowMs = this.clock.nowMs();
    if (message.kind === 'filled') for (const { jobId } of message.jobs) this.courses.get(jobId)!.pooledMs = nowMs;
    if (message.kind === 'began') {
      for (const jobId of message.jobIds) this.courses.get(jobId)!.cutMs = nowMs;
      this.batches.set(message.batch, message.jobIds);
      this.cuts.push({ atMs: nowMs, jobIds: message.jobIds });
    }
    if (message.kind === 'ran') {
      for (const jobId of this.batches.get(message.batch) ?? [])
        Object.assign(this.courses.get(jobId)!, { ranMs: nowMs, runMs: message.runMs });
      this.batches.delete(message.batch);
      this.ran = {
        real: this.ran.real + message.tokens,
        padded: this.ran.padded + message.rows * message.width,
        rows: this.ran.rows + message.rows,
        runs: this.ran.runs + 1,
      };
    }
  }

  private end(jobId: string): void {
    const course = this.courses.get(jobId)!;
    if (course.tenant === 'B') {
      this.openB--;
      this.last = course;
      this.lastEndMs = this.clock.nowMs();
    }
    if (this.courses.size > 100_000)
      for (const [id, { ranMs }] of this.courses)
        if (ranMs > 0 && ranMs < this.clock.nowMs() - 10_000) this.courses.delete(id);
    this.fillUp();
  }
}

const round = (number: number): number => Math.round(number * 1_000) / 1_000;
const median = (numbers: readonly number[]): number =>
  numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)]!;
const mean = (numbers: readonly number[]): number => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;

function summaryOf(looks: readonly Look[]): Record<string, number> {
  const names = [
    'untilPooled',
    'inPool',
    'atDevice',
    'run',
    'toEnd',
    'rowsClaimedBefore',
    'rowsClaimedLater',
    'runsWithB',
  ] as const;
  const all = looks.map(({ ms }) => ms);
  return {
    ms: round(median(all)),
    most: round(Math.max(...all)),
    ...Object.fromEntries(names.map((name) => [name, round(mean(looks.map((look) => look[name])))])),
  };
}

async function main(): Promise<boolean> {
  const bench = new Bench();
  await bench.start();
  const alone: Look[] = [];
  for (let i = 0; i < LOOKS / 4; i++) alone.push(await bench.look());
  bench.keepA();
  await bench.pass(40 * FULL_RUN_MS);
  const rateOfA = await bench.rate(200 * FULL_RUN_MS);
  const beside: Look[] = [];
  for (let i = 0; i < LOOKS; i++) {
    await bench.pass(20 * FULL_RUN_MS);
    beside.push(await bench.look());
  }
  const [one, other] = [summaryOf(alone), summaryOf(beside)];
  const ratio = other['ms']! / one['ms']!;
  process.stdout.write(
    `${JSON.stringify({ bench: 'tenant-wait', alone: one, beside: other, ratio: round(ratio), rateOfA })}\n`,
  );
  return ratio <= MOST_TIMES;
}

if (!(await main()) && !args.report) process.exitCode = 1;
