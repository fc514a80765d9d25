// What one run of a shape takes of the arena, by the runtime's own statistics. They only rise, so that each shape has a
// session to itself; the native binding's alone.

import { ShoalError } from '@shoal/contract';
import type { RunShape } from '@shoal/core';
import { openGraphOn, type NativeSessionOptions } from './native-line.ts';
import { nativeOrt, nativeOrtProblem } from './native-ort.ts';

export interface ArenaPoint extends RunShape {
  /** In use once the graph was open: its weights. */
  readonly loadedBytes: number;
  /** Most in use up to the end of the last run. */
  readonly peakBytes: number;
  /** What the arena had taken from the device by then. */
  readonly heldBytes: number;
}

/**
 * Throws SETUP_FAILED without the native binding, and what the runtime said when the graph does not open or the shape
 * does not run.
 */
export async function probeArena(
  { dims, ...session }: NativeSessionOptions & { readonly dims: number },
  { rows, width }: RunShape,
  runs = 1,
): Promise<ArenaPoint> {
  const addon = nativeOrt();
  if (addon === undefined)
    throw new ShoalError(
      'SETUP_FAILED',
      `only the native binding tells what an arena holds, and it is not here: ${nativeOrtProblem()}`,
    );
  const line = addon.line();
  try {
    const [graph] = await openGraphOn(addon, line, session);
    const [loadedBytes] = await addon.statistics(line, graph);
    const [ids, lengths, embeddings] = [
      new Int32Array(rows * width),
      new Int32Array(rows).fill(width),
      new Float32Array(rows * dims),
    ];
    for (let run = 0; run < runs; run++)
      await addon.run(line, graph, ids, lengths, embeddings, rows, width, dims, false, false);
    const [, peakBytes, heldBytes] = await addon.statistics(line, graph);
    return { rows, width, loadedBytes, peakBytes, heldBytes };
  } finally {
    await addon.close(line);
  }
}
