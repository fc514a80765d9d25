// What the pool promises: no row is lost, doubled or starved, no batch is more than the device was said to take,
// padding is small on real lengths, and cutting costs next to nothing.

import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { fixedBudget, type FixedLimits } from '../budget/fixed-budget.ts';
import type { PoolRow } from './buckets.ts';
import type { CutLimits } from './cut-plan.ts';
import { Pool, batchOf, halve, type MicroBatch } from './pool.ts';

interface Row extends PoolRow {
  readonly id: number;
}

interface Limits extends FixedLimits {
  readonly maxRowAgeMs: number;
}

const LIMITS: Limits = { maxPaddedTokens: 1024, maxRows: 1024, maxRowAgeMs: 250 };

function cutLimits({ maxRowAgeMs, ...fixed }: Limits): CutLimits {
  return { maxRowAgeMs, rowsAt: (width) => fixedBudget(fixed).rowsAt(width) };
}

let ids = 0;
function row(tokens: number, enteredMs = 0): Row {
  return { id: ++ids, tokens, enteredMs, isInteractive: false };
}

function interactive(tokens: number, enteredMs: number): Row {
  return { ...row(tokens, enteredMs), isInteractive: true };
}

function leading(tokens: number, enteredMs = 0): Row {
  return { ...row(tokens, enteredMs), hasLead: true };
}

function poolOf(rows: readonly Row[]): Pool<Row> {
  const pool = new Pool<Row>();
  for (const one of rows) pool.add(one);
  return pool;
}

function cutAll(pool: Pool<Row>, limits: Limits, nowMs = 0): MicroBatch<Row>[] {
  const batches: MicroBatch<Row>[] = [];
  for (let batch = pool.cut(cutLimits(limits), nowMs); batch !== undefined; batch = pool.cut(cutLimits(limits), nowMs))
    batches.push(batch);
  return batches;
}

/** Claims about one batch that must hold whatever was in the pool; empty when they do. */
function faultsOf(batch: MicroBatch<Row>, limits: Limits): string[] {
  const { rows, width } = batch;
  const longest = Math.max(...rows.map((one) => one.tokens));
  return [
    ...(rows.length === 0 ? ['no rows'] : []),
    ...(rows.length > limits.maxRows ? ['more rows than maxRows'] : []),
    ...(rows.length > 1 && rows.length * width > limits.maxPaddedTokens ? ['above the budget'] : []),
    ...(width % 8 === 0 ? [] : ['width is not a multiple of 8']),
    ...(width < longest || width >= longest + 8 ? ['width is not the longest row rounded up'] : []),
    ...(rows.some((one, i) => i > 0 && Math.ceil(one.tokens / 8) > Math.ceil(rows[i - 1]!.tokens / 8))
      ? ['not longest first']
      : []),
  ];
}

const anyLimits = fc.record({
  maxPaddedTokens: fc.integer({ min: 8, max: 8192 }),
  maxRows: fc.integer({ min: 1, max: 300 }),
  maxRowAgeMs: fc.integer({ min: 0, max: 500 }),
});

type Step =
  | { readonly kind: 'add'; readonly sizes: readonly number[] }
  | { readonly kind: 'wait'; readonly ms: number }
  | { readonly kind: 'cut' }
  | { readonly kind: 'remove'; readonly modulus: number };

const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({
    kind: fc.constant('add' as const),
    sizes: fc.array(fc.integer({ min: 1, max: 520 }), { maxLength: 70 }),
  }),
  fc.record({ kind: fc.constant('wait' as const), ms: fc.integer({ min: 0, max: 200 }) }),
  fc.constant({ kind: 'cut' as const }),
  fc.record({ kind: fc.constant('remove' as const), modulus: fc.integer({ min: 2, max: 7 }) }),
);

