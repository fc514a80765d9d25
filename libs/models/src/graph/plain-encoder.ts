// The encoder with ONNX's own operators alone, for providers without ONNX Runtime's fused ones: WebGPU, and any other
// reader of ONNX. Returns the last hidden states [batch, seq, hidden] in the type that the parts compute in.

import type { BertParts } from './bert-parts.ts';
import { addIsToken } from './pooling.ts';

export function addPlainEncoder(parts: BertParts): string {
  let hidden = addNorm(parts, 'embeddings.LayerNorm', addPlainEmbeddings(parts), 'embedded');
  for (let layer = 0; layer < parts.config.layers; layer++) hidden = addLayer(parts, `encoder.layer.${layer}`, hidden);
  return hidden;
}

/** Words plus places [batch, seq, hidden], before their norm. */
export function addPlainEmbeddings(parts: BertParts): string {
  const {
    graph,
    weights,
    config: { vocabularySize, hidden },
  } = parts;
  const table = weights.tensor('embeddings.word_embeddings.weight', [vocabularySize, hidden]);
  const words = parts.wordRows([vocabularySize, hidden], table);
  const width = graph.node('Shape', ['input_ids'], 'row_width', { integers: { start: 1 } });
  const places = graph.node('Slice', [parts.positions(), graph.integers(0), width, graph.integers(0)], 'place_rows');
  return graph.node('Add', [words, places], 'embedding_sum');
}

function addLayer(parts: BertParts, from: string, input: string): string {
  const {
    graph,
    config: { hidden, intermediate },
  } = parts;
  const attended = addLinear(parts, `${from}.attention.output.dense`, addAttention(parts, from, input), hidden, hidden);
  const middle = addNorm(
    parts,
    `${from}.attention.output.LayerNorm`,
    graph.node('Add', [attended, input], `${from}.middle_sum`),
    `${from}.middle`,
  );
  const active = addGelu(
    parts,
    addLinear(parts, `${from}.intermediate.dense`, middle, intermediate, hidden),
    `${from}.active`,
  );
  const narrow = addLinear(parts, `${from}.output.dense`, active, hidden, intermediate);
  return addNorm(
    parts,
    `${from}.output.LayerNorm`,
    graph.node('Add', [narrow, middle], `${from}.out_sum`),
    `${from}.out`,
  );
}

/**
 * Each head by itself: [batch, heads, seq, size]. Scores of padding become the lowest number, which softmax makes 0.
 */
function addAttention(parts: BertParts, from: string, input: string): string {
  const {
    graph,
    config: { heads, hidden },
  } = parts;
  const size = hidden / heads;
  const split = (role: string, order: readonly number[]): string => {
    const name = `${from}.attention.self.${role}`;
    const byHead = graph.node(
      'Reshape',
      [addLinear(parts, name, input, hidden, hidden), graph.integers(0, 0, heads, size)],
      `${name}.by_head`,
    );
    return graph.node('Transpose', [byHead], `${name}.heads`, { integers: { perm: order } });
  };
  const [queries, keys, values] = [
    split('query', [0, 2, 1, 3]),
    split('key', [0, 2, 3, 1]),
    split('value', [0, 2, 1, 3]),
  ];
  const scaled = graph.node('Mul', [queries, parts.float(1 / Math.sqrt(size))], `${from}.queries`);
  const scores = graph.node(
    'Where',
    [addMask(parts), graph.node('MatMul', [scaled, keys], `${from}.scores`), parts.float(-65_504)],
    `${from}.masked`,
  );
  const shares = graph.node('Softmax', [scores], `${from}.shares`, { integers: { axis: 3 } });
  const context = graph.node(
    'Transpose',
    [graph.node('MatMul', [shares, values], `${from}.mixed`)],
    `${from}.by_token`,
    { integers: { perm: [0, 2, 1, 3] } },
  );
  return graph.node('Reshape', [context, graph.integers(0, 0, hidden)], `${from}.context`);
}

/** Whether a key is a token: bool [batch, 1, 1, seq]. */
function addMask(parts: BertParts): string {
  return parts.graph.once('is_token_key', (name) =>
    parts.graph.node('Unsqueeze', [addIsToken(parts.graph), parts.graph.integers(1, 2)], name),
  );
}

function addLinear(parts: BertParts, name: string, input: string, outputs: number, inputs: number): string {
  const matrix = parts.floats(
    `${name}.weight`,
    [inputs, outputs],
    parts.weights.transposed(`${name}.weight`, outputs, inputs),
  );
  return parts.graph.node(
    'Add',
    [parts.graph.node('MatMul', [input, matrix], `${name}.product`), parts.bias(name, outputs)],
    `${name}.out`,
  );
}

/** x · (erf(x/√2) + 1) · ½, in the order that runtimes look for when they fuse it. */
function addGelu(parts: BertParts, input: string, output: string): string {
  const { graph } = parts;
  const erf = graph.node(
    'Erf',
    [graph.node('Div', [input, parts.float(Math.SQRT2)], `${output}.scaled`)],
    `${output}.erf`,
  );
  const raised = graph.node(
    'Mul',
    [input, graph.node('Add', [erf, parts.float(1)], `${output}.plus_one`)],
    `${output}.doubled`,
  );
  return graph.node('Mul', [raised, parts.float(0.5)], output);
}

function addNorm(parts: BertParts, name: string, input: string, output: string): string {
  return parts.graph.node('LayerNormalization', [input, ...parts.layerNorm(name)], output, {
    floats: { epsilon: parts.config.layerNormEpsilon },
  });
}
