// Where vectors go that do not become a file: a table of a store. One interface, which each store has an adapter for, and
// one suite of tests that all of them pass (sink-conformance.ts). Decides nothing about runs and how they go on.

import { ShoalError, type OutputDtype } from '@shoal/contract';

export interface SinkRow {
  readonly id: string;
  readonly text: string;
  readonly vector: Float32Array;
}

/** What rows will be like, so that a table that cannot hold them is refused before anything is computed. */
export interface SinkForm {
  readonly dims: number;
  readonly dtype: OutputDtype;
  readonly withText: boolean;
  /** The column of the vectors. */
  readonly vectorField: string;
  /** Whether a table that is not there is made. */
  readonly creates: boolean;
}

export interface Sink {
  /** Rows are there for good when it resolves. A row whose id is there already takes its place: twice is once. */
  write(rows: readonly SinkRow[]): Promise<SinkCounts>;
  close(): Promise<void>;
}

export interface SinkCounts {
  /** Rows whose ids were not there. */
  readonly added: number;
  readonly replaced: number;
}

/** A store and a table in it, before anybody connects. */
export interface SinkPlace {
  /** For messages and files: without a password. */
  readonly name: string;
  /** What files about it in the working folder are called. */
  readonly table: string;
  /** SINK_REFUSED says why rows of this form cannot go there. */
  open(form: SinkForm): Promise<Sink>;
}

/** The store went away, or cannot be reached: another attempt may succeed. */
export class SinkAway extends Error {}

/** The place that `--to` names. USAGE for what is none. */
export async function parseSink(url: string): Promise<SinkPlace> {
  if (/^postgres(?:ql)?:\/\//.test(url)) return (await import('./postgres.ts')).postgresPlace(url);
  throw new ShoalError(
    'USAGE',
    '--to takes a table of PostgreSQL: postgres://HOST/DATABASE/TABLE. Files are written with -o',
  );
}
