// What happens in a run before chance has its say: who is there, which jobs they bring, and what is broken when. Drawn
// from a seed; plain data, so that a failing run can be made smaller by leaving parts out (shrink.ts).

import { Random } from '../time/random.ts';

export interface PlannedJob {
  readonly id: string;
  /** Whose it is: index of a producer. */
  readonly producer: number;
  /** When it is added, ms after the beginning. */
  readonly atMs: number;
  /** Each text of so many words. */
  readonly words: readonly number[];
  readonly class: 'interactive' | 'bulk';
  /** The input lies beside the job, as token ids. */
  readonly form: 'inline' | 'tokens';
  readonly resultTtlMs: number;
  /** By the server's clock, so long after it is added. */
  readonly deadlineMs?: number | undefined;
  readonly cancelAfterMs?: number | undefined;
  /** Its producer looks for the result so long after it heard of it. */
  readonly takeAfterMs: number;
  /** It asks for the result once more when it has it: there must be none. */
  readonly takesTwice: boolean;
  /** When it has ended its producer asks for the same once more, under the same id. */
  readonly comesAgain?: boolean | undefined;
  /** Whoever runs one of its rows dies of it. */
  readonly isPoison?: boolean | undefined;
}

export interface PlannedProcess {
  /** What its wall clock is ahead of the server's. */
  readonly wallOffsetMs: number;
}

export interface PlannedProducer extends PlannedProcess {
  /** Whether it uses the SDK, or the parts of libs/queue by themselves. */
  readonly kind: 'client' | 'queue';
}

/** `worker 0` is its claimer, `executor 0` the executor of that worker, `producer 0` a producer. */
export type Target = `${'worker' | 'executor' | 'producer'} ${number}`;

export type PlannedFault =
  /** SIGKILL; somebody starts another after `backMs`. */
  | { readonly kind: 'kill'; readonly atMs: number; readonly target: Target; readonly backMs: number }
  /** SIGTERM of a claimer: it has to finish or give back what it has, and to end. */
  | { readonly kind: 'end'; readonly atMs: number; readonly target: Target; readonly backMs: number }
  /** SIGKILL the n-th time that any process comes to a named place of the code. */
  | { readonly kind: 'kill-at'; readonly point: string; readonly nth: number; readonly backMs: number }
  /** SIGSTOP there. `both`: of a worker, claimer and executor, as when their machine stands still. */
  | {
      readonly kind: 'pause-at';
      readonly point: string;
      readonly nth: number;
      readonly ms: number;
      readonly both?: boolean | undefined;
    }
  | {
      readonly kind: 'pause';
      readonly atMs: number;
      readonly target: Target;
      readonly ms: number;
      readonly both: boolean;
    }
  | { readonly kind: 'clock'; readonly atMs: number; readonly target: Target | 'server'; readonly stepMs: number }
  /** That share of all connections breaks; with `loses-answer` each when its next request was carried out. */
  | {
      readonly kind: 'cut' | 'lose-answer' | 'half-open';
      readonly atMs: number;
      readonly share: number;
    }
  | { readonly kind: 'slow'; readonly atMs: number; readonly ms: number; readonly latencyMs: number }
  | { readonly kind: 'restart'; readonly atMs: number; readonly downMs: number; readonly forgetMs: number }
  | {
      readonly kind: 'refuse';
      readonly atMs: number;
      readonly ms: number;
      readonly refusal: 'oom' | 'misconf' | 'readonly' | 'loading';
    }
  | { readonly kind: 'deaf'; readonly atMs: number; readonly ms: number; readonly share: number };

export interface Plan {
  readonly seed: string;
  readonly workers: readonly PlannedProcess[];
  readonly producers: readonly PlannedProducer[];
  readonly jobs: readonly PlannedJob[];
  readonly faults: readonly PlannedFault[];
  readonly leaseMs: number;
  readonly latencyMs: number;
  /** Mean time of a run at the device: short ones end between two faults, long ones outlive leases. */
  readonly deviceMs: number;
  /** The server has been up for long: it has the product's scripts. */
  readonly knowsScripts?: boolean | undefined;
  /** Connections begin without questions; see clients.ts. */
  readonly shortHandshakes?: boolean | undefined;
  /** After everything ended it goes on for so long, for what comes late. Default 2,000. */
  readonly restMs?: number | undefined;
  /** Rows of a queue that wait or run; few, so that admission has something to refuse. */
  readonly maxQueuedRows: number;
}

/** Places in the product's code where a fault may be planned; see core's FaultPoints. */
const POINTS = [
  'before-commit',
  'after-commit',
  'before-complete',
  'after-complete',
  'after-announce',
  'before-acknowledge',
  'after-acknowledge',
] as const;

