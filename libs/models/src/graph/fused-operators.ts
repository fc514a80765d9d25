// Operators that ONNX Runtime has fused kernels for, on its CPU and its CUDA provider.

import type { Activation, EncoderDescription } from '../encoder/encoder-description.ts';
import { addDistanceBias, addSeen, addTurns } from './attention-tables.ts';
import type { Operators } from './described-encoder.ts';
import { MICROSOFT, type GraphParts } from './graph-parts.ts';
import type { LayerTensors } from './layer-tensors.ts';

/** What keys that a query may not see have added to their score: exp() of it is 0, and sums with it stay finite. */
const UNSEEN = { fp32: -1e9, fp16: -30_000, bf16: -1e9 } as const;

/**
 * `masksCausally`: what comes behind a query is masked like what lies outside a window, and not by the operator's own
 * switch. On CUDA in fp32 that switch ends at rows of 1,024 tokens (ONNX Runtime 1.30, H100, 2026-11-26).
 */
export interface FusedOptions {
  readonly masksCausally: boolean;
  /** Whether queries, keys and values may come from one product inside the operator. Default true. */
  readonly packsAttention?: boolean;
}

export function fusedOperators(
  { norm, feedForward }: EncoderDescription,
  parts: GraphParts,
  options: FusedOptions,
): Operators {
  const { graph, form } = parts;
  const biased = (input: string, bias: string | undefined, output: string): string =>
    bias === undefined ? input : graph.node('Add', [input, bias], `${output}.biased`);
  const activations: Record<Activation, Operators['activate']> = {
    gelu: (input, bias, output) =>
      graph.node(bias === undefined ? 'Gelu' : 'BiasGelu', given(input, bias), output, MICROSOFT),
    'gelu-tanh': (input, bias, output) => graph.node('FastGelu', given(input, bias), output, MICROSOFT),
    silu: (input, bias, output) =>
      graph.node('QuickGelu', [biased(input, bias, output)], output, { ...MICROSOFT, floats: { alpha: 1 } }),
    relu: (input, bias, output) => graph.node('Relu', [biased(input, bias, output)], output),
  };
  return {
    norm: (input, weights, output) =>
      graph.node(
        norm.kind === 'rms' ? 'SimplifiedLayerNormalization' : 'LayerNormalization',
        [input, ...weights],
        output,
        {
          floats: { epsilon: norm.epsilon },
        },
      ),
    activate: activations[feedForward.activation],
    // Add and a norm behind it become one operator, which is fast on a GPU and slow on a CPU (BertParts.addAndNorm)
    add: (one, other, output) => graph.node(form === 'fp16' ? 'Add' : 'Sum', [one, other], output),
    attend: (layer, input) =>
      isPacked(layer.encoder, options) ? addPacked(layer, input) : addSeparate(layer, input, options),
  };
}

function given(input: string, bias: string | undefined): readonly string[] {
  return bias === undefined ? [input] : [input, bias];
}

/** Whether nothing happens to queries and keys between their product and their scores: then all three are one product. */
function isPacked(
  { attentionPositions, attention, heads, headSize, hidden }: EncoderDescription,
  { masksCausally, packsAttention = true }: FusedOptions,
): boolean {
  return (
    packsAttention &&
    !(masksCausally && attention.isCausal) &&
    attentionPositions.kind === 'none' &&
    attention.windows.every((window) => window === undefined) &&
    !attention.hasQueryKeyNorm &&
    attention.hasBias &&
    heads * headSize === hidden
  );
}

function addPacked(layer: LayerTensors, input: string): string {
  const [matrix, bias] = layer.joinedProjections();
  return layer.parts.graph.node('Attention', [input, matrix, bias!, 'lengths'], `${layer.at}.context`, {
    ...MICROSOFT,
    ...attributes(layer.encoder, { masksCausally: false }),
  });
}

function addSeparate(layer: LayerTensors, input: string, options: FusedOptions): string {
  const { graph } = layer.parts;
  const [queries, keys, values] = layer.project(input);
  const turns = addTurns(layer);
  const { queryNorm, keyNorm } = layer.encoder.names;
  const ready = (value: string, norm: string | undefined): string => {
    const normed = norm === undefined ? value : addHeadNorm(layer, value, norm);
    if (turns === undefined) return normed;
    return graph.node('RotaryEmbedding', [normed, graph.integers(0), ...turns], `${value}.turned`, {
      ...MICROSOFT,
      integers: { interleaved: 0, num_heads: layer.encoder.heads },
    });
  };
  const bias = addBias(layer, options);
  const inputs = [ready(queries, queryNorm), ready(keys, keyNorm), values, '', 'lengths'];
  return graph.node('MultiHeadAttention', bias === undefined ? inputs : [...inputs, bias], `${layer.at}.context`, {
    ...MICROSOFT,
    ...attributes(layer.encoder, options),
  });
}

function attributes(
  { heads, attention }: EncoderDescription,
  { masksCausally }: FusedOptions,
): {
  readonly integers: Record<string, number>;
  readonly floats: Record<string, number>;
} {
  return {
    integers: { num_heads: heads, ...(attention.isCausal && !masksCausally && { unidirectional: 1 }) },
    floats: { scale: attention.scale },
  };
}

/** Over each head's own values. */
function addHeadNorm(layer: LayerTensors, value: string, name: string): string {
  const {
    encoder: { heads, headSize, norm },
    parts: { graph },
  } = layer;
  const apart = graph.node('Reshape', [value, graph.integers(0, 0, heads, headSize)], `${value}.by_head`);
  const operator = norm.kind === 'rms' ? 'SimplifiedLayerNormalization' : 'LayerNormalization';
  const normed = graph.node(operator, [apart, ...layer.headNorm(name)], `${value}.normed_by_head`, {
    floats: { epsilon: norm.epsilon },
  });
  return graph.node('Reshape', [normed, graph.integers(0, 0, heads * headSize)], `${value}.normed`);
}

/** What is added to scores [1, 1 or heads, seq, seq]: distances, and what lies outside the window. */
function addBias(layer: LayerTensors, { masksCausally }: FusedOptions): string | undefined {
  const { graph, form } = layer.parts;
  const distances = addDistanceBias(layer);
  const isMasked = masksCausally || layer.encoder.attention.windows[layer.index] !== undefined;
  const seen = isMasked ? addSeen(layer) : undefined;
  if (seen === undefined) return distances;
  const window = graph.once(`${seen}.bias`, (name) => {
    const unseen = layer.parts.float(UNSEEN[form]);
    const square = graph.node('Where', [seen, layer.parts.float(0), unseen], `${name}.square`);
    return graph.node('Unsqueeze', [square, graph.integers(0, 1)], name);
  });
  if (distances === undefined) return window;
  return graph.once(`${seen}.with_distances`, (name) => graph.node('Add', [window, distances], name));
}
