// gzip and Zstandard, around files that are lines: which of them a file is, by its name and by its first bytes. The
// codecs are Node's own; Zstandard is in Node from 22.15 on, and an older one is told so instead of failing later.

import { extname } from 'node:path';
import zlib from 'node:zlib';
import { ShoalError } from '@shoal/contract';

export type Compression = 'gzip' | 'zstd';

const BY_EXTENSION: Readonly<Record<string, Compression>> = { '.gz': 'gzip', '.zst': 'zstd' };
export const COMPRESSION_NAMES = { gzip: 'gzip', zstd: 'Zstandard' } as const;

/** By the last extension of a name. */
export function compressionOf(name: string): Compression | undefined {
  return BY_EXTENSION[extname(name).toLowerCase()];
}

/** A name without the extension of its compression: t.csv.gz → t.csv. */
export function withoutCompression(name: string): string {
  return compressionOf(name) === undefined ? name : name.slice(0, -extname(name).length);
}

/** By the first bytes. No text in UTF-8 begins like either. */
export function compressionIn(head: Buffer): Compression | undefined {
  if (head[0] === 0x1f && head[1] === 0x8b) return 'gzip';
  return head.length >= 4 && head.readUInt32LE(0) === 0xfd_2f_b5_28 ? 'zstd' : undefined;
}

/** USAGE where this Node has no Zstandard. */
export function refuseMissingCodec(compression: Compression, name: string): void {
  if (compression === 'gzip' || typeof zlib.createZstdDecompress === 'function') return;
  throw new ShoalError(
    'USAGE',
    `${name} is a file of Zstandard, which Node ${process.versions.node} cannot read or write; take Node 22.15 or ` +
      'later, or gzip (.gz)',
  );
}
