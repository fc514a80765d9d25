// Weights: every tensor that a model could be made of, read as our graph builder reads it and by DataView.

import { Safetensors } from '../../../libs/models/src/graph/safetensors.ts';
import { bytesOf, type FuzzedReader, type Values } from '../fuzzed-reader.ts';

interface Tensor {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly data_offsets: readonly [number, number];
}

function safetensors(tensors: Readonly<Record<string, Tensor>>, body: Uint8Array, more: object = {}): Buffer {
  const header = Buffer.from(JSON.stringify({ ...more, ...tensors }));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  return Buffer.concat([length, header, body]);
}

const body = Buffer.from(Float32Array.from({ length: 10 }, (_, at) => Math.sin(at)).buffer);

export const safetensorsReader: FuzzedReader = {
  name: 'safetensors',
  kind: 'both',
  extension: '.safetensors',
  codes: ['MODEL_CORRUPT'],
  variants: 1,
  seeds: async () => [
    safetensors(
      {
        'encoder.weight': { dtype: 'F32', shape: [2, 3], data_offsets: [0, 24] },
        'encoder.bias': { dtype: 'F16', shape: [4], data_offsets: [24, 32] },
        position: { dtype: 'I64', shape: [1, 1], data_offsets: [32, 40] },
      },
      body,
      { __metadata__: { format: 'pt' } },
    ),
    safetensors(
      {
        half: { dtype: 'BF16', shape: [3, 2], data_offsets: [16, 28] },
        empty: { dtype: 'F32', shape: [0, 5], data_offsets: [16, 16] },
        whole: { dtype: 'F32', shape: [4], data_offsets: [0, 16] },
        one: { dtype: 'F32', shape: [], data_offsets: [28, 32] },
      },
      body.subarray(0, 32),
    ),
  ],
  read: (_bytes, path) =>
    Safetensors.use(path, async (weights) => {
      const values: (string | Uint8Array)[] = [];
      for (const name of weights.names.toSorted()) {
        const shape = shapeOf(weights, name);
        values.push(name, shape ?? 'of another type');
        if (shape !== undefined) values.push(bytesOf(await weights.read(name)));
      }
      return values;
    }),
  readAgain: (bytes) => readSafetensors(bytes),
  mend: (bytes) => {
    const end = bytes.lastIndexOf('}}') + 2;
    if (end > 8) bytes.writeBigUInt64LE(BigInt(end - 8), 0);
    return bytes;
  },
};

/** `expect` says the shape only when it finds another. */
function shapeOf(weights: Safetensors, name: string): string | undefined {
  const found = messageOf(() => weights.expect(name, [-1]));
  const shape = /has \[([\d, ]*)\]/.exec(found)?.[1]?.replaceAll(' ', '') ?? '?';
  const sizes = shape === '' ? [] : shape.split(',').map(Number);
  return messageOf(() => weights.expect(name, sizes)) === '' ? shape : undefined;
}

function messageOf(work: () => void): string {
  try {
    work();
    return '';
  } catch (error) {
    return (error as Error).message;
  }
}

const BYTES: Readonly<Record<string, number>> = {
  BOOL: 1,
  U8: 1,
  I8: 1,
  F8_E4M3: 1,
  F8_E5M2: 1,
  I16: 2,
  U16: 2,
  F16: 2,
  BF16: 2,
  I32: 4,
  U32: 4,
  F32: 4,
  I64: 8,
  U64: 8,
  F64: 8,
};

function readSafetensors(bytes: Buffer): Values | undefined {
  if (bytes.length < 8) return undefined;
  const begin = 8 + Number(bytes.readBigUInt64LE(0));
  if (begin > bytes.length) return undefined;
  const header = objectIn(bytes.toString('utf8', 8, begin));
  if (header === undefined) return undefined;
  const tensors = Object.entries(header).filter(([name]) => name !== '__metadata__') as [string, Tensor][];
  if (!tensors.every(([, tensor]) => isSound(tensor, bytes.length - begin))) return undefined;
  let end = 0;
  for (const [, { data_offsets: at }] of tensors.toSorted(([, a], [, b]) => order(a, b))) {
    if (at[0] !== end) return undefined;
    end = at[1];
  }
  if (end !== bytes.length - begin) return undefined;
  return tensors
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .flatMap(([name, { dtype, shape, data_offsets: at }]) =>
      ['F32', 'F16', 'BF16'].includes(dtype)
        ? [name, shape.join(), numbersOf(bytes.subarray(begin + at[0], begin + at[1]), dtype)]
        : [name, 'of another type'],
    );
}

const order = (a: Tensor, b: Tensor): number =>
  a.data_offsets[0] - b.data_offsets[0] || a.data_offsets[1] - b.data_offsets[1];

function objectIn(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? { ...value } : undefined;
  } catch {
    return undefined;
  }
}

const isCount = (value: unknown): boolean => Number.isSafeInteger(value) && (value as number) >= 0;

function isSound(tensor: Tensor | null, room: number): boolean {
  if (typeof tensor !== 'object' || tensor === null || !Array.isArray(tensor.shape)) return false;
  const at: readonly unknown[] = tensor.data_offsets;
  if (!Array.isArray(at) || at.length !== 2 || ![...tensor.shape, ...at].every(isCount)) return false;
  const wanted = tensor.shape.reduce((product, size) => product * BigInt(size), BigInt(BYTES[tensor.dtype] ?? -1));
  return wanted === BigInt(tensor.data_offsets[1] - tensor.data_offsets[0]) && tensor.data_offsets[1] <= room;
}

function numbersOf(bytes: Buffer, dtype: string): Uint8Array {
  const elementBytes = BYTES[dtype]!;
  const values = Float32Array.from({ length: bytes.length / elementBytes }, (_, at) => {
    if (dtype === 'F32') return bytes.readFloatLE(4 * at);
    const half = bytes.readUInt16LE(2 * at);
    return dtype === 'F16' ? halfValue(half) : bfloatValue(half);
  });
  return bytesOf(values);
}

function bfloatValue(half: number): number {
  const view = new DataView(new ArrayBuffer(4));
  view.setUint16(2, half, true);
  return view.getFloat32(0, true);
}

function halfValue(half: number): number {
  const [exponent, fraction, sign] = [(half >> 10) & 31, half & 1023, half >> 15 === 0 ? 1 : -1];
  if (exponent === 31) return fraction === 0 ? sign * Infinity : NaN;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1 + fraction / 1024) * 2 ** (exponent - 15));
}
