// SHQ1, inputs of similarity jobs, as docs/jobs.md describes them; their job says how many rows there are.

import { crc32 } from 'node:zlib';
import { decodeComparands, encodeComparands } from '@shoal/contract';
import { bytesOf, type FuzzedReader, type Values } from '../fuzzed-reader.ts';

/** What the job says, by variant; the sound files are of the first, the others are other jobs' files. */
const JOBS = [
  { queries: 2, against: 0, dims: 3, hasCandidates: false },
  { queries: 1, against: 1, dims: 3, hasCandidates: false },
  { queries: 2, against: 0, dims: 3, hasCandidates: true },
] as const;

const queries = { values: Float32Array.of(1, 0, 0.5, -2, 3e-39, 7), rows: 2, dims: 3 };

export const comparandsReader: FuzzedReader = {
  name: 'shq1',
  kind: 'binary',
  codes: ['INPUT_CORRUPT'],
  takesAll: true,
  variants: 2,
  seeds: async () => [encodeComparands({ queries })],
  read: async (bytes, _path, variant) => read(bytes, variant),
  readAgain: (bytes, variant) => readComparands(bytes, JOBS[variant]!),
  mend,
};

/** With candidates: their lists have lengths of their own. */
export const candidatesReader: FuzzedReader = {
  ...comparandsReader,
  name: 'shq1-candidates',
  variants: 1,
  seeds: async () => [
    encodeComparands({ queries, candidates: [BigUint64Array.of(7n, 2n ** 60n), new BigUint64Array()] }),
  ],
  read: async (bytes) => read(bytes, 2),
  readAgain: (bytes) => readComparands(bytes, JOBS[2]),
};

function read(bytes: Buffer, job: number): Values {
  const { queries: asked, against, candidates } = decodeComparands(bytes, JOBS[job]!);
  const rest = against === undefined ? [] : [bytesOf(against.values)];
  return [bytesOf(asked.values), ...rest, ...(candidates ?? []).map((list) => list.join())];
}

function mend(bytes: Buffer): Buffer {
  if (bytes.length >= 24) bytes.writeUInt32LE(crc32(bytes.subarray(24)), 16);
  return bytes;
}

function readComparands(bytes: Buffer, job: (typeof JOBS)[number]): Values | undefined {
  if (bytes.length < 24 || bytes.toString('latin1', 0, 8) !== 'SHQ1\x01\0\0\0') return undefined;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const rows = job.queries + job.against;
  if (view.getUint32(8, true) !== rows || view.getUint32(12, true) !== job.dims) return undefined;
  if (view.getUint32(16, true) !== crc32(bytes.subarray(24)) || view.getUint32(20, true) !== 0) return undefined;
  let at = 24;
  const take = (count: number): Buffer => bytes.subarray(at, (at += count));
  const values: (string | Uint8Array)[] = [take(4 * job.queries * job.dims)];
  if (job.against > 0) values.push(take(4 * job.against * job.dims));
  for (let list = 0; job.hasCandidates && list < job.queries; list++) {
    if (at + 4 > bytes.length) return undefined;
    const count = view.getUint32(at, true);
    if (at + 4 + 8 * count > bytes.length) return undefined;
    values.push(Array.from({ length: count }, (_, hit) => view.getBigUint64(at + 4 + 8 * hit, true)).join());
    at += 4 + 8 * count;
  }
  return at === bytes.length ? values : undefined;
}
