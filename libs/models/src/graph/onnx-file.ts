// An ONNX file, written front to back. Nodes and names are kept as small messages; the numbers of an initializer are
// asked for when it is their turn and dropped once they are in the file, so building a graph needs the memory of its
// largest tensor and not of the model. Knows nothing of BERT. Field numbers are those of onnx.proto (IR version 8).

import { open } from 'node:fs/promises';
import { ShoalError, invariant } from '@shoal/contract';
import { Message } from './protobuf.ts';

export const TYPE = { FLOAT: 1, UINT8: 2, INT8: 3, INT32: 6, INT64: 7, FLOAT16: 10, BFLOAT16: 16 } as const;
export type ElementType = (typeof TYPE)[keyof typeof TYPE];

/**
 * A number is a fixed size, a name one that each run chooses; undefined one that the runtime is not to compare with
 * others.
 */
export type Shape = readonly (number | string | undefined)[];

export interface NodeOptions {
  /** Operators outside ONNX itself name their set, e.g. com.microsoft. */
  readonly domain?: string;
  readonly integers?: Readonly<Record<string, number | readonly number[]>>;
  readonly floats?: Readonly<Record<string, number>>;
  /** Outputs after the first, for operators that insist on them. */
  readonly moreOutputs?: readonly string[];
}

/**
 * Values in row-major order, made when the file is written. Float16 and bfloat16 values travel as their bits in a
 * Uint16Array.
 */
export type MakeValues = () => Promise<
  Float32Array | Uint16Array | Int8Array | Uint8Array | Int32Array | BigInt64Array
>;
export type MakeFloats = () => Promise<Float32Array>;

interface Initializer {
  readonly name: string;
  readonly type: ElementType;
  readonly shape: readonly number[];
  /** Of the tensor with its values in the graph's own file. */
  readonly head: Uint8Array;
  readonly valueBytes: number;
  readonly make: MakeValues;
}

/** Where the values of a graph go that is too large for one file. */
export interface DataFile {
  /** Must not exist. */
  readonly path: string;
  /** By which the graph, in the same folder, finds it. */
  readonly name: string;
}

interface WriteOptions {
  /** Most bytes of the graph's own file; default all that the format allows. */
  readonly maxBytes?: number | undefined;
  /** Takes the values where they are too many; without it, such a graph is refused. */
  readonly data?: DataFile | undefined;
}

const ELEMENT_BYTES: Readonly<Record<ElementType, number>> = {
  [TYPE.FLOAT]: 4,
  [TYPE.UINT8]: 1,
  [TYPE.INT8]: 1,
  [TYPE.INT32]: 4,
  [TYPE.INT64]: 8,
  [TYPE.FLOAT16]: 2,
  [TYPE.BFLOAT16]: 2,
};
/** protobuf refuses messages of 2 GiB; larger graphs have their values in a file beside them. */
const MAX_FILE_BYTES = 2 ** 31 - 1;
/** Where values of a data file begin: a multiple of a page, so that the runtime can map them. */
const DATA_ALIGNMENT = 4096;
/** Smaller values stay in the graph: shapes have to be there for the runtime to see. */
const LEAST_DATA_BYTES = 1024;
/** Field numbers of messages that are also read. */
export const MODEL = { GRAPH: 7, OPSET: 8 } as const;
export const GRAPH = { NODE: 1, NAME: 2, INITIALIZER: 5, INPUT: 11, OUTPUT: 12 } as const;
const ATTRIBUTE = { FLOAT: 1, INT: 2, INTS: 7 } as const;

export class OnnxFile {
  readonly #name: string;
  readonly #inputs: Message[] = [];
  readonly #outputs: Message[] = [];
  readonly #nodes: Message[] = [];
  readonly #initializers: Initializer[] = [];
  readonly #opsets: Readonly<Record<string, number>>;
  readonly #shared: Set<string>;

  /**
   * `opsets`: version by domain; '' is ONNX itself. `shared`: what `once` need not make, because another graph before
   * this one does.
   */
  constructor(name: string, opsets: Readonly<Record<string, number>>, shared: readonly string[] = []) {
    this.#name = name;
    this.#opsets = opsets;
    this.#shared = new Set(shared);
  }

  /** Version of ONNX's own operators. */
  get opset(): number {
    return this.#opsets[''] ?? 0;
  }

  input(name: string, type: ElementType, shape: Shape): string {
    this.#inputs.push(valueInfo(name, type, shape));
    return name;
  }

  output(name: string, type: ElementType, shape: Shape): void {
    this.#outputs.push(valueInfo(name, type, shape));
  }

