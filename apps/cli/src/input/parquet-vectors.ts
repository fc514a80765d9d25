// Vectors out of a Parquet file, as rows for a collection: a column of lists of floats, or of bytes with a column of scales
// beside it as `shoal embed --dtype i8` writes them, and a column of ids. A page of each is held at a time. Nothing is taken
// for a vector that is none: a null, another length and what is no number are refused by their row.

import { open } from 'node:fs/promises';
import { ShoalError, fromHalves } from '@shoal/contract';
import { MODEL_KEY, modelText, soundRows, type RowBatch } from '@shoal/similarity';
import { scaleColumn } from '@shoal/worker/files/vector-form';
import type { ColumnValue, LeafPage } from '@shoal/worker/files/column-values';
import { readFooter, type Leaf, type ParquetFile, type ReadableAt } from '@shoal/worker/files/footer';
import { structsIn, textIn } from '@shoal/worker/files/thrift';
import { unreadable } from './files.ts';
import { Values, columnsText, idColumn, idOf, kindOf, wrongColumn } from '@shoal/worker/files/parquet-records';

export interface VectorColumns {
  /** Of the vectors; undefined: `embedding`, else `vector`, else the only one that is a list of floats. */
  readonly column?: string | undefined;
  /** Undefined: `id`, where there is one. */
  readonly idField?: string | undefined;
  /** False: ids are not looked at. */
  readonly withIds?: boolean;
}

/** Opens what is read: the file of this name, unless it is told otherwise. */
type Open = () => Promise<ReadableAt>;

/** Rows that are handed over at a time. */
const BATCH_ROWS = 1_024;

/** Whether the columns say that the file is one of vectors: one is called `embedding` or `vector`, or there is no `text`. */
export async function hasParquetVectors(path: string, openIt: Open = () => open(path, 'r')): Promise<boolean> {
  const { leaves } = await footerOf(path, openIt);
  const lists = leaves.filter(isList);
  if (lists.some(({ path: [name] }) => NAMES.includes(name!))) return true;
  return lists.length > 0 && !leaves.some(({ path: [name] }) => name === 'text');
}

/**
 * Rows in the order of the file, counted from 0 in messages. FILE_UNREADABLE, INPUT_INVALID, DIMENSIONS_MISMATCH or
 * VECTOR_INVALID say what is wrong and where.
 */
export async function* parquetVectors(
  path: string,
  columns: VectorColumns = {},
  openIt: Open = () => open(path, 'r'),
): AsyncGenerator<RowBatch> {
  const parquet = await footerOf(path, openIt);
  const at = vectorColumn(parquet, columns.column);
  const leaf = parquet.leaves[at]!;
  const scale = scalesOf(parquet, leaf);
  const id = columns.withIds === false ? undefined : idColumn(parquet, columns.idField);
  const model = modelText(noteOf(parquet, MODEL_KEY));
  const { columnPages, columnValues } = await import('@shoal/worker/files/column-values');
  const file = await openIt();
  try {
    const rows = new Rows(path, leaf);
    const emptied = async (sources: Sources): Promise<RowBatch> => ({
      ...(await rows.take(parquet, sources)),
      ...(model === undefined ? {} : { model }),
    });
    let end = 0;
    for (const group of parquet.groups) {
      const valuesOf = (column: number | undefined): Values | undefined =>
        column === undefined
          ? undefined
          : new Values(columnValues(file, path, parquet.leaves[column]!, group.chunks[column]!));
      const sources = { ids: valuesOf(id), id, idField: columns.idField, scales: valuesOf(scale), scale };
      for await (const page of columnPages(file, path, leaf, group.chunks[at]!)) {
        for (const _ of rows.add(page)) if (rows.ready >= BATCH_ROWS) yield await emptied(sources);
      }
      rows.close();
      end += group.rows;
      if (rows.seen !== end)
        throw wrongColumn(path, `the column "${leaf.path[0]}" has ${rows.seen} rows of ${end}; the file is damaged`);
      if (rows.ready > 0) yield await emptied(sources);
    }
  } finally {
    await file.close();
  }
}

