// One version of a collection, open for reading. Its bytes are checked against header and checksum before anybody gets
// them.

import { open, type FileHandle } from 'node:fs/promises';
import { setImmediate as turn } from 'node:timers/promises';
import { crc32 } from 'node:zlib';
import { corrupt, decodeHeader, HEADER_BYTES, strideOf, type CollectionHeader } from './collection-file.ts';
import type { CollectionAbout } from './collection-file.ts';
import { nativeAddon, type NativeAddon } from '../engines/native-addon.ts';
import type { RowBlock, RowType } from '../engines/vectors.ts';

export interface OpenOptions {
  /** False: header and size are checked and the checksum is not, which reads every byte. Default true. */
  readonly verify?: boolean;
  /** False: the file is read into memory. Default: mapped where the native code is there. */
  readonly map?: boolean;
}

export interface Collection {
  readonly name: string;
  readonly version: number;
  readonly path: string;
  readonly rows: number;
  readonly dims: number;
  readonly dtype: RowType;
  readonly bytes: number;
  readonly createdMs: number;
  readonly about: CollectionAbout;
  readonly isMapped: boolean;
  readonly block: RowBlock;
  /** What the row is called, '' when it has no name; absent when no row has one. */
  readonly names?: (row: number) => string;
  /**
   * COLLECTION_CORRUPT when the file was cut while it was mapped and something of it could not be read. Kernels ask by
   * themselves.
   */
  checkIntact(): void;
}

/** 5 ms of checksum at 3 GB/s. */
const CHUNK_BYTES = 1 << 24;

/** Throws what `open` throws when the file is not there; COLLECTION_CORRUPT for everything that is wrong with it. */
export async function readCollection(
  path: string,
  name: string,
  { verify = true, map = true }: OpenOptions,
): Promise<Collection> {
  const addon = map ? nativeAddon() : undefined;
  const file = await open(path, 'r');
  try {
    const header = await headerOf(file, path);
    const bytes =
      addon === undefined ? await readAll(file, header, path, verify) : await mapAll(addon, header, path, verify);
    return collectionOf(path, name, header, { bytes, verify }, addon);
  } finally {
    await file.close();
  }
}

async function readAll(file: FileHandle, header: CollectionHeader, path: string, verify: boolean): Promise<Uint8Array> {
  const bytes = new Uint8Array(header.fileBytes);
  let crc = 0;
  for (let at = 0; at < bytes.length;) {
    const { bytesRead } = await file.read(bytes, at, Math.min(CHUNK_BYTES, bytes.length - at), at);
    if (bytesRead === 0) throw corrupt(path, `it ends after ${at} of ${bytes.length} bytes`);
    if (verify) crc = crc32(bytes.subarray(Math.max(at, HEADER_BYTES), at + bytesRead), crc);
    at += bytesRead;
  }
  if (verify && crc !== header.crc) throw wrongChecksum(path);
  return bytes;
}

/** The path may stand for another file by now: versions are never written again, so that would be somebody's doing. */
async function mapAll(
  addon: NativeAddon,
  header: CollectionHeader,
  path: string,
  verify: boolean,
): Promise<Uint8Array> {
  const bytes = new Uint8Array(addon.mapFile(path));
  if (bytes.length !== header.fileBytes)
    throw corrupt(path, `it should have ${header.fileBytes} bytes and has ${bytes.length}`);
  if (!verify) return bytes;
  let crc = 0;
  for (let at = HEADER_BYTES; at < bytes.length; at += CHUNK_BYTES) {
    crc = crc32(bytes.subarray(at, at + CHUNK_BYTES), crc);
    await turn();
  }
  if (crc !== header.crc || addon.isCut(bytes)) throw wrongChecksum(path);
  return bytes;
}

function wrongChecksum(path: string): Error {
  return corrupt(path, 'its bytes have another checksum than was written');
}

export async function readHeader(path: string): Promise<CollectionHeader> {
  const file = await open(path, 'r');
  try {
    return await headerOf(file, path);
  } finally {
    await file.close();
  }
}

async function headerOf(file: FileHandle, path: string): Promise<CollectionHeader> {
  const { size } = await file.stat();
  const { buffer, bytesRead } = await file.read(Buffer.alloc(HEADER_BYTES), 0, HEADER_BYTES, 0);
  const header = decodeHeader(buffer.subarray(0, bytesRead), path, size);
  checkSections(header, path);
  return header;
}

/**
 * Sections follow each other, none begins inside another or off its 64 bytes, and the rows have room. A header with a
 * right checksum was written by us; this is for a later version that thinks differently, and for what others write.
 */