  /** Adds weights; returns their name. */
  initializer(name: string, type: ElementType, shape: readonly number[], make: MakeValues): string {
    const valueBytes = shape.reduce((product, size) => product * size, ELEMENT_BYTES[type]);
    const tensor = new Message();
    for (const size of shape) tensor.integer(1, size);
    tensor.integer(2, type).text(8, name).head(9, valueBytes);
    this.#initializers.push({ name, type, shape, head: tensor.finish(), valueBytes, make });
    return name;
  }

  /** Adds an operator; returns the name of its first output, `output`. An empty input name means "not given". */
  node(operator: string, inputs: readonly string[], output: string, options: NodeOptions = {}): string {
    const node = new Message();
    for (const input of inputs) node.text(1, input);
    for (const name of [output, ...(options.moreOutputs ?? [])]) node.text(2, name);
    node.text(3, `${operator}:${output}`).text(4, operator);
    for (const [name, value] of Object.entries(options.integers ?? {})) node.message(5, integerAttribute(name, value));
    for (const [name, value] of Object.entries(options.floats ?? {}))
      node.message(5, new Message().text(1, name).float(2, value).integer(20, ATTRIBUTE.FLOAT));
    if (options.domain !== undefined) node.text(7, options.domain);
    this.#nodes.push(node);
    return output;
  }

  /** Whole numbers as a vector, for axes, shapes and the like; made once, found again. The name says the values. */
  integers(...values: readonly number[]): string {
    return this.once(`integers_${values.join('_')}`, (name) =>
      this.initializer(name, TYPE.INT64, [values.length], async () => BigInt64Array.from(values, BigInt)),
    );
  }

  /** One whole number without a dimension. */
  integer(value: number): string {
    return this.once(`integer_${value}`, (name) =>
      this.initializer(name, TYPE.INT64, [], async () => BigInt64Array.of(BigInt(value))),
    );
  }

  /** One number without a dimension. */
  float(value: number): string {
    return this.once(`float_${value}`, (name) =>
      this.initializer(name, TYPE.FLOAT, [], async () => Float32Array.of(value)),
    );
  }

