// The weights of one layer as its nodes take them: matrices turned for MatMul, heads of keys and values repeated for
// every head of queries, 1 added where a norm's factor is 1 + w, gate and up side by side. All of it happens while the
// graph is written. Layers that share weights share them in the file.

import { invariant } from '@shoal/contract';
import type { EncoderDescription } from '../encoder/encoder-description.ts';
import { transposeInto } from './encoder-tensors.ts';
import type { GraphParts, LinearUse } from './graph-parts.ts';
import type { MakeFloats } from './onnx-file.ts';

export interface LinearShape {
  readonly outputs: number;
  readonly inputs: number;
  readonly hasBias: boolean;
  /** Name of what comes out. */
  readonly output: string;
}

export class LayerTensors {
  readonly encoder: EncoderDescription;
  readonly parts: GraphParts;
  readonly index: number;
  /** What names of this layer's values begin with. */
  readonly at: string;
  /** What names of its tensors begin with. */
  readonly #from: string;

  constructor(encoder: EncoderDescription, parts: GraphParts, index: number) {
    this.encoder = encoder;
    this.parts = parts;
    this.index = index;
    this.at = `layer.${index}`;
    this.#from = encoder.names.layer.replace('{l}', String(index));
  }

  /** Factor and, where norms have one, bias of a norm of this layer over the hidden size. */
  norm(name: string): readonly string[] {
    return this.normOf(this.#from + name, this.encoder.hidden);
  }

  /** The same over the size of a head. */
  headNorm(name: string): readonly string[] {
    return this.normOf(this.#from + name, this.encoder.headSize);
  }

  /** Of any norm by its full name. */
  normOf(name: string, size: number): readonly string[] {
    const { hasBias, isPlusOne } = this.encoder.norm;
    const weight = this.parts.weights.tensor(`${name}.weight`, [size]);
    const factor = isPlusOne ? async (): Promise<Float32Array> => (await weight()).map((value) => 1 + value) : weight;
    const names = [this.#floats(`${name}.weight`, [size], factor)];
    if (hasBias) names.push(this.#floats(`${name}.bias`, [size], this.parts.weights.tensor(`${name}.bias`, [size])));
    return names;
  }

  bias(name: string, size: number): string {
    return this.#fullBias(this.#from + name, size);
  }

  /** input × matrix (+ bias) of this layer: [batch, seq, outputs]. */
  linear(name: string, input: string, shape: LinearShape, use: Omit<LinearUse, 'layer'>): string {
    return this.#linear(this.#from + name, input, shape, this.#use(use));
  }

  /** The same for a linear layer outside the layers, by its full name. */
  fullLinear(full: string, input: string, shape: LinearShape): string {
    return this.#linear(full, input, shape);
  }

  #linear(full: string, input: string, { outputs, inputs, hasBias, output }: LinearShape, use?: LinearUse): string {
    const name = `${full}.weight`;
    const matrix = this.parts.weights.transposed(name, outputs, inputs);
    const bias = (): string | undefined => (hasBias ? this.#fullBias(full, outputs) : undefined);
    return this.parts.linears(input, inputs, [{ name, outputs, matrix, bias, output }], use)[0]!;
  }

  /** Layers that share their weights share what their inputs are scaled by. */
  #use(use: Omit<LinearUse, 'layer'>): LinearUse {
    return { ...use, layer: this.encoder.names.layer.includes('{l}') ? this.index : 0 };
  }

  /** Queries, keys and values as one matrix [hidden, 3 × heads × headSize] and one bias, as Attention takes them. */
  joinedProjections(): readonly [matrix: string, bias: string | undefined] {
    const { hidden, heads, headSize, attention } = this.encoder;
    const width = heads * headSize;
    const parts = this.#projections();
    const matrix = this.#floats(`${this.#from}qkv.weight`, [hidden, 3 * width], async () =>
      besideEachOther(await all(parts.map(({ weight }) => weight)), width, hidden),
    );
    if (!attention.hasBias) return [matrix, undefined];
    const bias = this.#floats(`${this.#from}qkv.bias`, [3 * width], async () =>
      joined(await all(parts.map((part) => part.bias!))),
    );
    return [matrix, bias];
  }

  /** Queries, keys and values [batch, seq, heads × headSize] of the input, each with its bias. */
  project(input: string): readonly [queries: string, keys: string, values: string] {
    const { hidden, heads, headSize } = this.encoder;
    const width = heads * headSize;
    const linears = this.#projections().map(({ role, weight, bias }) => {
      const name = `${this.#from}${role}`;
      return {
        name: `${name}.matrix`,
        outputs: width,
        matrix: async () => besideEachOther([await weight()], width, hidden),
        bias: () => (bias === undefined ? undefined : this.#floats(`${name}.bias`, [width], bias)),
        output: `${this.at}.${role}`,
      };
    });
    const [queries, keys, values] = this.parts.linears(input, hidden, linears, this.#use({ linear: 'qkv' }));
    return [queries!, keys!, values!];
  }

  /** Gate and up of the input, the gate first: [batch, seq, 2 × intermediate]. */
  gateAndUp(input: string): string {
    const { hidden, intermediate, names, feedForward } = this.encoder;
    const { up } = names;
    invariant(up.kind !== 'plain', 'a gated feed-forward part has a gate');
    const width = 2 * intermediate;
    const name = `${this.#from}gate_up`;
    const rows = this.#gateUpRows(hidden, 'weight');
    const linear = {
      name: `${name}.weight`,
      outputs: width,
      matrix: async () => besideEachOther([await rows()], width, hidden),
      bias: () =>
        feedForward.hasBias ? this.#floats(`${name}.bias`, [width], this.#gateUpRows(0, 'bias')) : undefined,
      output: `${this.at}.gate_up`,
    };
    return this.parts.linears(input, hidden, [linear], this.#use({ linear: 'ff1' }))[0]!;
  }

  /** Rows of gate and then of up; `columns` 0: of their biases. */
  #gateUpRows(columns: number, part: 'weight' | 'bias'): MakeFloats {
    const {
      intermediate,
      names: { up },
    } = this.encoder;
    const shapeOf = (rows: number): readonly number[] => (columns === 0 ? [rows] : [rows, columns]);
    const tensor = (name: string, rows: number): MakeFloats =>
      this.parts.weights.tensor(`${this.#from}${name}.${part}`, shapeOf(rows));
    if (up.kind === 'apart') {
      const both = [tensor(up.gate, intermediate), tensor(up.up, intermediate)];
      return async () => joined(await all(both));
    }
    invariant(up.kind === 'fused', 'gate and up are apart or in one matrix');
    const whole = tensor(up.name, 2 * intermediate);
    if (up.isGateFirst) return whole;
    return async () => {
      const values = await whole();
      const half = values.length / 2;
      return joined([values.subarray(half), values.subarray(0, half)]);
    };
  }

  /** Rows of each projection [heads × headSize, hidden], and its bias. */
  #projections(): readonly {
    readonly role: string;
    readonly weight: MakeFloats;
    readonly bias: MakeFloats | undefined;
  }[] {
    const { hidden, heads, kvHeads, headSize, attention, names } = this.encoder;
    const [query, kv] = [heads * headSize, kvHeads * headSize];
    const { queryKeyValue: from } = names;
    return (['query', 'key', 'value'] as const).map((role, at) => {
      const sizes = [query, kv, kv];
      const made = (part: 'weight' | 'bias', columns: number): MakeFloats => {
        const shapeOf = (rows: number): readonly number[] => (part === 'bias' ? [rows] : [rows, columns]);
        const rows =
          from.kind === 'apart'
            ? this.parts.weights.tensor(`${this.#from}${from[role]}.${part}`, shapeOf(sizes[at]!))
            : this.#slice(
                `${this.#from}${from.name}.${part}`,
                shapeOf(query + 2 * kv),
                [0, query, query + kv][at]! * columns,
                sizes[at]! * columns,
              );
        return role === 'query' || kvHeads === heads
          ? rows
          : async () => repeatHeads(await rows(), headSize * columns, heads / kvHeads);
      };
      return { role, weight: made('weight', hidden), bias: attention.hasBias ? made('bias', 1) : undefined };
    });
  }

  #fullBias(full: string, size: number): string {
    const name = `${full}.bias`;
    return this.#floats(name, [size], this.parts.weights.tensor(name, [size]));
  }

  #slice(name: string, shape: readonly number[], start: number, size: number): MakeFloats {
    const whole = this.parts.weights.tensor(name, shape);
    return async () => (await whole()).slice(start, start + size);
  }

  /** Once under this name: layers may share weights. */
  #floats(name: string, shape: readonly number[], make: MakeFloats): string {
    return this.parts.graph.once(name, () => this.parts.floats(name, shape, make));
  }
}

