// Where the processes of cells.ts run when each command thread is to have a core for itself: the other processor of its
// core stays idle. Worker and the server's other threads of a cell have a core between them, this process and the one
// that times a loop share another, and producers have the rest.

import type { Core } from '../rig/cores.ts';

export interface Places {
  /** By cell; one processor each. */
  readonly commands: readonly number[];
  /** By cell. */
  readonly workers: readonly (readonly number[])[];
  readonly producers: readonly number[];
  readonly harness: number;
  readonly clock: number;
}

/** Undefined where there are too few cores. Cells keep their order, so that neighbours in it lie near each other. */
export function placesOf(cores: readonly Core[], cells: number): Places | undefined {
  if (cores.length < 2 * cells + 2) return undefined;
  const own = Array.from({ length: cells }, (_, at) => ({ command: cores[2 * at]!, worker: cores[2 * at + 1]! }));
  const [first, ...rest] = cores.slice(2 * cells);
  return {
    commands: own.map(({ command }) => command[0]!),
    workers: own.map(({ worker }) => worker),
    producers: rest.flat(),
    harness: first!.at(-1)!,
    clock: first![0]!,
  };
}