/** How much happens: most worlds are small, because a thousand small ones meet more than ten large ones. */
interface Size {
  readonly workers: number;
  readonly producers: number;
  readonly jobs: number;
  readonly faults: number;
  /** Mean time until a job is added, and the last time of a fault, ms. */
  readonly jobsMs: number;
  readonly faultsUntilMs: number;
}

const SMALL: Size = { workers: 1, producers: 1, jobs: 3, faults: 2, jobsMs: 60, faultsUntilMs: 1_000 };
const MIDDLE: Size = { workers: 2, producers: 2, jobs: 4, faults: 3, jobsMs: 200, faultsUntilMs: 2_000 };
const LARGE: Size = { workers: 2, producers: 2, jobs: 8, faults: 4, jobsMs: 800, faultsUntilMs: 6_000 };

export function planOf(seed: string): Plan {
  const random = new Random(`${seed}/plan`);
  const share = random.next();
  const size = share < 0.75 ? SMALL : share < 0.95 ? MIDDLE : LARGE;
  const leaseMs = random.pick([1_500, 3_000, 6_000]);
  const losesLease = random.chance(0.2);
  const workerCount = losesLease ? 2 : random.whole(1, size.workers + 1);
  const workers = Array.from({ length: workerCount }, () => processOf(random));
  const producers = Array.from({ length: random.whole(1, size.producers + 1) }, () => ({
    ...processOf(random),
    kind: random.chance(0.3) ? ('client' as const) : ('queue' as const),
  }));
  const jobs = Array.from({ length: random.whole(1, size.jobs + 1) }, (_, at) =>
    jobOf(random, at, producers.length, size),
  );
  poisonOne(jobs, new Random(`${seed}/deadly`));
  const faults = Array.from({ length: random.whole(0, size.faults + 1) }, () =>
    faultOf(random, workers.length, producers.length, size),
  );
  if (losesLease) faults.push(outlivedLease(random, leaseMs, size));
  endOne(faults, workers.length, size, new Random(`${seed}/end`));
  const isLarge = size === LARGE;
  const plan: Plan = {
    seed,
    workers,
    producers,
    jobs,
    faults,
    leaseMs,
    latencyMs: random.pick([0.1, 0.3, 2, 20]),
    deviceMs: random.pick(losesLease ? [20, 300, 1_500] : isLarge ? [5, 20, 300, 1_500] : [5, 20, 300]),
    knowsScripts: random.chance(isLarge ? 0.5 : 0.9),
    // who asks nothing does not hear that a server is loading
    shortHandshakes: random.chance(isLarge ? 0.5 : 0.9) && !faults.some(isLoading),
    restMs: random.chance(isLarge ? 1 : 0.1) ? 2_000 : 200,
    maxQueuedRows: random.chance(0.2) ? random.whole(12, 30) : 4_000_000,
  };
  return withLargeJob(plan, new Random(`${seed}/large`));
}

/**
 * In one plan of a hundred a job has 257 to 1,024 rows, which every worker here takes: one of a producer that adds by
 * itself, because a client asks workers first. Drawn by itself, so that a seed means what it meant.
 */
function withLargeJob(plan: Plan, random: Random): Plan {
  const ofQueues = plan.jobs.filter((job) => job.isPoison !== true && plan.producers[job.producer]?.kind === 'queue');
  const isSlow = plan.deviceMs > 20 || plan.maxQueuedRows < 1_024;
  if (!random.chance(1 / 30) || isSlow || ofQueues.length === 0) return plan;
  const large = random.pick(ofQueues);
  const rows = random.pick([257, 300, 1_024]);
  const words = Array.from({ length: rows }, () => random.whole(1, 4));
  const longMs = large.deadlineMs === undefined ? undefined : large.deadlineMs + 5_000;
  return { ...plan, jobs: plan.jobs.map((job) => (job === large ? { ...job, words, deadlineMs: longMs } : job)) };
}

/** In a tenth of all plans. By chance of its own, as poison: the others are what they were before it was planned. */
function endOne(faults: PlannedFault[], workers: number, { faultsUntilMs }: Size, random: Random): void {
  if (!random.chance(0.1)) return;
  const atMs = Math.round(random.between(0, faultsUntilMs));
  faults.push({ kind: 'end', atMs, target: `worker ${random.whole(0, workers)}`, backMs: random.whole(10, 3_000) });
}

/** In a tenth of all plans. */
function poisonOne(jobs: PlannedJob[], random: Random): void {
  if (!random.chance(0.1)) return;
  const at = random.whole(0, jobs.length);
  jobs[at] = { ...jobs[at]!, isPoison: true };
}

