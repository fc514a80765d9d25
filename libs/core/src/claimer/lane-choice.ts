// How much a CPU worker takes from the main lane. Pure: what is known goes in, a choice comes out.
//
// While no other device serves the main lane a CPU worker takes all it can, as on a fleet of CPU workers only. Beside
// faster workers it takes a job only where that shortens the total time: where it would be done with the job before the
// others would be done with everything. Say the others need T for the whole backlog; a job that is ready here before T
// leaves them less to do, one that is ready later makes everybody wait for it. So the worker takes what it can finish
// within T, less a margin, and nothing when not even one job fits. When the oldest job has waited too long the rule is
// set aside, and the worker takes what it can do within a moment.
//
// Why: docs/decisions/claiming-and-order.md#a-cpu-worker-takes-from-the-main-lane-only-what-shortens-the-total

import { LENGTH_CLASSES, type ByLength, type WorkerFacts, type WorkerLoad } from '../fleet/worker-facts.ts';

export type Hybrid = 'auto' | 'never' | 'always';

export interface LaneView {
  readonly hybrid: Hybrid;
  /** What waits in the main lane. */
  readonly backlog: { readonly jobs: number; readonly oldestMs: number };
  /** The other live workers of the main lane. */
  readonly others: readonly (WorkerLoad & Pick<WorkerFacts, 'lanes' | 'isDrained'>)[];
  readonly own: WorkerLoad;
  /** Age of the oldest job at which rates do not matter any more. */
  readonly ageLimitMs: number;
}

/**
 * Why so many are taken. `no-gpu-worker`: no other device is alive that serves the main lane. `shortens`: done here
 * before the others are done with everything. `probe`: one job, so that this worker learns its rate while the others
 * have much to do.
 */
export const LANE_REASONS = [
  'never',
  'always',
  'no-gpu-worker',
  'shortens',
  'backlog-age',
  'probe',
  'gpu-is-sooner',
  'rate-unknown',
] as const;
export type LaneReason = (typeof LANE_REASONS)[number];

export interface LaneChoice {
  /** Most jobs to claim from the main lane until the next look; Infinity: no limit. */
  readonly jobs: number;
  readonly reason: LaneReason;
  /** Backlog in tokens from which on one job more here shortens the total time, by the length of its rows. */
  readonly breakEven: ByLength;
}

/**
 * Taking begins when a job would be done in 4/5 of the others' time and goes on until it would need all of it, so that
 * a rate that flickers by a tenth does not open and close the lane.
 */
const MARGIN = 1.25;
/**
 * Younger backlogs are what is just being claimed; and only after a second of work do rates tell what a busy device can
 * do.
 */
const MIN_BACKLOG_AGE_MS = 1_000;
/** What a worker takes at a time from a lane whose oldest job has waited too long. */
const MOMENT_MS = 1_000;
/** A worker that has not run anything yet tries one job when the others have work for so long. */
const PROBE_MS = 10_000;
/** Tokens of a job while nobody has completed one: 64 rows of the standard length mix. */
const FIRST_TOKENS_PER_JOB = 4_096;

/** How many jobs to take, and why. */
type Share = Pick<LaneChoice, 'jobs' | 'reason'>;

type Others = LaneView['others'];

/** What is expected of the next jobs; undefined where nobody knows a rate. */
interface Outlook {
  readonly tokensPerJob: number;
  /** Tokens a second that this worker runs. */
  readonly rate: number | undefined;
  /** How long the others need for what they have and the whole backlog. */
  readonly othersMs: number | undefined;
}

export function chooseLane(view: LaneView, last?: LaneChoice): LaneChoice {
  const others = view.others.filter((worker) => !worker.isDrained);
  const share = shareRegardlessOfRates(view, others) ?? shareByRates(view, others, last?.reason === 'shortens');
  return { ...share, breakEven: breakEvenOf(others, view.own) };
}

function shareRegardlessOfRates({ hybrid }: LaneView, others: Others): Share | undefined {
  if (hybrid === 'never') return { jobs: 0, reason: 'never' };
  if (hybrid === 'always') return { jobs: Infinity, reason: 'always' };
  return others.some(isFaster) ? undefined : { jobs: Infinity, reason: 'no-gpu-worker' };
}

/** What to take beside faster workers. `isTaking`: the last choice was to shorten the total time. */
function shareByRates(view: LaneView, others: Others, isTaking: boolean): Share {
  const { backlog, own, ageLimitMs } = view;
  const outlook = outlookOf(view, others);
  const share = shareThatShortens(view, outlook, isTaking);
  if (share !== undefined) return share;
  if (backlog.jobs > 0 && backlog.oldestMs >= ageLimitMs)
    return { jobs: Math.max(jobsWithin(MOMENT_MS, own, outlook), own.claims === 0 ? 1 : 0), reason: 'backlog-age' };
  const isKnown = outlook.rate !== undefined && outlook.othersMs !== undefined;
  return { jobs: 0, reason: isKnown ? 'gpu-is-sooner' : 'rate-unknown' };
}