  /** What `make` adds under this name, only at the first call. */
  once(name: string, make: (name: string) => string): string {
    if (this.#shared.has(name)) return name;
    this.#shared.add(name);
    const made = make(name);
    invariant(made === name, `${name} is made under its name`);
    return name;
  }

  /**
   * Writes the model to `path`, which must not exist. Whether its values went to the data file, because the graph's own
   * would have had more than `maxBytes`. MODEL_CORRUPT where they do not fit and there is no data file.
   */
  async write(path: string, { maxBytes = MAX_FILE_BYTES, data }: WriteOptions = {}): Promise<boolean> {
    const whole = this.#layOut(this.#initializers.map((tensor) => ({ ...tensor, place: undefined })));
    if (whole.bytes <= maxBytes) {
      await writeGraph(path, whole);
      return false;
    }
    if (data === undefined) throw tooLarge(whole.bytes, maxBytes);
    let end = 0;
    const placed = this.#initializers.map((tensor) => {
      if (tensor.valueBytes < LEAST_DATA_BYTES) return { ...tensor, place: undefined };
      const place = { name: data.name, start: end, bytes: tensor.valueBytes };
      end = Math.ceil((end + tensor.valueBytes) / DATA_ALIGNMENT) * DATA_ALIGNMENT;
      return { ...tensor, head: referringHead(tensor, place), place };
    });
    const graph = this.#layOut(placed);
    if (graph.bytes > maxBytes) throw tooLarge(graph.bytes, maxBytes);
    await writeData(data.path, placed);
    await writeGraph(path, graph);
    return true;
  }

  /** The pieces of the file around the values, and how many bytes all of it has. */
  #layOut(initializers: readonly PlacedInitializer[]): LaidOut {
    const before = new Message();
    for (const node of this.#nodes) before.message(GRAPH.NODE, node);
    before.text(GRAPH.NAME, this.#name);
    const after = new Message();
    for (const input of this.#inputs) after.message(GRAPH.INPUT, input);
    for (const output of this.#outputs) after.message(GRAPH.OUTPUT, output);
    const [start, end] = [before.finish(), after.finish()];
    const tensors = initializers.map((tensor) => ({
      ...tensor,
      field: new Message().head(GRAPH.INITIALIZER, tensor.head.length + bytesInside(tensor)).finish(),
    }));
    const graphBytes = tensors.reduce(
      (sum, tensor) => sum + tensor.field.length + tensor.head.length + bytesInside(tensor),
      start.length + end.length,
    );
    const model = this.#modelHead(graphBytes);
    return { model, start, tensors, end, bytes: model.length + graphBytes };
  }

  /** The fields of the graph in memory: for small graphs that go around another one. */
  async content(): Promise<Uint8Array> {
    const pieces: Uint8Array[] = this.#nodes.map((node) => new Message().message(GRAPH.NODE, node).finish());
    for (const { head, valueBytes, make } of this.#initializers) {
      const values = await make();
      pieces.push(
        new Message().head(GRAPH.INITIALIZER, head.length + valueBytes).finish(),
        head,
        new Uint8Array(values.buffer, values.byteOffset, values.byteLength),
      );
    }
    for (const input of this.#inputs) pieces.push(new Message().message(GRAPH.INPUT, input).finish());
    for (const output of this.#outputs) pieces.push(new Message().message(GRAPH.OUTPUT, output).finish());
    return Buffer.concat(pieces);
  }

  #modelHead(graphBytes: number): Uint8Array {
    const model = new Message().integer(1, 8).text(2, 'shoal');
    for (const [domain, version] of Object.entries(this.#opsets))
      model.message(MODEL.OPSET, new Message().text(1, domain).integer(2, version));
    return model.head(MODEL.GRAPH, graphBytes).finish();
  }
}

interface DataPlace {
  readonly name: string;
  readonly start: number;
  readonly bytes: number;
}

/** `place`: of its values, where they are not in the graph's own file. */
type PlacedInitializer = Initializer & { readonly place: DataPlace | undefined };

interface LaidOut {
  readonly model: Uint8Array;
  readonly start: Uint8Array;
  readonly tensors: readonly (PlacedInitializer & { readonly field: Uint8Array })[];
  readonly end: Uint8Array;
  readonly bytes: number;
}

/** Bytes of values in the graph's own file. */
function bytesInside({ place, valueBytes }: PlacedInitializer): number {
  return place === undefined ? valueBytes : 0;
}

/** A tensor that says where its values are: external_data and data_location of onnx.proto. */
function referringHead({ name, type, shape }: Initializer, place: DataPlace): Uint8Array {
  const tensor = new Message();
  for (const size of shape) tensor.integer(1, size);
  tensor.integer(2, type).text(8, name);
  for (const [key, value] of [
    ['location', place.name],
    ['offset', String(place.start)],
    ['length', String(place.bytes)],
  ] as const)
    tensor.message(13, new Message().text(1, key).text(2, value));
  return tensor.integer(14, 1).finish();
}

async function writeGraph(path: string, { model, start, tensors, end }: LaidOut): Promise<void> {
  const file = await open(path, 'wx');
  try {
    await file.writeFile(model);
    await file.writeFile(start);
    for (const tensor of tensors) {
      await file.writeFile(tensor.field);
      await file.writeFile(tensor.head);
      if (tensor.place === undefined) await file.writeFile(await bytesOf(tensor));
    }
    await file.writeFile(end);
  } finally {
    await file.close();
  }
}

async function writeData(path: string, tensors: readonly PlacedInitializer[]): Promise<void> {
  const file = await open(path, 'wx');
  try {
    let end = 0;
    for (const tensor of tensors) {
      if (tensor.place === undefined) continue;
      await file.writeFile(new Uint8Array(tensor.place.start - end));
      await file.writeFile(await bytesOf(tensor));
      end = tensor.place.start + tensor.place.bytes;
    }
  } finally {
    await file.close();
  }
}

async function bytesOf(tensor: Initializer): Promise<Uint8Array> {
  const values = await tensor.make();
  invariant(values.byteLength === tensor.valueBytes, `initializer ${tensor.name} has the size that its shape says`);
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

function valueInfo(name: string, type: ElementType, shape: Shape): Message {
  const dims = new Message();
  for (const size of shape) dims.message(1, dimension(size));
  const tensorType = new Message().integer(1, type).message(2, dims);
  return new Message().text(1, name).message(2, new Message().message(1, tensorType));
}

function dimension(size: Shape[number]): Message {
  if (size === undefined) return new Message();
  return typeof size === 'number' ? new Message().integer(1, size) : new Message().text(2, size);
}

function integerAttribute(name: string, value: number | readonly number[]): Message {
  const attribute = new Message().text(1, name);
  if (typeof value === 'number') return attribute.integer(3, value).integer(20, ATTRIBUTE.INT);
  for (const item of value) attribute.integer(8, item);
  return attribute.integer(20, ATTRIBUTE.INTS);
}

function tooLarge(bytes: number, most: number): ShoalError {
  return new ShoalError('MODEL_CORRUPT', `the graph would have ${bytes} bytes; its file ends at ${most}`, { bytes });
}
