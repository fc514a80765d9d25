// NumPy's .npy, read: a few rows at a time, numbers of every usual type, in either order. What it holds is decided by
// its header, which must be whole, and by its size, which must fit. Writing is the CLI's (libs/worker/src/files/npy.ts).
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

import { open, type FileHandle } from 'node:fs/promises';
import { rowReader } from '../engines/vectors.ts';
import { unreadable, wrongFile } from './vector-file-errors.ts';

const FLOATS = ['f2', 'f4', 'f8'] as const;
type NpyType = (typeof FLOATS)[number] | 'i4' | 'u4' | 'i8' | 'u8';
const BYTES: Readonly<Record<NpyType, number>> = { f2: 2, f4: 4, f8: 8, i4: 4, u4: 4, i8: 8, u8: 8 };

export interface NpyFile {
  readonly type: NpyType;
  readonly rows: number;
  /** 1 for an array of one dimension. */
  readonly columns: number;
  readonly dimensions: 1 | 2;
}

interface NpyLayout {
  readonly file: NpyFile;
  readonly at: number;
  /** Columns one after the other, as Fortran and transposed arrays have them. */
  readonly byColumns: boolean;
}

const ROWS_BYTES = 1 << 22;
/** NumPy's headers are 118 bytes, of structured types some thousand. */
const MOST_HEADER_BYTES = 1 << 20;

/**
 * What the header says, then the rows as numbers, some at a time. `wanted`: vectors are floats; edges may be whole
 * numbers as well, of which those beyond 2^53 lose their last bits. `copy` is read in the place of `path`.
 */
export async function* readNpy(
  path: string,
  wanted: 'floats' | 'numbers' = 'numbers',
  copy = path,
): AsyncGenerator<{ readonly file: NpyFile; readonly values: Float64Array | Float32Array }> {
  const handle = await open(copy, 'r').catch((error: unknown) => {
    throw unreadable(path, error);
  });
  try {
    const layout = await readLayout(handle, path, wanted);
    const { file } = layout;
    const rowBytes = file.columns * BYTES[file.type];
    const rowsAtATime = Math.max(1, Math.floor(ROWS_BYTES / Math.max(1, rowBytes)));
    if (file.rows === 0) yield { file, values: new Float32Array() };
    for (let row = 0; row < file.rows; row += rowsAtATime) {
      const rows = Math.min(rowsAtATime, file.rows - row);
      const bytes = await readRows(handle, path, layout, row, rows);
      yield { file, values: numbersOf(bytes, file.type, rows * file.columns) };
    }
  } finally {
    await handle.close();
  }
}

async function readRows(
  handle: FileHandle,
  path: string,
  { file, at, byColumns }: NpyLayout,
  first: number,
  rows: number,
): Promise<Uint8Array<ArrayBuffer>> {
  const [size, { columns }] = [BYTES[file.type], file];
  if (!byColumns) return readExactly(handle, path, at + first * columns * size, rows * columns * size);
  const bytes = new Uint8Array(rows * columns * size);
  for (let column = 0; column < columns; column++) {
    const values = await readExactly(handle, path, at + (column * file.rows + first) * size, rows * size);
    for (let row = 0; row < rows; row++)
      for (let byte = 0; byte < size; byte++)
        bytes[(row * columns + column) * size + byte] = values[row * size + byte]!;
  }
  return bytes;
}

async function readLayout(handle: FileHandle, path: string, wanted: 'floats' | 'numbers'): Promise<NpyLayout> {
  const found = await handle.stat();
  if (found.isDirectory()) throw unreadable(path, new Error('it is a folder'));
  if (!found.isFile()) throw wrongFile(path, 'it is a pipe or a device; .npy is read at places: write it to a file');
  const head = Buffer.from(await readExactly(handle, path, 0, Math.min(12, found.size)));
  refuseOthers(path, head);
  const [major, at] = [head[6]!, head[6] === 1 ? 10 : 12];
  if (major < 1 || major > 3) throw wrongFile(path, `its header is of version ${major}; 1, 2 and 3 can be read`);
  if (head.length < 12) throw wrongFile(path, 'it ends inside its header');
  const length = major === 1 ? head.readUInt16LE(8) : head.readUInt32LE(8);
  if (length > MOST_HEADER_BYTES) throw wrongFile(path, `its header claims ${length} bytes`);
  if (at + length > found.size) throw wrongFile(path, 'it ends inside its header');
  const header = Buffer.from(await readExactly(handle, path, at, length));
  const { descr, isFortran, shape } = entriesOf(path, header.toString(major === 3 ? 'utf8' : 'latin1'));
  const type = typeOf(path, descr, wanted);
  const [rows = 0, columns = 1] = shape;
  if (shape.length < 1 || shape.length > 2 || !Number.isSafeInteger(rows * columns * BYTES[type]))
    throw wrongFile(
      path,
      `it has the shape (${shape.join(', ')}); rows × columns is wanted, or one row of one dimension`,
    );
  const size = at + length + rows * columns * BYTES[type];
  if (found.size < size)
    throw wrongFile(path, `it ends before its last row: ${size} bytes are announced, ${found.size} are there`);
  if (found.size > size)
    throw wrongFile(
      path,
      `${found.size - size} bytes stand behind its last row, another array perhaps: one file holds one array`,
    );
  return {
    file: { type, rows, columns, dimensions: shape.length as 1 | 2 },
    at: at + length,
    byColumns: isFortran && shape.length === 2,
  };
}

