// From hidden states [batch, seq, hidden] to vectors of length 1: the mean over each row's own tokens, or its first
// token. In fp32 whatever the encoder computed in; standard operators only, in forms that opsets 13 to 23 share.

import { TYPE, type ElementType, type OnnxFile } from './onnx-file.ts';

export type Pooling = 'mean' | 'cls';

/** Adds the nodes that make `embeddings` out of hidden states of this type. */
export function addPooling(graph: OnnxFile, hidden: string, type: ElementType, pooling: Pooling): void {
  const states =
    type === TYPE.FLOAT ? hidden : graph.node('Cast', [hidden], 'hidden_f32', { integers: { to: TYPE.FLOAT } });
  addNorm(graph, pooling === 'mean' ? addMean(graph, states) : addFirstToken(graph, states));
}

/** Bool [batch, seq]: whether a place holds a token of its row, and not padding. */
export function addIsToken(graph: OnnxFile): string {
  return graph.once('is_token', (name) => {
    const seq = graph.node('Gather', [graph.node('Shape', ['input_ids'], 'batch_by_seq'), graph.integer(1)], 'seq');
    const places = graph.node('Range', [graph.integer(0), seq, graph.integer(1)], 'places');
    const lengths = graph.node(
      'Unsqueeze',
      [graph.node('Cast', ['lengths'], 'lengths64', { integers: { to: TYPE.INT64 } }), graph.integers(1)],
      'lengths_column',
    );
    return graph.node('Less', [places, lengths], name);
  });
}

/** The mask as ones and zeros [batch, 1, seq] times the hidden states. */
function addMean(graph: OnnxFile, hidden: string): string {
  const one = graph.integers(1);
  const mask = graph.node('Cast', [addIsToken(graph)], 'mask', { integers: { to: TYPE.FLOAT } });
  const sum = graph.node(
    'Squeeze',
    [graph.node('MatMul', [graph.node('Unsqueeze', [mask, one], 'mask_row'), hidden], 'sum_row'), one],
    'sum',
  );
  const count = graph.node(
    'Max',
    [graph.node('ReduceSum', [mask, one], 'tokens', { integers: { keepdims: 1 } }), graph.float(1)],
    'count',
  );
  return graph.node('Div', [sum, count], 'pooled');
}

function addFirstToken(graph: OnnxFile, hidden: string): string {
  return graph.node('Gather', [hidden, graph.integer(0)], 'pooled', { integers: { axis: 1 } });
}

/**
 * 1e-12 is where torch's normalize() stops dividing. Not ReduceL2: it changed its form with opset 18, and imports bring
 * theirs.
 */
export function addNorm(graph: OnnxFile, pooled: string): void {
  const squares = graph.node(
    'ReduceSum',
    [graph.node('Mul', [pooled, pooled], 'squared'), graph.integers(1)],
    'squares',
    { integers: { keepdims: 1 } },
  );
  const length = graph.node('Sqrt', [squares], 'length');
  graph.node('Div', [pooled, graph.node('Max', [length, graph.float(1e-12)], 'divisor')], 'embeddings');
}
