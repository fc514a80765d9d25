// Results of jobs of several cells: a committer for each, so that none waits for the queue server of another.

import { Committer, type CommittedJob, type CommitterParts } from './commit.ts';
import type { OtherCell } from '../ports/queue.ts';

export interface CommittersParts<Job extends CommittedJob> extends Omit<CommitterParts<Job>, 'store'> {
  /** Undefined: at home. */
  readonly storeIn: (cell: OtherCell | undefined) => CommitterParts<Job>['store'];
}

export class Committers<Job extends CommittedJob> {
  private readonly parts: CommittersParts<Job>;
  /** By address and prefix; of home under nothing. */
  private readonly committers = new Map<string, Committer<Job>>();

  constructor(parts: CommittersParts<Job>) {
    this.parts = parts;
  }

  /** The commits that are under way, or undefined when there are none. */
  get busy(): Promise<unknown> | undefined {
    const busy = [...this.committers.values()].flatMap((one) => one.busy ?? []);
    return busy.length === 0 ? undefined : Promise.all(busy);
  }

  add(jobs: readonly Job[]): void {
    for (const [cell, those] of byCell(jobs, ({ order }) => order.cell)) this.committerOf(cell).add(those);
  }

  private committerOf(cell: OtherCell | undefined): Committer<Job> {
    const known = this.committers.get(placeOf(cell));
    if (known !== undefined) return known;
    const committer = new Committer<Job>({ ...this.parts, store: this.parts.storeIn(cell) });
    this.committers.set(placeOf(cell), committer);
    return committer;
  }
}

/** Those of each cell together; nothing is copied where all are of one. */
export function byCell<One>(
  all: readonly One[],
  cellOf: (one: One) => OtherCell | undefined,
): (readonly [OtherCell | undefined, readonly One[]])[] {
  const first = all.length === 0 ? undefined : cellOf(all[0]!);
  if (all.every((one) => isSame(cellOf(one), first))) return [[first, all]];
  const groups = Map.groupBy(all, (one) => placeOf(cellOf(one)));
  return [...groups.values()].map((group) => [cellOf(group[0]!), group] as const);
}

function isSame(one: OtherCell | undefined, other: OtherCell | undefined): boolean {
  return one?.address === other?.address && one?.prefix === other?.prefix;
}

function placeOf(cell: OtherCell | undefined): string {
  return cell === undefined ? '' : `${cell.prefix ?? ''} ${cell.address}`;
}
