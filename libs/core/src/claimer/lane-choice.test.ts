import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { chooseLane, rateOn, type LaneChoice, type LaneView } from './lane-choice.ts';
import type { Lane } from '@shoal/contract';
import type { WorkerLoad } from '../fleet/worker-facts.ts';

type Worker = LaneView['others'][number];

function load(rate: number | undefined, more: Partial<WorkerLoad> = {}): WorkerLoad {
  return {
    rates: rate === undefined ? {} : { medium: rate },
    mix: rate === undefined ? {} : { medium: 1 },
    claims: 0,
    poolTokens: 0,
    tokensPerJob: 1_000,
    ...more,
  };
}

function worker(lanes: readonly Lane[], rate: number | undefined, more: Partial<Worker> = {}): Worker {
  return { ...load(rate), lanes, isDrained: false, ...more };
}

const gpu = (rate: number | undefined = 1_000_000, more: Partial<Worker> = {}): Worker => worker(['main'], rate, more);
const cpu = (rate = 10_000, more: Partial<Worker> = {}): Worker => worker(['cpu', 'main'], rate, more);

/** 1,000 jobs of 1,000 tokens: one second of the GPU, 100 of this CPU worker. */
function view(more: Partial<LaneView> = {}): LaneView {
  return {
    hybrid: 'auto',
    backlog: { jobs: 1_000, oldestMs: 5_000 },
    others: [gpu()],
    own: load(10_000),
    ageLimitMs: 60_000,
    ...more,
  };
}

describe('a CPU worker takes from the main lane', () => {
  test('without limit while no other device serves it, as a fleet of CPU workers always does', () => {
    for (const others of [[], [cpu()], [gpu(1_000_000, { isDrained: true })], [cpu(), worker(['cpu'], 1)]]) {
      expect(chooseLane(view({ others }))).toMatchObject({ jobs: Infinity, reason: 'no-gpu-worker' });
    }
  });

  test('what it can finish before the others have finished everything, less a margin', () => {
    // the GPU needs 1 s; in 0.8 s this worker does 8,000 tokens, 8 jobs
    expect(chooseLane(view())).toMatchObject({ jobs: 8, reason: 'shortens' });
    expect(chooseLane(view({ own: load(10_000, { poolTokens: 5_000, claims: 5 }) }))).toMatchObject({ jobs: 3 });
    expect(chooseLane(view({ others: [gpu(), gpu()] }))).toMatchObject({ jobs: 4 });
    expect(chooseLane(view({ others: [gpu(1_000_000, { poolTokens: 1_000_000 })] }))).toMatchObject({ jobs: 16 });
  });

  test('nothing when the GPU is done sooner with everything than this worker with one job', () => {
    expect(chooseLane(view({ backlog: { jobs: 120, oldestMs: 5_000 } }))).toMatchObject({
      jobs: 0,
      reason: 'gpu-is-sooner',
    });
  });

  test('nothing of a backlog that has just appeared: it is about to be claimed', () => {
    expect(chooseLane(view({ backlog: { jobs: 100_000, oldestMs: 900 } }))).toMatchObject({ jobs: 0 });
  });

  test('what it does within a second once the oldest job has waited too long', () => {
    const old = { jobs: 20, oldestMs: 60_000 };
    expect(chooseLane(view({ backlog: old }))).toMatchObject({ jobs: 10, reason: 'backlog-age' });
    // slower than a job a second, but idle
    expect(chooseLane(view({ backlog: old, own: load(500) }))).toMatchObject({ jobs: 1 });
    expect(chooseLane(view({ backlog: old, own: load(500, { claims: 1, poolTokens: 1_000 }) }))).toMatchObject({
      jobs: 0,
    });
  });

  test('one job to learn its rate, when the others have much to do; and none while their rates are not known', () => {
    const own = load(undefined);
    expect(chooseLane(view({ own, backlog: { jobs: 20_000, oldestMs: 5_000 } }))).toMatchObject({
      jobs: 1,
      reason: 'probe',
    });
    expect(chooseLane(view({ own }))).toMatchObject({ jobs: 0, reason: 'rate-unknown' });
    expect(chooseLane(view({ others: [worker(['main'], undefined)] }))).toMatchObject({
      jobs: 0,
      reason: 'rate-unknown',
    });
  });

  test('as the setting says, whatever the rates', () => {
    expect(chooseLane(view({ hybrid: 'never', others: [] }))).toMatchObject({ jobs: 0, reason: 'never' });
    expect(chooseLane(view({ hybrid: 'always', backlog: { jobs: 0, oldestMs: 0 } }))).toMatchObject({
      jobs: Infinity,
      reason: 'always',
    });
  });
});

