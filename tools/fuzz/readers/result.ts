// SHL1, results, as docs/jobs.md describes them. The header has no checksum of its own, so both readers are given the
// same one.

import { crc32 } from 'node:zlib';
import {
  decodeRankings,
  encodeBody,
  encodeRankings,
  encodeResult,
  openResult,
  type OutputDtype,
} from '@shoal/contract';
import { bytesOf, type FuzzedReader, type Values } from '../fuzzed-reader.ts';

const facts = { fingerprint: '7a46bcc903f08498', isTruncated: false };

function vectorsResult(dtype: OutputDtype, rows: number, dims: number): Buffer {
  const vectors = Float32Array.from({ length: rows * dims }, (_, at) => Math.sin(at + 1));
  const { body } = encodeBody(vectors, rows, dims, { dtype, dimensions: undefined });
  return encodeResult({ ...facts, dtype, rows, dims, isTruncated: rows === 3 }, body);
}

function rankingsResult(names?: readonly string[]): Buffer {
  const lists = [[5n, 3n, 2n ** 63n], [], [1n]];
  const rankings = lists.map((ids) => ({
    ids: BigUint64Array.from(ids),
    scores: Float32Array.from(ids, (_, at) => 1 - at / 10),
    ...(names === undefined ? {} : { names: names.slice(0, ids.length) }),
  }));
  return encodeResult({ ...facts, dtype: 'ranking', rows: 3, dims: 3 }, encodeRankings(rankings));
}

export const resultReader: FuzzedReader = {
  name: 'shl1',
  kind: 'binary',
  codes: ['RESULT_CORRUPT', 'RESULT_TAKEN', 'PAYLOAD_ELSEWHERE'],
  takesAll: true,
  seeds: async () => [
    vectorsResult('f32', 3, 4),
    vectorsResult('f16', 2, 5),
    vectorsResult('i8', 3, 7),
    vectorsResult('binary', 2, 12),
    rankingsResult(),
    rankingsResult(['drei 🙂', '', '007']),
  ],
  read: async (bytes) => {
    const { header, body } = openResult(bytes);
    const { isTruncated, isSimulated } = header;
    const head = [header.dtype, header.rows, header.dims, header.fingerprint, `${isTruncated} ${isSimulated}`];
    if (header.dtype !== 'ranking') return [...head, body];
    return [
      ...head,
      ...decodeRankings(header, body).flatMap(({ ids, scores, names }) => [
        ids.join(),
        bytesOf(scores),
        ...(names === undefined ? [] : [JSON.stringify(names)]),
      ]),
    ];
  },
  readAgain: (bytes) => readResult(bytes),
  mend: (bytes) => {
    if (bytes.length >= 32) bytes.writeUInt32LE(crc32(bytes.subarray(32)), 16);
    return bytes;
  },
};

function readResult(bytes: Buffer): Values | undefined {
  if (bytes.length < 32 || bytes.toString('latin1', 0, 5) !== 'SHL1\x01') return undefined;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const dtype = ['f32', 'f16', 'i8', 'binary', 'ranking'][view.getUint8(5)];
  const [flags, rows, dims] = [view.getUint16(6, true), view.getUint32(8, true), view.getUint32(12, true)];
  if (dtype === undefined || (flags & ~6) !== 0 || view.getUint32(28, true) !== 0) return undefined;
  const body = bytes.subarray(32);
  if (crc32(body) !== view.getUint32(16, true)) return undefined;
  const head = [dtype, rows, dims, bytes.toString('hex', 20, 28), `${(flags & 2) === 2} ${(flags & 4) === 4}`];
  if (dtype === 'ranking') return readRankings(view, rows, dims, head);
  const rowBytes = { f32: 4 * dims, f16: 2 * dims, i8: dims + 4, binary: Math.ceil(dims / 8) }[dtype]!;
  return body.length === rows * rowBytes ? [...head, body] : undefined;
}

function readRankings(view: DataView, rows: number, most: number, head: Values): Values | undefined {
  const values: (string | Uint8Array)[][] = [];
  const counts: number[] = [];
  let at = 32;
  for (let row = 0; row < rows; row++) {
    const count = at + 4 <= view.byteLength ? view.getUint32(at, true) : Infinity;
    if (count > most || at + 4 + 12 * count > view.byteLength) return undefined;
    const ids = Array.from({ length: count }, (_, hit) => view.getBigUint64(at + 4 + 8 * hit, true));
    const scores = new Uint8Array(view.buffer, view.byteOffset + at + 4 + 8 * count, 4 * count);
    values.push([ids.join(), scores.slice()]);
    counts.push(count);
    at += 4 + 12 * count;
  }
  if (at < view.byteLength) {
    const names = readNames(view, at, counts);
    if (names === undefined) return undefined;
    for (const [row, list] of names.entries()) values[row]!.push(JSON.stringify(list));
  }
  return [...head, ...values.flat()];
}

/** Lengths, then texts, then zeros up to a multiple of 4. */
function readNames(view: DataView, from: number, counts: readonly number[]): string[][] | undefined {
  const hits = counts.reduce((sum, count) => sum + count, 0);
  if (from + 4 * hits > view.byteLength || hits === 0) return undefined;
  let [lengthAt, at] = [from, from + 4 * hits];
  const rest = Buffer.from(view.buffer, view.byteOffset, view.byteLength);
  const names = counts.map((count) =>
    Array.from({ length: count }, () => {
      const begin = at;
      at += view.getUint32(lengthAt, true);
      lengthAt += 4;
      const bytes = rest.subarray(begin, at);
      const name = bytes.toString();
      return Buffer.from(name).equals(bytes) ? name : undefined;
    }),
  );
  const isSound =
    at <= rest.length && rest.length === Math.ceil(at / 4) * 4 && rest.subarray(at).every((byte) => byte === 0);
  return isSound && !names.flat().includes(undefined) ? (names as string[][]) : undefined;
}