function refuseOthers(path: string, head: Buffer): void {
  const text = head.toString('latin1');
  if (text.startsWith('\x93NUMPY')) return;
  if (text.startsWith('PK'))
    throw wrongFile(path, 'it is a .npz archive; save one array with numpy.save("x.npy", archive["name"])');
  if (text.startsWith('version http')) throw wrongFile(path, 'it is a Git LFS pointer: git lfs pull fetches the file');
  throw wrongFile(path, 'it is no .npy file');
}

/** The header is a Python dict of three entries, in any order. Whatever else stands in it makes it damaged. */
function entriesOf(
  path: string,
  header: string,
): { readonly descr: string; readonly isFortran: boolean; readonly shape: readonly number[] } {
  let rest = header;
  const take = (pattern: RegExp): string | undefined => {
    const found = pattern.exec(rest);
    if (found === null) return undefined;
    rest = rest.slice(0, found.index) + rest.slice(found.index + found[0].length);
    return found[1]!;
  };
  const order = take(/(?:'fortran_order'|"fortran_order")\s*:\s*(True|False)\s*(?:,|(?=\}))/);
  const shape = take(/(?:'shape'|"shape")\s*:\s*\(([\dL,\s]*)\)\s*(?:,|(?=\}))/);
  const descr = take(/(?:'descr'|"descr")\s*:\s*('[^']*'|"[^"]*"|\[[^\]]*\](?:[^'"{}]*\])?)\s*(?:,|(?=\}))/);
  if (order === undefined || shape === undefined || descr === undefined || !/^\s*\{\s*\}\s*$/.test(rest))
    throw wrongFile(path, `its header is damaged: ${JSON.stringify(header.trim().slice(0, 120))}`);
  const sizes = shape.split(',').map((size) => size.trim());
  if (sizes.at(-1) === '') sizes.pop(); // (3,) and ()
  if (!sizes.every((size) => /^\d{1,16}L?$/.test(size)))
    throw wrongFile(path, `its header is damaged: it has the shape (${shape})`);
  return { descr, isFortran: order === 'True', shape: sizes.map((size) => Number.parseInt(size, 10)) };
}

/** What NumPy's letters stand for, for people. */
const KINDS: Readonly<Record<string, string>> = {
  b: 'booleans',
  i: 'integers',
  u: 'unsigned integers',
  f: 'floats',
  c: 'complex numbers',
  O: 'Python objects',
  S: 'bytes',
  a: 'bytes',
  U: 'texts',
  V: 'bytes without a type (bfloat16 perhaps)',
  M: 'times',
  m: 'durations',
};

function typeOf(path: string, descr: string, wanted: 'floats' | 'numbers'): NpyType {
  const can =
    wanted === 'floats'
      ? 'vectors are float16, float32 or float64'
      : 'floats, and integers of 32 and 64 bits, can be read';
  if (descr.startsWith('[')) throw wrongFile(path, `it holds records of several fields; ${can}: save one field of it`);
  const [, order = '', kind = '', bytes = ''] = /^["']([<>|=]?)([a-zA-Z])(\d*)/.exec(descr) ?? [];
  const what = `${KINDS[kind] ?? 'values'} (${descr})`;
  if (order === '>')
    throw wrongFile(path, `it holds ${what} in big-endian order; save it with x.astype(x.dtype.newbyteorder("<"))`);
  const type = `${kind}${bytes}`;
  const isRead = order === '<' && Object.hasOwn(BYTES, type) && descr.length === 2 + 1 + type.length;
  if (!isRead || (wanted === 'floats' && kind !== 'f'))
    throw wrongFile(path, `it holds ${what}; ${can}: save it with x.astype("float32")`);
  return type as NpyType;
}

async function readExactly(
  handle: FileHandle,
  path: string,
  from: number,
  bytes: number,
): Promise<Uint8Array<ArrayBuffer>> {
  const buffer = new Uint8Array(bytes);
  for (let read = 0; read < bytes;) {
    const most = Math.min(bytes - read, 1 << 30);
    const { bytesRead } = await handle.read(buffer, read, most, from + read).catch((error: unknown) => {
      throw unreadable(path, error);
    });
    if (bytesRead === 0) throw wrongFile(path, 'it ends before its last row');
    read += bytesRead;
  }
  return buffer;
}

function numbersOf(bytes: Uint8Array<ArrayBuffer>, type: NpyType, count: number): Float64Array | Float32Array {
  switch (type) {
    case 'f4':
      return new Float32Array(bytes.buffer, 0, count);
    case 'f8':
      return new Float64Array(bytes.buffer, 0, count);
    case 'f2':
      return rowReader({ dtype: 'f16', data: bytes, rows: 1, dims: count, strideBytes: 2 * count })(0);
    case 'i4':
      return Float64Array.from(new Int32Array(bytes.buffer, 0, count));
    case 'u4':
      return Float64Array.from(new Uint32Array(bytes.buffer, 0, count));
    case 'i8':
      return Float64Array.from(new BigInt64Array(bytes.buffer, 0, count), Number);
    case 'u8':
      return Float64Array.from(new BigUint64Array(bytes.buffer, 0, count), Number);
  }
}
