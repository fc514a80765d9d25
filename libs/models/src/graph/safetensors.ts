// Weights from a .safetensors file: 8 bytes of header length, a JSON header, then the tensors without a gap. The header
// is believed only after every number in it has been checked against the size of the file; a tensor is read when it is
// asked for, into memory of its own, so that no model is ever in memory twice. Refuses with MODEL_CORRUPT, naming the
// tensor. What writes such a file begins it with the head that is made here.

import { open, type FileHandle } from 'node:fs/promises';
import { ShoalError, fromHalves } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';
import type { StoredTensor } from './named-tensors.ts';

/** The limit of the reference implementation; minilm's header has 11 kB. */
const MAX_HEADER_BYTES = 100_000_000;

const ELEMENT_BYTES = {
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
} as const;

export type Dtype = keyof typeof ELEMENT_BYTES;

/**
 * The beginning of a file whose tensors follow in this order, without a gap: the header's length and the header, which the
 * format pads with spaces to a multiple of 8 bytes. `metadata`: what "__metadata__" says; left out where undefined.
 */
export function safetensorsHead(
  tensors: readonly { readonly name: string; readonly dtype: Dtype; readonly shape: readonly number[] }[],
  metadata?: Readonly<Record<string, string>>,
): Buffer {
  const header: Record<string, unknown> = metadata === undefined ? {} : { __metadata__: metadata };
  let end = 0;
  for (const { name, dtype, shape } of tensors) {
    const start = end;
    end += shape.reduce((product, size) => product * size, ELEMENT_BYTES[dtype]);
    header[name] = { dtype, shape, data_offsets: [start, end] };
  }
  const text = JSON.stringify(header);
  const head = Buffer.from(text.padEnd(Math.ceil(text.length / 8) * 8));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(head.length));
  return Buffer.concat([length, head]);
}

interface TensorEntry {
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  /** Position in the file. */
  readonly start: number;
  readonly bytes: number;
}

export class Safetensors {
  readonly path: string;
  readonly #file: FileHandle;
  readonly #tensors: ReadonlyMap<string, TensorEntry>;

  private constructor(path: string, file: FileHandle, tensors: ReadonlyMap<string, TensorEntry>) {
    this.path = path;
    this.#file = file;
    this.#tensors = tensors;
  }

  /** Opens the file, calls `work` with it and closes it again. */
  static async use<T>(path: string, work: (weights: Safetensors) => Promise<T>): Promise<T> {
    const file = await open(path, 'r').catch((cause: Error) => {
      throw new ShoalError(
        'MODEL_CORRUPT',
        `${path} belongs to the model and cannot be read: ${cause.message}`,
        { path },
        cause,
      );
    });
    try {
      return await work(new Safetensors(path, file, await readHeader(path, file)));
    } finally {
      await file.close();
    }
  }

