// NumPy's .npy, read: a few rows at a time, numbers of every usual type. Writing is the CLI's
// (apps/cli/src/output/npy.ts). https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

import { open, type FileHandle } from 'node:fs/promises';
import { rowReader } from '../engines/vectors.ts';
import { unreadable, wrongFile } from './vector-file-errors.ts';

type NpyType = 'f2' | 'f4' | 'f8' | 'i4' | 'u4' | 'i8' | 'u8';
const BYTES: Readonly<Record<NpyType, number>> = { f2: 2, f4: 4, f8: 8, i4: 4, u4: 4, i8: 8, u8: 8 };

export interface NpyFile {
  readonly type: NpyType;
  readonly rows: number;
  /** 1 for an array of one dimension. */
  readonly columns: number;
}

const ROWS_BYTES = 1 << 22;

/** What the header says, then the rows as numbers, some at a time. Integers beyond 2^53 lose their last bits. */
export async function* readNpy(
  path: string,
): AsyncGenerator<{ readonly file: NpyFile; readonly values: Float64Array | Float32Array }> {
  const handle = await open(path, 'r').catch((error: unknown) => {
    throw unreadable(path, error);
  });
  try {
    const { file, at } = await readHeader(handle, path);
    const rowBytes = file.columns * BYTES[file.type];
    const rowsAtATime = Math.max(1, Math.floor(ROWS_BYTES / Math.max(1, rowBytes)));
    if (file.rows === 0) yield { file, values: new Float32Array() };
    for (let row = 0; row < file.rows; row += rowsAtATime) {
      const rows = Math.min(rowsAtATime, file.rows - row);
      const bytes = await readExactly(handle, path, at + row * rowBytes, rows * rowBytes);
      yield { file, values: numbersOf(bytes, file.type, rows * file.columns) };
    }
  } finally {
    await handle.close();
  }
}

async function readHeader(handle: FileHandle, path: string): Promise<{ file: NpyFile; at: number }> {
  const head = Buffer.from((await readExactly(handle, path, 0, 12)).buffer);
  if (head.toString('latin1', 0, 6) !== '\x93NUMPY') throw wrongFile(path, 'it is no .npy file');
  const at = head[6] === 1 ? 10 : 12;
  const length = head[6] === 1 ? head.readUInt16LE(8) : head.readUInt32LE(8);
  if (length > 1 << 20) throw wrongFile(path, `its header claims ${length} bytes`);
  const text = Buffer.from((await readExactly(handle, path, at, length)).buffer).toString('latin1');
  const descr = /'descr':\s*'([^']*)'/.exec(text)?.[1] ?? '';
  const shape = (/'shape':\s*\(([^)]*)\)/.exec(text)?.[1] ?? '')
    .split(',')
    .map((part) => part.trim())
    .filter((part) => part !== '')
    .map(Number);
  if (/'fortran_order':\s*True/.test(text))
    throw wrongFile(path, 'it is in Fortran order; save it with numpy.ascontiguousarray');
  const type = /^[<|]([fiu][248])$/.exec(descr)?.[1];
  if (type === undefined || !Object.hasOwn(BYTES, type))
    throw wrongFile(
      path,
      `it holds values of type "${descr}"; float16, float32, float64 and (unsigned) integers of 32 and 64 bits ` +
        'can be read',
    );
  if (shape.length < 1 || shape.length > 2 || shape.some((size) => !Number.isSafeInteger(size) || size < 0))
    throw wrongFile(path, `it has the shape (${shape.join(', ')}); rows × columns is wanted`);
  return { file: { type: type as NpyType, rows: shape[0]!, columns: shape[1] ?? 1 }, at: at + length };
}

async function readExactly(
  handle: FileHandle,
  path: string,
  from: number,
  bytes: number,
): Promise<Uint8Array<ArrayBuffer>> {
  const buffer = new Uint8Array(bytes);
  for (let read = 0; read < bytes;) {
    const { bytesRead } = await handle.read(buffer, read, bytes - read, from + read);
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
