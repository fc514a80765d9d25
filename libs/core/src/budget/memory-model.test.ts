import { expect, test } from 'vitest';
import { ShoalError } from '@shoal/contract';
import {
  bytesPerToken,
  fitMemoryModel,
  fitShapes,
  footprintBytes,
  incrementBytes,
  liveBytes,
  memoryLawSchema,
  neverFalling,
  type MemoryLaw,
  type MemoryPoint,
} from './memory-model.ts';
import { MEASURED } from '../testing/measured-memory.ts';

const at = (points: readonly MemoryPoint[], shapes: readonly string[]): MemoryPoint[] =>
  shapes.map((shape) => points.find((point) => `${point.rows}x${point.width}` === shape)!);
const p95 = (errors: readonly number[]): number =>
  errors.map(Math.abs).toSorted((a, b) => a - b)[Math.ceil(0.95 * errors.length) - 1]!;

test.each(Object.keys(MEASURED) as (keyof typeof MEASURED)[])(
  'fitted from 8 shapes, the law says what 41 shapes of the %s graph took: p95 within 10 % of the total and 15 ' +
    '% of the increment',
  (graph) => {
    const points = MEASURED[graph];
    const law = fitMemoryModel(at(points, ['1x8', '1x128', '4x128', '32x32', '16x256', '5x384', '1x512', '8x512']));
    expect(points).toHaveLength(41);
    expect(p95(points.map((point) => liveBytes(law, point) / point.peakBytes - 1))).toBeLessThan(0.1);
    expect(
      p95(points.map((point) => incrementBytes(law, point) / (point.peakBytes - point.loadedBytes) - 1)),
    ).toBeLessThan(0.15);
  },
);

test('a floor that is known is not looked for in the points', () => {
  const points = at(MEASURED.int8, ['32x32', '8x128', '16x256', '8x512']);
  const law = fitMemoryModel(points, { floorBytes: 1e6 });
  expect(law.floorBytes).toBe(1e6);
  expect(incrementBytes(law, { rows: 1, width: 8 })).toBeLessThan(1.5e6);
});

test('shapes to be measured begin with the smallest, and follow the model’s longest row', () => {
  expect(fitShapes({ maxWidth: 512 }).map(({ rows, width }) => `${rows}x${width}`)).toEqual([
    '16x32',
    '8x128',
    '64x32',
    '8x256',
    '5x384',
    '4x512',
  ]);
  for (const maxWidth of [8, 64, 256, 8192]) {
    const shapes = fitShapes({ maxWidth });
    expect(shapes).toHaveLength(6);
    expect(shapes.every(({ rows, width }) => rows >= 1 && width % 8 === 0 && width >= 8 && width <= maxWidth)).toBe(
      true,
    );
  }
});

test('more rows or wider rows never need less, whatever was measured', () => {
  for (const points of Object.values(MEASURED)) {
    const law = fitMemoryModel(points);
    for (let width = 8; width < 1024; width += 8) {
      expect(bytesPerToken(law, width + 8)).toBeGreaterThanOrEqual(bytesPerToken(law, width));
      expect(liveBytes(law, { rows: 9, width })).toBeGreaterThanOrEqual(liveBytes(law, { rows: 8, width }));
    }
  }
});

test('a table that falls is levelled to the mean of what falls', () => {
  const knots = [
    { width: 8, bytes: 2 },
    { width: 16, bytes: 6 },
    { width: 32, bytes: 4 },
    { width: 64, bytes: 9 },
  ];
  expect(neverFalling(knots).map((knot) => knot.bytes)).toEqual([2, 5, 5, 9]);
});

test('an arena that doubles takes the next power of two, one that was laid out before takes what is asked', () => {
  const law: MemoryLaw = {
    loadedBytes: 100,
    floorBytes: 0,
    slackBytes: 0,
    perToken: [{ width: 8, bytes: 1 }],
    arena: 'doubling',
  };
  expect(footprintBytes(law, { rows: 70, width: 8 })).toBe(100 + 1024);
  expect(footprintBytes({ ...law, arena: 'exact' }, { rows: 70, width: 8 })).toBe(100 + 560);
});

test('a law of a version before, whose arena grew as it was asked, is read as one of an arena that doubles', () => {
  const stored = {
    loadedBytes: 0,
    floorBytes: 0,
    slackBytes: 0,
    perToken: [{ width: 8, bytes: 1e6, heldRatio: 1.9 }],
    arena: 'requested',
  };
  expect(memoryLawSchema.parse(stored)).toEqual({
    ...stored,
    perToken: [{ width: 8, bytes: 1e6 }],
    arena: 'doubling',
  });
});

test('measurements that do not add up are refused with what they were', () => {
  const point = { rows: 1, width: 8, loadedBytes: 100, peakBytes: 120 };
  expect(() => fitMemoryModel([point, point])).toThrow(ShoalError);
  expect(() => fitMemoryModel([point, point, { ...point, peakBytes: 90 }])).toThrow(/"peakBytes":90/);
  expect(
    memoryLawSchema.safeParse(
      fitMemoryModel([
        point,
        { ...point, rows: 64, peakBytes: 900 },
        { ...point, rows: 8, width: 512, peakBytes: 9_000 },
      ]),
    ).success,
  ).toBe(true);
});
