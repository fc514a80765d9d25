// One version of a collection, read in pieces: for whoever may hold only so much of it at a time, or keeps account of
// what it holds. Pieces are read into memory of their own, never mapped: a file that is cut meanwhile is an error, not
// a signal.

import { open, type FileHandle } from 'node:fs/promises';
import { isShoalError } from '@shoal/contract';
import { crc32 } from 'node:zlib';
import { corrupt, HEADER_BYTES, type CollectionHeader } from './collection-file.ts';
import { collectionInfo, type CollectionInfo } from './collections.ts';
import { checkBlock, readAbout, readHeader } from './open-collection.ts';
import type { RowBlock } from '../engines/vectors.ts';

export interface CollectionRows {
  /** name@version */
  readonly name: string;
  /** The model that made the rows; absent: not known. */
  readonly model?: string;
  readonly rows: number;
  readonly dims: number;
  /** Memory that a row takes once it was read. */
  readonly rowBytes: number;
  /**
   * Rows `first` to `first + count`; their ids are those of the collection. COLLECTION_CORRUPT when the file was cut.
   */
  read(first: number, count: number): Promise<RowBlock>;
  /** What rows are called, by their ids; '' where one has no name. Absent when no row has one. */
  names?(ids: BigUint64Array): Promise<readonly string[]>;
  /**
   * False when another was built under this name and number. COLLECTION_GONE when the version was removed,
   * COLLECTION_CORRUPT when it was cut. Reads the header alone.
   */
  isCurrent(): Promise<boolean>;
  close(): Promise<void>;
}

const CHUNK_BYTES = 1 << 22;

/**
 * Opens "docs@3" and reads every byte once, for its checksum. COLLECTION_UNKNOWN, COLLECTION_GONE or COLLECTION_CORRUPT
 * when it cannot.
 */
export async function openCollectionRows(folder: string, nameAndVersion: string): Promise<CollectionRows> {
  const info = await infoOf(folder, nameAndVersion);
  const { path } = info;
  const name = `${info.name}@${info.version}`;
  const header = await readHeader(path);
  const file = await open(path, 'r');
  let model: string | undefined;
  try {
    await verify(file, path, header);
    model = await modelOf(file, path, header);
  } catch (error) {
    await file.close();
    throw error;
  }
  const idBytes = 8;
  return {
    name,
    ...(model === undefined ? {} : { model }),
    rows: header.rows,
    dims: header.dims,
    rowBytes: header.strideBytes + 4 + idBytes + (header.dtype === 'i8' ? 4 : 0),
    read: (first, count) => readBlock(file, path, header, first, count),
    ...(header.hasNames ? { names: (ids: BigUint64Array) => namesOf(file, path, header, ids) } : {}),
    isCurrent: async () => (await collectionInfo(folder, name)).createdMs === header.createdMs,
    close: () => file.close(),
  };
}

/** Of a collection that never had a version, none is gone. */
async function infoOf(folder: string, nameAndVersion: string): Promise<CollectionInfo> {
  try {
    return await collectionInfo(folder, nameAndVersion);
  } catch (error) {
    if (isShoalError(error, 'COLLECTION_GONE')) await collectionInfo(folder, nameAndVersion.split('@')[0]!);
    throw error;
  }
}

async function verify(file: FileHandle, path: string, { fileBytes, crc: expected }: CollectionHeader): Promise<void> {
  const chunk = new Uint8Array(CHUNK_BYTES);
  let crc = 0;
  for (let at = HEADER_BYTES; at < fileBytes;) {
    const { bytesRead } = await file.read(chunk, 0, Math.min(chunk.length, fileBytes - at), at);
    if (bytesRead === 0) throw corrupt(path, `it ends after ${at} of ${fileBytes} bytes`);
    crc = crc32(chunk.subarray(0, bytesRead), crc);
    at += bytesRead;
  }
  if (crc !== expected) throw corrupt(path, 'its bytes have another checksum than was written');
}

async function modelOf(
  file: FileHandle,
  path: string,
  { at, fileBytes }: CollectionHeader,
): Promise<string | undefined> {
  const about = readAbout(new Uint8Array(await readExactly(file, path, at.about, fileBytes - at.about)), path);
  const model: unknown = about.model;
  return typeof model === 'string' ? model : undefined;
}

async function readBlock(
  file: FileHandle,
  path: string,
  { dtype, dims, strideBytes, at, hasIds }: CollectionHeader,
  first: number,
  count: number,
): Promise<RowBlock> {
  const section = (from: number, elementBytes: number): Promise<ArrayBuffer> =>
    readExactly(file, path, from + first * elementBytes, count * elementBytes);
  const [data, scales, lengths, ids] = await Promise.all([
    section(at.rows, strideBytes),
    dtype === 'i8' ? section(at.scales, 4) : undefined,
    section(at.lengths, 4),
    hasIds ? section(at.ids, 8) : undefined,
  ]);
  const block: RowBlock = {
    dtype,
    dims,
    strideBytes,
    rows: count,
    data: new Uint8Array(data),
    lengths: new Float32Array(lengths),
    ...(scales === undefined ? {} : { scales: new Float32Array(scales) }),
    ...idsOf(ids, first, count),
  };
  checkBlock(block, path, first);
  return block;
}

async function namesOf(
  file: FileHandle,
  path: string,
  header: CollectionHeader,
  ids: BigUint64Array,
): Promise<readonly string[]> {
  const { rows, at } = header;
  const begin = at.names + 8 * (rows + 1);
  const names: string[] = [];
  for (const id of ids) {
    const row = await rowOfId(file, path, header, id);
    const [from, to] = new BigUint64Array(await readExactly(file, path, at.names + 8 * row, 16));
    if (from! > to! || begin + Number(to) > at.about)
      throw corrupt(path, `the name of row ${row} is not where it should be`);
    const bytes = await readExactly(file, path, begin + Number(from), Number(to! - from!));
    names.push(Buffer.from(bytes).toString('utf8'));
  }
  return names;
}

async function rowOfId(
  file: FileHandle,
  path: string,
  { rows, at, hasIds }: CollectionHeader,
  id: bigint,
): Promise<number> {
  if (!hasIds) return Number(id);
  let [low, high] = [0, rows - 1];
  while (low < high) {
    const middle = (low + high) >>> 1;
    const [found] = new BigUint64Array(await readExactly(file, path, at.ids + 8 * middle, 8));
    if (found! < id) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Row numbers need no ids, except in a piece that does not begin at row 0. */
function idsOf(ids: ArrayBuffer | undefined, first: number, count: number): { readonly ids?: BigUint64Array } {
  if (ids !== undefined) return { ids: new BigUint64Array(ids) };
  return first === 0 ? {} : { ids: BigUint64Array.from({ length: count }, (_, row) => BigInt(first + row)) };
}

async function readExactly(file: FileHandle, path: string, from: number, bytes: number): Promise<ArrayBuffer> {
  const buffer = new ArrayBuffer(bytes);
  for (let at = 0; at < bytes;) {
    const { bytesRead } = await file.read(new Uint8Array(buffer, at), 0, Math.min(1 << 30, bytes - at), from + at);
    if (bytesRead === 0) throw corrupt(path, `it ends ${bytes - at} bytes too early; it was cut while it was open`);
    at += bytesRead;
  }
  return buffer;
}
