// Which plan is made of what waits: a table of situations, each with the plan's kind and what it takes first.

import { describe, expect, test } from 'vitest';
import { Buckets, type PoolRow } from './buckets.ts';
import { planCut, type CutLimits, type CutPlan, type CutView, type RowClass } from './cut-plan.ts';

const NOW = 1_000;
const LATE = NOW - 101;

/** So many rows of so many tokens, that came at this time. */
type Rows = readonly [count: number, tokens: number, enteredMs?: number];

function view(waiting: Partial<Record<RowClass, readonly Rows[]>>, ledCredit = 4): CutView {
  const buckets = (name: RowClass): Buckets<PoolRow> => {
    const made = new Buckets<PoolRow>();
    for (const [count, tokens, enteredMs = NOW] of waiting[name] ?? [])
      for (let i = 0; i < count; i++)
        made.add({
          tokens,
          enteredMs,
          isInteractive: name === 'urgent' || name === 'interactive',
          hasLead: name === 'urgent' || name === 'leading',
        });
    return made;
  };
  return {
    urgent: buckets('urgent'),
    interactive: buckets('interactive'),
    leading: buckets('leading'),
    bulk: buckets('bulk'),
    ledCredit,
  };
}

/** A device that takes 1,000 padded tokens. */
const limits: CutLimits = { maxRowAgeMs: 100, rowsAt: (width) => Math.max(1, Math.floor(1_000 / width)) };
const paddingFree: CutLimits = { ...limits, smallShare: 0.6 };

const planned = (waiting: Parameters<typeof view>[0], given = limits, ledCredit?: number): CutPlan =>
  planCut(view(waiting, ledCredit), given, NOW)!;

test('nothing is planned of an empty pool', () => {
  expect(planCut(view({}), limits, NOW)).toBeUndefined();
  expect(planCut(view({}), paddingFree, NOW)).toBeUndefined();
});

describe('which plan', () => {
  const urgent: Rows[] = [[1, 40]];
  const led: Rows[] = [[30, 24]];
  const bulk: Rows[] = [[900, 8]];
  test.for<[string, CutPlan['kind'], Parameters<typeof view>[0], CutLimits, number]>([
    ['an interactive row goes before all', 'interactive', { interactive: urgent, leading: led, bulk }, limits, 4],
    ['and where padding is free as well', 'interactive', { interactive: urgent, leading: led, bulk }, paddingFree, 4],
    ['rows with a lead are next while there is credit', 'led', { leading: led, bulk }, limits, 4],
    ['and by length without', 'by-length', { leading: led, bulk }, limits, 0.5],
    ['a batch earns an eighth of what one that is led costs', 'led', { leading: led, bulk }, limits, 0.875],
    ['nobody has a lead before nobody', 'by-length', { leading: led }, limits, 4],
    ['bulk rows alone go by length', 'by-length', { bulk }, limits, 4],
    ['where padding is free they go as they come', 'free', { bulk }, paddingFree, 4],
    ['those with a lead among them', 'free', { leading: led, bulk }, paddingFree, 4],
  ])('%s: %s', ([, kind, waiting, given, ledCredit]) => {
    expect(planned(waiting, given, ledCredit).kind).toBe(kind);
  });
});

