// What a Parquet file says of itself at its end: its columns and where the chunks of its row groups lie. Read without a
// library, because the parts that this version does not know have to be written again as they were (carried-rows.ts).
// Everything that would fail later is refused here by name. https://parquet.apache.org/docs/file-format/

import { ShoalError } from '@shoal/contract';
import { ThriftProblem, listIn, numberIn, readStruct, structIn, structsIn, textIn, type Struct } from './thrift.ts';

export const MAGIC = Buffer.from('PAR1');
const ENCRYPTED_MAGIC = 'PARE';
/** Behind the footer: its length and the magic. */
export const TRAILER_BYTES = 8;
/** Of 10,000 row groups of 100 columns. */
const MOST_FOOTER_BYTES = 512 * 1024 * 1024;

/** A file that is read at places: one of this machine, or an object of a store. */
export interface ReadableAt {
  stat(): Promise<{ readonly size: number }>;
  read(into: Uint8Array, offset: number, length: number, position: number): Promise<{ readonly bytesRead: number }>;
  close(): Promise<void>;
}

/** Physical types by their numbers. */
export const PHYSICAL = [
  'BOOLEAN',
  'INT32',
  'INT64',
  'INT96',
  'FLOAT',
  'DOUBLE',
  'BYTE_ARRAY',
  'FIXED_LEN_BYTE_ARRAY',
] as const;
export type Physical = (typeof PHYSICAL)[number];
const CODECS = ['UNCOMPRESSED', 'SNAPPY', 'GZIP', 'LZO', 'BROTLI', 'LZ4', 'ZSTD', 'LZ4_RAW'] as const;
export type Codec = (typeof CODECS)[number];
export const REPETITION = { required: 0, optional: 1, repeated: 2 } as const;
export type Repetition = keyof typeof REPETITION;

/** A column of values: a leaf of the schema. */
export interface Leaf {
  /** Names from the top; a column that is not nested has one. */
  readonly path: readonly string[];
  readonly physical: Physical;
  readonly typeLength: number;
  /** As the format has it (LogicalType, or ConvertedType of older writers), for a person. */
  readonly meaning: string | undefined;
  readonly isUnsigned: boolean;
  /** Optional fields on the way to it, and repeated ones. */
  readonly optional: number;
  readonly repeated: number;
  /** Whether each name of the path has to be there, may be, or may be there several times. */
  readonly repetitions: readonly Repetition[];
}

export interface Chunk {
  readonly codec: Codec | undefined;
  /** Where its pages begin, and their bytes. */
  readonly at: number;
  readonly bytes: number;
  readonly values: number;
}

export interface RowGroup {
  readonly rows: number;
  /** One for each leaf. */
  readonly chunks: readonly Chunk[];
}

export interface ParquetFile {
  /** As it is called in messages. */
  readonly name: string;
  readonly bytes: number;
  readonly rows: number;
  readonly leaves: readonly Leaf[];
  readonly groups: readonly RowGroup[];
  /** The footer as it is. */
  readonly footer: Struct;
}

/** The footer of a file; FILE_UNREADABLE says what is wrong with it. */
export async function readFooter(file: ReadableAt, name: string): Promise<ParquetFile> {
  const { size } = await file.stat();
  const head = await readAt(file, 0, MAGIC.length);
  const trailer = await readAt(file, Math.max(0, size - TRAILER_BYTES), TRAILER_BYTES);
  const magic = trailer.subarray(4).toString('latin1');
  if (magic === ENCRYPTED_MAGIC || head.toString('latin1') === ENCRYPTED_MAGIC) throw encrypted(name);
  if (!head.equals(MAGIC)) throw refused(name, 'it is no Parquet file: it does not begin with PAR1');
  if (size < MAGIC.length + TRAILER_BYTES || magic !== 'PAR1')
    throw refused(
      name,
      'the Parquet file is cut: it ends without the footer that says where its columns are. Copy or write it again',
    );
  const footerBytes = trailer.readUInt32LE(0);
  if (footerBytes > size - MAGIC.length - TRAILER_BYTES || footerBytes > MOST_FOOTER_BYTES)
    throw refused(name, `the Parquet file is damaged: its footer would have ${footerBytes} bytes of ${size}`);
  try {
    const { struct } = readStruct(await readAt(file, size - TRAILER_BYTES - footerBytes, footerBytes));
    return described(struct, name, size);
  } catch (error) {
    if (!(error instanceof ThriftProblem)) throw error;
    throw refused(name, `the footer of the Parquet file is damaged: ${error.message}`);
  }
}

function described(footer: Struct, name: string, size: number): ParquetFile {
  // encryption with a footer that all may read
  if (footer.has(8)) throw encrypted(name);
  const elements = structsIn(footer, 2) ?? [];
  const leaves = leavesOf(elements);
  const groups = (listIn(footer, 4)?.length === 0 ? [] : structsIn(footer, 4))?.map((group) =>
    groupOf(group, leaves, name, size),
  );
  const rows = numberIn(footer, 3);
  if (groups === undefined || rows === undefined || rows !== groups.reduce((sum, group) => sum + group.rows, 0))
    throw new ThriftProblem('its rows are not those of its row groups');
  return { name, bytes: size, rows, leaves, groups, footer };
}

