import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createBudget, type Budget, type BudgetOptions } from './budget.ts';
import { liveBytes, type MemoryLaw } from './memory-model.ts';
import type { RunShape } from '../ports/device.ts';

const GB = 1e9;
/** 20 KB a token, 60 KB in the widest rows. */
const law: MemoryLaw = {
  loadedBytes: 0.5 * GB,
  floorBytes: 10e6,
  slackBytes: 2e6,
  arena: 'doubling',
  perToken: [
    { width: 64, bytes: 20e3 },
    { width: 256, bytes: 30e3 },
    { width: 512, bytes: 60e3 },
  ],
};
const WIDE: BudgetOptions = { maxPaddedTokens: 1 << 24, maxRows: 1 << 16, maxTokens: 512, kneeTokens: 1 << 22 };
const withMemory = (change: Partial<BudgetOptions> = {}): Budget =>
  createBudget({ ...WIDE, memory: { law, source: 'fitted' }, totalBytes: 8 * GB, ...change });
const widths = Array.from({ length: 64 }, (_, i) => (i + 1) * 8);

const tookMs = ({ rows, width }: RunShape): number => 1 + rows * width * 0.001;

/** Runs as large as they may be. */
function runFull(budget: Budget, runs: number, width = 512): void {
  for (let i = 0; i < runs; i++) budget.ran({ rows: budget.rowsAt(width), width, runMs: 10 });
}

describe('the least limit holds', () => {
  test('memory: a fraction of the device, whatever the width', () => {
    const budget = withMemory();
    expect(budget.current()).toMatchObject({ limitedBy: 'memory', source: 'fitted' });
    for (const width of [8, 64, 256, 512]) {
      const rows = budget.rowsAt(width);
      expect(liveBytes(law, { rows, width })).toBeLessThanOrEqual(0.8 * 8 * GB);
      expect(liveBytes(law, { rows: rows + 1, width })).toBeGreaterThan(0.8 * 8 * GB);
    }
  });

  test('knee, settings and rows', () => {
    expect(withMemory({ kneeTokens: 65_536 }).current()).toMatchObject({ maxPaddedTokens: 65_536, limitedBy: 'knee' });
    expect(withMemory({ maxPaddedTokens: 1_024 }).current()).toMatchObject({
      maxPaddedTokens: 1_024,
      limitedBy: 'setting',
    });
    expect(withMemory({ maxRows: 16 }).rowsAt(8)).toBe(16);
  });

  test('integers: no tensor of 2³¹ elements, of tokens or of scores', () => {
    const model = { hiddenSize: 384, intermediateSize: 1536, heads: 12 };
    const budget = withMemory({ totalBytes: 1e15, kneeTokens: 1 << 24, model });
    expect(budget.current().limitedBy).toBe('integer');
    for (const width of widths) {
      const rows = budget.rowsAt(width);
      expect(rows * width * 1536).toBeLessThan(2 ** 31);
      expect(rows * 12 * width ** 2).toBeLessThan(2 ** 31);
    }
  });

  test('latency, only while an interactive row waits', () => {
    const budget = withMemory({ latencyTargetMs: 20, totalBytes: 80 * GB });
    for (let i = 0; i < 10; i++)
      for (const rows of [4, 16, 64, 256]) budget.ran({ rows, width: 128, runMs: tookMs({ rows, width: 128 }) });
    const before = budget.rowsAt(128);
    budget.interactiveWaits(true);
    expect(budget.current().limitedBy).toBe('latency');
    expect(tookMs({ rows: budget.rowsAt(128), width: 128 })).toBeLessThanOrEqual(20);
    budget.interactiveWaits(false);
    expect(budget.rowsAt(128)).toBe(before);
  });

  test('a row that fits nowhere is still cut alone: whether it fits is for the device to say', () => {
    expect(createBudget({ ...WIDE, maxPaddedTokens: 16 }).rowsAt(512)).toBe(1);
  });

  test('memory that holds no single row is refused at start, with what to change', () => {
    expect(() => withMemory({ totalBytes: 0.6 * GB })).toThrow(
      /one row of 512 tokens takes 539 MB .* 0\.8 of 600 MB .*raise memoryFraction or maxDeviceBytes/,
    );
    // a guess refuses nothing
    expect(() => withMemory({ totalBytes: 0.6 * GB, memory: { law, source: 'preset' } })).not.toThrow();
  });
});