function checkSections(
  { dtype, dims, rows, strideBytes, version, at, fileBytes, hasIds, hasNames }: CollectionHeader,
  path: string,
): void {
  const ends = [
    at.rows >= HEADER_BYTES,
    at.rows + rows * strideBytes <= at.scales,
    at.scales + (dtype === 'i8' ? rows * 4 : 0) <= at.lengths,
    at.lengths + rows * 4 <= at.ids,
    at.ids + (hasIds ? rows * 8 : 0) <= at.names,
    at.names + (hasNames ? (rows + 1) * 8 : 0) <= at.about,
    at.about <= fileBytes,
  ];
  const isAligned = Object.values(at).every((begin) => begin % 64 === 0);
  if (dims < 1 || version < 1 || strideBytes !== strideOf(dtype, dims) || !isAligned || ends.includes(false))
    throw corrupt(path, 'its header contradicts itself');
}

/** What searches rely on beside the rows: lengths and scales are sizes, ids rise. */
export function checkBlock({ lengths, scales, ids }: RowBlock, path: string, first = 0): void {
  for (const [what, values] of Object.entries({ length: lengths, scale: scales }))
    for (let row = 0; row < (values?.length ?? 0); row++)
      if (!(values![row]! >= 0 && values![row]! < Infinity))
        throw corrupt(path, `row ${first + row} has the ${what} ${values![row]}`);
  for (let row = 1; row < (ids?.length ?? 0); row++)
    if (ids![row]! <= ids![row - 1]!)
      throw corrupt(path, `the id of row ${first + row} is not above the one before it`);
}

/** Names lie one behind the other. */
function checkNames({ rows, at, hasNames }: CollectionHeader, bytes: Uint8Array, path: string): void {
  if (!hasNames) return;
  const ends = new BigUint64Array(bytes.buffer, bytes.byteOffset + at.names, rows + 1);
  const room = BigInt(at.about - at.names - ends.byteLength);
  for (let row = 0; row <= rows; row++)
    if (ends[row]! < (row === 0 ? 0n : ends[row - 1]!) || ends[row]! > room)
      throw corrupt(path, `the name of row ${Math.max(0, row - 1)} lies outside of the names`);
}

function collectionOf(
  path: string,
  name: string,
  header: CollectionHeader,
  { bytes, verify }: { readonly bytes: Uint8Array; readonly verify: boolean },
  addon: NativeAddon | undefined,
): Collection {
  const { dtype, dims, rows, strideBytes, at, hasIds, hasNames } = header;
  const floats = (from: number): Float32Array => new Float32Array(bytes.buffer, bytes.byteOffset + from, rows);
  const block: RowBlock = {
    dtype,
    rows,
    dims,
    strideBytes,
    data: bytes.subarray(at.rows, at.rows + rows * strideBytes),
    lengths: floats(at.lengths),
    ...(dtype === 'i8' ? { scales: floats(at.scales) } : {}),
    ...(hasIds ? { ids: new BigUint64Array(bytes.buffer, bytes.byteOffset + at.ids, rows) } : {}),
  };
  if (verify) {
    checkBlock(block, path);
    checkNames(header, bytes, path);
  }
  return {
    name,
    path,
    rows,
    dims,
    dtype,
    block,
    version: header.version,
    bytes: header.fileBytes,
    createdMs: header.createdMs,
    about: readAbout(bytes.subarray(at.about), path),
    isMapped: addon !== undefined,
    ...(hasNames ? { names: nameReader(bytes, header, path) } : {}),
    checkIntact: () => {
      if (addon?.isCut(bytes) === true) throw corrupt(path, 'it was cut while it was open');
    },
  };
}

function nameReader(bytes: Uint8Array, { at, rows }: CollectionHeader, path: string): (row: number) => string {
  const offsets = new BigUint64Array(bytes.buffer, bytes.byteOffset + at.names, rows + 1);
  const begin = at.names + offsets.byteLength;
  const text = Buffer.from(bytes.buffer, bytes.byteOffset + begin, at.about - begin);
  return (row) => {
    const [from, to] = [offsets[row]!, offsets[row + 1]!];
    if (from > to || to > text.length) throw corrupt(path, `the name of row ${row} is not where it should be`);
    return text.toString('utf8', Number(from), Number(to));
  };
}

export function readAbout(bytes: Uint8Array, path: string): CollectionAbout {
  try {
    const about: unknown = JSON.parse(Buffer.from(bytes).toString('utf8'));
    if (typeof about === 'object' && about !== null && !Array.isArray(about)) return { ...about };
  } catch {
    // said below
  }
  throw corrupt(path, 'what it says about itself is not JSON');
}

/**
 * Memory that an open collection holds, or that the system holds for it where it is mapped. It is given back when
 * nobody refers to it.
 */
export function residentBytes({ bytes }: Pick<Collection, 'bytes'>): number {
  return bytes;
}
