// Rows of a Parquet file into records: one column is the text and one may be the id. Only these two are read; a page of
// each is held at a time. What the other columns are nobody looks at here.

import { ShoalError } from '@shoal/contract';
import type { Leaf, ParquetFile, ReadableAt } from './footer.ts';
import type { ColumnValue } from './column-values.ts';
import type { Found, RecordId, RecordOptions } from './record.ts';
import { decodeUtf8 } from './utf8.ts';

/** `onRows`: how many rows of the file are read. */
export async function* parquetRecords(
  open: () => Promise<ReadableAt>,
  parquet: ParquetFile,
  { textField = 'text', idField }: Pick<RecordOptions, 'textField' | 'idField'>,
  onRows: (rows: number) => void,
): AsyncGenerator<Found> {
  const text = textColumn(parquet, textField);
  const id = idColumn(parquet, idField);
  const { columnValues } = await import('./column-values.ts');
  const file = await open();
  try {
    let line = 0;
    for (const { rows, chunks } of parquet.groups) {
      const valuesOf = (at: number) => new Values(columnValues(file, parquet.name, parquet.leaves[at]!, chunks[at]!));
      const texts = valuesOf(text);
      const ids = id === undefined ? undefined : valuesOf(id);
      for (let row = 0; row < rows; row++) {
        if (texts.isUsedUp) await texts.more(parquet, text);
        if (ids?.isUsedUp === true) await ids.more(parquet, id!);
        const named = ids === undefined ? { id: undefined } : idOf(ids.next(), parquet.leaves[id!]!, idField);
        yield { line: ++line, ...recordOf(texts.next(), textField, named) };
        if (texts.isUsedUp) onRows(line);
      }
    }
  } finally {
    await file.close();
  }
}

/** The values of a column, one at a time. */
export class Values {
  readonly #pages: AsyncGenerator<readonly ColumnValue[]>;
  #page: readonly ColumnValue[] = [];
  #at = 0;

  constructor(pages: AsyncGenerator<readonly ColumnValue[]>) {
    this.#pages = pages;
  }

  get isUsedUp(): boolean {
    return this.#at >= this.#page.length;
  }

  async more({ name, leaves }: ParquetFile, column: number): Promise<void> {
    do {
      const { value, done } = await this.#pages.next();
      if (done === true)
        throw wrongColumn(
          name,
          `the column "${nameOf(leaves[column]!)}" has fewer values than its row group has rows; the file is damaged`,
        );
      this.#page = value;
      this.#at = 0;
    } while (this.isUsedUp);
  }

  next(): ColumnValue {
    return this.#page[this.#at++]!;
  }
}

type Named = { readonly id: RecordId | undefined } | { readonly problem: string };

function recordOf(
  value: ColumnValue,
  textField: string,
  named: Named,
): { id: RecordId | undefined; text: string } | { problem: string } {
  if (value === null) return { problem: `the text is null (column "${textField}")` };
  if (!(value instanceof Uint8Array)) return { problem: `the text is no string (column "${textField}")` };
  const decoded = decodeUtf8(Buffer.from(value.buffer, value.byteOffset, value.byteLength));
  if (!('text' in decoded))
    return { problem: `the text is not valid UTF-8 at its byte ${decoded.badByteAt} (column "${textField}")` };
  return 'problem' in named ? named : { id: named.id, text: decoded.text };
}

/** What a row is called, or why it cannot be called by this. */
export function idOf(value: ColumnValue, leaf: Leaf, idField: string | undefined): Named {
  if (value === null)
    return idField === undefined ? { id: undefined } : { problem: `the id is null (--id-field ${idField})` };
  if (value instanceof Uint8Array) {
    if (leaf.physical === 'FIXED_LEN_BYTE_ARRAY') return { id: uuidText(value) };
    const decoded = decodeUtf8(Buffer.from(value));
    return 'text' in decoded
      ? { id: decoded.text }
      : { problem: `the id is not valid UTF-8 (column "${nameOf(leaf)}")` };
  }
  if (typeof value === 'number') return { id: leaf.isUnsigned ? value >>> 0 : value };
  const whole = leaf.isUnsigned ? BigInt.asUintN(64, BigInt(value)) : BigInt(value);
  // exact in any case: a number where JSON can hold it, else its digits
  return { id: Number.isSafeInteger(Number(whole)) ? Number(whole) : String(whole) };
}

