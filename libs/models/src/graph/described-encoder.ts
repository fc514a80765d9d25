// An encoder from its description: embeddings, layers, last norm. One story for every family and for every set of
// operators; where operators differ (plain ones of ONNX, fused ones of ONNX Runtime) it asks `Operators`. Returns the
// last hidden states [batch, seq, hidden] in the type that the parts compute in. BERT itself has graphs of its own
// (fused-encoder.ts and its neighbours), whose bytes must not change.

import type { EncoderDescription } from '../encoder/encoder-description.ts';
import { addDescribedEmbeddings } from './described-embeddings.ts';
import { LayerTensors } from './layer-tensors.ts';
import type { GraphParts } from './graph-parts.ts';

/** What one layer's attention is computed from: [batch, seq, heads × headSize] each, biases included. */
export interface QueryKeyValue {
  readonly queries: string;
  readonly keys: string;
  readonly values: string;
}

/** Where sets of operators differ. Names of values in, name of the value out. */
export interface Operators {
  /** A norm over the last axis; `weights` has the factor and, if there is one, the bias. */
  norm(input: string, weights: readonly string[], output: string): string;
  /** act(input + bias); `input` has `width` values a token. */
  activate(input: string, bias: string | undefined, output: string): string;
  /** The sum of two values of one shape. */
  add(one: string, other: string, output: string): string;
  /** What every token takes from those that it sees: [batch, seq, heads × headSize]. */
  attend(layer: LayerTensors, input: string): string;
}

/** `hasTypes`: tokens from the place `second_from` of their row on have type 1, and not all have type 0. */
export function addDescribedEncoder(
  encoder: EncoderDescription,
  parts: GraphParts,
  operators: Operators,
  { hasTypes = false } = {},
): string {
  let hidden = addDescribedEmbeddings(encoder, parts, operators, { hasTypes });
  for (let layer = 0; layer < encoder.layers; layer++)
    hidden = addLayer(new LayerTensors(encoder, parts, layer), operators, hidden);
  const { lastNorm } = encoder.names;
  if (!encoder.norm.isLast || lastNorm === undefined) return hidden;
  return operators.norm(hidden, new LayerTensors(encoder, parts, 0).normOf(lastNorm, encoder.hidden), 'last');
}

function addLayer(layer: LayerTensors, operators: Operators, input: string): string {
  const {
    encoder: { norm, names },
    at,
  } = layer;
  const normed = (name: string, value: string, output: string): string =>
    operators.norm(value, layer.norm(name), output);
  if (norm.placement === 'after') {
    const sum = operators.add(addAttention(layer, operators, input), input, `${at}.middle_sum`);
    const middle = normed(names.attentionNorm, sum, `${at}.middle`);
    const wide = operators.add(addFeedForward(layer, operators, middle), middle, `${at}.out_sum`);
    return normed(names.feedForwardNorm, wide, `${at}.out`);
  }
  const isNormed = layer.index > 0 || norm.isBeforeFirst;
  const before = isNormed ? normed(names.attentionNorm, input, `${at}.attention_in`) : input;
  const attended = addAttention(layer, operators, before);
  const after =
    names.attentionNormAfter === undefined
      ? attended
      : normed(names.attentionNormAfter, attended, `${at}.attended_norm`);
  const middle = operators.add(input, after, `${at}.middle`);
  const wide = addFeedForward(layer, operators, normed(names.feedForwardNorm, middle, `${at}.feed_in`));
  const last =
    names.feedForwardNormAfter === undefined ? wide : normed(names.feedForwardNormAfter, wide, `${at}.fed_norm`);
  return operators.add(middle, last, `${at}.out`);
}

function addAttention(layer: LayerTensors, operators: Operators, input: string): string {
  const {
    encoder: { hidden, heads, headSize, names, attention },
    at,
  } = layer;
  const context = operators.attend(layer, input);
  const shape = {
    outputs: hidden,
    inputs: heads * headSize,
    hasBias: attention.hasOutputBias,
    output: `${at}.attended`,
  };
  return layer.linear(names.output, context, shape, { linear: 'out' });
}

function addFeedForward(layer: LayerTensors, operators: Operators, input: string): string {
  const {
    encoder: { hidden, intermediate, names, feedForward },
    at,
  } = layer;
  const isPlain = feedForward.kind === 'plain';
  const active = isPlain ? addPlain(layer, operators, input) : addGated(layer, operators, input);
  const shape = { outputs: hidden, inputs: intermediate, hasBias: feedForward.hasDownBias, output: `${at}.fed` };
  return layer.linear(names.down, active, shape, {
    linear: 'ff2',
    isActive: isPlain && feedForward.activation !== 'silu', // silu reaches further below 0 than the codes for a GELU do
  });
}

function addPlain(layer: LayerTensors, operators: Operators, input: string): string {
  const {
    encoder: {
      hidden,
      intermediate,
      names: { up },
      feedForward,
    },
    at,
  } = layer;
  if (up.kind !== 'plain') throw new TypeError('a plain feed-forward part has one matrix before its activation');
  const shape = { outputs: intermediate, inputs: hidden, hasBias: false, output: `${at}.wide` };
  const wide = layer.linear(up.name, input, shape, { linear: 'ff1' });
  const bias = feedForward.hasBias ? layer.bias(up.name, intermediate) : undefined;
  return operators.activate(wide, bias, `${at}.active`);
}

/** Gate and up from one product, the gate first. */
function addGated(layer: LayerTensors, operators: Operators, input: string): string {
  const { at } = layer;
  const both = layer.gateAndUp(input);
  layer.parts.graph.node('Split', [both], `${at}.gate`, { integers: { axis: 2 }, moreOutputs: [`${at}.up`] });
  const active = operators.activate(`${at}.gate`, undefined, `${at}.gate_active`);
  return layer.parts.graph.node('Mul', [active, `${at}.up`], `${at}.active`);
}