describe('by property', () => {
  test(
    'each row leaves exactly once, in a batch within its limits; counts stay right; the oldest row waits one cut ' +
      'beyond its age at most',
    () => {
      fc.assert(
        fc.property(fc.array(step, { maxLength: 40 }), anyLimits, (steps, limits) => {
          const pool = new Pool<Row>();
          const waiting = new Map<number, Row>();
          let nowMs = 0;
          const take = (): boolean => {
            const oldestMs = Math.min(...[...waiting.values()].map((one) => one.enteredMs));
            const batch = pool.cut(cutLimits(limits), nowMs);
            if (batch === undefined) return false;
            expect(faultsOf(batch, limits)).toEqual([]);
            const isOverdue = nowMs - oldestMs > limits.maxRowAgeMs;
            expect(!isOverdue || batch.rows.some((one) => one.enteredMs === oldestMs)).toBe(true);
            for (const one of batch.rows) expect(waiting.delete(one.id)).toBe(true);
            return true;
          };
          const actions: { readonly [Kind in Step['kind']]: (now: Extract<Step, { kind: Kind }>) => void } = {
            add: ({ sizes }) => {
              for (const tokens of sizes) {
                const one = row(tokens, nowMs);
                waiting.set(one.id, one);
                pool.add(one);
              }
            },
            wait: ({ ms }) => void (nowMs += ms),
            cut: () => void take(),
            remove: ({ modulus }) => {
              pool.remove((one) => one.id % modulus === 0);
              for (const id of waiting.keys()) if (id % modulus === 0) waiting.delete(id);
            },
          };
          const act = <Kind extends Step['kind']>(now: Extract<Step, { kind: Kind }>, kind: Kind): void =>
            actions[kind](now);
          for (const now of steps) {
            act(now, now.kind);
            const rows = [...waiting.values()];
            expect(pool.rows).toBe(rows.length);
            expect(pool.tokens).toBe(rows.reduce((sum, one) => sum + one.tokens, 0));
            expect(pool.oldestMs()).toBe(rows.length === 0 ? undefined : Math.min(...rows.map((one) => one.enteredMs)));
          }
          while (take());
          expect([waiting.size, pool.rows, pool.tokens, pool.oldestMs()]).toEqual([0, 0, 0, undefined]);
        }),
        { numRuns: 1_000 },
      );
    },
  );

  test('halving until single rows keeps each row once, never widens and never raises the padded tokens', () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 520 }), { minLength: 2, maxLength: 60 }), (sizes) => {
        const [whole] = cutAll(poolOf(sizes.map((tokens) => row(tokens))), { ...LIMITS, maxPaddedTokens: 1 << 20 });
        const singles: Row[] = [];
        const parts: MicroBatch<Row>[] = [whole!];
        for (let part = parts.pop(); part !== undefined; part = parts.pop()) {
          if (part.rows.length === 1) {
            singles.push(...part.rows);
            continue;
          }
          const [wide, narrow] = halve(part);
          expect(narrow.width).toBeLessThanOrEqual(wide.width);
          expect(wide.width).toBeLessThanOrEqual(part.width);
          expect(wide.rows.length + narrow.rows.length).toBe(part.rows.length);
          expect([
            ...faultsOf(wide, { ...LIMITS, maxPaddedTokens: 1 << 20 }),
            ...faultsOf(narrow, { ...LIMITS, maxPaddedTokens: 1 << 20 }),
          ]).toEqual([]);
          const [most, all] = [
            Math.max(wide.rows.length * wide.width, narrow.rows.length * narrow.width),
            part.rows.length * part.width,
          ];
          expect(most).toBeLessThanOrEqual(all / 2 + part.width); // halves by tokens, to the nearest row
          parts.push(wide, narrow);
        }
        expect(singles.toSorted((a, b) => a.id - b.id)).toEqual([...whole!.rows].toSorted((a, b) => a.id - b.id));
      }),
      { numRuns: 200 },
    );
  });
});

