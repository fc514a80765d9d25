// The warm-up of a device that prefers few shapes: the largest of each width once, before anything is claimed. What a
// run teaches about memory and time is not learned here, for a first run says nothing about either; that it found no
// memory is.

import { invariant } from '@shoal/contract';
import {
  fewRowsAtMost,
  fewWidths,
  rowsWithin,
  type BatchBudget,
  type InferenceBackend,
  type Logger,
  type RunShape,
} from '@shoal/core';

export async function warmShapes(
  backend: InferenceBackend,
  budget: BatchBudget,
  maxTokens: number,
  log: Logger,
): Promise<void> {
  if (backend.prefersFewShapes !== true) return;
  const startedMs = performance.now();
  const widths = fewWidths(maxTokens);
  let failures = 0;
  for (const width of widths) failures += await warmWidth(backend, budget, width);
  log.info(
    { shapes: widths.length, outOfMemory: failures, durationMs: Math.round(performance.now() - startedMs) },
    'shapes warmed up',
  );
}

/**
 * Runs the next smaller one where there is no memory for it: a budget that heard of all widths at their first size
 * would be lowered for each, 96 times on an H200 with two sessions, down to one row (2026-11). Resolves to how often
 * there was none.
 */
async function warmWidth(backend: InferenceBackend, budget: BatchBudget, width: number): Promise<number> {
  let failures = 0;
  let most = Number.POSITIVE_INFINITY;
  for (;;) {
    const rows = fewRowsAtMost(Math.min(most, rowsWithin(backend, budget, width)), width);
    const ran = await Promise.all(
      Array.from({ length: backend.sessions ?? 1 }, () => runOnce(backend, { rows, width })),
    ); // each session once
    if (ran.every(Boolean)) return failures;
    failures++;
    budget.ranOutOfMemory({ rows, width });
    if (rows === 1) return failures; // whose row it is will be told: it is handed over
    most = rows - 1;
  }
}

async function runOnce(backend: InferenceBackend, shape: RunShape): Promise<boolean> {
  const slot = backend.lend();
  invariant(slot !== undefined, 'nothing else uses the device yet');
  try {
    slot.ids.fill(0, 0, shape.rows * shape.width);
    slot.lengths.fill(shape.width, 0, shape.rows);
    return (await backend.run(slot, shape)).ok;
  } finally {
    backend.giveBack(slot);
  }
}
