// The encoder with the operators that ONNX Runtime has fused kernels for; it does not fuse hand-written graphs by
// itself. For the CPU provider; cuda-encoder.ts takes its layers. Returns the last hidden states [batch, seq, hidden].

import { attentionParts, type BertParts } from './bert-parts.ts';
import { MICROSOFT } from './graph-parts.ts';
import { addPlainEmbeddings } from './plain-encoder.ts';

/** Adds LayerNorm(value + bias + residual): the operators for it differ from one provider to another. */
export type AddNorm = (from: string, value: string, residual: string, output: string) => string;

export function addFusedEncoder(parts: BertParts): string {
  const embedded =
    parts.words === parts.form ? addEmbeddings(parts) : addEmbeddingNorm(parts, addPlainEmbeddings(parts));
  return addFusedLayers(parts, embedded, (...args) => parts.addAndNorm(...args));
}

export function addFusedLayers(parts: BertParts, embedded: string, norm: AddNorm): string {
  let hidden = embedded;
  for (let layer = 0; layer < parts.config.layers; layer++)
    hidden = addLayer(parts, `encoder.layer.${layer}`, hidden, norm);
  return hidden;
}

/** Where EmbedLayerNormalization is none: it takes the word table in the type that it computes in. */
export function addEmbeddingNorm(parts: BertParts, input: string): string {
  return parts.graph.node('LayerNormalization', [input, ...parts.layerNorm('embeddings.LayerNorm')], 'embedded', {
    floats: { epsilon: parts.config.layerNormEpsilon },
  });
}

function addEmbeddings(parts: BertParts): string {
  const { graph, weights, config } = parts;
  const shape = [config.vocabularySize, config.hidden];
  const words = parts.floats('words', shape, weights.tensor('embeddings.word_embeddings.weight', shape));
  return graph.node(
    'EmbedLayerNormalization',
    ['input_ids', '', words, parts.positions(), '', ...parts.layerNorm('embeddings.LayerNorm')],
    'embedded',
    { ...MICROSOFT, floats: { epsilon: config.layerNormEpsilon }, moreOutputs: ['unused_mask_index'] },
  );
}

function addLayer(parts: BertParts, from: string, input: string, norm: AddNorm): string {
  const {
    graph,
    weights,
    config: { hidden, intermediate },
  } = parts;
  const matrix = (name: string, outputs: number, inputs: number): string =>
    parts.floats(
      `${from}.${name}.weight`,
      [inputs, outputs],
      weights.transposed(`${from}.${name}.weight`, outputs, inputs),
    );
  const context = addAttention(parts, from, input);
  const attended = graph.node(
    'MatMul',
    [context, matrix('attention.output.dense', hidden, hidden)],
    `${from}.attended`,
  );
  const middle = norm(`${from}.attention.output`, attended, input, `${from}.middle`);
  const wide = graph.node('MatMul', [middle, matrix('intermediate.dense', intermediate, hidden)], `${from}.wide`);
  const active = graph.node(
    'BiasGelu',
    [wide, parts.bias(`${from}.intermediate.dense`, intermediate)],
    `${from}.active`,
    MICROSOFT,
  );
  const narrow = graph.node('MatMul', [active, matrix('output.dense', hidden, intermediate)], `${from}.narrow`);
  return norm(`${from}.output`, narrow, middle, `${from}.out`);
}

/**
 * Queries, keys and values from one product. `lengths` are the mask: one number a row instead of one a token, and the
 * form that the CUDA provider is fastest with.
 */
function addAttention(parts: BertParts, from: string, input: string): string {
  const {
    graph,
    weights,
    config: { hidden, heads },
  } = parts;
  const three = attentionParts(from);
  const matrices = weights.transposedBeside(
    three.map((part) => `${part}.weight`),
    hidden,
    hidden,
  );
  const qkv = parts.floats(`${from}.qkv.weight`, [hidden, 3 * hidden], matrices);
  const biases = weights.joined(
    three.map((part) => `${part}.bias`),
    hidden,
  );
  const qkvBias = parts.floats(`${from}.qkv.bias`, [3 * hidden], biases);
  return graph.node('Attention', [input, qkv, qkvBias, 'lengths'], `${from}.context`, {
    ...MICROSOFT,
    integers: { num_heads: heads },
  });
}
