// When a micro-batch is launched: a table of situations. The device takes 1,000 padded tokens a run, and 100 ms for a
// full one; what a run of one row takes says whether its size matters.

import { describe, expect, test } from 'vitest';
import { LaunchTiming, type Launch, type PoolView, type SentRun, type Waiting } from './launch-timing.ts';

const NOW = 1_000;
const FULL_MS = 100;

interface Device {
  readonly sessions?: number;
  /** What a run of one row takes, as a share of a full one. Default 0.1: padding matters more than runs do. */
  readonly leastShare?: number;
  readonly isTesting?: boolean;
}

const FIXED: Device = { leastShare: 0.9 };

function timingOf({ sessions = 1, leastShare = 0.1, isTesting = false }: Device = {}): LaunchTiming {
  return new LaunchTiming({
    sessions,
    limits: { windowRows: 64, maxWaitMs: 10, minRows: 4 },
    rowsAt: (width) => Math.floor(1_000 / width),
    budget: {
      current: () => ({ maxPaddedTokens: 1_000, limitedBy: 'setting', source: 'none', isTesting }),
      predictMs: ({ rows, width }) => FULL_MS * (leastShare + (1 - leastShare) * Math.min(1, (rows * width) / 1_000)),
    },
  });
}

const EMPTY: PoolView = { rows: 0, tokens: 0, interactiveRows: 0, oldestMs: () => undefined };
const pooled = (rows: number, tokens: number, ageMs = 0): PoolView => ({
  rows,
  tokens,
  interactiveRows: 0,
  oldestMs: () => NOW - ageMs,
});
const URGENT: PoolView = { ...pooled(1, 20), interactiveRows: 1 };
const SHORT = pooled(8, 160);
const FULL = pooled(100, 2_000);

const waiting = (pool: PoolView, more: Partial<Waiting> = {}): Waiting => ({
  pool,
  again: { size: 0, hasInteractive: false },
  isBusy: false,
  isQueueDrained: false,
  ...more,
});

const bulkNow: Launch = { kind: 'now', isUrgent: false };
const urgentNow: Launch = { kind: 'now', isUrgent: true };
const never: Launch = { kind: 'never' };
const at = (ms: number): Launch => ({ kind: 'at', atMs: expect.closeTo(NOW + ms, 6) as number });

/** Full bulk runs that were sent at these times, in order. */
const sendFull = (timing: LaunchTiming, ...sentMs: number[]): SentRun[] =>
  sentMs.map((ms) => timing.sent({ rows: 50, width: 20 }, false, NOW + ms));

describe('an idle device', () => {
  const halves = { size: 2, hasInteractive: false };
  test.for<[string, Waiting, Launch]>([
    ['nothing waits', waiting(EMPTY), never],
    ['an interactive row goes at once', waiting(URGENT), urgentNow],
    ['a full pool goes at once', waiting(FULL), bulkNow],
    ['a short one waits its window out', waiting(SHORT), at(10)],
    ['and goes when that is over', waiting(pooled(8, 160, 10)), bulkNow],
    ['one that is very short waits twice as long', waiting(pooled(2, 40)), at(20)],
    ['nothing else is queued, so nothing is worth waiting for', waiting(SHORT, { isQueueDrained: true }), bulkNow],
    ['what runs again goes at once', waiting(SHORT, { again: halves }), bulkNow],
    ['and is urgent where it is interactive', waiting(EMPTY, { again: { size: 1, hasInteractive: true } }), urgentNow],
  ])('%s', ([, view, launch]) => {
    expect(timingOf().next(view, NOW)).toEqual(launch);
  });
});

describe('behind a run', () => {
  test.for<[string, Device, Waiting, Launch]>([
    ['an interactive row goes at once where size matters', {}, waiting(URGENT, { isBusy: true }), urgentNow],
    ['and gathers until a tenth and a millisecond are left where it does not', FIXED, waiting(URGENT), at(89)],
    ['a full batch is sent 20 ms before the run is 0.9 over', {}, waiting(FULL), at(70)],
    ['a short one a millisecond before', {}, waiting(SHORT), at(89)],
    ['a busy device is given no short one', {}, waiting(SHORT, { isBusy: true }), never],
    ['nothing is sent behind a run that tests the memory', { isTesting: true }, waiting(URGENT), never],
  ])('%s', ([, device, view, launch]) => {
    const timing = timingOf(device);
    sendFull(timing, 0);
    expect(timing.next(view, NOW)).toEqual(launch);
  });

  test('what runs again goes before bulk rows, but not to a busy device beside an interactive row', () => {
    const timing = timingOf();
    timing.sent({ rows: 1, width: 24 }, true, NOW);
    const view = waiting(FULL, { again: { size: 1, hasInteractive: false } });
    expect(timing.hasUrgentRun).toBe(true);
    expect(timing.next(view, NOW)).toEqual(bulkNow);
    expect(timing.next({ ...view, isBusy: true }, NOW)).toEqual(never);
  });

  test('an interactive row gathers until 0.4 of the run is left where bulk work is queued', () => {
    const timing = timingOf(FIXED);
    sendFull(timing, 0, 0);
    expect(timing.next(waiting(URGENT, { isBusy: true }), NOW)).toEqual(at(60));
  });

  test('interactive rows gather while others are queued', () => {
    const timing = timingOf(FIXED);
    sendFull(timing, 0);
    timing.sent({ rows: 1, width: 24 }, true, NOW);
    expect(timing.next(waiting(URGENT), NOW)).toEqual(never);
  });

  test('and go at once when the run that they gathered behind ended sooner than it should have', () => {
    const timing = timingOf(FIXED);
    const [first] = sendFull(timing, 0, 0);
    expect(timing.next(waiting(URGENT), NOW)).toEqual(at(60));
    timing.ended(first!, URGENT, NOW + 5);
    expect(timing.next(waiting(URGENT), NOW + 6)).toEqual(urgentNow);
  });
});

describe('several sessions', () => {
  test('a free one is taken at once where size matters', () => {
    const timing = timingOf({ sessions: 2 });
    sendFull(timing, 0);
    expect(timing.next(waiting(pooled(8, 160, 10)), NOW)).toEqual(bulkNow);
  });

  test('where it does not, when as many wait as will come until another is free', () => {
    const timing = timingOf({ ...FIXED, sessions: 2 });
    sendFull(timing, 0);
    timing.arrived(40, NOW); // remembered as 0.2 a millisecond: 8 rows are those of 40 ms
    expect(timing.next(waiting(SHORT), NOW)).toEqual(at(60));
  });
});

describe('what is kept in hand', () => {
  test.for<[string, readonly PoolView[], number]>([
    ['doubles when the device stood still beside a full pool', [FULL], 40],
    ['is 160 ms at most', [FULL, FULL, FULL, FULL], 160],
    ['loses a hundredth with each other run', [SHORT, SHORT], 20 * 0.99 ** 2],
    ['is 5 ms at least', Array.from({ length: 200 }, () => SHORT), 5],
  ])('%s', ([, pools, inHandMs]) => {
    const timing = timingOf();
    for (const pool of pools) timing.ended(sendFull(timing, 0)[0]!, pool, NOW);
    sendFull(timing, 100); // so that all of it lies ahead
    expect(timing.next(waiting(FULL), NOW)).toEqual(at(100 + 90 - inHandMs));
  });
});

test('the share of a small batch is that of a run of one row, and unknown until runs are', () => {
  expect(timingOf(FIXED).smallShare()).toBeCloseTo(0.9, 2);
  expect(timingOf({ leastShare: 0 }).smallShare()).toBe(0.1);
});