describe('interactive', () => {
  test('rows go alone, from the one that waits longest downwards', () => {
    const plan = planned({
      interactive: [
        [2, 40],
        [1, 100, LATE],
      ],
      bulk: [[900, 8]],
    });
    expect(plan).toMatchObject({ width: 104, takes: [{ from: ['interactive'], bucket: 12, maxRows: 9 }] });
  });

  test('rows with a lead go first, whatever came before them', () => {
    const plan = planned({ urgent: [[2, 40]], interactive: [[3, 100, LATE]], bulk: [[900, 8]] });
    expect(plan).toMatchObject({
      kind: 'interactive',
      width: 40,
      takes: [
        { from: ['urgent'], bucket: 4, maxRows: 25 },
        { from: ['interactive'], bucket: 4, maxRows: 25 },
      ],
    });
  });

  test('where padding is free bulk rows come beside them, up to the share of a small batch', () => {
    const plan = planned({ interactive: [[1, 40]], bulk: [[900, 80]] }, paddingFree);
    expect(plan.width).toBe(80);
    expect(plan.takes).toEqual([
      { from: ['interactive'], bucket: 9, smallShare: 0.6, maxRows: 12 },
      { from: ['leading', 'bulk'], bucket: 9, smallShare: 0.6, maxRows: 7 },
    ]);
  });

  test('rows that go alone neither earn nor spend credit', () => {
    expect(planned({ interactive: [[1, 40]], leading: [[30, 24]], bulk: [[900, 8]] }, limits, 2).ledCredit).toBe(2);
  });
});

describe('led', () => {
  test('begins with rows that have a lead up to half a batch, whatever the padding, and pays for it', () => {
    const plan = planned({ leading: [[30, 24]], bulk: [[900, 8]] }, limits, 2);
    expect(plan.ledCredit).toBe(1.125);
    expect(plan.takes).toMatchObject([
      { from: ['leading'], bucket: 2, smallShare: 0.5 },
      { from: ['leading', 'bulk'], bucket: 2, smallShare: 0.1 },
    ]);
  });
});

const orderBeside = (bulk: Rows[]) => planned({ leading: [[200, 24]], bulk }, limits, 0).takes[0]!.from;
const creditBeside = (bulk: Rows[]) => planned({ leading: [[30, 24]], bulk }, paddingFree, 2).ledCredit;

describe('by length', () => {
  test.for<[string, Parameters<typeof view>[0], number]>([
    [
      'the fullest bucket',
      {
        bulk: [
          [900, 8],
          [2, 400],
        ],
      },
      0,
    ],
    [
      'the longest rows when all are one small batch',
      {
        bulk: [
          [1, 8],
          [1, 400],
        ],
      },
      49,
    ],
    [
      'a row that has waited its limit',
      {
        bulk: [
          [900, 8],
          [2, 400, LATE],
        ],
      },
      49,
    ],
    ['the class that holds more tokens', { leading: [[200, 24]], bulk: [[100, 8]] }, 2],
  ])('begins with %s', ([, waiting, bucket]) => {
    expect(planned(waiting, limits, 0).takes[0]!.bucket).toBe(bucket);
  });

  test('rows with a lead are the first of their length, unless another waits too long', () => {
    expect(orderBeside([[100, 8]])).toEqual(['leading', 'bulk']);
    expect(orderBeside([[100, 8, LATE]])).toEqual(['bulk', 'leading']);
  });

  test('a device of few shapes is filled up to one of them', () => {
    expect(planned({ bulk: [[900, 24]] }, { ...limits, prefersFewShapes: true })).toMatchObject({
      width: 24,
      minPaddingEfficiency: 0.9,
      takes: [{ maxRows: 32 }],
    });
  });
});

describe('free', () => {
  test('begins with the oldest rows and takes all that fit', () => {
    const plan = planned(
      {
        bulk: [
          [900, 8],
          [10, 400, NOW - 1],
        ],
      },
      paddingFree,
    );
    expect(plan).toMatchObject({ width: 400, takes: [{ bucket: 49, smallShare: 1 }] });
  });

  test('is wide enough for as many as fit, the oldest first', () => {
    const plan = planned(
      {
        bulk: [
          [3, 8, NOW - 1],
          [900, 80],
        ],
      },
      paddingFree,
    );
    expect(plan.takes.map(({ bucket }) => bucket)).toEqual([0, 9]);
  });

  test('rows with a lead cost no credit unless another waits too long', () => {
    expect([creditBeside([[9, 8]]), creditBeside([[9, 8, LATE]])]).toEqual([2.125, 1.125]);
  });
});
