// SHL1 with flag 8, pointers to bodies on payload servers, as docs/jobs.md describes them.

import { crc32 } from 'node:zlib';
import { decodePointer, encodePointer, encodeResult } from '@shoal/contract';
import type { FuzzedReader, Values } from '../fuzzed-reader.ts';

const facts = { fingerprint: '7a46bcc903f08498', dtype: 'i8', rows: 2, dims: 3 } as const;

function pointerTo(store: string, key: string, isTruncated: boolean): Buffer {
  return encodePointer(encodeResult({ ...facts, isTruncated }, Buffer.alloc(14, 7)), { store, key });
}

export const pointerReader: FuzzedReader = {
  name: 'shl1-pointer',
  kind: 'binary',
  codes: ['RESULT_CORRUPT', 'RESULT_TAKEN'],
  takesAll: true,
  seeds: async () => [
    pointerTo('10.0.0.5:6379', '{shoal}:out:embed-minilm:a:t', false),
    pointerTo('lager', '🙂', true),
    pointerTo('s'.repeat(255), 'k'.repeat(1_024), false),
  ],
  read: async (bytes) => {
    const { header, store, key, bytes: whole } = decodePointer(bytes);
    return [header.dtype, header.rows, header.dims, header.crc32, header.fingerprint, store, key, whole];
  },
  readAgain: (bytes) => readPointer(bytes),
  mend: (bytes) => {
    if (bytes.length >= 40) bytes.writeUInt32LE(crc32(bytes.subarray(40)), 36);
    return bytes;
  },
};

function readPointer(bytes: Buffer): Values | undefined {
  if (bytes.length < 44 || bytes.toString('latin1', 0, 5) !== 'SHL1\x01') return undefined;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const dtype = ['f32', 'f16', 'i8', 'binary', 'ranking'][view.getUint8(5)];
  const flags = view.getUint16(6, true);
  if (dtype === undefined || (flags & 8) === 0 || (flags & ~14) !== 0 || view.getUint32(28, true) !== 0)
    return undefined;
  if (crc32(bytes.subarray(40)) !== view.getUint32(36, true)) return undefined;
  const [whole, storeBytes, keyBytes] = [view.getUint32(32, true), view.getUint16(40, true), view.getUint16(42, true)];
  const end = 44 + storeBytes;
  if (whole < 32 || end + keyBytes !== bytes.length || storeBytes % 256 !== storeBytes || keyBytes > 1_024)
    return undefined;
  const names = [bytes.subarray(44, end), bytes.subarray(end)].map((name) => {
    const text = name.toString();
    return text.length > 0 && Buffer.from(text).equals(name) ? text : undefined;
  });
  const [store, key] = names;
  if (store === undefined || key === undefined) return undefined;
  const [rows, dims, checksum] = [view.getUint32(8, true), view.getUint32(12, true), view.getUint32(16, true)];
  return [dtype, rows, dims, checksum, bytes.toString('hex', 20, 28), store, key, whole];
}
