// What every form of an encoder is made from: the graph being written, the weights by their authors' names, and the type
// that floats are kept and computed in. Knows no family.

import { ShoalError, toHalves } from '@shoal/contract';
import type { EncoderTensors } from './encoder-tensors.ts';
import { TYPE, type ElementType, type MakeFloats, type OnnxFile } from './onnx-file.ts';

export const MICROSOFT = { domain: 'com.microsoft' } as const;

/** What floats are kept and computed in. */
export type FloatForm = 'fp32' | 'fp16' | 'bf16';

export class GraphParts {
  readonly graph: OnnxFile;
  readonly weights: EncoderTensors;
  readonly form: FloatForm;
  /** What the encoder computes in. */
  readonly type: ElementType;

  constructor(graph: OnnxFile, weights: EncoderTensors, form: FloatForm) {
    this.graph = graph;
    this.weights = weights;
    this.form = form;
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

function halvesOf(name: string, values: Float32Array): Uint16Array {
  const halves = toHalves(values);
  const lost = values.findIndex((value, at) => Number.isFinite(value) && (halves[at]! & 0x7fff) >= 0x7c00);
  if (lost !== -1)
    throw new ShoalError(
      'MODEL_CORRUPT',
      `${name} holds ${values[lost]}, which fp16 cannot say (65,504 at most): use fp32 for this model`,
      { tensor: name },
    );
  return halves;
}