function isLoading(fault: PlannedFault): boolean {
  return fault.kind === 'refuse' && fault.refusal === 'loading';
}

function processOf(random: Random): PlannedProcess {
  return { wallOffsetMs: random.chance(0.3) ? random.whole(-60_000, 60_000) : random.whole(-20, 20) };
}

function jobOf(random: Random, at: number, producers: number, { jobsMs }: Size): PlannedJob {
  const rows = random.chance(0.7) ? random.whole(1, 4) : random.whole(4, 9);
  return {
    id: `job-${at}`,
    producer: random.whole(0, producers),
    atMs: Math.round(random.longTailed(jobsMs)),
    words: Array.from({ length: rows }, () => random.whole(1, 12)),
    class: random.chance(0.3) ? 'interactive' : 'bulk',
    form: random.chance(0.5) ? 'inline' : 'tokens',
    resultTtlMs: random.chance(0.1) ? 2_000 : 600_000,
    deadlineMs: random.chance(0.15) ? random.whole(50, 6_000) : undefined,
    cancelAfterMs: random.chance(0.15) ? random.whole(0, 2_000) : undefined,
    takeAfterMs: random.chance(0.7) ? 0 : random.whole(0, 3_000),
    takesTwice: random.chance(0.2),
    comesAgain: random.chance(0.2),
  };
}

/**
 * A worker, or one half of it, stands still in the middle of its jobs until the other worker has them: the lease runs
 * out, a look for stalled jobs comes within a second, and one more gives them back. Pauses of any length rarely do that.
 */
function outlivedLease(random: Random, leaseMs: number, { jobsMs }: Size): PlannedFault {
  const ms = leaseMs + 1_000 + random.whole(0, 4_000);
  const both = random.chance(0.5);
  if (random.chance(0.5))
    return {
      kind: 'pause-at',
      point: random.pick(['before-commit', 'after-commit', 'before-complete', 'after-complete']),
      nth: random.whole(1, 4),
      ms,
      both,
    };
  const atMs = Math.round(random.longTailed(jobsMs)) + random.whole(5, 300);
  return { kind: 'pause', atMs, target: `worker ${random.whole(0, 2)}`, ms, both };
}

function faultOf(random: Random, workers: number, producers: number, { faultsUntilMs }: Size): PlannedFault {
  const atMs = Math.round(random.between(0, faultsUntilMs));
  const target = random.pick<Target>([
    `worker ${random.whole(0, workers)}`,
    `executor ${random.whole(0, workers)}`,
    `producer ${random.whole(0, producers)}`,
  ]);
  const backMs = random.whole(10, 3_000);
  const point = random.pick(POINTS);
  const nth = random.whole(1, 6);
  switch (random.whole(0, 12)) {
    case 0:
      return { kind: 'kill', atMs, target, backMs };
    case 1:
    case 2:
      return { kind: 'kill-at', point, nth, backMs };
    case 3:
      return { kind: 'pause-at', point, nth, ms: random.whole(100, 9_000) };
    case 4:
      return { kind: 'pause', atMs, target, ms: random.whole(100, 9_000), both: random.chance(0.5) };
    case 5:
      return {
        kind: 'clock',
        atMs,
        target: random.chance(0.4) ? 'server' : target,
        stepMs: random.pick([-1, 1]) * random.pick([500, 5_000, 60_000]),
      };
    case 6:
      return { kind: 'cut', atMs, share: random.pick([0.1, 0.5, 1]) };
    case 7:
      return { kind: 'lose-answer', atMs, share: random.pick([0.2, 0.5, 1]) };
    case 8:
      return { kind: 'half-open', atMs, share: random.pick([0.1, 0.3]) };
    case 9:
      return { kind: 'restart', atMs, downMs: random.whole(10, 2_000), forgetMs: random.pick([0, 0, 200, 1_000]) };
    case 10:
      return {
        kind: 'refuse',
        atMs,
        ms: random.whole(100, 4_000),
        refusal: random.pick(['oom', 'misconf', 'readonly', 'loading']),
      };
    default:
      return random.chance(0.5)
        ? { kind: 'slow', atMs, ms: random.whole(100, 3_000), latencyMs: random.pick([50, 300]) }
        : { kind: 'deaf', atMs, ms: random.whole(100, 4_000), share: random.pick([0.3, 1]) };
  }
}

/** Two executors that die with a job alone at their device are that job's doing, as far as a worker can tell. */
export function mayBeQuarantined({ faults }: Plan, job: PlannedJob): boolean {
  return job.isPoison === true || faults.filter(({ kind }) => kind === 'kill' || kind === 'kill-at').length >= 2;
}