describe('a cut', () => {
  test('sends interactive rows alone, unless a run costs much the same at every size', () => {
    const rows = [row(8), row(24), row(24), interactive(16, 0)];
    const limits = cutLimits({ maxPaddedTokens: 400, maxRows: 100, maxRowAgeMs: 250 });
    expect(poolOf(rows).cut({ ...limits, smallShare: 0.4 }, 0)).toMatchObject({
      width: 16,
      rows: [{ isInteractive: true }],
    });
    expect(poolOf(rows).cut({ ...limits, smallShare: 1 }, 0)).toMatchObject({
      width: 24,
      rows: [{ tokens: 24 }, { tokens: 24 }, { isInteractive: true }, { tokens: 8 }],
    });
  });

  test('takes everything when all of it is one small batch, and else begins with the fullest bucket', () => {
    const rows = [row(40), row(8), row(8), row(8), row(8), row(8), row(8)];
    const limits = cutLimits({ maxPaddedTokens: 400, maxRows: 100, maxRowAgeMs: 250 });
    expect(poolOf(rows).cut({ ...limits, smallShare: 0.7 }, 0)).toMatchObject({ width: 40, rows: { length: 7 } });
    expect(poolOf(rows).cut({ ...limits, smallShare: 0.4 }, 0)).toMatchObject({ width: 8, rows: { length: 6 } });
  });

  test('of an empty pool is nothing', () => {
    expect(new Pool<Row>().cut(cutLimits(LIMITS), 0)).toBeUndefined();
    expect(new Pool<Row>().oldestMs()).toBeUndefined();
  });

  test('begins in the bucket with the most tokens and goes on below it', () => {
    const batch = poolOf([
      row(500),
      ...Array.from({ length: 20 }, () => row(31)),
      row(32),
      row(24),
      row(24),
      row(16),
    ]).cut(cutLimits({ ...LIMITS, maxPaddedTokens: 736 }), 0)!;
    expect(batch.width).toBe(32);
    expect(batch.rows.map((one) => one.tokens)).toEqual([...Array.from({ length: 20 }, () => 31), 32, 24, 24]);
  });

  test('begins with the oldest row once that is older than its limit, and takes it first', () => {
    const rows = [row(500, 0), ...Array.from({ length: 40 }, () => row(30, 100))];
    expect(poolOf(rows).cut(cutLimits(LIMITS), 250)!.width).toBe(32);
    expect(poolOf(rows).cut(cutLimits(LIMITS), 251)!.rows).toEqual([rows[0]]);
  });

  test('gives a row that is wider than the budget a batch of its own', () => {
    const batches = cutAll(poolOf([row(300), row(300), row(20)]), { ...LIMITS, maxPaddedTokens: 256 });
    expect(batches.map(({ rows, width }) => [rows.length, width])).toEqual([
      [1, 304],
      [1, 304],
      [1, 24],
    ]);
  });

  test('takes rows of one bucket in the order in which they came', () => {
    const rows = Array.from({ length: 10 }, (_, i) => row(10, i));
    expect(poolOf(rows).cut(cutLimits({ ...LIMITS, maxRows: 4 }), 0)!.rows).toEqual(rows.slice(0, 4));
  });

  test('does not fill up with short rows what is far from full', () => {
    const batch = poolOf([
      ...Array.from({ length: 10 }, () => row(64)),
      ...Array.from({ length: 6 }, () => row(8)),
    ]).cut(cutLimits(LIMITS), 0)!;
    expect(batch.rows).toHaveLength(10);
  });

  test('takes interactive rows first, oldest first, and no bulk rows beside them', () => {
    const [late, early, long] = [interactive(20, 5), interactive(9, 3), interactive(100, 3)];
    const pool = poolOf([...Array.from({ length: 40 }, () => row(30)), late, early, long]);
    expect(pool.interactiveRows).toBe(3);
    const batches = cutAll(pool, LIMITS);
    expect(batches.slice(0, 3).map((batch) => batch.rows)).toEqual([[long], [early], [late]]);
    expect(
      batches
        .slice(3)
        .flatMap((batch) => batch.rows)
        .filter((one) => one.isInteractive),
    ).toEqual([]);
  });

  test('refuses rows without a token', () => {
    expect(() => new Pool<Row>().add(row(0))).toThrow('at least one token');
  });

  test('one wide row is kept apart from the many that it was cut with', () => {
    const batch = batchOf([row(200), ...Array.from({ length: 20 }, () => row(16))]);
    expect(halve(batch).map(({ rows, width }) => [rows.length, width])).toEqual([
      [1, 200],
      [20, 16],
    ]);
  });

  test('a batch of given rows is as wide as the longest needs', () => {
    expect([1, 8, 9, 16].map((tokens) => batchOf([row(tokens), row(1)]).width)).toEqual([8, 8, 16, 16]);
  });
});

const SIZES = [8, 12, 20, 28, 36, 44];

/** Rows of six lengths in turn. */
function many(count: number, make: (tokens: number, enteredMs?: number) => Row, enteredMs = 0): Row[] {
  return Array.from({ length: count }, (_, i) => make(SIZES[i % 6]!, enteredMs));
}

function leadsOf(batch: MicroBatch<Row> | undefined): number {
  return batch!.rows.filter(({ hasLead }) => hasLead).length;
}

test('where padding costs nothing a batch is filled from above, after what it began with', () => {
  const pool = poolOf([
    row(8, 0),
    ...Array.from({ length: 200 }, () => row(20, 100)),
    ...Array.from({ length: 200 }, () => row(40, 100)),
  ]);
  const limits: CutLimits = {
    ...cutLimits({ maxPaddedTokens: 48 * 36, maxRows: 36, maxRowAgeMs: 250 }),
    smallShare: 1,
  };
  const { rows, width } = pool.cut(limits, 300)!;
  expect([rows.length, width, rows.at(-1)!.tokens]).toEqual([36, 24, 8]);
});

