// A collection as a file, written once and never changed: rows as the kernels read them, and what belongs to them.
//
//   0     "SHC1"  u32 header bytes (4096)  u8 row type (0 f32, 1 f16, 2 i8)  u8 flags (1 ids, 2 names)  u16 0
//   12    u32 dims  u64 rows  u64 stride bytes  u64 version  f64 created (epoch ms)
//   48    u64 × 6: where rows, scales, lengths, ids, names, about begin   u64 bytes of the file
//   104   u32 crc32 of all behind the header   u32 crc32 of the header before this field
//   4096  rows: rows × stride, each on a multiple of 64 bytes
//         scales f32[rows] (i8)   lengths f32[rows]   ids u64[rows]
//         names u64[rows + 1] offsets, then UTF-8   about: JSON
//
// All little-endian; sections begin on multiples of 64. A half-written file never has its name, and one that was cut or
// changed later does not have its size or its checksum.

import { ShoalError } from '@shoal/contract';
import { crc32 } from 'node:zlib';
import { BYTES_OF, ROW_TYPES, type RowType } from '../engines/vectors.ts';

/** What is known of the vectors beside themselves; unknown fields are kept. */
export interface CollectionAbout {
  /** The model that embeds queries for it, name@revision. */
  readonly model?: string;
  readonly [field: string]: unknown;
}

export const HEADER_BYTES = 4096;
const MAGIC = 0x3143_4853; // "SHC1"
const CHECKED_BYTES = 108;
const SECTIONS = ['rows', 'scales', 'lengths', 'ids', 'names', 'about'] as const;
const FLAG = { ids: 1, names: 2 } as const;

/** The last moment that a Date can be. */
const MOST_DATE_MS = 8.64e15;

export type Section = (typeof SECTIONS)[number];

export interface CollectionHeader {
  readonly dtype: RowType;
  readonly dims: number;
  readonly rows: number;
  readonly strideBytes: number;
  readonly version: number;
  readonly createdMs: number;
  readonly hasIds: boolean;
  readonly hasNames: boolean;
  readonly at: Readonly<Record<Section, number>>;
  readonly fileBytes: number;
  readonly crc: number;
}

/** Bytes from one row to the next: whole cache lines, so that no load of a vector register crosses one. */
export function strideOf(dtype: RowType, dims: number): number {
  return aligned(dims * BYTES_OF[dtype]);
}

export function aligned(bytes: number): number {
  return Math.ceil(bytes / 64) * 64;
}

export function encodeHeader(header: CollectionHeader): Buffer {
  const bytes = Buffer.alloc(HEADER_BYTES);
  bytes.writeUInt32LE(MAGIC, 0);
  bytes.writeUInt32LE(HEADER_BYTES, 4);
  bytes.writeUInt8(ROW_TYPES.indexOf(header.dtype), 8);
  bytes.writeUInt8((header.hasIds ? FLAG.ids : 0) | (header.hasNames ? FLAG.names : 0), 9);
  bytes.writeUInt32LE(header.dims, 12);
  const large = [header.rows, header.strideBytes, header.version];
  large.forEach((value, i) => bytes.writeBigUInt64LE(BigInt(value), 16 + 8 * i));
  bytes.writeDoubleLE(header.createdMs, 40);
  SECTIONS.forEach((section, i) => bytes.writeBigUInt64LE(BigInt(header.at[section]), 48 + 8 * i));
  bytes.writeBigUInt64LE(BigInt(header.fileBytes), 96);
  bytes.writeUInt32LE(header.crc, 104);
  bytes.writeUInt32LE(crc32(bytes.subarray(0, CHECKED_BYTES)), CHECKED_BYTES);
  return bytes;
}

/** The header of the file `path`, which has `size` bytes; COLLECTION_CORRUPT says what is wrong with it. */
export function decodeHeader(bytes: Buffer, path: string, size: number): CollectionHeader {
  if (bytes.length < HEADER_BYTES || bytes.readUInt32LE(0) !== MAGIC || bytes.readUInt32LE(4) !== HEADER_BYTES)
    throw corrupt(path, 'it does not begin like a collection');
  if (crc32(bytes.subarray(0, CHECKED_BYTES)) !== bytes.readUInt32LE(CHECKED_BYTES))
    throw corrupt(path, 'its header has another checksum than was written');
  const u64 = (at: number): number => {
    const value = bytes.readBigUInt64LE(at);
    if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw corrupt(path, `its header holds ${value} at byte ${at}`);
    return Number(value);
  };
  const dtype = ROW_TYPES[bytes.readUInt8(8)];
  if (dtype === undefined)
    throw corrupt(path, `it has rows of type ${bytes.readUInt8(8)}, which this version does not know`);
  const flags = bytes.readUInt8(9);
  if ((flags & ~(FLAG.ids | FLAG.names)) !== 0 || bytes.readUInt16LE(10) !== 0)
    throw corrupt(path, `it has flags (${flags}, ${bytes.readUInt16LE(10)}) that this version does not know`);
  const createdMs = bytes.readDoubleLE(40);
  if (!(Math.abs(createdMs) <= MOST_DATE_MS)) throw corrupt(path, `it was created at ${createdMs}, which is no time`);
  const fileBytes = u64(96);
  if (fileBytes !== size) throw corrupt(path, `it should have ${fileBytes} bytes and has ${size}`);
  const at = Object.fromEntries(SECTIONS.map((section, i) => [section, u64(48 + 8 * i)])) as Record<Section, number>;
  return {
    dtype,
    dims: bytes.readUInt32LE(12),
    rows: u64(16),
    strideBytes: u64(24),
    version: u64(32),
    createdMs,
    hasIds: (flags & FLAG.ids) !== 0,
    hasNames: (flags & FLAG.names) !== 0,
    at,
    fileBytes,
    crc: bytes.readUInt32LE(104),
  };
}

export function corrupt(path: string, found: string, cause?: unknown): ShoalError<'COLLECTION_CORRUPT'> {
  return new ShoalError(
    'COLLECTION_CORRUPT',
    `the collection file ${path} is damaged: ${found}. Remove this version and build it again.`,
    { path },
    cause,
  );
}