async function footerOf(path: string, openIt: Open): Promise<ParquetFile> {
  let file: ReadableAt | undefined;
  try {
    file = await openIt();
    return await readFooter(file, path);
  } catch (error) {
    throw error instanceof ShoalError ? error : unreadable(path, error);
  } finally {
    await file?.close();
  }
}

const NAMES = ['embedding', 'vector'];

/** A column at the top that is a list of values. */
function isList({ path, repeated, physical, meaning }: Leaf, _at: number, leaves: readonly Leaf[]): boolean {
  if (repeated !== 1 || leaves.filter((other) => other.path[0] === path[0]).length !== 1) return false;
  if (physical === 'FLOAT' || physical === 'DOUBLE') return true;
  if (physical === 'FIXED_LEN_BYTE_ARRAY') return meaning === 'float16';
  return (
    physical === 'INT32' && meaning === 'integer' && leaves.some(({ path: [name] }) => name === scaleColumn(path[0]!))
  );
}

function vectorColumn(parquet: ParquetFile, asked: string | undefined): number {
  const { leaves, name } = parquet;
  const lists = leaves.flatMap((leaf, at) => (isList(leaf, at, leaves) ? [at] : []));
  const nameAt = (at: number): string => leaves[at]!.path[0]!;
  for (const wanted of asked === undefined ? NAMES : [asked]) {
    const found = lists.find((at) => nameAt(at) === wanted);
    if (found !== undefined) return found;
    const other = leaves.find(({ path }) => path[0] === wanted);
    if (other !== undefined) throw noVectors(name, wanted, other);
  }
  if (asked !== undefined)
    throw wrongColumn(
      name,
      `the file has no column "${asked}" (it has ${columnsText(parquet)}); name it with --column`,
    );
  if (lists.length === 1) return lists[0]!;
  throw wrongColumn(
    name,
    lists.length === 0
      ? `none of its columns is a list of floats (it has ${columnsText(parquet)})`
      : `${lists.length} of its columns are lists of floats and none is called "embedding" or "vector": say which one ` +
          `with --column ${lists.map(nameAt).join(' or --column ')}`,
  );
}

function noVectors(name: string, column: string, leaf: Leaf): ShoalError<'INPUT_INVALID'> {
  const isBytes = leaf.physical === 'INT32' && leaf.repeated === 1;
  return wrongColumn(
    name,
    `the column "${column}" holds ${'lists of '.repeat(leaf.repeated)}${kindOf(leaf)}, and vectors are lists of ` +
      `float16, float32 or float64${
        isBytes ? `, or of bytes with their scales in a column "${scaleColumn(column)}"; bits are not compared` : ''
      }; --column names another column`,
  );
}

/** Of bytes; they have to be there. */
function scalesOf({ leaves, name }: ParquetFile, { physical, path: [column] }: Leaf): number | undefined {
  if (physical !== 'INT32') return undefined;
  const at = leaves.findIndex(({ path }) => path.join('.') === scaleColumn(column!));
  const leaf = leaves[at];
  if (leaf?.repeated === 0 && (leaf.physical === 'FLOAT' || leaf.physical === 'DOUBLE')) return at;
  throw wrongColumn(name, `the column "${scaleColumn(column!)}" holds no scales (numbers) of "${column}"`);
}

function noteOf({ footer }: ParquetFile, key: string): string | undefined {
  const note = (structsIn(footer, 5) ?? []).find((one) => textIn(one, 1) === key);
  return note === undefined ? undefined : textIn(note, 2);
}

interface Sources {
  readonly ids: Values | undefined;
  readonly id: number | undefined;
  readonly idField: string | undefined;
  readonly scales: Values | undefined;
  readonly scale: number | undefined;
}

/** Vectors that are being put together of values and levels. */
class Rows {
  readonly #path: string;
  readonly #leaf: Leaf;
  /** From this level on there is an element in the list. */
  readonly #elementLevel: number;
  #dims: number | undefined;
  /** Of rows that are whole, and of the one that has begun. */
  #values: number[] = [];
  #begun = 0;
  #isOpen = false;
  /** Rows that were handed over. */
  #given = 0;
  /** Whole rows that wait. */
  ready = 0;

