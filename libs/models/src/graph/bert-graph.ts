// A BERT-family encoder as one ONNX graph with the operators that ONNX Runtime has fused kernels for (it does not fuse
// hand-written graphs by itself): from token ids to vectors of length 1, mask, pooling and norm included.
//   in   input_ids int32 [batch, seq], padding 0;  lengths int32 [batch], tokens of each row
//   out  embeddings f32 [batch, hidden]
// Where a row ends, its padding ends: neither attention nor the mean sees it.

import { OnnxFile, TYPE } from './onnx-file.ts';
import type { BertConfig } from './bert-config.ts';
import { BertWeights } from './bert-weights.ts';
import type { Safetensors } from './safetensors.ts';

export type Pooling = 'mean' | 'cls';

const MICROSOFT = { domain: 'com.microsoft' } as const;

/** Names and shapes of the weights are checked here; their values are read by `write` of the result. */
export function bertGraph(config: BertConfig, file: Safetensors, pooling: Pooling): OnnxFile {
  const graph = new OnnxFile('bert', { '': 17, 'com.microsoft': 1 });
  const weights = new BertWeights(file);
  graph.input('input_ids', TYPE.INT32, ['batch', 'seq']);
  graph.input('lengths', TYPE.INT32, ['batch']);
  let hidden = addEmbeddings(graph, weights, config);
  for (let layer = 0; layer < config.layers; layer++) hidden = addLayer(graph, weights, config, layer, hidden);
  weights.expectAllTaken();
  addNorm(graph, pooling === 'mean' ? addMean(graph, hidden) : addFirstToken(graph, hidden));
  graph.output('embeddings', TYPE.FLOAT, ['batch', config.hidden]);
  return graph;
}

/** Every token is of type 0, so that row is added to the positions here; leaving the type input out alone would drop it. */
function addEmbeddings(graph: OnnxFile, weights: BertWeights, config: BertConfig): string {
  const { vocabularySize, positions, tokenTypes, hidden } = config;
  const words = graph.initializer('words', TYPE.FLOAT, [vocabularySize, hidden], weights.tensor('embeddings.word_embeddings.weight', [vocabularySize, hidden]));
  const places = graph.initializer('positions', TYPE.FLOAT, [positions, hidden],
    weights.withFirstRowAdded('embeddings.position_embeddings.weight', 'embeddings.token_type_embeddings.weight', [positions, hidden], tokenTypes));
  const norm = addLayerNormWeights(graph, weights, config, 'embeddings.LayerNorm');
  return graph.node('EmbedLayerNormalization', ['input_ids', '', words, places, '', ...norm], 'embedded',
    { ...MICROSOFT, floats: { epsilon: config.layerNormEpsilon }, moreOutputs: ['unused_mask_index'] });
}

function addLayer(graph: OnnxFile, weights: BertWeights, config: BertConfig, layer: number, input: string): string {
  const { hidden, heads, intermediate } = config;
  const from = `encoder.layer.${layer}`;
  const linear = (name: string, outputs: number, inputs: number): string =>
    graph.initializer(`${from}.${name}.weight`, TYPE.FLOAT, [inputs, outputs], weights.transposed(`${from}.${name}.weight`, outputs, inputs));
  const bias = (name: string, size: number): string => graph.initializer(`${from}.${name}.bias`, TYPE.FLOAT, [size], weights.tensor(`${from}.${name}.bias`, [size]));
  const addAndNorm = (name: string, value: string, residual: string, output: string): string =>
    graph.node('SkipLayerNormalization', [value, residual, ...addLayerNormWeights(graph, weights, config, `${from}.${name}.LayerNorm`), bias(`${name}.dense`, hidden)],
      `${from}.${output}`, { ...MICROSOFT, floats: { epsilon: config.layerNormEpsilon } });

  const parts = ['query', 'key', 'value'].map((part) => `${from}.attention.self.${part}`);
  const qkv = graph.initializer(`${from}.qkv.weight`, TYPE.FLOAT, [hidden, 3 * hidden], weights.transposedBeside(parts.map((part) => `${part}.weight`), hidden, hidden));
  const qkvBias = graph.initializer(`${from}.qkv.bias`, TYPE.FLOAT, [3 * hidden], weights.joined(parts.map((part) => `${part}.bias`), hidden));
  // `lengths` as the mask: one number a row instead of one a token, and the form that the CUDA provider is fastest with.
  const context = graph.node('Attention', [input, qkv, qkvBias, 'lengths'], `${from}.context`, { ...MICROSOFT, integers: { num_heads: heads } });
  const attended = graph.node('MatMul', [context, linear('attention.output.dense', hidden, hidden)], `${from}.attended`);
  const middle = addAndNorm('attention.output', attended, input, 'middle');
  const wide = graph.node('MatMul', [middle, linear('intermediate.dense', intermediate, hidden)], `${from}.wide`);
  const active = graph.node('BiasGelu', [wide, bias('intermediate.dense', intermediate)], `${from}.active`, MICROSOFT);
  const narrow = graph.node('MatMul', [active, linear('output.dense', hidden, intermediate)], `${from}.narrow`);
  return addAndNorm('output', narrow, middle, 'out');
}

