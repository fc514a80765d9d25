import { expect, test } from 'vitest';
import { noMetrics, type Metrics } from '../ports/metrics.ts';
import { LoadMeter } from './load-meter.ts';
import { lengthClassOf } from '../fleet/worker-facts.ts';

function run(metrics: Metrics, width: number, tokens: number, runMs: number): void {
  metrics.microBatchRan({ rows: Math.ceil(tokens / width), width, tokens, runMs, duplicates: 0, poolAgeMs: 0 });
}

test('rates and mix are told by length, and everything is passed on', () => {
  const meter = new LoadMeter();
  const passed: string[] = [];
  const metrics = meter.tap({
    ...noMetrics,
    microBatchRan: ({ width }) => passed.push(`ran ${width}`),
    inFlight: (claims) => passed.push(`flight ${claims}`),
  });
  expect(meter.load()).toEqual({ rates: {}, mix: {}, claims: 0, poolTokens: 0, tokensPerJob: undefined });
  metrics.inFlight(3, 500);
  run(metrics, 16, 1_000, 10);
  run(metrics, 256, 1_000, 40);
  metrics.jobSettled({ outcome: 'complete', code: undefined, rows: 4 });
  metrics.jobSettled({ outcome: 'complete', code: undefined, rows: 0 }); // its child ran elsewhere
  const { rates, mix, claims, poolTokens, tokensPerJob } = meter.load();
  expect({ claims, poolTokens }).toEqual({ claims: 3, poolTokens: 500 });
  expect(rates.short).toBeCloseTo(100_000);
  expect(rates.long).toBeCloseTo(25_000);
  expect(rates.medium).toBeUndefined();
  expect(mix.short! + mix.long!).toBeCloseTo(1);
  expect(tokensPerJob).toBeCloseTo(2_000, -1);
  expect(passed).toEqual(['flight 3', 'ran 16', 'ran 256']);
});

test('runs of one row at an idle device do not hide what it can do', () => {
  const meter = new LoadMeter();
  const metrics = meter.tap(noMetrics);
  for (let i = 0; i < 20; i++) run(metrics, 64, 64_000, 10);
  for (let i = 0; i < 2_000; i++) run(metrics, 64, 20, 3);
  expect(meter.load().rates.medium).toBeGreaterThan(0.9 * 6_400_000);
});

test('a device that became slower is seen as slower', () => {
  const meter = new LoadMeter();
  const metrics = meter.tap(noMetrics);
  for (let i = 0; i < 200; i++) run(metrics, 64, 8_000, 100);
  for (let i = 0; i < 300; i++) run(metrics, 64, 8_000, 200);
  expect(meter.load().rates.medium).toBeLessThan(44_000);
});

test('lengths are told by the width of a run', () => {
  expect([8, 32, 40, 128, 136, 512].map(lengthClassOf)).toEqual(['short', 'short', 'medium', 'medium', 'long', 'long']);
});
