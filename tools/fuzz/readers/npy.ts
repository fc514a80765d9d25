// NumPy's .npy, as its page describes the format: what holds vectors, read by a few lines of plain code.

import { readVectors } from '@shoal/similarity';
import { bytesOf, type FuzzedReader, type Values } from '../fuzzed-reader.ts';

function npy(header: string, body: Uint8Array, version = 1): Buffer {
  const lengthBytes = version === 1 ? 2 : 4;
  const text = `${header.padEnd(Math.ceil((header.length + 11) / 64) * 64 - 9 - lengthBytes)}\n`;
  const head = Buffer.alloc(8 + lengthBytes);
  head.write('\x93NUMPY', 'latin1');
  head.writeUIntLE(version, 6, 1);
  head.writeUIntLE(text.length, 8, lengthBytes);
  return Buffer.concat([head, Buffer.from(text, 'latin1'), body]);
}

const header = (descr: string, shape: string): string =>
  `{'descr': '${descr}', 'fortran_order': False, 'shape': (${shape}), }`;
const floats = Float32Array.from({ length: 12 }, (_, at) => Math.cos(at));

export const npyReader: FuzzedReader = {
  name: 'npy',
  kind: 'both',
  extension: '.npy',
  codes: ['INPUT_INVALID', 'FILE_UNREADABLE', 'VECTOR_INVALID', 'DIMENSIONS_MISMATCH'],
  variants: 1,
  seeds: async () => [
    npy(header('<f4', '3, 4'), bytesOf(floats)),
    npy(header('<f8', '2, 3'), bytesOf(Float64Array.of(1, 0.5, -2, 3, 1e-3, 7))),
    npy(header('<f2', '2, 2'), bytesOf(Uint16Array.of(0x3c00, 0x3800, 0xc000, 1))),
    npy(header('<f4', '4, 3'), bytesOf(floats), 2),
    npy(header('<f4', '3, 4').replace('False', 'True'), bytesOf(floats)),
    npy(header('<f4', '12,'), bytesOf(floats)),
  ],
  read: async (_bytes, path) => {
    let [rows, dims] = [0, 0];
    const values: Uint8Array[] = [];
    for await (const batch of readVectors(path)) {
      dims = batch.dims;
      rows += batch.vectors.length / dims;
      values.push(bytesOf(batch.vectors).slice());
    }
    return [rows, rows === 0 ? 0 : dims, Buffer.concat(values)];
  },
  readAgain: (bytes) => readNpy(bytes),
};

const HEADER = /^\s*\{((?:\s*'(?:descr|fortran_order|shape)'\s*:\s*(?:'[^']*'|True|False|\([^()]*\))\s*,?)*)\s*\}\s*$/;

function readNpy(bytes: Buffer): Values | undefined | 'unknown' {
  if (bytes.length < 12 || bytes.toString('latin1', 0, 6) !== '\x93NUMPY') return undefined;
  const version = bytes[6]!;
  if (version < 1 || version > 3) return undefined;
  const at = version === 1 ? 10 : 12;
  const length = version === 1 ? bytes.readUInt16LE(8) : bytes.readUInt32LE(8);
  if (at + length > bytes.length) return undefined;
  const text = bytes.toString('latin1', at, at + length);
  if (HEADER.exec(text) === null) return undefined; // not what Python reads as three fields
  const field = (name: string): string[] =>
    [...text.matchAll(new RegExp(`'${name}'\\s*:\\s*('[^']*'|True|False|\\([^()]*\\))`, 'g'))].map(
      (found) => found[1]!,
    );
  const [descr, order, shape] = [field('descr'), field('fortran_order'), field('shape')].map((found) => found[0] ?? '');
  if (['descr', 'fortran_order', 'shape'].some((name) => field(name).length !== 1)) return undefined;
  const type = /^'[<|=]?f([248])'$/.exec(descr!)?.[1];
  const sizes = /^\(\s*(\d+)\s*,\s*(?:(\d+)\s*,?\s*)?\)$/.exec(shape!);
  if (type === undefined || sizes === null) return undefined;
  const [rows, dims] = sizes[2] === undefined ? [1, Number(sizes[1])] : [Number(sizes[1]), Number(sizes[2])]; // one row
  const elementBytes = Number(type);
  const body = bytes.subarray(at + length);
  if (body.length < rows * dims * elementBytes || dims === 0) return undefined;
  const numbers = new Float32Array(rows * dims);
  for (let i = 0; i < numbers.length; i++)
    numbers[i] = numberAt(
      body,
      elementBytes * (order === 'True' ? (i % dims) * rows + Math.floor(i / dims) : i),
      elementBytes,
    );
  return [rows, rows === 0 ? 0 : dims, bytesOf(numbers)];
}

function numberAt(body: Buffer, at: number, bytes: number): number {
  if (bytes === 4) return body.readFloatLE(at);
  if (bytes === 8) return body.readDoubleLE(at);
  const half = body.readUInt16LE(at);
  const [exponent, fraction, sign] = [(half >> 10) & 31, half & 1023, half >> 15 === 0 ? 1 : -1];
  if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
}