function addLayerNormWeights(graph: OnnxFile, weights: BertWeights, config: BertConfig, name: string): [string, string] {
  const vector = (part: string): string => graph.initializer(`${name}.${part}`, TYPE.FLOAT, [config.hidden], weights.tensor(`${name}.${part}`, [config.hidden]));
  return [vector('weight'), vector('bias')];
}

/** The mean over each row's own tokens: a mask [batch, 1, seq] of ones up to the length, times the hidden states. */
function addMean(graph: OnnxFile, hidden: string): string {
  const one = addIntegers(graph, 'one', [1]);
  const seq = graph.node('Squeeze', [graph.node('Shape', ['input_ids'], 'seq_shape', { integers: { start: 1 } })], 'seq');
  const places = graph.node('Range', [addInteger(graph, 'first', 0), seq, addInteger(graph, 'step', 1)], 'places');
  const lengths = graph.node('Unsqueeze', [graph.node('Cast', ['lengths'], 'lengths64', { integers: { to: TYPE.INT64 } }), one], 'lengths_column');
  const mask = graph.node('Cast', [graph.node('Less', [places, lengths], 'is_token')], 'mask', { integers: { to: TYPE.FLOAT } });
  const sum = graph.node('Squeeze', [graph.node('MatMul', [graph.node('Unsqueeze', [mask, one], 'mask_row'), hidden], 'sum_row'), one], 'sum');
  const count = graph.node('Max', [graph.node('ReduceSum', [mask, one], 'tokens', { integers: { keepdims: 1 } }), addFloat(graph, 'least_tokens', 1)], 'count');
  return graph.node('Div', [sum, count], 'pooled');
}

function addFirstToken(graph: OnnxFile, hidden: string): string {
  return graph.node('Gather', [hidden, addInteger(graph, 'first', 0)], 'pooled', { integers: { axis: 1 } });
}

/** 1e-12 is where torch's normalize() stops dividing. */
function addNorm(graph: OnnxFile, pooled: string): void {
  const length = graph.node('ReduceL2', [pooled], 'length', { integers: { axes: [1], keepdims: 1 } });
  graph.node('Div', [pooled, graph.node('Max', [length, addFloat(graph, 'least_length', 1e-12)], 'divisor')], 'embeddings');
}

function addIntegers(graph: OnnxFile, name: string, values: readonly number[]): string {
  return graph.initializer(name, TYPE.INT64, [values.length], async () => BigInt64Array.from(values, BigInt));
}

function addInteger(graph: OnnxFile, name: string, value: number): string {
  return graph.initializer(name, TYPE.INT64, [], async () => BigInt64Array.of(BigInt(value)));
}

function addFloat(graph: OnnxFile, name: string, value: number): string {
  return graph.initializer(name, TYPE.FLOAT, [], async () => Float32Array.of(value));
}
