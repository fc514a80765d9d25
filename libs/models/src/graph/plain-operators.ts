// ONNX's own operators alone, for providers without ONNX Runtime's fused ones: WebGPU, and any other reader of ONNX.

import type { Activation, EncoderDescription } from '../encoder/encoder-description.ts';
import { addDistanceBias, addSeen, addTurns } from './attention-tables.ts';
import type { Operators } from './described-encoder.ts';
import type { GraphParts } from './graph-parts.ts';
import type { LayerTensors } from './layer-tensors.ts';
import { TYPE } from './onnx-file.ts';
import { addIsToken } from './pooling.ts';

export function plainOperators({ norm, feedForward }: EncoderDescription, parts: GraphParts): Operators {
  const { graph } = parts;
  const addNorm = (input: string, weights: readonly string[], output: string, axis = 2): string =>
    norm.kind === 'rms'
      ? addRms(parts, input, weights[0]!, norm.epsilon, output, axis)
      : graph.node('LayerNormalization', [input, ...weights], output, { floats: { epsilon: norm.epsilon } });
  return {
    norm: addNorm,
    activate: (input, bias, output) => {
      const value = bias === undefined ? input : graph.node('Add', [input, bias], `${output}.biased`);
      return ACTIVATE[feedForward.activation](parts, value, output);
    },
    add: (one, other, output) => graph.node('Add', [one, other], output),
    attend: (layer, input) => addAttention(layer, input, addNorm),
  };
}

const ACTIVATE: Readonly<Record<Activation, (parts: GraphParts, input: string, output: string) => string>> = {
  gelu: addGelu,
  'gelu-tanh': addTanhGelu,
  silu: ({ graph }, input, output) =>
    graph.node('Mul', [input, graph.node('Sigmoid', [input], `${output}.sigmoid`)], output),
  relu: ({ graph }, input, output) => graph.node('Relu', [input], output),
};

/** x · (erf(x/√2) + 1) · ½, in the order that runtimes look for when they fuse it. */
function addGelu(parts: GraphParts, input: string, output: string): string {
  const { graph } = parts;
  const scaled = graph.node('Div', [input, parts.float(Math.SQRT2)], `${output}.scaled`);
  const raised = graph.node(
    'Add',
    [graph.node('Erf', [scaled], `${output}.erf`), parts.float(1)],
    `${output}.plus_one`,
  );
  return graph.node('Mul', [graph.node('Mul', [input, raised], `${output}.doubled`), parts.float(0.5)], output);
}

/** ½ · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))). */
function addTanhGelu(parts: GraphParts, input: string, output: string): string {
  const { graph } = parts;
  const multiply = (one: string, other: string, name: string): string =>
    graph.node('Mul', [one, other], `${output}.${name}`);
  const cube = multiply(input, multiply(input, input, 'square'), 'cube');
  const sum = graph.node('Add', [input, multiply(cube, parts.float(0.044715), 'bent')], `${output}.sum`);
  const tanh = graph.node('Tanh', [multiply(sum, parts.float(Math.sqrt(2 / Math.PI)), 'scaled')], `${output}.tanh`);
  const raised = graph.node('Add', [tanh, parts.float(1)], `${output}.plus_one`);
  return graph.node('Mul', [multiply(input, raised, 'doubled'), parts.float(0.5)], output);
}

/**
 * x ÷ √(mean(x²) + epsilon) · weight over the last axis, which is `axis`; in fp32 whatever the rest
 * computes in, because squares leave fp16.
 */
function addRms(
  parts: GraphParts,
  input: string,
  weight: string,
  epsilon: number,
  output: string,
  axis: number,
): string {
  const { graph, form, type } = parts;
  const wide =
    form === 'fp32' ? input : graph.node('Cast', [input], `${output}.wide`, { integers: { to: TYPE.FLOAT } });
  const square = graph.node('Mul', [wide, wide], `${output}.square`);
  const mean = graph.node('ReduceMean', [square], `${output}.mean`, { integers: { axes: [axis], keepdims: 1 } });
  const root = graph.node(
    'Sqrt',
    [graph.node('Add', [mean, graph.float(epsilon)], `${output}.above`)],
    `${output}.root`,
  );
  const unit = graph.node('Div', [wide, root], `${output}.unit`);
  const back = form === 'fp32' ? unit : graph.node('Cast', [unit], `${output}.narrow`, { integers: { to: type } });
  return graph.node('Mul', [back, weight], output);
}