/** One after the other: of a large model no two are read at once. */
async function all(makers: readonly MakeFloats[]): Promise<readonly Float32Array[]> {
  const made: Float32Array[] = [];
  for (const make of makers) made.push(await make());
  return made;
}

function joined(pieces: readonly Float32Array[]): Float32Array {
  const values = new Float32Array(pieces.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const piece of pieces) {
    values.set(piece, at);
    at += piece.length;
  }
  return values;
}

/** Each block of `size` values `times` times, copies beside their original: [a, b] becomes [a, a, b, b]. */
function repeatHeads(values: Float32Array, size: number, times: number): Float32Array {
  const repeated = new Float32Array(values.length * times);
  for (let start = 0; start < values.length; start += size)
    for (let copy = 0; copy < times; copy++)
      repeated.set(values.subarray(start, start + size), start * times + copy * size);
  return repeated;
}

/** Matrices [outputs, inputs] as one [inputs, matrices × outputs]. */
function besideEachOther(matrices: readonly Float32Array[], outputs: number, inputs: number): Float32Array {
  const width = outputs * matrices.length;
  const target = new Float32Array(inputs * width);
  for (const [index, matrix] of matrices.entries())
    transposeInto(target, width, index * outputs, matrix, outputs, inputs);
  return target;
}
