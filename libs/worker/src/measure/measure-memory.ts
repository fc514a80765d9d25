// The memory law of one graph on this device, from a few shapes run in a process of their own: about 4 s for minilm on
// 2 cores. Stores nothing and decides nothing.

import { fitMemoryModel, fitShapes, type MemoryLaw, type MemoryPoint, type RunShape } from '@shoal/core';
import { probeShapes, type ProbeOptions } from './shape-probe.ts';

export interface MeasureMemoryOptions extends Omit<ProbeOptions, 'shapes' | 'repeats' | 'arenaTokens'> {
  /** Longest row that may come, tokens. */
  readonly maxWidth: number;
}

/**
 * What an executor's own objects grow by in its first jobs, beside the tensors; the process that measures has none
 * (2026-11-22).
 */
const EXECUTOR_BYTES = 0.8e6;
/** A shape that needs hardly more than one before it shows what that one left. */
const LEAST_RISE = 1.02;

/**
 * The law of one session, however many are asked for. Throws EXECUTOR_LOST when a shape cannot be measured,
 * SETUP_FAILED when the points make no law.
 */
export async function measureMemory({ maxWidth, ...probe }: MeasureMemoryOptions): Promise<MemoryLaw> {
  const shapes = fitShapes({ maxWidth });
  const arenaTokens = Math.max(...shapes.map(({ rows, width }) => rows * width));
  const backend = { ...probe.backend, sessions: 1, ...slotsFor(shapes, probe.backend) };
  const measured = rising(await probeShapes({ ...probe, backend, shapes, repeats: 1, arenaTokens }));
  return fitMemoryModel(
    measured.map((point) => ({ ...point, peakBytes: point.peakBytes + EXECUTOR_BYTES })),
    { floorBytes: EXECUTOR_BYTES },
  );
}

type Slots = Pick<ProbeOptions['backend'], 'slotRows' | 'slotTokens'>;

/** The law is kept for executors of any limits, so slots are as large as the shapes, whatever this executor's are. */
function slotsFor(shapes: readonly RunShape[], { slotRows, slotTokens }: Slots): Slots {
  return {
    slotRows: Math.max(slotRows, ...shapes.map(({ rows }) => rows)),
    slotTokens: Math.max(slotTokens, ...shapes.map(({ rows, width }) => rows * width)),
  };
}

/** In one process a peak is a shape's own only when it is above all before it. */
function rising<Point extends MemoryPoint>(points: readonly Point[]): readonly Point[] {
  let most = 0;
  return points.filter(({ peakBytes, loadedBytes }) => {
    const isOwn = peakBytes - loadedBytes > LEAST_RISE * most;
    most = Math.max(most, peakBytes - loadedBytes);
    return isOwn;
  });
}
