// Scales of the vectors of one row group, which go into the file behind all of its vectors: held until then, 4 bytes a row,
// and kept in a hidden file, where there is one, for a run that goes on. The file has a place for each row of the output
// and is never cut: what is counted of the output may be older than what is here.

import { open } from 'node:fs/promises';
import { ShoalError } from '@shoal/contract';
import { writeAt } from '@shoal/fetch';
import { writeFailure } from './write-failure.ts';

/** In the place of a row without a vector. */
const NONE = NaN;

export class ScaleSpool {
  readonly #path: string | undefined;
  #held: Float32Array[] = [];

  constructor(path: string | undefined) {
    this.#path = path;
  }

  /** Those of the rows from `row` on, in the file before this resolves; `scales` has none for rows that are null. */
  async add(row: number, scales: Float32Array, isNull: readonly boolean[]): Promise<void> {
    let next = 0;
    const all = Float32Array.from(isNull, (none) => (none ? NONE : scales[next++]!));
    this.#held.push(all);
    if (this.#path === undefined) return;
    try {
      const file = await open(this.#path, row === 0 ? 'w' : 'r+');
      try {
        await writeAt(file, new Uint8Array(all.buffer), 4 * row);
        await file.datasync();
      } finally {
        await file.close();
      }
    } catch (error) {
      throw writeFailure(this.#path, error);
    }
  }

  /** What an interrupted run kept of so many `rows` from `row` on. FILE_UNREADABLE where it is not there any more. */
  async reload(row: number, rows: number): Promise<void> {
    const all = new Float32Array(rows);
    const file = this.#path === undefined ? undefined : await open(this.#path, 'r').catch(() => undefined);
    try {
      const read = await file?.read(new Uint8Array(all.buffer), 0, all.byteLength, 4 * row);
      if (rows > 0 && read?.bytesRead !== all.byteLength)
        throw new ShoalError(
          'FILE_UNREADABLE',
          `the scales of rows that are kept (${this.#path ?? 'in no file'}) are not all there any more; put the hidden ` +
            'file back, or begin again with --fresh',
        );
    } finally {
      await file?.close();
    }
    this.#held = [all];
  }

  /** All that are held, in pages of so many rows, and holds none then. */
  *take(pageRows: number): Generator<{ readonly values: Float32Array; readonly isNull: readonly boolean[] }> {
    const held = this.#held;
    this.#held = [];
    const all = new Float32Array(held.reduce((sum, { length }) => sum + length, 0));
    let at = 0;
    for (const part of held) {
      all.set(part, at);
      at += part.length;
    }
    for (let from = 0; from < all.length; from += pageRows) {
      const page = all.subarray(from, from + pageRows);
      yield { values: page.filter((scale) => !Number.isNaN(scale)), isNull: Array.from(page, Number.isNaN) };
    }
  }
}
