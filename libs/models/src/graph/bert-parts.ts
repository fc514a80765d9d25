// What every form of BERT is made from: the parts of any graph, and the checked config. Knows where tensors lie, not
// what is done with them.

import type { BertConfig } from './bert-config.ts';
import { GraphParts, MICROSOFT } from './graph-parts.ts';

export class BertParts extends GraphParts {
  readonly config: BertConfig;

  constructor(config: BertConfig, { graph, weights, form, words }: GraphParts) {
    super(graph, weights, form, words);
    this.config = config;
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
