// Which cell gets a job: of the first two by rendezvous hash of its id, the emptier one. Pure.
//
// Why: docs/decisions/cells.md#a-cell-is-chosen-by-the-producer-the-emptier-of-two

import { inOrder } from '../payload/payload-servers.ts';

export interface CellLoad {
  readonly name: string;
  /** Jobs that wait or run there, and those that were sent since it was asked. */
  readonly jobs: number;
  /** Live workers that claim there. */
  readonly workers: number;
}

/** A cell without workers is passed over for any with one, unless that is a hundred times as full. */
const NO_WORKERS = 0.01;

/** Undefined where there is none. */
export function chooseCell(cells: readonly CellLoad[], id: string): string | undefined {
  const byName = new Map(cells.map((cell) => [cell.name, cell]));
  const [first, second] = inOrder([...byName.keys()], id);
  if (first === undefined || second === undefined) return first;
  return waitOf(byName.get(second)!) < waitOf(byName.get(first)!) ? second : first;
}

function waitOf({ jobs, workers }: CellLoad): number {
  return (jobs + 1) / Math.max(workers, NO_WORKERS);
}