describe('running out of memory', () => {
  test('takes a quarter at a time, holds, and gives it back slowly', () => {
    const budget = withMemory();
    const before = budget.rowsAt(512);
    budget.ranOutOfMemory({ rows: before, width: 512 });
    const after = budget.rowsAt(512);
    expect(after / before).toBeGreaterThan(0.7);
    expect(after / before).toBeLessThanOrEqual(0.76);
    runFull(budget, 9_999);
    expect(budget.rowsAt(512)).toBe(after);
    runFull(budget, 5_000);
    expect(budget.rowsAt(512)).toBeGreaterThan(after);
    expect(budget.rowsAt(512)).toBeLessThan(before);
    runFull(budget, 10_000);
    expect(budget.rowsAt(512)).toBe(before);
  });

  test('a small run that fails says little: half of the budget stays', () => {
    const budget = withMemory();
    const before = budget.rowsAt(512);
    budget.ranOutOfMemory({ rows: 1, width: 8 });
    expect(budget.rowsAt(512) / before).toBeGreaterThanOrEqual(0.49);
    expect(budget.rowsAt(512) / before).toBeLessThan(0.52);
  });

  test('a row that asks for too much costs the others nothing: once a larger run went well, all is as before', () => {
    const budget = withMemory();
    const before = budget.rowsAt(512);
    const fails = (rows: number, siblingWaits = false): void =>
      budget.ranOutOfMemory({ rows, width: 512 }, { siblingWaits });
    const half = before >> 1;
    fails(before);
    expect(budget.rowsAt(512)).toBeLessThan(before);
    fails(half, true);
    expect(budget.rowsAt(512), 'room for its sibling').toBeGreaterThanOrEqual(half);
    budget.ran({ rows: half, width: 512, runMs: 1 });
    expect(budget.rowsAt(512), 'two of one size, one well and one not: no proof').toBeLessThan(before);
    fails(half >> 1, true); // smaller than what went well
    expect(budget.rowsAt(512)).toBe(before);
    expect(budget.current().isTesting).toBe(false);
    for (let rows = half >> 2; rows >= 1; rows >>= 1) fails(rows);
    expect(budget.rowsAt(512)).toBe(before);
    fails(before);
    expect(budget.rowsAt(512), 'what is larger than that is another matter').toBeLessThan(before);
  });

  test('where both halves of a batch fail it is lowered below them', () => {
    const budget = withMemory();
    const rows = budget.rowsAt(512);
    budget.ranOutOfMemory({ rows, width: 512 });
    for (const siblingWaits of [true, false]) budget.ranOutOfMemory({ rows: rows >> 1, width: 512 }, { siblingWaits });
    expect(budget.rowsAt(512)).toBeLessThan(rows >> 1);
    expect(budget.current().isTesting).toBe(true);
  });

  test('one micro-batch at a time is asked for until sixteen near the budget went well', () => {
    const budget = withMemory();
    budget.ranOutOfMemory({ rows: budget.rowsAt(512), width: 512 });
    runFull(budget, 15);
    expect(budget.current().isTesting).toBe(true);
    runFull(budget, 1);
    expect(budget.current().isTesting).toBe(false);
  });

  test('what was learned goes on in the next executor', () => {
    const first = withMemory();
    first.ranOutOfMemory({ rows: first.rowsAt(512), width: 512 });
    const learned = JSON.parse(JSON.stringify(first.learned())) as BudgetOptions['learned'];
    expect(withMemory({ learned }).rowsAt(512)).toBe(first.rowsAt(512));
  });
});