function uuidText(bytes: Uint8Array): string {
  return Buffer.from(bytes)
    .toString('hex')
    .replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

const TEXTS = new Set([undefined, 'string', 'enum', 'json']);

/** The place of the column of texts among all. */
export function textColumn(parquet: ParquetFile, field: string): number {
  const at = columnNamed(parquet, field, '--text-field');
  const leaf = parquet.leaves[at]!;
  if (leaf.physical !== 'BYTE_ARRAY' || !TEXTS.has(leaf.meaning))
    throw wrongColumn(
      parquet.name,
      `the column "${field}" holds ${kindOf(leaf)} and no strings; name a column of strings with --text-field ` +
        `(there are ${columnsText(parquet)})`,
    );
  return at;
}

/** The place of the column of ids among all; undefined where none is named and there is no `id`. */
export function idColumn(parquet: ParquetFile, field: string | undefined): number | undefined {
  if (field === undefined && !parquet.leaves.some(({ path }) => path.join('.') === 'id')) return undefined;
  const at = columnNamed(parquet, field ?? 'id', '--id-field');
  const leaf = parquet.leaves[at]!;
  const { physical, meaning } = leaf;
  const isWhole = (physical === 'INT32' || physical === 'INT64') && (meaning === undefined || meaning === 'integer');
  const isName = physical === 'BYTE_ARRAY' && TEXTS.has(meaning);
  if (isWhole || isName || (physical === 'FIXED_LEN_BYTE_ARRAY' && meaning === 'uuid')) return at;
  throw wrongColumn(
    parquet.name,
    `the column "${field ?? 'id'}" holds ${kindOf(leaf)}, and an id is a string, a whole number or a UUID; name ` +
      'another column with --id-field',
  );
}

/** The place of a leaf among all; FILE_UNREADABLE where there is none of this name, or one that is nested. */
function columnNamed(parquet: ParquetFile, field: string, flag: string): number {
  const { leaves, name } = parquet;
  const at = leaves.findIndex(({ path }) => path.join('.') === field);
  const leaf = leaves[at];
  if (leaves.slice(at + 1).some(({ path }) => path.join('.') === field))
    throw wrongColumn(name, `the file has several columns "${field}", and which is meant cannot be said; rename them`);
  if (leaf !== undefined && leaf.repeated === 0) return at;
  const below = leaves.filter(({ path }) => path[0] === field && path.length > 1);
  if (leaf !== undefined || below.length > 0) {
    const members = below.filter(({ repeated }) => repeated === 0).map((one) => `"${nameOf(one)}"`);
    const cure =
      members.length === 0
        ? 'write its texts into a column of their own'
        : `name a member: ${members.slice(0, 5).join(', ')}`;
    throw wrongColumn(
      name,
      `the column "${field}" is nested (a list, a map or a struct) and holds no texts by itself; ${cure}`,
    );
  }
  throw wrongColumn(
    name,
    `the file has no column "${field}" (it has ${columnsText(parquet)}); name the column with ${flag}`,
  );
}

/** Columns at the top, each once. */
export function columnsText({ leaves }: ParquetFile): string {
  const names = [...new Set(leaves.map(({ path }) => path[0]!))];
  return `${names
    .slice(0, 8)
    .map((name) => `"${name.slice(0, 40)}"`)
    .join(', ')}${names.length > 8 ? ', …' : ''}`;
}

function nameOf({ path }: Leaf): string {
  return path.join('.');
}

export function kindOf({ physical, meaning, isUnsigned }: Leaf): string {
  const plain = physical === 'BYTE_ARRAY' ? 'bytes' : physical.toLowerCase();
  return meaning === undefined ? plain : `${isUnsigned ? 'unsigned ' : ''}${meaning} (${plain})`;
}

export function wrongColumn(name: string, problem: string): ShoalError<'INPUT_INVALID'> {
  return new ShoalError('INPUT_INVALID', `${name}: ${problem}`, { file: name });
}
