// The warm-up on a device with less memory than the budget believes.

import { expect, test } from 'vitest';
import { createBudget, fewRowsAtMost, fewWidths, systemClock } from '@shoal/core';
import { FakeBackend, RecordingLogger } from '@shoal/core/testing';
import { warmShapes } from './warm-shapes.ts';

const MAX_TOKENS = 512;

/** `tokens`: of the largest run that may be cut afterwards. */
async function warmed(fitTokens: number): Promise<{ backend: FakeBackend; tokens: number; failures: number }> {
  const backend = Object.assign(
    new FakeBackend({ clock: systemClock, slotRows: 16_384, slotTokens: 65_536, runMs: () => 0 }),
    { prefersFewShapes: true, sessions: 2 },
  );
  backend.runsOutOfVramAbove({ paddedTokens: fitTokens });
  const budget = createBudget({
    maxPaddedTokens: 65_536,
    maxRows: 16_384,
    maxTokens: MAX_TOKENS,
    kneeTokens: 65_536,
    memory: {
      law: {
        loadedBytes: 50e6,
        floorBytes: 0,
        slackBytes: 0,
        perToken: [{ width: 8, bytes: 16_000 }],
        arena: 'doubling',
      },
      source: 'preset',
    },
    totalBytes: 140e9,
  });
  const log = new RecordingLogger();
  await warmShapes(backend, budget, MAX_TOKENS, log);
  const tokens = Math.max(...fewWidths(MAX_TOKENS).map((width) => width * fewRowsAtMost(budget.rowsAt(width), width)));
  return { backend, tokens, failures: Number(Reflect.get(log.lines[0]!.fields, 'outOfMemory')) };
}

test('with memory for all of them every width runs once in each session', async () => {
  const { backend, tokens, failures } = await warmed(65_536);
  expect([tokens, failures]).toEqual([65_536, 0]);
  expect(backend.runs).toHaveLength(2 * fewWidths(MAX_TOKENS).length);
});

test.each([40_000, 13_000, 2_000])(
  'with memory for %i padded tokens the largest run that may be cut comes to lie little below that, and every ' +
    'width has run',
  async (fitTokens) => {
    const { backend, tokens, failures } = await warmed(fitTokens);
    expect(tokens).toBeLessThanOrEqual(fitTokens);
    expect(tokens).toBeGreaterThan(fitTokens / 2.5);
    expect(failures).toBeLessThan(15);
    const ran = backend.runs.filter(({ rows, width }) => rows * width <= fitTokens);
    expect(new Set(ran.map(({ width }) => width)).size).toBe(fewWidths(MAX_TOKENS).length);
  },
);

test('a width of which no row fits ends the search at one row', async () => {
  const { backend, failures } = await warmed(256);
  expect(backend.runs.at(-1)).toMatchObject({ rows: 1, width: MAX_TOKENS });
  expect(failures).toBeGreaterThan(0);
});
