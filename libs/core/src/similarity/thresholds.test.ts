import { describe, expect, test } from 'vitest';
import { Thresholds, decodeThresholdProfile, encodeThresholdProfile, type MeasuredThresholds } from './thresholds.ts';

const MEASURED: MeasuredThresholds = {
  thresholds: [
    { kind: 'topk/f32', queries: 1, work: 400_000 },
    { kind: 'topk/f32', queries: 64, work: 10_000 },
    { kind: 'topk/f16', queries: 1, work: 900_000 },
    { kind: 'spread', queries: 1, work: undefined },
    { kind: 'spread', queries: 16, work: 50_000 },
  ],
  passingQueries: { f32: 40 },
};
const thresholds = new Thresholds(MEASURED);

describe('the side of a call', () => {
  test.each([
    ['topk/f32', 1, 399_999, 'cpu'],
    ['topk/f32', 1, 400_000, 'gpu'],
    // halfway between 1 and 64 in logarithms: √(400,000 × 10,000)
    ['topk/f32', 8, 63_000, 'cpu'],
    ['topk/f32', 8, 63_500, 'gpu'],
    // beyond the last number of queries the work of all together counts
    ['topk/f32', 640, 999, 'cpu'],
    ['topk/f32', 640, 1_000, 'gpu'],
    // one query alone was measured on f16, so that is what holds for a few
    ['topk/f16', 1, 899_999, 'cpu'],
    // never measured on i8, nor for many results: as for the same computation on other rows
    ['topk/i8', 1, 400_000, 'gpu'],
    ['topk-many/i8', 1, 399_999, 'cpu'],
    // the GPU was never faster at one lane: not up to the middle either
    ['spread', 1, 1e12, 'cpu'],
    ['spread', 3, 1e12, 'cpu'],
    ['spread', 5, 50_000, 'gpu'],
    // nothing of the kind was measured
    ['cosine/f32', 1, 1, 'gpu'],
  ] as const)('%s, %i queries, each compared with %i values: %s', (kind, queries, work, side) => {
    expect(thresholds.sideOf(kind, queries, work)).toBe(side);
  });

  test('where nothing was measured everything is for the GPU', () => {
    expect(new Thresholds().sideOf('topk/f32', 1, 1)).toBe('gpu');
    expect(new Thresholds().paysForTheWay('f32', 1_000)).toBe(false);
  });

  test('rows are brought for one search of many queries, of a type that was measured', () => {
    expect([39, 40].map((queries) => thresholds.paysForTheWay('f32', queries))).toEqual([false, true]);
    expect(thresholds.paysForTheWay('i8', 1e6)).toBe(false);
  });
});

describe('what is kept', () => {
  const profile = { v: 2, key: 'Some GPU', measuredAt: '2026-11-26T00:00:00.000Z', ...MEASURED } as const;

  test('comes back as it was', () => {
    expect(decodeThresholdProfile(encodeThresholdProfile(profile), 'Some GPU')).toEqual({ profile });
  });

  test.each([
    ['of another machine', encodeThresholdProfile(profile), /^it is of Some GPU, not of Other$/],
    ['no JSON', 'x', /^it is no profile of thresholds: the whole of it/],
    ['of version 1, with tables of times', '{"v":1,"key":"Other","tables":{}}', /^it is no profile of thresholds: v: /],
    [
      'with a threshold of 0',
      JSON.stringify({ ...profile, key: 'Other', thresholds: [{ kind: 'a', queries: 1, work: 0 }] }),
      /thresholds\.0\.work/,
    ],
  ])('one %s is not taken, and the reason is said', (_, text, reason) => {
    const found = decodeThresholdProfile(text, 'Other');
    expect('reason' in found ? found.reason : found).toMatch(reason);
  });
});