/** With the axis that it goes over. */
type NormOfHeads = (input: string, weights: readonly string[], output: string, axis: number) => string;

/** Each head by itself: [batch, heads, seq, size]. Scores of what a query may not see become the lowest number. */
function addAttention(layer: LayerTensors, input: string, norm: NormOfHeads): string {
  const {
    encoder: { heads, headSize, attention, names },
    parts,
    at,
  } = layer;
  const { graph } = parts;
  const [queries, keys, values] = layer.project(input);
  const byHead = (value: string): string =>
    graph.node('Reshape', [value, graph.integers(0, 0, heads, headSize)], `${value}.by_head`);
  const turned = (value: string, name: string | undefined): string => {
    const apart = byHead(value);
    const normed = name === undefined ? apart : norm(apart, layer.headNorm(name), `${value}.normed`, 3);
    return addTurned(layer, transpose(layer, normed, [0, 2, 1, 3], `${value}.heads`), value);
  };
  const scaled = graph.node('Mul', [turned(queries, names.queryNorm), parts.float(attention.scale)], `${at}.queries`);
  const turnedKeys = transpose(layer, turned(keys, names.keyNorm), [0, 1, 3, 2], `${at}.keys`);
  const products = graph.node('MatMul', [scaled, turnedKeys], `${at}.scores`);
  const bias = addDistanceBias(layer);
  const scores = bias === undefined ? products : graph.node('Add', [products, bias], `${at}.biased`);
  const masked = graph.node('Where', [addMask(layer), scores, parts.float(-65_504)], `${at}.masked`);
  const shares = graph.node('Softmax', [masked], `${at}.shares`, { integers: { axis: 3 } });
  const mixed = graph.node(
    'MatMul',
    [shares, transpose(layer, byHead(values), [0, 2, 1, 3], `${values}.heads`)],
    `${at}.mixed`,
  );
  const context = transpose(layer, mixed, [0, 2, 1, 3], `${at}.by_token`);
  return graph.node('Reshape', [context, graph.integers(0, 0, heads * headSize)], `${at}.context`);
}

/** Value i of the first half goes with value i of the second: (a, b) becomes (a·cos − b·sin, b·cos + a·sin). */
function addTurned(layer: LayerTensors, input: string, name: string): string {
  const turns = addTurns(layer);
  if (turns === undefined) return input;
  const { graph } = layer.parts;
  const width = graph.once('run_length', (length) =>
    graph.node('Shape', ['input_ids'], length, { integers: { start: 1 } }),
  );
  const [cosines, sines] = turns.map((table) =>
    graph.once(`${table}.rows`, (rows) =>
      graph.node('Slice', [table, graph.integers(0), width, graph.integers(0)], rows),
    ),
  );
  const [first, second] = [`${name}.first`, `${name}.second`];
  graph.node('Split', [input], first, { integers: { axis: 3 }, moreOutputs: [second] });
  const product = (half: string, table: string, as: string): string =>
    graph.node('Mul', [half, table], `${name}.${as}`);
  const low = graph.node(
    'Sub',
    [product(first, cosines!, 'first_cos'), product(second, sines!, 'second_sin')],
    `${name}.low`,
  );
  const high = graph.node(
    'Add',
    [product(second, cosines!, 'second_cos'), product(first, sines!, 'first_sin')],
    `${name}.high`,
  );
  return graph.node('Concat', [low, high], `${name}.turned`, { integers: { axis: 3 } });
}

/** Whether a query sees a key: bool [batch, 1, 1 or seq, seq]. */
function addMask(layer: LayerTensors): string {
  const { graph } = layer.parts;
  const isToken = graph.once('is_token_key', (name) =>
    graph.node('Unsqueeze', [addIsToken(graph), graph.integers(1, 2)], name),
  );
  const seen = addSeen(layer);
  return seen === undefined
    ? isToken
    : graph.once(`${seen}.tokens`, (name) => graph.node('And', [isToken, seen], name));
}

function transpose(
  { parts: { graph } }: LayerTensors,
  input: string,
  order: readonly number[],
  output: string,
): string {
  return graph.node('Transpose', [input], output, { integers: { perm: order } });
}
