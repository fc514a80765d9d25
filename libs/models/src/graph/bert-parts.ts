// What every form of the encoder is made from: the graph being written, the checked config, the weights by their
// authors' names, and the type that floats are kept and computed in. Knows where tensors lie, not what is done with
// them.

import { ShoalError, toHalves } from '@shoal/contract';
import type { BertConfig } from './bert-config.ts';
import type { BertWeights } from './bert-weights.ts';
import { TYPE, type ElementType, type MakeFloats, type OnnxFile } from './onnx-file.ts';

export const MICROSOFT = { domain: 'com.microsoft' } as const;

/** What floats are kept and computed in. */
export type FloatForm = 'fp32' | 'fp16' | 'bf16';

export class BertParts {
  readonly graph: OnnxFile;
  readonly config: BertConfig;
  readonly weights: BertWeights;
  readonly form: FloatForm;
  /** What the encoder computes in. */
  readonly type: ElementType;

  constructor(graph: OnnxFile, config: BertConfig, weights: BertWeights, form: FloatForm) {
    this.graph = graph;
    this.config = config;
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
    return this.form === 'fp16'
      ? this.graph.once(`half_${value}`, (name) => this.floats(name, [], async () => Float32Array.of(value)))
      : this.graph.float(value);
  }

  /** Every token is of type 0, so that row is part of the positions; leaving the type input out alone would drop it. */
  positions(): string {
    const { positions, hidden, tokenTypes } = this.config;
    const [table, types] = ['embeddings.position_embeddings.weight', 'embeddings.token_type_embeddings.weight'];
    return this.floats(
      'positions',
      [positions, hidden],
      this.weights.withFirstRowAdded(table, types, [positions, hidden], tokenTypes),
    );
  }

  layerNorm(name: string): [weight: string, bias: string] {
    const vector = (part: string): string =>
      this.floats(
        `${name}.${part}`,
        [this.config.hidden],
        this.weights.tensor(`${name}.${part}`, [this.config.hidden]),
      );
    return [vector('weight'), vector('bias')];
  }

  bias(name: string, size: number): string {
    return this.floats(`${name}.bias`, [size], this.weights.tensor(`${name}.bias`, [size]));
  }

  /**
   * The end of both halves of a layer: LayerNorm(value + bias + residual). In fp16, which is for GPUs, as the one
   * operator for it. That operator is slow on the CPU provider (21 % of an int8 run, 8 % of an fp32 run), and the
   * runtime makes it out of Add and LayerNormalization by itself, but not out of Sum: without it fp32 is 1.12, int8
   * 1.27 times as fast (2026-11-21, onnxruntime-node 1.30, AMD EPYC with AVX-512, ragged corpus, 1 thread).
   */
  addAndNorm(from: string, value: string, residual: string, output: string): string {
    if (this.form === 'fp16') return this.skipNorm(from, value, residual, output);
    const {
      graph,
      config: { hidden, layerNormEpsilon },
    } = this;
    const [norm, bias] = [this.layerNorm(`${from}.LayerNorm`), this.bias(`${from}.dense`, hidden)];
    const sum = graph.node('Sum', [graph.node('Add', [value, bias], `${output}.biased`), residual], `${output}.sum`);
    return graph.node('LayerNormalization', [sum, ...norm], output, { floats: { epsilon: layerNormEpsilon } });
  }

  /** The same as one operator: one pass over memory on a GPU. */
  skipNorm(from: string, value: string, residual: string, output: string): string {
    const {
      graph,
      config: { hidden, layerNormEpsilon },
    } = this;
    const [norm, bias] = [this.layerNorm(`${from}.LayerNorm`), this.bias(`${from}.dense`, hidden)];
    return graph.node('SkipLayerNormalization', [value, residual, ...norm, bias], output, {
      ...MICROSOFT,
      floats: { epsilon: layerNormEpsilon },
    });
  }
}

/** The names of the layer's three matrices that are multiplied as one. */
export function attentionParts(layer: string): readonly string[] {
  return ['query', 'key', 'value'].map((part) => `${layer}.attention.self.${part}`);
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