describe('other processes', () => {
  test('what they use is not ours, and is again when they leave', () => {
    const budget = withMemory();
    const before = budget.rowsAt(512);
    budget.deviceMemory({ totalBytes: 8 * GB, freeBytes: 3.5 * GB }, 0.5 * GB);
    expect(liveBytes(law, { rows: budget.rowsAt(512), width: 512 })).toBeLessThanOrEqual((0.8 * 8 - 4) * GB);
    budget.deviceMemory(undefined);
    expect(budget.rowsAt(512)).toBeLessThan(before);
    budget.deviceMemory({ totalBytes: 8 * GB, freeBytes: 7.5 * GB }, 0.5 * GB);
    expect(budget.rowsAt(512)).toBe(before);
  });

  test('memory that our own arena holds is not theirs', () => {
    const budget = withMemory();
    const before = budget.rowsAt(512);
    runFull(budget, 1);
    budget.deviceMemory({ totalBytes: 8 * GB, freeBytes: 0.2 * GB }, 7.8 * GB);
    expect(budget.rowsAt(512)).toBe(before);
  });

  test('an OOM that a tenant caused is forgiven when the tenant leaves', () => {
    const budget = withMemory();
    const before = budget.rowsAt(512);
    budget.deviceMemory({ totalBytes: 8 * GB, freeBytes: 5.5 * GB }, 0.5 * GB);
    budget.ranOutOfMemory({ rows: budget.rowsAt(512), width: 512 });
    budget.deviceMemory({ totalBytes: 8 * GB, freeBytes: 7.5 * GB }, 0.5 * GB);
    expect(budget.rowsAt(512) / before).toBeGreaterThan(0.75);
  });
});

describe('without a source of memory', () => {
  test('it starts small, doubles to the knee, and says so', () => {
    const budget = createBudget({ ...WIDE, kneeTokens: 16_384 });
    expect(budget.current()).toMatchObject({ maxPaddedTokens: 1_024, limitedBy: 'unknown-memory', source: 'none' });
    expect(budget.peakBytes({ rows: 1, width: 8 })).toBeUndefined();
    runFull(budget, 1);
    expect(budget.current().maxPaddedTokens).toBe(2_048);
    runFull(budget, 10);
    expect(budget.current()).toMatchObject({ maxPaddedTokens: 16_384, limitedBy: 'knee' });
  });

  test('it learns from running out', () => {
    const budget = createBudget(WIDE);
    runFull(budget, 4);
    const failed = budget.rowsAt(512);
    budget.ranOutOfMemory({ rows: failed, width: 512 });
    expect(budget.current()).toMatchObject({ limitedBy: 'unknown-memory', source: 'learned' });
    runFull(budget, 100);
    expect(budget.rowsAt(512)).toBe(Math.floor(failed * 0.75));
  });

  test('small runs prove nothing', () => {
    const budget = createBudget(WIDE);
    for (let i = 0; i < 100; i++) budget.ran({ rows: 1, width: 64, runMs: 1 });
    expect(budget.current().maxPaddedTokens).toBe(1_024);
  });
});

describe('readings correct the law', () => {
  const truth: MemoryLaw = {
    ...law,
    perToken: law.perToken.map(({ width, bytes }) => ({ width, bytes: bytes * 1.3 })),
  };

  test('within a few runs it says what is measured, and where it says too much it comes down', () => {
    for (const [believed, real] of [
      [law, truth],
      [truth, law],
    ] as const) {
      const budget = withMemory({ memory: { law: believed, source: 'stored' } });
      let peak = 0;
      for (let i = 0; i < 60; i++) {
        const shape = { rows: budget.rowsAt(256), width: 256 };
        peak = Math.max(peak, liveBytes(real, shape));
        budget.ran({ ...shape, runMs: 10, memory: { liveBytes: peak, footprintBytes: undefined, source: 'arena' } });
      }
      const shape = { rows: 500, width: 256 };
      expect(budget.peakBytes(shape)! / liveBytes(real, shape)).toBeCloseTo(1, 1);
      expect(budget.current().source).toBe('corrected');
    }
  });

  test('a peak of an earlier, larger run says nothing against a smaller one', () => {
    const budget = withMemory();
    const large = { rows: 400, width: 256 };
    const memory = { liveBytes: liveBytes(law, large), footprintBytes: undefined, source: 'arena' } as const;
    budget.ran({ ...large, runMs: 10, memory });
    for (let i = 0; i < 50; i++) budget.ran({ rows: 10, width: 256, runMs: 1, memory });
    expect(budget.current().source).toBe('fitted');
  });
});

