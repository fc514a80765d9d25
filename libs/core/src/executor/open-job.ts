// A job as the executor holds it from fill to commit, and its rows. Data, and how it begins; executor.ts moves it on.

import type { JobOrder } from '../protocol.ts';
import type { PoolRow } from './buckets.ts';
import type { Filled } from './fill.ts';

export interface OpenJob {
  readonly order: JobOrder;
  readonly fingerprint: string;
  readonly vectors: Float32Array;
  readonly rows: number;
  readonly tokens: number;
  readonly truncated: number;
  /** The deadline by the executor's clock; infinite for a job without one. */
  readonly deadlineMs: number;
  /** Rows whose vector is not there yet. */
  left: number;
  /** How many of these are not at the device. */
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
  /** Of a pair: where among the ids the second text begins. 0 of a text. */
  readonly second: number;
  /** Rows with the same ids that met this one in a cut: its vector is theirs. */
  duplicates: Row[];
}

type FilledRows = Extract<Filled, { kind: 'rows' }>;

/** A job whose input is read: none of its rows has run. `vectors` takes what they become. */
export function openJob(order: JobOrder, filled: FilledRows, arrivedMs: number, vectors: Float32Array): OpenJob {
  const { fingerprint, truncated, ids } = filled;
  return {
    order,
    fingerprint,
    vectors,
    rows: ids.length,
    tokens: ids.reduce((sum, row) => sum + row.length, 0),
    truncated,
    deadlineMs: arrivedMs + (order.remainingMs ?? Number.POSITIVE_INFINITY),
    left: ids.length,
    waiting: ids.length,
    splits: 0,
    runMs: 0,
    isBegun: false,
    isDropped: false,
  };
}

/** The rows of a job, as they enter the pool. Each field by name, because a spread is slower, and texts are many. */
export function rowsOf(job: OpenJob, { ids, seconds }: FilledRows, terms: Omit<PoolRow, 'tokens'>): Row[] {
  const { enteredMs, isInteractive, hasLead } = terms;
  return ids.map((row, index) => ({
    job,
    index,
    ids: row,
    second: seconds === undefined ? 0 : seconds[index]!,
    tokens: row.length,
    enteredMs,
    isInteractive,
    hasLead,
    duplicates: NONE,
  }));
}

const NONE: Row[] = [];

/** Every row that gets the vector of one run row: itself, and its duplicates. */
export function withDuplicates(row: Row): readonly Row[] {
  return row.duplicates.length === 0 ? [row] : [row, ...row.duplicates];
}

/** Whether anybody still waits for this row's vector. */
export function isWanted(row: Row): boolean {
  return !row.job.isDropped || row.duplicates.some(({ job }) => !job.isDropped);
}

/** The jobs that have a row in these, each once. */
export function jobsOf(rows: readonly Row[]): Set<OpenJob> {
  const jobs = new Set<OpenJob>();
  for (const row of rows) {
    jobs.add(row.job);
    for (const { job } of row.duplicates) jobs.add(job);
  }
  return jobs;
}

/** Whether somebody waits for one of these rows. */
export function hasInteractive(rows: readonly Row[]): boolean {
  return rows.some((row) => row.isInteractive || row.duplicates.some(({ isInteractive }) => isInteractive));
}
