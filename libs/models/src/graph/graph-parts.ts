// What every form of an encoder is made from: the graph being written, the weights by their authors' names, and the type
// that floats are kept and computed in. Knows no family.

import { ShoalError, toHalves, type ErrorCode } from '@shoal/contract';
import type { EncoderTensors } from './encoder-tensors.ts';
import type { QuantizedLinear } from './calibration.ts';
import { TYPE, type ElementType, type MakeFloats, type OnnxFile } from './onnx-file.ts';

export const MICROSOFT = { domain: 'com.microsoft' } as const;

/** What floats are kept and computed in. */
export type FloatForm = 'fp32' | 'fp16' | 'bf16';

/** Where kinds that quantize find what the input of a linear layer is scaled by. */
export interface LinearUse {
  /** The number of the layer; 0 where all layers share their weights. */
  readonly layer: number;
  readonly linear: QuantizedLinear;
  /** The input came out of a GELU or a ReLU: hardly anything of it is below 0. */
  readonly isActive?: boolean;
}

/** One linear layer: what an input is multiplied with and what is added. */
export interface Linear {
  /** Name of the matrix in the graph; the same name is the same matrix. */
  readonly name: string;
  readonly outputs: number;
  /** The matrix [inputs, outputs]. */
  readonly matrix: MakeFloats;
  /** Adds the bias to the graph and returns its name; undefined without one. */
  readonly bias: () => string | undefined;
  /** Name of the value [batch, seq, outputs]. */
  readonly output: string;
}

export class GraphParts {
  readonly graph: OnnxFile;
  readonly weights: EncoderTensors;
  readonly form: FloatForm;
  /** What the word table is kept in. */
  readonly words: FloatForm;
  /** What the encoder computes in. */
  readonly type: ElementType;

  constructor(graph: OnnxFile, weights: EncoderTensors, form: FloatForm, words = form) {
    this.graph = graph;
    this.weights = weights;
    this.form = form;
    this.words = words;
    this.type = form === 'fp16' ? TYPE.FLOAT16 : form === 'bf16' ? TYPE.BFLOAT16 : TYPE.FLOAT;
  }

  /** Adds weights in this form; returns the name under which nodes find them. */
  floats(name: string, shape: readonly number[], make: MakeFloats): string {
    if (this.form === 'bf16')
      return this.graph.initializer(name, TYPE.BFLOAT16, shape, async () =>
        Uint16Array.from(new Uint32Array((await make()).buffer), toBfloat),
      );
    return this.form === 'fp16'
      ? this.graph.initializer(name, TYPE.FLOAT16, shape, async () => halvesOf(name, await make()))
      : this.graph.initializer(name, TYPE.FLOAT, shape, make);
  }

  /**
   * Linear layers on one input [batch, seq, inputs]; returns their outputs. `use`: of those that belong to a layer of the
   * encoder.
   */
  linears(input: string, inputs: number, linears: readonly Linear[], _use?: LinearUse): readonly string[] {
    const { graph } = this;
    return linears.map(({ name, outputs, matrix, bias, output }) => {
      const weights = graph.once(name, () => this.floats(name, [inputs, outputs], matrix));
      const added = bias();
      if (added === undefined) return graph.node('MatMul', [input, weights], output);
      return graph.node('Add', [graph.node('MatMul', [input, weights], `${output}.product`), added], output);
    });
  }

  /** The rows [batch, seq, columns] of a table [rows, columns] that the ids of the run ask for. */
  wordRows(shape: readonly [rows: number, columns: number], table: MakeFloats): string {
    const { graph } = this;
    if (this.words === this.form)
      return graph.node('Gather', [this.floats('words', shape, table), 'input_ids'], 'word_rows');
    const { wordTable } = this.weights;
    const halves = graph.initializer('words', TYPE.FLOAT16, shape, async () =>
      halvesOf(wordTable, await table(), 'MODEL_UNAVAILABLE'),
    );
    const rows = graph.node('Gather', [halves, 'input_ids'], 'word_rows.halves');
    return graph.node('Cast', [rows], 'word_rows', { integers: { to: this.type } });
  }

  /** One number in this form, without a dimension. */
  float(value: number): string {
    if (this.form === 'fp32') return this.graph.float(value);
    const name = this.form === 'fp16' ? `half_${value}` : `bfloat_${value}`;
    return this.graph.once(name, () => this.floats(name, [], async () => Float32Array.of(value)));
  }
}

/** The upper half of a float's bits, rounded to nearest, ties to even. */
function toBfloat(bits: number): number {
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

function halvesOf(name: string, values: Float32Array, code: ErrorCode = 'MODEL_CORRUPT'): Uint16Array {
  const halves = toHalves(values);
  const lost = values.findIndex((value, at) => Number.isFinite(value) && (halves[at]! & 0x7fff) >= 0x7c00);
  if (lost !== -1)
    throw new ShoalError(
      code,
      `${name} holds ${values[lost]}, which fp16 cannot say (65,504 at most): use fp32 for this model`,
      { tensor: name },
    );
  return halves;
}
