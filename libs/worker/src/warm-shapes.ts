// The warm-up of a device that prefers few shapes: the largest of each width once, before anything is claimed. What a run teaches
// about memory and time is not learned here: a first run says nothing about either.

import { invariant, largestShapes, rowsWithin, type BatchBudget, type InferenceBackend, type Logger, type RunShape } from '@shoal/core';

export async function warmShapes(backend: InferenceBackend, budget: BatchBudget, maxTokens: number, log: Logger): Promise<void> {
  if (backend.prefersFewShapes !== true) return;
  const startedMs = performance.now();
  const shapes = largestShapes(maxTokens, (width) => rowsWithin(backend, budget, width));
  for (const shape of shapes) await Promise.all(Array.from({ length: backend.sessions ?? 1 }, () => runOnce(backend, budget, shape))); // each session once
  log.info({ shapes: shapes.length, durationMs: Math.round(performance.now() - startedMs) }, 'shapes warmed up');
}

async function runOnce(backend: InferenceBackend, budget: BatchBudget, shape: RunShape): Promise<void> {
  const slot = backend.lend();
  invariant(slot !== undefined, 'nothing else uses the device yet');
  try {
    slot.ids.fill(0, 0, shape.rows * shape.width);
    slot.lengths.fill(shape.width, 0, shape.rows);
    const result = await backend.run(slot, shape);
    if (!result.ok) budget.ranOutOfMemory(shape);
  } finally {
    backend.giveBack(slot);
  }
}
