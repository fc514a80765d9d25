// The memory law of one graph on a GPU, by the runtime's own statistics: a few shapes, each in a session to itself.
// Takes a session's opening for each shape; for before the first claim or for `shoal tune`, never beside the work.

import { fitMemoryModel, type MemoryLaw, type RunShape } from '@shoal/core';
import { probeArena, type OrtBackendOptions } from '@shoal/inference';

/**
 * Bends of bytes per token over the width; at the narrowest and the widest also few rows, for what a run takes whatever
 * its shape.
 */
const PARTS = [1 / 32, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1] as const;
const FEW = 1 / 16;
/** In a second run tensors come to lie in the regions of the first, and may need another. */
const RUNS = 2;

/** `tokens`: of the larger shapes. */
export function arenaShapes({ maxWidth, tokens }: { readonly maxWidth: number; readonly tokens: number }): RunShape[] {
  const shape = (part: number, most: number): RunShape => {
    const width = Math.max(8, Math.round((maxWidth * part) / 8) * 8);
    return { rows: Math.max(1, Math.floor(most / width)), width };
  };
  return [
    { rows: 1, width: 8 },
    shape(PARTS[0], tokens * FEW),
    shape(1, tokens * FEW),
    ...PARTS.map((part) => shape(part, tokens)),
  ];
}

/** `loadedBytes` of the law are the weights alone. Throws what the runtime says of a shape that does not run. */
export async function measureArena(
  backend: Pick<OrtBackendOptions, 'graphPath' | 'provider' | 'threads' | 'dims'>,
  shapes: readonly RunShape[],
): Promise<MemoryLaw> {
  const { graphPath, provider = 'cpu', threads, dims } = backend;
  const points = [];
  for (const shape of shapes) points.push(await probeArena({ graphPath, provider, threads, dims }, shape, RUNS));
  return fitMemoryModel(points, { arena: 'requested' });
}
