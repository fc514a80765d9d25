// For tests: a store in memory, which may go away between two batches or behind one.

import { ShoalError } from '@shoal/contract';
import { SinkAway, type Sink, type SinkForm, type SinkPlace, type SinkRow } from '../sinks/sink.ts';

export class MemoryStore {
  readonly rows = new Map<string, SinkRow>();
  form: SinkForm | undefined;
  /** Writes that fail from now on: before they change anything, or when they have. */
  failing: ('before' | 'behind')[] = [];
  writes = 0;

  readonly place: SinkPlace = { name: 'memory://table', table: 'table', open: (form) => this.#open(form) };

  async #open(form: SinkForm): Promise<Sink> {
    if (form.dtype === 'i8') throw refused('there is no type for i8');
    if (this.form === undefined && !form.creates) throw refused('there is no table; --create-table');
    this.form ??= form;
    if (this.form.vectorField !== form.vectorField) throw refused(`has no column "${form.vectorField}"`);
    if (this.form.dims !== form.dims) throw refused(`the column "embedding" of it has the type ${this.form.dims}`);
    return { write: async (rows) => this.#write(rows), close: async () => undefined };
  }

  #write(rows: readonly SinkRow[]): { added: number; replaced: number } {
    this.writes++;
    const failure = this.failing.shift();
    if (failure === 'before') throw new SinkAway('memory is away');
    const before = this.rows.size;
    for (const row of rows) this.rows.set(row.id, row);
    if (failure === 'behind') throw new SinkAway('memory went away');
    const added = this.rows.size - before;
    return { added, replaced: rows.length - added };
  }
}

function refused(problem: string): ShoalError<'USAGE'> {
  return new ShoalError('USAGE', problem);
}