test('where padding costs little all that fits into one batch goes, and of more than that the oldest first', () => {
  const limits: CutLimits = {
    ...cutLimits({ maxPaddedTokens: 48 * 36, maxRows: 36, maxRowAgeMs: 250 }),
    smallShare: 0.9,
  };
  expect(poolOf(many(35, row)).cut(limits, 0)!.rows).toHaveLength(35);
  const { rows } = poolOf([row(44, 0), ...Array.from({ length: 60 }, () => row(12, 1))]).cut(limits, 2)!;
  expect([rows.length, rows[0]!.tokens]).toEqual([36, 44]);
});

describe('rows with a lead', () => {
  const free: CutLimits = { ...cutLimits({ maxPaddedTokens: 48 * 36, maxRows: 36, maxRowAgeMs: 250 }), smallShare: 1 };
  test('run before all others where padding costs nothing, in as few runs as they fill, which are filled up', () => {
    const pool = poolOf([...many(80, row), ...many(40, leading, 10)]);
    const batches = [pool.cut(free, 20), pool.cut(free, 20)];
    expect(batches.map(leadsOf).reduce((sum, count) => sum + count)).toBe(40);
    expect(batches.map((batch) => batch!.rows.length)).toEqual([36, 36]);
    for (const { rows } of batches as MicroBatch<Row>[])
      expect(rows.map(({ tokens }) => tokens)).toEqual(rows.map(({ tokens }) => tokens).toSorted((a, b) => b - a));
  });

  test('come to a halt there while others wait too long: four batches in a row, then one in eight', () => {
    const pool = poolOf(many(36 * 40, row));
    const isLed = Array.from({ length: 28 }, () => {
      for (const one of many(40, leading, 300)) pool.add(one);
      return leadsOf(pool.cut({ ...free, rowsAt: () => 30 }, 300)) === 30;
    });
    const others = isLed.flatMap((led, at) => (led ? [] : [at]));
    expect(others[0]).toBeGreaterThanOrEqual(4);
    expect(others.length).toBeGreaterThan(0);
  });

  test('elsewhere are filled in at once by who comes rarely, and first of their length by who always has some', () => {
    const limits = cutLimits({ maxPaddedTokens: 4_096, maxRows: 512, maxRowAgeMs: 1e9 });
    const pool = poolOf(many(1_200, row));
    for (const one of many(24, leading)) pool.add(one);
    expect(leadsOf(pool.cut(limits, 0))).toBe(24);
    const led = Array.from({ length: 40 }, () => {
      for (const one of [...many(12, leading), ...many(60, row)]) pool.add(one);
      const { rows, width } = pool.cut(limits, 0)!;
      const ofLength = rows.filter(({ tokens }) => tokens > width - 8);
      expect(ofLength.slice(0, ofLength.filter(({ hasLead }) => hasLead).length).every(({ hasLead }) => hasLead)).toBe(
        true,
      );
      return rows.some(({ hasLead, tokens }) => hasLead && tokens <= width - 24);
    });
    expect(led.filter(Boolean).length).toBeLessThanOrEqual(3 + 40 / 8);
  });

  test('are not passed over, once they wait longest and too long, by late ones of their length', () => {
    const limits = cutLimits({ maxPaddedTokens: 48, maxRows: 1, maxRowAgeMs: 100 });
    const pool = poolOf([...many(8, leading), ...many(8, row, 40)]);
    const cuts = Array.from({ length: 8 }, () => leadsOf(pool.cut(limits, 300)));
    expect(cuts).toEqual(Array.from({ length: 8 }, () => 1));
  });

  test(
    'and those without all leave once, in full batches where padding costs nothing, and who waits too long ' +
      'within five',
    () => {
      const someRows = fc.array(fc.record({ tokens: fc.integer({ min: 1, max: 200 }), hasLead: fc.boolean() }), {
        minLength: 1,
        maxLength: 40,
      });
      fc.assert(
        fc.property(
          fc.array(someRows, { minLength: 1, maxLength: 30 }),
          anyLimits,
          fc.constantFrom(0.1, 1),
          (arrivals, limits, smallShare) => {
            const pool = new Pool<Row>();
            const waiting = new Map<number, Row>();
            let nowMs = 0;
            let overdueCuts = 0;
            const take = (): boolean => {
              const oldestMs = Math.min(...[...waiting.values()].map((one) => one.enteredMs));
              const cut = { ...cutLimits(limits), smallShare };
              const batch = pool.cut(cut, nowMs);
              if (batch === undefined) return false;
              expect(faultsOf(batch, limits)).toEqual([]);
              const hasOldest = batch.rows.some((one) => one.enteredMs === oldestMs);
              overdueCuts = hasOldest || nowMs - oldestMs <= limits.maxRowAgeMs ? 0 : overdueCuts + 1;
              expect(overdueCuts).toBeLessThanOrEqual(5);
              for (const one of batch.rows) expect(waiting.delete(one.id)).toBe(true);
              const couldJoin = [...waiting.values()].filter(
                ({ tokens }) =>
                  smallShare === 1 && batch.rows.length < cut.rowsAt(Math.max(batch.width, Math.ceil(tokens / 8) * 8)),
              );
              expect(couldJoin).toEqual([]);
              return true;
            };
            for (const rows of arrivals) {
              for (const { tokens, hasLead } of rows) {
                const one = { ...row(tokens, nowMs), hasLead };
                waiting.set(one.id, one);
                pool.add(one);
              }
              nowMs += 40;
              take();
            }
            while (take());
            expect([waiting.size, pool.rows, pool.tokens, pool.oldestMs()]).toEqual([0, 0, 0, undefined]);
          },
        ),
        { numRuns: 500 },
      );
    },
  );

  test('are cut like all others when there are no others', () => {
    const limits = cutLimits(LIMITS);
    const [some, all] = [many(90, row), many(90, leading)].map((rows) =>
      cutAll(poolOf(rows), LIMITS).map(({ rows: { length }, width }) => [length, width]),
    );
    expect(all).toEqual(some);
    expect(limits.rowsAt(8)).toBe(128);
  });
});

