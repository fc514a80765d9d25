import { expect, test } from 'vitest';
import { assert, double, integer, property } from 'fast-check';
import {
  RunTimes,
  decodeBreakEvenProfile,
  encodeBreakEvenProfile,
  type TimeTables,
  type TimedSize,
} from './break-even.ts';

type Law = (queries: number, work: number) => number;
/** One thread, or eight where starting them pays. */
const cpuLaw: Law = (queries, work) => 0.02 + Math.min((queries * work) / 2e7, 0.05 + (queries * work) / 1.6e8);
const gpuLaw: Law = (queries, work) => 0.12 + work / 1e9 + (queries * work) / 5e10;

function table(law: Law, factor = 1): TimedSize[] {
  return [1, 8, 64].flatMap((queries) =>
    [25_000, 100_000, 400_000, 1_600_000, 6_400_000].map((work) => ({
      queries,
      work,
      ms: law(queries, work) * factor,
    })),
  );
}

function tables(): TimeTables {
  return { 'topk/f32': { cpu: table(cpuLaw), gpu: table(gpuLaw) } };
}

/** Where the laws themselves cross, by halving. */
function trueCrossing(queries: number): number {
  let [low, high] = [1, 1e10];
  while (high / low > 1.0001) {
    const middle = Math.sqrt(low * high);
    if (cpuLaw(queries, middle) < gpuLaw(queries, middle)) low = middle;
    else high = middle;
  }
  return high;
}

test('predicts what was measured, and between it within a fifth of what holds there', () => {
  const times = new RunTimes(tables());
  for (const { queries, work, ms } of table(cpuLaw))
    expect(times.predictMs('cpu', 'topk/f32', queries, work)).toBeCloseTo(ms, 9);
  assert(
    property(integer({ min: 1, max: 64 }), double({ min: 25_000, max: 6_400_000, noNaN: true }), (queries, work) => {
      expect(times.predictMs('gpu', 'topk/f32', queries, work)! / gpuLaw(queries, work)).toBeCloseTo(1, 0.7);
    }),
  );
});

test('the break-even is where the laws cross, within a fifth', () => {
  for (const { queries, work } of new RunTimes(tables()).breakEvens())
    expect(Math.abs(work! / trueCrossing(queries) - 1), `${queries} queries`).toBeLessThan(0.2);
});

test('sends small work to the CPU and large work to the GPU, and what has to be brought there first later', () => {
  const times = new RunTimes(tables());
  expect(times.faster('topk/f32', 1, 50_000)).toBe('cpu');
  expect(times.faster('topk/f32', 1, 50_000_000)).toBe('gpu');
  expect(times.faster('topk/f32', 1, 50_000_000, 10_000)).toBe('cpu');
  expect(times.faster('rescore/f32', 1, 50_000)).toBeUndefined();
  const near = trueCrossing(8);
  expect(new Set([1, 2].map(() => times.faster('topk/f32', 8, near)))).toEqual(new Set(['cpu', 'gpu']));
});

test('a side that was measured wrongly by three times is right after some hundred runs, and its error falls', () => {
  const times = new RunTimes({ 'topk/f32': { cpu: table(cpuLaw), gpu: table(gpuLaw, 3) } });
  const sizes = [
    [1, 30_000],
    [3, 500_000],
    [20, 2_000_000],
    [64, 6_000_000],
  ] as const;
  for (const [queries, work] of sizes) times.ran('gpu', 'topk/f32', queries, work, gpuLaw(queries, work));
  expect(times.error).toBeGreaterThan(1);
  for (let i = 0; i < 600; i++) {
    const [queries, work] = sizes[i % sizes.length]!;
    times.ran('gpu', 'topk/f32', queries, work, gpuLaw(queries, work));
  }
  expect(times.error).toBeLessThan(0.1);
});

test('runs of which one in twenty takes forty times as long move what is known by less than a twentieth', () => {
  const times = new RunTimes(tables());
  for (let i = 0; i < 600; i++) times.ran('cpu', 'topk/f32', 8, 400_000, cpuLaw(8, 400_000) * (i % 20 === 7 ? 40 : 1));
  expect(times.predictMs('cpu', 'topk/f32', 8, 400_000)! / cpuLaw(8, 400_000)).toBeLessThan(1.05);
});

test('one run that took a thousand times as long moves next to nothing', () => {
  const times = new RunTimes(tables());
  const before = times.predictMs('gpu', 'topk/f32', 8, 400_000)!;
  times.ran('gpu', 'topk/f32', 8, 400_000, 1_000 * before);
  expect(times.predictMs('gpu', 'topk/f32', 8, 400_000)! / before).toBeLessThan(1.2);
});

test('another type of rows begins with what is known of its computation, and learns by itself', () => {
  const times = new RunTimes(tables());
  const before = times.predictMs('cpu', 'topk/f16', 8, 400_000);
  expect(before).toBe(times.predictMs('cpu', 'topk/f32', 8, 400_000));
  for (let i = 0; i < 100; i++) times.ran('cpu', 'topk/f16', 8, 400_000, 2 * before!);
  expect(times.predictMs('cpu', 'topk/f16', 8, 400_000)! / before!).toBeGreaterThan(1.9);
  expect(times.predictMs('cpu', 'topk/f32', 8, 400_000)).toBe(before);
});

test(
  'behind all that was measured the last line goes on; a GPU that never wins has no break-even, one that always ' +
    'does has 0',
  () => {
    const times = new RunTimes(tables());
    for (const [queries, work] of [
      [64, 640_000_000],
      [640, 6_400_000],
    ] as const)
      expect(times.predictMs('gpu', 'topk/f32', queries, work)! / gpuLaw(queries, work)).toBeCloseTo(1, 6);
    const slow = new RunTimes({ 'topk/f32': { cpu: table(cpuLaw), gpu: table(cpuLaw, 2) } });
    const fast = new RunTimes({ 'topk/f32': { cpu: table(cpuLaw), gpu: table(cpuLaw, 0.5) } });
    expect([slow, fast].map((one) => one.breakEvens().map(({ work }) => work))).toEqual([
      [undefined, undefined, undefined],
      [0, 0, 0],
    ]);
  },
);

test('is stored and read back, and refused for another machine or when it is damaged', () => {
  const profile = {
    v: 1 as const,
    key: 'a GPU, a CPU',
    tables: new RunTimes(tables()).toTables(),
    measuredAt: new Date(0).toISOString(),
  };
  const text = encodeBreakEvenProfile(profile);
  expect(decodeBreakEvenProfile(text, 'a GPU, a CPU')).toEqual({ profile });
  expect(decodeBreakEvenProfile(text, 'another')).toEqual({ reason: 'it is of a GPU, a CPU, not of another' });
  expect(decodeBreakEvenProfile(text.slice(0, 40), 'a GPU, a CPU')).toHaveProperty('reason');
  expect(decodeBreakEvenProfile(text.replace('"ms":', '"ms":-'), 'a GPU, a CPU')).toHaveProperty('reason');
});
