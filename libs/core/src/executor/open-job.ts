// A job as the executor holds it from fill to commit, and its rows. Data only; executor.ts moves it along.

import type { JobOrder } from '../protocol.ts';
import type { PoolRow } from './buckets.ts';

export interface OpenJob {
  readonly order: JobOrder;
  readonly fingerprint: string;
  /** What was read for it, in which ids of its rows may lie; undefined where nothing was. */
  readonly input: Buffer | undefined;
  readonly vectors: Float32Array;
  readonly rows: number;
  readonly tokens: number;
  readonly truncated: number;
  /** By the executor's clock; infinite for a job without a deadline. */
  readonly deadlineMs: number;
  /** Rows whose vector is not there yet. */
  left: number;
  /** Of these, the rows that are not at the device. */
  waiting: number;
  splits: number;
  runMs: number;
  isBegun: boolean;
  isDropped: boolean;
}

export interface Row extends PoolRow {
  readonly job: OpenJob;
  readonly index: number;
  readonly ids: ArrayLike<number>;
  /** Rows with the same ids that met this one in a cut: its vector is theirs. */
  twins: Row[];
}

/** Every row that gets the vector of one run row: itself, and its twins. */
export function familyOf(row: Row): readonly Row[] {
  return row.twins.length === 0 ? [row] : [row, ...row.twins];
}

/** Whether anybody still waits for this row's vector. */
export function isWanted(row: Row): boolean {
  return !row.job.isDropped || row.twins.some((twin) => !twin.job.isDropped);
}

/** The jobs that have a row in these, each once. */
export function jobsOf(rows: readonly Row[]): Set<OpenJob> {
  const jobs = new Set<OpenJob>();
  for (const row of rows) {
    jobs.add(row.job);
    for (const twin of row.twins) jobs.add(twin.job);
  }
  return jobs;
}
