// Similarity jobs that wait to run, by what they ask for: jobs with the same request to the same rows run in one call
// of the kernels. Interactive jobs first, then whoever came first; how many rows may run together is the caller's
// to say. Knows no device.

import type { SimilarityRequest } from '@shoal/contract';
import type { Work } from './fill.ts';

export interface PooledJob {
  readonly order: {
    readonly jobId: string;
    readonly class: 'interactive' | 'bulk';
    readonly request: SimilarityRequest;
  };
  /** What it is compared with: of two jobs that name the same, one may have a newer version, or what replaced it. */
  readonly work: Work;
  /** Queries, or sets of seeds. */
  readonly rows: number;
  readonly enteredMs: number;
  /** It ran together with others and the call failed: it runs by itself. */
  isAlone: boolean;
}

/** Longer than any clock runs: whoever is interactive entered before everybody who is not. */
const BULK_LATER_MS = 1e12;

export class SimilarityPool<Job extends PooledJob> {
  private readonly groups = new Map<string, Job[]>();
  private waitingRows = 0;

  get rows(): number {
    return this.waitingRows;
  }

  oldestMs(): number | undefined {
    const all = [...this.groups.values()].map(([first]) => first!.enteredMs);
    return all.length === 0 ? undefined : Math.min(...all);
  }

  add(job: Job): void {
    const key = groupOf(job);
    const group = this.groups.get(key);
    if (group === undefined) this.groups.set(key, [job]);
    else group.push(job);
    this.waitingRows += job.rows;
  }

  remove(jobs: readonly Job[]): void {
    for (const job of jobs) {
      const key = groupOf(job);
      const group = this.groups.get(key);
      if (group?.includes(job) !== true) continue;
      this.keep(
        key,
        group.filter((other) => other !== job),
      );
      this.waitingRows -= job.rows;
    }
  }

  /** The jobs that run next, at least one and together at most `most(request)` rows; undefined when none waits. */
  cut(most: (job: Job) => number): Job[] | undefined {
    const next = this.next();
    if (next === undefined) return undefined;
    const [key, group] = next;
    const line = group.toSorted((a, b) => rank(a) - rank(b)); // stable: who came first stays first
    const limit = most(line[0]!);
    const taken: Job[] = [];
    let rows = 0;
    for (const job of line) {
      if (taken.length > 0 && rows + job.rows > limit) break;
      taken.push(job);
      rows += job.rows;
    }
    const gone = new Set(taken);
    this.keep(
      key,
      group.filter((job) => !gone.has(job)),
    );
    this.waitingRows -= rows;
    return taken;
  }

  private next(): [string, Job[]] | undefined {
    let best: [string, Job[]] | undefined;
    let bestPlace = Number.POSITIVE_INFINITY;
    for (const [key, group] of this.groups) {
      const first = group.find((job) => job.order.class === 'interactive') ?? group[0]!;
      const place = first.enteredMs + rank(first) * BULK_LATER_MS;
      if (place < bestPlace) [best, bestPlace] = [[key, group], place];
    }
    return best;
  }

  private keep(key: string, group: Job[]): void {
    if (group.length === 0) this.groups.delete(key);
    else this.groups.set(key, group);
  }
}

function groupOf({ order: { jobId, request }, work, isAlone }: PooledJob): string {
  if (isAlone || work.kind === 'matrix') return JSON.stringify([jobId, request]);
  return JSON.stringify([(work.kind === 'rows' ? work.collection : work.graph).number, request]);
}

function rank({ order }: PooledJob): number {
  return order.class === 'interactive' ? 0 : 1;
}
