import { expect, test } from 'vitest';
import { RunTimeModel } from './run-time-model.ts';

/** 2,500 tokens' worth of time for every run, 8 million tokens a second, attention a little more. */
const truth = ({ rows, width }: { rows: number; width: number }): number =>
  0.3 + rows * width * (0.000_12 + 0.000_000_05 * width);

function learnedFrom(shapes: readonly { rows: number; width: number }[], ms: typeof truth = truth): RunTimeModel {
  const model = new RunTimeModel();
  for (let i = 0; i < 8; i++) for (const shape of shapes) model.add(shape, ms(shape));
  return model;
}

const MIXED = [
  { rows: 8, width: 64 },
  { rows: 64, width: 64 },
  { rows: 256, width: 32 },
  { rows: 16, width: 512 },
  { rows: 128, width: 256 },
];

test('what runs took is what the next is said to take, of sizes not seen as well', () => {
  const model = learnedFrom(MIXED);
  for (const shape of [...MIXED, { rows: 512, width: 128 }])
    expect(model.predictMs(shape)).toBeCloseTo(truth(shape), 3);
});

test('as many rows are done within a time as are said', () => {
  const model = learnedFrom(MIXED);
  const rows = model.rowsWithin(5, 128)!;
  expect(truth({ rows, width: 128 })).toBeLessThanOrEqual(5);
  expect(truth({ rows: rows + 1, width: 128 })).toBeGreaterThan(5);
});

test('nothing is said from one size, and the next size to try is twice as large', () => {
  const model = learnedFrom([{ rows: 64, width: 64 }]);
  expect(model.predictMs({ rows: 1, width: 8 })).toBeUndefined();
  expect(model.rowsWithin(5, 8)).toBeUndefined();
  expect(model.kneeTokens(1_000)).toBe(8_192);
});

test('the knee is where every run’s own cost is 3 % of it', () => {
  const sizes = [4, 8, 16, 32, 64, 128].map((rows) => ({ rows: rows * 8, width: 128 }));
  const knee = learnedFrom(sizes).kneeTokens(1_000);
  expect(0.3 / truth({ rows: knee / 128, width: 128 })).toBeCloseTo(0.03, 2);
});

test('a size that is dearer per token than a smaller one is beyond the knee', () => {
  const sizes = [4, 8, 16, 32, 64, 128].map((rows) => ({ rows: rows * 8, width: 128 }));
  const model = learnedFrom(sizes, (shape) => truth(shape) * (shape.rows > 256 ? 1.1 : 1));
  expect(model.kneeTokens(1_000)).toBeLessThan(512 * 128);
});

test('a device without a cost for every run has its knee where it was asked to begin, or lower', () => {
  const model = learnedFrom(MIXED, ({ rows, width }) => rows * width * 0.1);
  expect(model.kneeTokens(1_024)).toBeLessThanOrEqual(1_024);
});
