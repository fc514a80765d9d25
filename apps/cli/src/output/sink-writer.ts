// Rows into a table, a batch at a time. The run's state lies in a hidden file of the working folder and follows what the
// table has, so that a later run goes on behind it; what the state does not know of is written again and replaces itself.
// A store that goes away is waited for, for a minute.

import { setTimeout as wait } from 'node:timers/promises';
import { ShoalError } from '@shoal/contract';
import { SinkAway, type Sink, type SinkCounts, type SinkForm, type SinkPlace, type SinkRow } from '../sinks/sink.ts';
import type { SkippedList } from './beside.ts';
import { removeLeftovers } from './partial-file.ts';
import type { Block } from '@shoal/worker/files/row-form';
import type { Abandoned, RowWriter } from './row-writer.ts';
import { CHECKPOINT_MS, writeRunState, type RunState } from './run-state.ts';
import type { FileTarget } from './target.ts';

/** 512 rows of 384 dimensions are 2.4 MB as text. */
const BATCH_ROWS = 512;
/** Before each further attempt at a store that is away. */
const PATIENCE_MS: readonly number[] = [500, 1_000, 2_000, 4_000, 8_000, 15_000, 30_000];

export interface SinkWriterOptions {
  readonly place: SinkPlace;
  readonly form: SinkForm;
  readonly target: FileTarget;
  readonly skipped: SkippedList;
  readonly isRepeatable: boolean;
  readonly signal: AbortSignal;
  /** Told each time the store is away. */
  readonly onAway: (problem: string, waitMs: number) => void;
  readonly patienceMs?: readonly number[];
}

export class SinkWriter implements RowWriter {
  readonly #options: SinkWriterOptions;
  #sink: Sink | undefined;
  #state: RunState;
  #rows: SinkRow[] = [];
  #position: number;
  #lastCheckpointMs = performance.now();
  #counts: SinkCounts = { added: 0, replaced: 0 };

  private constructor(options: SinkWriterOptions, state: RunState, sink: Sink) {
    this.#options = options;
    this.#state = state;
    this.#position = state.position;
    this.#sink = sink;
  }

  /** `goesOn`: behind the rows of an earlier run. */
  static async open(options: SinkWriterOptions, state: RunState, goesOn: boolean): Promise<SinkWriter> {
    const { place, form, target, skipped } = options;
    const sink = await place.open(form).catch(sinkGone);
    if (!goesOn) await removeLeftovers(target);
    await skipped.begin(target, goesOn);
    const writer = new SinkWriter(options, state, sink);
    await writeRunState(target.state, state);
    return writer;
  }

  get state(): RunState {
    return this.#state;
  }

  /** What became of the rows of this run. */
  get counts(): SinkCounts {
    return this.#counts;
  }

  async write({ records, dims, vectors, position }: Block): Promise<void> {
    for (const [row, { id, text }] of records.entries()) {
      this.#rows.push({ id: String(id), text, vector: vectors.subarray(row * dims, (row + 1) * dims) });
      this.#position = position - records.length + row + 1;
      if (this.#rows.length === BATCH_ROWS) await this.#flush();
    }
    // records behind the last row that failed are done with as well
    if (this.#rows.length === 0) this.#state = { ...this.#state, position };
  }

  async finish(): Promise<void> {
    await this.#flush();
    await this.#sink?.close();
    const { skipped, target } = this.#options;
    await skipped.publish(target);
    await removeLeftovers(target);
  }

  async abandon(): Promise<Abandoned> {
    const { target, isRepeatable, skipped } = this.#options;
    await this.#sink?.close();
    await skipped.settled();
    const { rows } = this.#state;
    if (rows > 0 && isRepeatable) {
      await writeRunState(target.state, this.#state).catch(() => undefined);
      return { kind: 'kept', rows, file: target.name };
    }
    await removeLeftovers(target);
    return rows === 0 ? { kind: 'nothing' } : { kind: 'ended', rows, file: target.name };
  }

  async #flush(): Promise<void> {
    if (this.#rows.length === 0) return;
    const rows = this.#rows;
    this.#rows = [];
    const { added, replaced } = await this.#written(rows);
    this.#counts = { added: this.#counts.added + added, replaced: this.#counts.replaced + replaced };
    this.#state = { ...this.#state, rows: this.#state.rows + rows.length, position: this.#position };
    if (performance.now() - this.#lastCheckpointMs < CHECKPOINT_MS) return;
    this.#lastCheckpointMs = performance.now();
    await writeRunState(this.#options.target.state, this.#state);
  }

  async #written(rows: readonly SinkRow[]): Promise<SinkCounts> {
    const { place, form, patienceMs = PATIENCE_MS, onAway, signal } = this.#options;
    for (let attempt = 0; ; attempt++) {
      try {
        this.#sink ??= await place.open({ ...form, creates: false });
        return await this.#sink.write(rows);
      } catch (error) {
        const waitMs = patienceMs[attempt];
        if (!(error instanceof SinkAway) || waitMs === undefined || signal.aborted) return sinkGone(error);
        await this.#sink?.close();
        this.#sink = undefined;
        onAway(error.message, waitMs);
        await wait(waitMs, undefined, { signal });
      }
    }
  }
}

/** What a person is told of a store that does not come back. */
export function sinkGone(error: unknown): never {
  if (!(error instanceof SinkAway)) throw error;
  throw new ShoalError(
    'FILE_UNWRITABLE',
    `${error.message}; rows that are there stay, and the same command goes on behind them`,
    {},
    error,
  );
}
