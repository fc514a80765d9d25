// How much is claimed, by table: what waits in the pool, what is on its way, and what is held besides.

import { describe, expect, test } from 'vitest';
import { ClaimRoom, type ClaimSize } from './claim-room.ts';

const POOL = 1_000;

interface Held {
  readonly jobs: number;
  /** Tokens of each. */
  readonly tokens: number;
  /** Left out: the executor has not counted them yet. */
  readonly pooled?: number;
}

/** A room in which so many jobs are held. */
function roomWith({ jobs, tokens, pooled }: Held, aheadTokens = 0): { room: ClaimRoom; sizes: ClaimSize[] } {
  const room = new ClaimRoom({ poolTokens: POOL, aheadTokens }, () => undefined);
  const sizes = Array.from({ length: jobs }, () => room.hold(1, tokens, undefined));
  if (pooled !== undefined) {
    for (const size of sizes) room.filled(size, tokens, 0);
    room.pooled(pooled);
  }
  return { room, sizes };
}

describe('how many jobs are claimed', () => {
  test('the first claim asks for one job, which may be the largest there is', () => {
    expect(roomWith({ jobs: 0, tokens: 0 }).room.limit(0, 0)).toBe(1);
    expect(new ClaimRoom({ poolTokens: 256 * 64 * 3 }, () => undefined).limit(0, 0)).toBe(3);
  });

  test.each<[string, Held, number]>([
    ['what is on its way counts as if it waited', { jobs: 10, tokens: 50 }, 10],
    ['a job more rather than one too few', { jobs: 10, tokens: 51 }, 10],
    ['as much as has left the pool', { jobs: 20, tokens: 50, pooled: 700 }, 6],
    ['nothing while the pool is full', { jobs: 20, tokens: 50, pooled: 1_000 }, 0],
    ['nothing while it is more than full', { jobs: 30, tokens: 50, pooled: 1_200 }, 0],
    ['at most as many as are held', { jobs: 10, tokens: 1, pooled: 0 }, 10],
    ['or eight', { jobs: 2, tokens: 1, pooled: 0 }, 8],
    ['up to four pools of open jobs', { jobs: 39, tokens: 100, pooled: 0 }, 1],
    ['and not beyond them', { jobs: 40, tokens: 100, pooled: 0 }, 0],
  ])('%s', (_, held, limit) => {
    expect(roomWith(held).room.limit(0, 0)).toBe(limit);
  });

  test('never so many that more than 2,000 are held or being settled', () => {
    const { room } = roomWith({ jobs: 1_500, tokens: 0.1, pooled: 0 });
    expect(room.limit(0, 0)).toBe(500);
    expect(room.limit(0, 300)).toBe(200);
    expect(room.urgentLimit(0, 495)).toBe(5);
  });

  test('what the device eats meanwhile is claimed beyond the pool, and less than an eighth of its limit is not', () => {
    const { room } = roomWith({ jobs: 100, tokens: 10, pooled: 1_000 }, 800);
    expect(room.limit(0, 0)).toBe(0);
    room.ran(180, 0); // 0.9 tokens a millisecond, for the 100 ms that a server may stand still
    expect(room.limit(0, 0)).toBe(0);
    room.ran(40, 0);
    expect(room.limit(0, 0)).toBe(11);
    room.ran(1_000_000, 0);
    expect(room.limit(0, 0)).toBe(80);
  });

  test('a new executor has nothing: what is held is to be filled again', () => {
    const { room, sizes } = roomWith({ jobs: 20, tokens: 50, pooled: 500 });
    expect(room.limit(0, 0)).toBe(10);
    room.emptied();
    expect(room.limit(0, 0)).toBe(0);
    for (const size of sizes) room.filled(size, 50, 0);
    room.pooled(500);
    expect(room.limit(0, 0)).toBe(10);
  });

  test('sizes are learnt: of rows from what was filled, of jobs from what is held', () => {
    const { room } = roomWith({ jobs: 0, tokens: 0 });
    expect(room.hold(10, undefined, undefined).tokens).toBe(640);
    for (let job = 0; job < 500; job++) {
      const size = room.hold(10, undefined, undefined);
      room.filled(size, 100, 0);
      room.leave(size);
    }
    expect(room.hold(10, undefined, undefined).tokens).toBe(101);
  });
});

describe('interactive jobs', () => {
  test.each<[string, Held, number]>([
    ['into as much room again as the pool has', { jobs: 20, tokens: 50, pooled: 1_000 }, 16],
    ['not into more', { jobs: 40, tokens: 50, pooled: 2_000 }, 0],
  ])('%s', (_, held, limit) => {
    expect(roomWith(held).room.urgentLimit(0, 0)).toBe(limit);
  });

  test('are looked for every 50 ms, and every 3 ms for a second after some came', () => {
    const { room } = roomWith({ jobs: 0, tokens: 0 });
    expect(room.untilUrgentLookMs(0)).toBe(Number.NEGATIVE_INFINITY);
    room.looked(100);
    expect(room.untilUrgentLookMs(110)).toBe(40);
    room.urgentCame(110);
    expect(room.untilUrgentLookMs(110)).toBe(-7);
    room.looked(1_109);
    expect(room.untilUrgentLookMs(1_109)).toBe(3);
    expect(room.untilUrgentLookMs(1_110)).toBe(49);
  });
});

test('every change is reported: claims, and what waits in the pool', () => {
  const reports: [number, number][] = [];
  const room = new ClaimRoom({ poolTokens: POOL }, (...report) => reports.push(report));
  const size = room.hold(1, 50, undefined);
  room.filled(size, 40, 0);
  room.pooled(40);
  room.leave(size);
  expect(reports).toEqual([
    [1, 0],
    [1, 0],
    [1, 40],
    [0, 0],
  ]);
});