  constructor(path: string, leaf: Leaf) {
    this.#path = path;
    this.#leaf = leaf;
    const until = leaf.repetitions.indexOf('repeated') + 1;
    this.#elementLevel = leaf.repetitions.slice(0, until).filter((one) => one !== 'required').length;
  }

  /** Whole rows so far. */
  get seen(): number {
    return this.#given + this.ready;
  }

  /** Yields after each row that has become whole; the last one of a page may go on in the next. */
  *add({ count, definitionLevels, repetitionLevels, valueAt }: LeafPage): Generator<void> {
    const present = this.#leaf.optional;
    let next = 0;
    for (let at = 0; at < count; at++) {
      if (repetitionLevels[at] === 0) {
        const isWhole = this.#isOpen;
        this.close();
        this.#isOpen = true;
        if (isWhole) yield;
      }
      const level = definitionLevels.length === 0 ? present : definitionLevels[at]!;
      if (level !== present) throw this.#none(level);
      this.#values.push(this.#numberOf(valueAt(next++)));
      this.#begun++;
    }
  }

  /** The row that has begun is whole. */
  close(): void {
    if (!this.#isOpen) return;
    this.#dims ??= this.#begun;
    if (this.#begun !== this.#dims)
      throw new ShoalError(
        'DIMENSIONS_MISMATCH',
        `${this.#path}, row ${this.seen}: the vector has ${this.#begun} dimensions and those before it ${this.#dims}`,
        { file: this.#path, row: this.seen },
      );
    this.ready++;
    this.#begun = 0;
    this.#isOpen = false;
  }

  /** The whole rows that wait; what has begun behind them stays. */
  async take(parquet: ParquetFile, sources: Sources): Promise<RowBatch> {
    const [rows, dims, first] = [this.ready, this.#dims!, this.#given];
    const values = Float64Array.from(this.#values.slice(0, rows * dims));
    this.#values = this.#values.slice(rows * dims);
    this.#given += rows;
    this.ready = 0;
    const names: string[] = [];
    for (let row = 0; row < rows; row++) {
      if (sources.scales !== undefined) {
        const scale = await nextOf(sources.scales, parquet, sources.scale!);
        if (typeof scale !== 'number') throw wrongColumn(this.#path, `row ${first + row} has no scale (null)`);
        for (let at = row * dims; at < (row + 1) * dims; at++) values[at]! *= scale;
      }
      if (sources.ids === undefined) continue;
      const leaf = parquet.leaves[sources.id!]!;
      const named = idOf(await nextOf(sources.ids, parquet, sources.id!), leaf, sources.idField);
      if ('problem' in named) throw wrongColumn(this.#path, `row ${first + row}: ${named.problem}`);
      names.push(named.id === undefined ? '' : String(named.id));
    }
    const vectors = soundRows(this.#path, values, dims, first);
    return { dims, vectors, ...(sources.ids === undefined ? {} : { names }) };
  }

  #none(level: number): ShoalError<'INPUT_INVALID'> {
    const column = this.#leaf.path[0]!;
    return wrongColumn(
      this.#path,
      level >= this.#elementLevel
        ? `row ${this.seen} has no number (null) at dimension ${this.#begun} of its column "${column}"`
        : level === this.#elementLevel - 1
          ? `row ${this.seen} has a vector of no values in its column "${column}"`
          : `row ${this.seen} has no vector (null) in its column "${column}"`,
    );
  }

  #numberOf(value: ColumnValue): number {
    if (typeof value === 'number') return value;
    if (value instanceof Uint8Array && value.length === 2)
      return fromHalves(Uint16Array.of(value[0]! | (value[1]! << 8)))[0]!;
    throw wrongColumn(this.#path, `row ${this.seen}: its column "${this.#leaf.path[0]}" is damaged`);
  }
}

async function nextOf(values: Values, parquet: ParquetFile, column: number): Promise<ColumnValue> {
  if (values.isUsedUp) await values.more(parquet, column);
  return values.next();
}
