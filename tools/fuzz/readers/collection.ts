// SHC1, collections, as the comment of collection-file.ts draws them: mapped, read into memory, and read in pieces.

import { copyFile, mkdir, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { crc32 } from 'node:zlib';
import { createCollection, openCollection, openCollectionRows, type RowBlock, type RowType } from '@shoal/similarity';
import { bytesOf, type FuzzedReader, type Values } from '../fuzzed-reader.ts';

const HEADER_BYTES = 4096;

async function seed(dtype: RowType, more: { names?: readonly string[]; ids?: BigUint64Array }): Promise<Buffer> {
  const folder = await mkdtemp(join(tmpdir(), 'shoal-fuzz-'));
  try {
    const vectors = Float32Array.from({ length: 15 }, (_, at) => Math.sin(at + 1));
    const { path } = await createCollection(folder, 'seed', [{ dims: 5, vectors, ...more }], { dtype });
    const bytes = await readFile(path);
    bytes.writeDoubleLE(1e12, 40); // the time it was made: the same file each time
    return mend(bytes);
  } finally {
    await rm(folder, { recursive: true });
  }
}

const blockValues = ({ dtype, rows, dims, data, strideBytes, lengths, scales, ids }: RowBlock): Values => [
  dtype,
  rows,
  dims,
  strideBytes,
  data,
  bytesOf(lengths!),
  scales === undefined ? undefined : bytesOf(scales),
  ids?.join(),
];

export const collectionReader: FuzzedReader = {
  name: 'shc1',
  kind: 'binary',
  codes: ['COLLECTION_CORRUPT'],
  variants: 3,
  seeds: () =>
    Promise.all([
      seed('f32', { names: ['one', '', 'drei 🙂'] }),
      seed('f16', { ids: BigUint64Array.of(3n, 7n, 2n ** 63n) }),
      seed('i8', { names: ['a', 'b', 'c'], ids: BigUint64Array.of(0n, 1n, 9n) }),
    ]),
  read: async (_bytes, path, variant) => {
    const folder = join(dirname(path), 'collections');
    await mkdir(join(folder, 'fuzzed'), { recursive: true });
    // Another file each time: what is mapped of the last one is not cut.
    await rm(join(folder, 'fuzzed', '1.shc'), { force: true });
    await copyFile(path, join(folder, 'fuzzed', '1.shc'));
    if (variant === 2) return readPieces(folder);
    const { block, names, about, createdMs } = await openCollection(folder, 'fuzzed@1', { map: variant === 0 });
    const called = Array.from({ length: names === undefined ? 0 : block.rows }, (_, row) => names!(row));
    return [...blockValues(block), JSON.stringify(about), createdMs, ...called];
  },
  readAgain: (bytes, variant) => readCollection(bytes, variant === 2),
  mend,
};

function mend(bytes: Buffer): Buffer {
  if (bytes.length < HEADER_BYTES) return bytes;
  bytes.writeBigUInt64LE(BigInt(bytes.length), 96);
  bytes.writeUInt32LE(crc32(bytes.subarray(HEADER_BYTES)), 104);
  bytes.writeUInt32LE(crc32(bytes.subarray(0, 108)), 108);
  return bytes;
}

async function readPieces(folder: string): Promise<Values> {
  const pieces = await openCollectionRows(folder, 'fuzzed@1');
  try {
    return blockValues(await pieces.read(0, pieces.rows));
  } finally {
    await pieces.close();
  }
}

function readCollection(bytes: Buffer, inPieces: boolean): Values | undefined {
  if (bytes.length < HEADER_BYTES || bytes.toString('latin1', 0, 8) !== 'SHC1\0\x10\0\0') return undefined;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const long = (at: number): number => Number(view.getBigUint64(at, true));
  if (view.getUint32(108, true) !== crc32(bytes.subarray(0, 108)) || long(96) !== bytes.length) return undefined;
  if (view.getUint32(104, true) !== crc32(bytes.subarray(HEADER_BYTES))) return undefined;
  const dtype = ['f32', 'f16', 'i8'][view.getUint8(8)];
  const flags = view.getUint8(9);
  const [dims, rows, stride] = [view.getUint32(12, true), long(16), long(24)];
  if (dtype === undefined || dims < 1) return undefined;
  const elementBytes = { f32: 4, f16: 2, i8: 1 }[dtype]!;
  if (stride !== Math.ceil((elementBytes * dims) / 64) * 64) return undefined;
  const section = (place: number, size: number): Buffer | undefined => {
    const from = long(48 + 8 * place);
    const next = place === 5 ? bytes.length : long(56 + 8 * place);
    return from >= HEADER_BYTES && from % 8 === 0 && from + size <= Math.min(next, bytes.length)
      ? bytes.subarray(from, from + size)
      : undefined;
  };
  const data = section(0, rows * stride);
  const scales = section(1, dtype === 'i8' ? 4 * rows : 0);
  const lengths = section(2, 4 * rows);
  const ids = section(3, (flags & 1) === 1 ? 8 * rows : 0);
  const offsets = section(4, (flags & 2) === 2 ? 8 * (rows + 1) : 0);
  const about = section(5, Math.max(0, bytes.length - long(88)));
  if ([data, scales, lengths, ids, offsets, about].includes(undefined)) return undefined;
  const idText = (flags & 1) === 1 ? listOf(ids!).join() : undefined;
  const block = [dtype, rows, dims, stride, data!, lengths!, dtype === 'i8' ? scales! : undefined, idText];
  if (inPieces) return block;
  const aboutText = objectText(about!.toString());
  const called =
    (flags & 2) === 2 ? namesOf(listOf(offsets!), bytes.subarray(long(80) + 8 * (rows + 1), long(88))) : [];
  return aboutText === undefined || called === undefined
    ? undefined
    : [...block, aboutText, view.getFloat64(40, true), ...called];
}

function listOf(bytes: Buffer): bigint[] {
  return Array.from({ length: bytes.length / 8 }, (_, at) => bytes.readBigUInt64LE(8 * at));
}

function namesOf(offsets: readonly bigint[], text: Buffer): string[] | undefined {
  const ends = offsets.map(Number);
  if (ends.some((end, at) => end < (at === 0 ? 0 : ends[at - 1]!) || end > text.length)) return undefined;
  return ends.slice(1).map((end, row) => text.toString('utf8', ends[row], end));
}

function objectText(text: string): string | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? JSON.stringify(value) : undefined;
  } catch {
    return undefined;
  }
}