describe('whatever happens to it', () => {
  const shape = fc.record({
    rows: fc.integer({ min: 1, max: 4_096 }),
    width: fc.integer({ min: 1, max: 64 }).map((step) => step * 8),
  });
  const reading = fc.option(
    fc
      .integer({ min: 1, max: 200 })
      .map((gb) => ({ liveBytes: gb * GB, footprintBytes: undefined, source: 'arena' as const })),
    { nil: undefined },
  );
  const event = fc.oneof(
    fc.record({
      kind: fc.constant('ran' as const),
      shape,
      runMs: fc.double({ min: 0.01, max: 1_000, noNaN: true }),
      memory: reading,
    }),
    fc.record({ kind: fc.constant('oom' as const), shape: fc.option(shape, { nil: undefined }) }),
    fc.record({ kind: fc.constant('interactive' as const), isWaiting: fc.boolean() }),
    fc.record({
      kind: fc.constant('device' as const),
      freeShare: fc.double({ min: 0, max: 1, noNaN: true }),
      isSilent: fc.boolean(),
    }),
  );
  const device = fc.record({
    hasMemory: fc.boolean(),
    total: fc.integer({ min: 2, max: 200 }),
    knee: fc.option(fc.integer({ min: 256, max: 1 << 18 }), { nil: undefined }),
    maxPaddedTokens: fc.integer({ min: 16, max: 1 << 20 }),
    maxRows: fc.integer({ min: 1, max: 1 << 14 }),
  });

  test(
    'at least one row, never above its caps, never more in wider rows, and less after running out of memory ' +
      'unless something ran since the first time (1,000 runs)',
    () => {
      fc.assert(
        fc.property(
          device,
          fc.array(event, { maxLength: 24 }),
          ({ hasMemory, total, knee, maxPaddedTokens, maxRows }, events) => {
            const budget = createBudget({
              maxPaddedTokens,
              maxRows,
              maxTokens: 512,
              kneeTokens: knee,
              model: { hiddenSize: 384, intermediateSize: 1536, heads: 12 },
              ...(hasMemory ? { memory: { law, source: 'fitted' as const }, totalBytes: total * GB } : {}),
            });
            let [hasNotShrunk, hasFailed, hasRunSince] = [false, false, false];
            for (const one of events) {
              const before = budget.rowsAt(512);
              if (one.kind === 'ran') {
                budget.ran({ ...one.shape, runMs: one.runMs, memory: one.memory });
                hasRunSince ||= hasFailed;
              } else if (one.kind === 'interactive') budget.interactiveWaits(one.isWaiting);
              else if (one.kind === 'device')
                budget.deviceMemory(
                  one.isSilent ? undefined : { totalBytes: total * GB, freeBytes: one.freeShare * total * GB },
                );
              else {
                budget.ranOutOfMemory(one.shape ?? { rows: before, width: 512 });
                hasFailed = true;
                hasNotShrunk ||=
                  !hasRunSince && budget.rowsAt(512) > (one.shape === undefined && before > 4 ? before - 1 : before);
              }
              const rows = widths.map((width) => budget.rowsAt(width));
              // Looked at without `expect`, which would take most of the time.
              const isWrong = (count: number, i: number): boolean => {
                const width = widths[i]!;
                const predicted = budget.peakBytes({ rows: count, width }) ?? 0;
                const isAboveCaps =
                  count > maxRows ||
                  count * width > Math.min(maxPaddedTokens, knee ?? maxPaddedTokens) ||
                  predicted > 0.8 * total * GB * (1 + 1e-9);
                return (
                  !Number.isInteger(count) || count < 1 || (count > 1 && isAboveCaps) || (i > 0 && count > rows[i - 1]!)
                );
              };
              expect(rows.filter(isWrong)).toEqual([]);
              expect(hasNotShrunk).toBe(false);
              expect(budget.current().maxPaddedTokens).toBe(Math.max(...rows.map((count, i) => count * widths[i]!)));
            }
          },
        ),
        { numRuns: 1_000 },
      );
    },
  );

  test('it comes back to what it was once nothing fails any more', () => {
    fc.assert(
      fc.property(shape, fc.boolean(), (failed, twice) => {
        const budget = withMemory();
        const before = budget.rowsAt(512);
        for (let i = 0; i < (twice ? 2 : 1); i++) budget.ranOutOfMemory(failed);
        expect(budget.rowsAt(512)).toBeLessThan(before);
        // Held for 10,000 runs, 20,000 after a second failure; a quarter is then regained in as many, of a quarter of
        // the budget at worst.
        for (let i = 0; i < (twice ? 6 * 20_000 : 4 * 10_000); i++)
          budget.ran({ rows: budget.rowsAt(512), width: 512, runMs: 10 });
        expect(budget.rowsAt(512)).toBe(before);
      }),
      { numRuns: 3 },
    );
  });
});
