// The memory law of one graph on this device, from a few shapes, each run twice in a process of its own: about 5 s for
// minilm on 2 cores. Stores nothing and decides nothing.

import { fitMemoryModel, fitShapes, type MemoryLaw } from '@shoal/core';
import { probeShapes, type ProbeOptions, type ProbedShape } from './shape-probe.ts';

export interface MeasureMemoryOptions extends Omit<ProbeOptions, 'shapes' | 'repeats'> {
  /** Longest row that may come, tokens. */
  readonly maxWidth: number;
}

/** Arena memory is laid out anew in the second run of a shape: 25 % more for the widest rows of minilm; the third changes nothing. */
const REPEATS = 2;

/** Throws EXECUTOR_LOST when a shape cannot be measured, SETUP_FAILED when the points make no law. */
export async function measureMemory({ maxWidth, ...probe }: MeasureMemoryOptions): Promise<MemoryLaw> {
  const measured: ProbedShape[] = [];
  for (const shape of fitShapes({ maxWidth })) measured.push(...(await probeShapes({ ...probe, shapes: [shape], repeats: REPEATS })));
  return fitMemoryModel(measured, 'exact');
}
