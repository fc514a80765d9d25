// The graph that calibration runs: an encoder in fp32 whose output is not vectors but, for each linear layer that int8 graphs
// smooth, the largest magnitude of each of its inputs over a row's own tokens. Whoever can run a graph can calibrate.

import type { EncoderDescription } from '../encoder/encoder-description.ts';
import type { QuantizedLinear } from './calibration.ts';
import { addDescribedEncoder } from './described-encoder.ts';
import { EncoderTensors } from './encoder-tensors.ts';
import { fusedOperators } from './fused-operators.ts';
import { GraphParts, type Linear, type LinearUse } from './graph-parts.ts';
import type { NamedTensors } from './named-tensors.ts';
import { OnnxFile, TYPE } from './onnx-file.ts';
import { addIsToken } from './pooling.ts';

/** A part of each row of the output. */
export interface ObservedInput {
  /** As calibration files call it: "3.qkv". Layers that share their weights give the same one several times. */
  readonly key: `${number}.${QuantizedLinear}`;
  readonly channels: number;
}

export interface CalibrationGraph {
  readonly graph: OnnxFile;
  /** In the order of the output `embeddings` f32 [batch, dims]. */
  readonly observed: readonly ObservedInput[];
  readonly dims: number;
}

/** For any encoder, BERT too. MODEL_CORRUPT for weights that do not add up to it. */
export function calibrationGraph(encoder: EncoderDescription, file: NamedTensors): CalibrationGraph {
  const graph = new OnnxFile('calibration', { '': 17, 'com.microsoft': 1 });
  graph.input('input_ids', TYPE.INT32, ['batch', 'seq']);
  graph.input('lengths', TYPE.INT32, ['batch']);
  const parts = new ObservingParts(graph, new EncoderTensors(file, encoder.names), 'fp32');
  addDescribedEncoder(encoder, parts, fusedOperators(encoder, parts, { masksCausally: false, packsAttention: false }));
  const isToken = graph.node('Unsqueeze', [addIsToken(graph), graph.integers(2)], 'is_token_column');
  const tokens = graph.node('Cast', [isToken], 'token_factors', { integers: { to: TYPE.FLOAT } });
  const largest = parts.observed.map(({ value }, at) => {
    const sizes = graph.node('Mul', [graph.node('Abs', [value], `sizes_${at}`), tokens], `own_sizes_${at}`);
    return graph.node('ReduceMax', [sizes], `largest_${at}`, { integers: { axes: [1], keepdims: 0 } });
  });
  graph.node('Concat', largest, 'embeddings', { integers: { axis: 1 } });
  const dims = parts.observed.reduce((sum, { channels }) => sum + channels, 0);
  graph.output('embeddings', TYPE.FLOAT, ['batch', dims]);
  return { graph, observed: parts.observed, dims };
}

class ObservingParts extends GraphParts {
  readonly observed: (ObservedInput & { readonly value: string })[] = [];

  override linears(input: string, inputs: number, linears: readonly Linear[], use?: LinearUse): readonly string[] {
    if (use !== undefined && use.isActive !== true)
      this.observed.push({ key: `${use.layer}.${use.linear}`, channels: inputs, value: input });
    return super.linears(input, inputs, linears, use);
  }
}