/**
 * The standard length mix: log-normal with median 52 tokens and sigma 0.98, clipped to 8..512. The same numbers every
 * time.
 */
function standardMix(seed: number): () => number {
  let state = seed;
  const random = (): number => {
    state = (state + 0x6d2b_79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  return () => {
    const normal = Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
    return Math.min(512, Math.max(8, Math.round(52 * Math.exp(0.98 * normal))));
  };
}

interface Bulk {
  readonly maxPaddedTokens: number;
  readonly maxRows?: number;
  readonly poolTokens: number;
  readonly totalRows: number;
  /** Padded tokens the device does in a millisecond; without it no row grows old. */
  readonly tokensPerMs?: number;
}

/** Padding efficiency of a pool kept at its target by jobs of 64 rows, cut until `totalRows` have come. */
function runBulk({ maxPaddedTokens, maxRows = 1024, poolTokens, totalRows, tokensPerMs }: Bulk): number {
  const tokens = standardMix(42);
  const pool = new Pool<Row>();
  let [nowMs, real, padded, added] = [0, 0, 0, 0];
  while (added < totalRows) {
    for (; pool.tokens < poolTokens; added += 64) for (let i = 0; i < 64; i++) pool.add(row(tokens(), nowMs));
    const batch = pool.cut(cutLimits({ ...LIMITS, maxPaddedTokens, maxRows }), nowMs)!;
    const paddedTokens = batch.rows.length * batch.width;
    padded += paddedTokens;
    for (const one of batch.rows) real += one.tokens;
    if (tokensPerMs !== undefined) nowMs += paddedTokens / tokensPerMs;
  }
  return real / padded;
}

describe('on the standard length mix', () => {
  // Measured 2026-11: 0.960, 0.957, 0.947, 0.948, 0.948. The goal is 0.93.
  test.each([
    ['1,024 tokens, 24 k in the pool', { maxPaddedTokens: 1024, poolTokens: 24_576, totalRows: 30_000 }, 0.955],
    [
      'the same on a slow device, where every row grows old',
      { maxPaddedTokens: 1024, poolTokens: 24_576, totalRows: 30_000, tokensPerMs: 4 },
      0.95,
    ],
    ['2,048 tokens, 16 k in the pool', { maxPaddedTokens: 2048, poolTokens: 16_384, totalRows: 30_000 }, 0.94],
    [
      'the same on a slow device',
      { maxPaddedTokens: 2048, poolTokens: 16_384, totalRows: 30_000, tokensPerMs: 4 },
      0.94,
    ],
    [
      '64 k tokens, 16 k rows in the pool',
      { maxPaddedTokens: 65_536, maxRows: 16_384, poolTokens: 16_000 * 74, totalRows: 100_000 },
      0.94,
    ],
  ] as const)('padding efficiency in bulk: %s', (_, bulk, least) => {
    expect(runBulk(bulk)).toBeGreaterThanOrEqual(least);
  });

  test('160 texts at once', () => {
    const tokens = standardMix(7);
    const rows = Array.from({ length: 160 }, () => row(tokens()));
    const padded = cutAll(poolOf(rows), LIMITS).reduce((sum, batch) => sum + batch.rows.length * batch.width, 0);
    expect(rows.reduce((sum, one) => sum + one.tokens, 0) / padded).toBeGreaterThanOrEqual(0.94);
  });
});