/** What is done here before the others are done with everything, or one job to learn how much that would be. */
function shareThatShortens({ backlog, own }: LaneView, outlook: Outlook, isTaking: boolean): Share | undefined {
  const { rate, othersMs } = outlook;
  if (backlog.jobs === 0 || backlog.oldestMs < MIN_BACKLOG_AGE_MS || othersMs === undefined) return undefined;
  const jobs = jobsWithin(othersMs / (isTaking ? 1 : MARGIN), own, outlook);
  if (jobs >= 1) return { jobs: Math.min(jobs, backlog.jobs), reason: 'shortens' };
  return rate === undefined && own.claims === 0 && othersMs >= PROBE_MS ? { jobs: 1, reason: 'probe' } : undefined;
}

function outlookOf({ backlog, own }: LaneView, others: Others): Outlook {
  const mix = meanMix(others);
  const tokensPerJob = tokensPerJobOf(others, own);
  return {
    tokensPerJob,
    rate: rateOn(mix, own.rates),
    othersMs: timeOf(others, mix, backlog.jobs * tokensPerJob),
  };
}

/** How many more jobs this worker finishes within `ms`, after what it has already; none while its rate is unknown. */
function jobsWithin(ms: number, own: WorkerLoad, { rate, tokensPerJob }: Outlook): number {
  if (rate === undefined) return 0;
  return Math.max(0, Math.floor(((ms / 1_000) * rate - own.poolTokens) / tokensPerJob));
}

/** Workers that do not serve the CPU lane are there for the main lane. */
function isFaster({ lanes }: Pick<WorkerFacts, 'lanes'>): boolean {
  return lanes.includes('main') && !lanes.includes('cpu');
}

/**
 * How long these workers need for what they have and this backlog, together; undefined while nobody knows their rates.
 */
function timeOf(workers: Others, mix: ByLength, backlogTokens: number): number | undefined {
  const rates = workers.map((worker) => rateOn(mix, worker.rates));
  const known = workers.flatMap((worker, index) => (isFaster(worker) ? (rates[index] ?? []) : []));
  if (known.length === 0) return undefined;
  const mean = known.reduce((sum, rate) => sum + rate, 0) / known.length; // for one that has just started
  const rate = workers.reduce((sum, worker, index) => sum + (rates[index] ?? (isFaster(worker) ? mean : 0)), 0);
  const tokens = workers.reduce((sum, worker) => sum + worker.poolTokens, backlogTokens);
  return (1_000 * tokens) / rate;
}

/** Real tokens a second on this mix of lengths. A length that was never measured counts like the nearest that was. */
export function rateOn(mix: ByLength, rates: ByLength): number | undefined {
  const known = LENGTH_CLASSES.filter((length) => rates[length] !== undefined);
  if (known.length === 0) return undefined;
  const shares = LENGTH_CLASSES.map((length) => mix[length] ?? 0);
  const total = shares.reduce((sum, share) => sum + share, 0);
  const [wanted, weights] =
    total > 0 ? [LENGTH_CLASSES, shares.map((share) => share / total)] : [known, known.map(() => 1 / known.length)];
  const secondsPerToken = wanted.reduce(
    (sum, length, index) => sum + weights[index]! / rates[nearest(length, known)]!,
    0,
  );
  return 1 / secondsPerToken;
}

function nearest(
  length: (typeof LENGTH_CLASSES)[number],
  known: readonly (typeof LENGTH_CLASSES)[number][],
): (typeof LENGTH_CLASSES)[number] {
  const distance = (other: (typeof LENGTH_CLASSES)[number]): number =>
    Math.abs(LENGTH_CLASSES.indexOf(other) - LENGTH_CLASSES.indexOf(length));
  return known.reduce((best, other) => (distance(other) < distance(best) ? other : best));
}

function meanMix(workers: readonly WorkerLoad[]): ByLength {
  return Object.fromEntries(
    LENGTH_CLASSES.map((length) => [length, workers.reduce((sum, worker) => sum + (worker.mix[length] ?? 0), 0)]),
  );
}

function tokensPerJobOf(others: readonly WorkerLoad[], own: WorkerLoad): number {
  const known = [...others, own].flatMap(({ tokensPerJob }) => (tokensPerJob === undefined ? [] : [tokensPerJob]));
  return known.length === 0
    ? FIRST_TOKENS_PER_JOB
    : Math.max(1, known.reduce((sum, tokens) => sum + tokens, 0) / known.length);
}

/**
 * The tokens that the others must have to do so that one job on an idle worker of this kind is not ready too late, by
 * the length of its rows.
 */
function breakEvenOf(others: readonly WorkerLoad[], own: WorkerLoad): ByLength {
  const tokensPerJob = tokensPerJobOf(others, own);
  return Object.fromEntries(
    LENGTH_CLASSES.flatMap((length) => {
      const rate = own.rates[length];
      const theirs = others.reduce((sum, worker) => sum + (worker.rates[length] ?? 0), 0);
      return rate === undefined || theirs === 0 ? [] : [[length, Math.ceil((MARGIN * theirs * tokensPerJob) / rate)]];
    }),
  );
}
