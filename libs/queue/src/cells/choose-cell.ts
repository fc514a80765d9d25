// Which cell gets a job: of the first two by rendezvous hash of its id, the one that is much emptier, else the one in which
// fewer jobs of our own are open. Where that one has no workers, it is compared with what the first two that have some
// would give. Pure.
//
// Why: docs/decisions/cells.md#a-cell-is-chosen-by-the-producer-the-emptier-of-two

import { inOrder } from '../payload/payload-servers.ts';

export interface CellLoad {
  readonly name: string;
  /** Jobs that wait or run there, of everybody, and those that were sent since it was asked. */
  readonly jobs: number;
  /** Those of this process, now. Default 0. */
  readonly open?: number;
  /** Live workers that claim there. */
  readonly workers: number;
}

/** A cell without workers is passed over for any with one, unless that is a hundred times as full. */
const NO_WORKERS = 0.01;
/**
 * So much fuller is told from what was heard a moment ago. Less is not: by then all producers have run to the emptier one,
 * and it is the fuller. What a producer has open itself it knows at any time.
 */
const MUCH_FULLER = 2;

/** Undefined where there is none. */
export function chooseCell(cells: readonly CellLoad[], id: string): string | undefined {
  const byName = new Map(cells.map((cell) => [cell.name, cell]));
  const inTurn = inOrder([...byName.keys()], id).map((name) => byName.get(name)!);
  const chosen = emptierOfTwo(inTurn);
  if (chosen === undefined || chosen.workers > 0) return chosen?.name;
  const served = emptierOfTwo(inTurn.filter(({ workers }) => workers > 0));
  return served === undefined || isEmptier(chosen, served) ? chosen.name : served.name;
}

function emptierOfTwo([first, second]: readonly CellLoad[]): CellLoad | undefined {
  return first !== undefined && second !== undefined && isEmptier(second, first) ? second : first;
}

function isEmptier(one: CellLoad, other: CellLoad): boolean {
  const [wait, itsWait] = [forEachWorker(one, one.jobs), forEachWorker(other, other.jobs)];
  if (wait * MUCH_FULLER < itsWait) return true;
  if (itsWait * MUCH_FULLER < wait) return false;
  const [own, itsOwn] = [forEachWorker(one, one.open ?? 0), forEachWorker(other, other.open ?? 0)];
  return own === itsOwn ? wait < itsWait : own < itsOwn;
}

function forEachWorker({ workers }: CellLoad, jobs: number): number {
  return (jobs + 1) / Math.max(workers, NO_WORKERS);
}