function leavesOf(elements: readonly Struct[]): readonly Leaf[] {
  const leaves: Leaf[] = [];
  let at = 1;
  const walk = (path: readonly string[], above: readonly Repetition[]): void => {
    const element = elements[at++];
    const own = element === undefined ? undefined : textIn(element, 4);
    if (element === undefined || own === undefined || path.length > 64)
      throw new ThriftProblem('its schema is incomplete');
    const number = numberIn(element, 3) ?? REPETITION.required;
    const repetition = (['required', 'optional', 'repeated'] as const)[number];
    if (repetition === undefined) throw new ThriftProblem('its schema is damaged');
    const repetitions = [...above, repetition];
    const here = {
      path: [...path, own],
      repetitions,
      // a repeated field may also be empty, which is a level as well
      optional: repetitions.filter((one) => one !== 'required').length,
      repeated: repetitions.filter((one) => one === 'repeated').length,
    };
    const children = numberIn(element, 5) ?? 0;
    if (children > 0) {
      for (let child = 0; child < children; child++) walk(here.path, here.repetitions);
      return;
    }
    const physical = PHYSICAL[numberIn(element, 1) ?? -1];
    if (physical === undefined)
      throw new ThriftProblem(`its column "${here.path.join('.')}" has no type that is known`);
    leaves.push({ ...here, physical, typeLength: numberIn(element, 2) ?? 0, ...meaningOf(element) });
  };
  const root = elements[0];
  if (root === undefined) throw new ThriftProblem('it has no schema');
  for (let child = numberIn(root, 5) ?? 0; child > 0; child--) walk([], []);
  if (at !== elements.length) throw new ThriftProblem('its schema has more than its columns');
  return leaves;
}

const LOGICAL: Readonly<Record<number, string>> = {
  1: 'string',
  2: 'map',
  3: 'list',
  4: 'enum',
  5: 'decimal',
  6: 'date',
  7: 'time',
  8: 'timestamp',
  10: 'integer',
  11: 'null',
  12: 'json',
  13: 'bson',
  14: 'uuid',
  15: 'float16',
  16: 'variant',
  17: 'geometry',
  18: 'geography',
};
const CONVERTED = [
  'string',
  'map',
  'map',
  'list',
  'enum',
  'decimal',
  'date',
  'time',
  'time',
  'timestamp',
  'timestamp',
  'integer',
  'integer',
  'integer',
  'integer',
  'integer',
  'integer',
  'integer',
  'integer',
  'json',
  'bson',
  'interval',
] as const;
/** UINT_8 to UINT_64 among converted types. */
const UNSIGNED = { first: 11, last: 14 };

function meaningOf(element: Struct): Pick<Leaf, 'meaning' | 'isUnsigned'> {
  const logical = structIn(element, 10);
  const [number] = logical === undefined ? [] : [...logical.keys()];
  const converted = numberIn(element, 6);
  const isUnsigned =
    number === 10
      ? structIn(logical!, 10)?.get(2)?.value === false
      : converted !== undefined && converted >= UNSIGNED.first && converted <= UNSIGNED.last;
  return {
    meaning:
      (number === undefined ? undefined : LOGICAL[number]) ??
      (converted === undefined ? undefined : CONVERTED[converted]),
    isUnsigned,
  };
}

function groupOf(group: Struct, leaves: readonly Leaf[], name: string, size: number): RowGroup {
  const columns = structsIn(group, 1) ?? [];
  const rows = numberIn(group, 3);
  if (rows === undefined || rows < 0 || columns.length !== leaves.length)
    throw new ThriftProblem('a row group has not the columns of the schema');
  const chunks = columns.map((column, at) => chunkOf(column, leaves[at]!, { name, size, rows }));
  const wrong = leaves.findIndex(({ repeated }, at) => repeated === 0 && chunks[at]!.values !== rows);
  if (wrong !== -1) throw new ThriftProblem(`its column "${leaves[wrong]!.path.join('.')}" has not a value a row`);
  return { rows, chunks };
}

function chunkOf(
  column: Struct,
  { path }: Leaf,
  { name, size, rows }: { readonly name: string; readonly size: number; readonly rows: number },
): Chunk {
  if (column.has(8) || column.has(9)) throw encrypted(name, path.join('.'));
  if (column.has(1)) throw refused(name, `its column "${path.join('.')}" lies in another file, which is not read`);
  // of no rows, pyarrow and others name a place where nothing lies
  if (rows === 0) return { codec: CODECS[0], at: MAGIC.length, bytes: 0, values: 0 };
  const facts = structIn(column, 3);
  const [values, bytes, data] = [5, 7, 9].map((field) => (facts === undefined ? undefined : numberIn(facts, field)));
  if (facts === undefined || values === undefined || bytes === undefined || data === undefined)
    throw new ThriftProblem(`its column "${path.join('.')}" has no place`);
  const dictionary = numberIn(facts, 11);
  const at = dictionary !== undefined && dictionary >= MAGIC.length && dictionary < data ? dictionary : data;
  if (values < 0 || bytes < 0 || at < MAGIC.length || at + bytes > size)
    throw new ThriftProblem(`its column "${path.join('.')}" would lie outside of the file`);
  return { codec: CODECS[numberIn(facts, 4) ?? 0], at, bytes, values };
}

/** So many bytes from a place; fewer where the file ends. */
export async function readAt(file: ReadableAt, at: number, bytes: number): Promise<Buffer> {
  const into = Buffer.alloc(bytes);
  let read = 0;
  while (read < bytes) {
    const { bytesRead } = await file.read(into, read, bytes - read, at + read);
    if (bytesRead === 0) break;
    read += bytesRead;
  }
  return into.subarray(0, read);
}

/** FILE_UNREADABLE about this file. */
export function refused(name: string, problem: string, cause?: unknown): ShoalError<'FILE_UNREADABLE'> {
  return new ShoalError('FILE_UNREADABLE', `${name}: ${problem}`, { file: name }, cause);
}

function encrypted(name: string, column?: string): ShoalError<'FILE_UNREADABLE'> {
  const what =
    column === undefined ? 'the Parquet file is encrypted' : `the column "${column}" of the Parquet file is encrypted`;
  return refused(name, `${what}, and no key can be given; write it without encryption`);
}
