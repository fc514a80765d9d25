// From hidden states [batch, seq, hidden] to vectors of length 1: the mean over each row's own tokens, or its first token.
// In fp32 whatever the encoder computed in; standard operators only.

import type { BertParts } from './bert-parts.ts';
import { TYPE, type OnnxFile } from './onnx-file.ts';

export type Pooling = 'mean' | 'cls';

/** Adds the nodes that make `embeddings`. */
export function addPooling(parts: BertParts, hidden: string, pooling: Pooling): void {
  const { graph } = parts;
  const states = parts.type === TYPE.FLOAT ? hidden : graph.node('Cast', [hidden], 'hidden_f32', { integers: { to: TYPE.FLOAT } });
  addNorm(graph, pooling === 'mean' ? addMean(parts, states) : addFirstToken(graph, states));
}

/** The mask as ones and zeros [batch, 1, seq] times the hidden states. */
function addMean(parts: BertParts, hidden: string): string {
  const { graph } = parts;
  const one = graph.integers(1);
  const mask = graph.node('Cast', [parts.isToken()], 'mask', { integers: { to: TYPE.FLOAT } });
  const sum = graph.node('Squeeze', [graph.node('MatMul', [graph.node('Unsqueeze', [mask, one], 'mask_row'), hidden], 'sum_row'), one], 'sum');
  const count = graph.node('Max', [graph.node('ReduceSum', [mask, one], 'tokens', { integers: { keepdims: 1 } }), graph.float(1)], 'count');
  return graph.node('Div', [sum, count], 'pooled');
}

function addFirstToken(graph: OnnxFile, hidden: string): string {
  return graph.node('Gather', [hidden, graph.integer(0)], 'pooled', { integers: { axis: 1 } });
}

/** 1e-12 is where torch's normalize() stops dividing. */
function addNorm(graph: OnnxFile, pooled: string): void {
  const length = graph.node('ReduceL2', [pooled], 'length', { integers: { axes: [1], keepdims: 1 } });
  graph.node('Div', [pooled, graph.node('Max', [length, graph.float(1e-12)], 'divisor')], 'embeddings');
}