test('a rate that flickers by a tenth does not open and close the lane', () => {
  let last: LaneChoice | undefined;
  let changes = 0;
  for (let look = 0; look < 100; look++) {
    const next = chooseLane(
      view({ backlog: { jobs: 125, oldestMs: 5_000 }, own: load(look % 2 === 0 ? 10_000 * 1.05 : 10_000 * 0.95) }),
      last,
    );
    if (last !== undefined && next.reason !== last.reason) changes++;
    last = next;
  }
  expect(changes).toBeLessThanOrEqual(1);
});

test('the break-even backlog is where one job more begins to pay, for each length that was measured', () => {
  const own = load(undefined, { rates: { short: 20_000, long: 5_000 } });
  const others = [gpu(undefined, { rates: { short: 2_000_000, medium: 1_500_000, long: 1_000_000 } })];
  expect(chooseLane(view({ own, others })).breakEven).toEqual({ short: 125_000, long: 250_000 });
  const at = (jobs: number): LaneChoice => chooseLane(view({ backlog: { jobs, oldestMs: 5_000 } }));
  const [tokens] = Object.values(at(1).breakEven);
  expect([at(tokens! / 1_000 - 1).reason, at(tokens! / 1_000).reason]).toEqual(['gpu-is-sooner', 'shortens']);
});

test('a GPU that has run nothing yet counts like the others', () => {
  expect(chooseLane(view({ others: [gpu(), worker(['main'], undefined)] }))).toMatchObject({
    jobs: chooseLane(view({ others: [gpu(), gpu()] })).jobs,
  });
});

test('a mix of lengths takes the time of its parts; a length never measured counts like the nearest', () => {
  expect(rateOn({ short: 0.5, long: 0.5 }, { short: 300, long: 100 })).toBeCloseTo(150);
  expect(rateOn({ medium: 1 }, { long: 100 })).toBeCloseTo(100);
  expect(rateOn({}, { short: 100, long: 100 })).toBeCloseTo(100);
  expect(rateOn({ short: 1 }, {})).toBeUndefined();
});

interface Totals {
  readonly rate: number;
  readonly tokens: number;
  readonly perJob: number;
  readonly ownRate: number;
}

function totals({ others, backlog, own }: LaneView): Totals {
  return {
    rate: others.reduce((sum, one) => sum + one.rates.medium!, 0),
    tokens: others.reduce((sum, one) => sum + one.poolTokens, backlog.jobs * own.tokensPerJob!),
    perJob: own.tokensPerJob!,
    ownRate: own.rates.medium!,
  };
}

describe('by property', () => {
  const rate = fc.double({ min: 10, max: 1e8, noNaN: true });
  const tokens = fc.integer({ min: 0, max: 10_000_000 });
  const views = fc
    .record({
      jobs: fc.integer({ min: 0, max: 1_000_000 }),
      gpus: fc.array(fc.record({ rate, poolTokens: tokens }), { minLength: 1, maxLength: 4 }),
      own: rate,
      ownPool: tokens,
      tokensPerJob: fc.integer({ min: 1, max: 65_536 }),
    })
    .map(({ jobs, gpus, own, ownPool, tokensPerJob }) =>
      view({
        backlog: { jobs, oldestMs: 2_000 },
        others: gpus.map((one) => gpu(one.rate, { poolTokens: one.poolTokens, tokensPerJob })),
        own: load(own, { poolTokens: ownPool, claims: 1, tokensPerJob }),
      }),
    );
  test('what is taken shortens the total time, and is never more than there is', () => {
    fc.assert(
      fc.property(views, (seen) => {
        const { jobs } = chooseLane(seen);
        const { rate: all, tokens: work, perJob, ownRate } = totals(seen);
        if (jobs === 0) return;
        expect(jobs).toBeLessThanOrEqual(seen.backlog.jobs);
        const without = Math.max(work / all, seen.own.poolTokens / ownRate);
        const withIt = Math.max((work - jobs * perJob) / all, (seen.own.poolTokens + jobs * perJob) / ownRate);
        expect(withIt).toBeLessThan(without);
      }),
      { numRuns: 2_000 },
    );
  });

  test("what is left is left because one job would be ready after four fifths of the others' time", () => {
    fc.assert(
      fc.property(views, (seen) => {
        const { jobs } = chooseLane(seen);
        const { rate: all, tokens: work, perJob, ownRate } = totals(seen);
        if (jobs > 0 || seen.backlog.jobs === 0) return;
        expect((seen.own.poolTokens + perJob) / ownRate).toBeGreaterThan((0.8 * work) / all - 1e-9);
      }),
      { numRuns: 2_000 },
    );
  });

  test('more backlog never closes the lane', () => {
    fc.assert(
      fc.property(views, fc.integer({ min: 1, max: 1_000_000 }), (seen, more) => {
        const later = { ...seen, backlog: { ...seen.backlog, jobs: seen.backlog.jobs + more } };
        expect(chooseLane(later).jobs).toBeGreaterThanOrEqual(chooseLane(seen).jobs);
      }),
      { numRuns: 2_000 },
    );
  });
});