  get names(): readonly string[] {
    return [...this.#tensors.keys()];
  }

  has(name: string): boolean {
    return this.#tensors.has(name);
  }

  shape(name: string): readonly number[] {
    return this.#entry(name).shape;
  }

  /** Throws unless the tensor exists, has this shape and holds floating point numbers. */
  expect(name: string, shape: readonly number[]): void {
    const { dtype, shape: found } = this.#entry(name);
    if (found.join() !== shape.join())
      throw corrupt(
        this.path,
        `tensor ${name} should have the shape [${shape.join(', ')}] and has [${found.join(', ')}]`,
        { tensor: name },
      );
    if (dtype !== 'F32' && dtype !== 'F16' && dtype !== 'BF16')
      throw corrupt(this.path, `tensor ${name} holds ${dtype}; F32, F16 and BF16 can be read`, { tensor: name });
  }

  /** The tensor's values, row-major, as 32-bit floats. Call `expect` before. */
  async read(name: string): Promise<Float32Array> {
    const { dtype, read } = this.stored(name);
    const stored = await read();
    if (dtype === 'F32') return new Float32Array(stored);
    const halves = new Uint16Array(stored);
    return dtype === 'F16' ? fromHalves(halves) : Float32Array.from(halves, fromBfloat);
  }

  /** What the tensor is in the file, whatever it holds. */
  stored(name: string): StoredTensor {
    const { dtype, shape, start, bytes } = this.#entry(name);
    const read = async (): Promise<ArrayBuffer> => {
      const stored = new ArrayBuffer(bytes);
      await readFully(this.#file, new Uint8Array(stored), start);
      return stored;
    };
    return { dtype, shape, read };
  }

  #entry(name: string): TensorEntry {
    const entry = this.#tensors.get(name);
    if (entry === undefined) throw corrupt(this.path, `tensor ${name} is missing`, { tensor: name });
    return entry;
  }
}

async function readHeader(path: string, file: FileHandle): Promise<ReadonlyMap<string, TensorEntry>> {
  const { size } = await file.stat();
  if (size < 8) throw corrupt(path, `the file has ${size} bytes, too few for a header`);
  const lengthBytes = new Uint8Array(8);
  await readFully(file, lengthBytes, 0);
  const length = new DataView(lengthBytes.buffer).getBigUint64(0, true);
  if (length > BigInt(MAX_HEADER_BYTES))
    throw corrupt(path, `the header claims ${length} bytes; ${MAX_HEADER_BYTES} are allowed`);
  if (length > BigInt(size - 8))
    throw corrupt(path, `the header claims ${length} bytes, but the file ends after ${size - 8}`);
  const headerBytes = new Uint8Array(Number(length));
  await readFully(file, headerBytes, 8);
  return checkHeader(
    CheckedJson.parse(new TextDecoder().decode(headerBytes), `${path}: header`),
    path,
    8 + headerBytes.length,
    size,
  );
}

/** Tensors must follow each other without gap or overlap and end where the file ends. */
function checkHeader(
  header: CheckedJson,
  path: string,
  dataStart: number,
  fileSize: number,
): ReadonlyMap<string, TensorEntry> {
  const tensors = new Map<string, TensorEntry>();
  for (const name of header.keys())
    if (name !== '__metadata__') tensors.set(name, checkTensor(header.object(name), path, name, dataStart));
  let end = dataStart;
  for (const [name, tensor] of [...tensors].sort(([, a], [, b]) => a.start - b.start || a.bytes - b.bytes)) {
    if (tensor.start !== end)
      throw corrupt(
        path,
        `tensor ${name} should begin at byte ${end - dataStart} of the data and begins at ${tensor.start - dataStart}`,
        { tensor: name },
      );
    end += tensor.bytes;
    if (end > fileSize)
      throw corrupt(
        path,
        `the file is cut off inside tensor ${name}: ${fileSize} bytes where at least ${end} should be`,
        { tensor: name },
      );
  }
  if (end !== fileSize) throw corrupt(path, `the file has ${fileSize} bytes where its header describes ${end}`);
  return tensors;
}

function checkTensor(json: CheckedJson, path: string, name: string, dataStart: number): TensorEntry {
  const dtype = json.string('dtype');
  if (!isDtype(dtype))
    throw corrupt(path, `tensor ${name} has the unknown type ${JSON.stringify(dtype)}`, { tensor: name });
  const shape = json.integers('shape');
  const [begin = -1, end = -1, ...more] = json.integers('data_offsets');
  const bytes = shape.reduce((product, size) => product * size, ELEMENT_BYTES[dtype]);
  if (begin < 0 || more.length > 0 || end - begin !== bytes || !Number.isSafeInteger(bytes)) {
    throw corrupt(
      path,
      `tensor ${name} of type ${dtype} and shape [${shape.join(', ')}] takes ${bytes} bytes, not those from ` +
        `${begin} to ${end}`,
      { tensor: name },
    );
  }
  return { dtype, shape, start: dataStart + begin, bytes };
}

function isDtype(name: string): name is Dtype {
  return Object.hasOwn(ELEMENT_BYTES, name);
}

/** One call of read() moves at most 2 GiB, and may move less than asked for. */
async function readFully(file: FileHandle, into: Uint8Array, position: number): Promise<void> {
  for (let done = 0; done < into.length;) {
    const { bytesRead } = await file.read(into, done, Math.min(into.length - done, 1 << 30), position + done);
    if (bytesRead === 0)
      throw new ShoalError(
        'MODEL_CORRUPT',
        `the file became shorter while it was read: nothing at byte ${position + done}`,
      );
    done += bytesRead;
  }
}

const bits = new Uint32Array(1);
const asFloat = new Float32Array(bits.buffer);

function fromBfloat(half: number): number {
  bits[0] = half << 16;
  return asFloat[0]!;
}

function corrupt(path: string, problem: string, fields: Readonly<Record<string, unknown>> = {}): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `${path}: ${problem}`, { path, ...fields });
}
