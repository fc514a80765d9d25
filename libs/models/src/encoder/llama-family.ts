// Llama and what was built after it, decoders and encoders alike: norms by the root mean square before each half of a
// layer and after the last, turned queries and keys, fewer heads of keys and values, a gated feed-forward part. Gemma 3
// adds norms behind each half, on queries and keys, and 1 to their factors.

import { activationOf } from './activations.ts';
import type { ConfigReader } from './config-reader.ts';
import type { DescribeFamily } from './describe-encoder.ts';
import type { EncoderDescription, TensorNames } from './encoder-description.ts';
import { readLayerTypes, readTheta, readThetas, type LayerType } from './rope.ts';

const LLAMA_NAMES: TensorNames = {
  words: 'embed_tokens.weight',
  lastNorm: 'norm',
  layer: 'layers.{l}.',
  queryKeyValue: { kind: 'apart', query: 'self_attn.q_proj', key: 'self_attn.k_proj', value: 'self_attn.v_proj' },
  output: 'self_attn.o_proj',
  attentionNorm: 'input_layernorm',
  feedForwardNorm: 'post_attention_layernorm',
  up: { kind: 'apart', gate: 'mlp.gate_proj', up: 'mlp.up_proj' },
  down: 'mlp.down_proj',
  withoutUse: /^(lm_head\.weight$|(?:layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq$)/,
  encoder: /^(embed_tokens|layers|norm)\./,
};

const HEAD_NORMS = { queryNorm: 'self_attn.q_norm', keyNorm: 'self_attn.k_norm' } as const;

const GEMMA_NAMES: TensorNames = {
  ...LLAMA_NAMES,
  ...HEAD_NORMS,
  attentionNormAfter: 'post_attention_layernorm',
  feedForwardNorm: 'pre_feedforward_layernorm',
  feedForwardNormAfter: 'post_feedforward_layernorm',
};

interface LlamaDefaults {
  readonly layers?: number;
  readonly heads?: number;
  /** Undefined: as many as heads. */
  readonly kvHeads?: number;
  /** Undefined: heads share the hidden size. */
  readonly headSize?: number;
  readonly hidden?: number;
  readonly intermediate?: number;
  readonly vocabularySize: number;
  readonly rowLimit: number;
  readonly epsilon?: number;
}

/** Sizes, norms and feed-forward part; the rest as Llama has it, causal. */
function likeLlama(config: ConfigReader, defaults: LlamaDefaults): EncoderDescription {
  const heads = config.size('num_attention_heads', defaults.heads ?? 32);
  const hidden = config.size('hidden_size', defaults.hidden ?? 4096);
  const layers = config.layers('num_hidden_layers', defaults.layers ?? 32);
  const headSize = config.size('head_dim', defaults.headSize ?? hidden / heads);
  return {
    modelType: config.text('model_type', ''),
    layers,
    heads,
    kvHeads: config.size('num_key_value_heads', defaults.kvHeads ?? heads),
    headSize,
    hidden,
    intermediate: config.size('intermediate_size', defaults.intermediate ?? 11_008),
    vocabularySize: config.size('vocab_size', defaults.vocabularySize),
    rowLimit: config.size('max_position_embeddings', defaults.rowLimit),
    embeddings: { size: hidden, scale: 1, tokenTypes: 0, hasNorm: false, hasProjection: false },
    positions: { kind: 'none' },
    attentionPositions: { kind: 'none' },
    norm: {
      kind: 'rms',
      hasBias: false,
      isPlusOne: false,
      epsilon: config.positive('rms_norm_eps', defaults.epsilon ?? 1e-6),
      placement: 'before',
      isBeforeFirst: true,
      isLast: true,
    },
    attention: {
      isCausal: true,
      windows: Array.from({ length: layers }, () => undefined),
      scale: 1 / Math.sqrt(headSize),
      hasQueryKeyNorm: false,
      hasBias: false,
      hasOutputBias: false,
    },
    feedForward: {
      kind: 'gated',
      activation: activationOf(config, ['hidden_act', 'hidden_activation'], 'silu'),
      hasBias: false,
      hasDownBias: false,
    },
    names: LLAMA_NAMES,
  };
}

/** attention_bias and mlp_bias, each for all matrices of its half. */
function withBiases(config: ConfigReader, encoder: EncoderDescription): EncoderDescription {
  const [attention, wide] = [config.boolean('attention_bias', false), config.boolean('mlp_bias', false)];
  return {
    ...encoder,
    attention: { ...encoder.attention, hasBias: attention, hasOutputBias: attention },
    feedForward: { ...encoder.feedForward, hasBias: wide, hasDownBias: wide },
  };
}

function withTheta(config: ConfigReader, encoder: EncoderDescription): EncoderDescription {
  return { ...encoder, attentionPositions: readTheta(config, encoder, 10_000) };
}

function withWindows(
  encoder: EncoderDescription,
  windows: EncoderDescription['attention']['windows'],
): EncoderDescription {
  return { ...encoder, attention: { ...encoder.attention, windows } };
}

/** Made bidirectional by its authors: they say so in one of two keys. */
function withSight(config: ConfigReader, encoder: EncoderDescription): EncoderDescription {
  const isCausal = config.boolean('is_causal', true) && !config.boolean('use_bidirectional_attention', false);
  return { ...encoder, attention: { ...encoder.attention, isCausal } };
}

function describeLlama(config: ConfigReader): EncoderDescription {
  config.expect('rope_interleaved', [false], 'values that are turned with their neighbours are not supported');
  const encoder = likeLlama(config, { vocabularySize: 32_000, rowLimit: 2048 });
  return withTheta(config, withSight(config, withBiases(config, encoder)));
}

/** A query sees the last `sliding_window` keys, its own among them. */
function describeMistral(config: ConfigReader): EncoderDescription {
  const defaults = { kvHeads: 8, intermediate: 14_336, vocabularySize: 32_000, rowLimit: 131_072 };
  const encoder = withTheta(config, withSight(config, likeLlama(config, defaults)));
  const window = slidingWindow(config, 4096);
  return withWindows(
    encoder,
    encoder.attention.windows.map(() => (window === undefined ? undefined : window - 1)),
  );
}

function describeQwen2(config: ConfigReader): EncoderDescription {
  const defaults = { kvHeads: 32, intermediate: 22_016, vocabularySize: 151_936, rowLimit: 32_768 };
  const encoder = withTheta(config, withSight(config, likeLlama(config, defaults)));
  // queries, keys and values have biases, whatever the config says
  const attention = { ...encoder.attention, hasBias: true };
  return withQwenWindows(config, { ...encoder, attention });
}

function describeQwen3(config: ConfigReader): EncoderDescription {
  const defaults = { kvHeads: 32, headSize: 128, intermediate: 22_016, vocabularySize: 151_936, rowLimit: 32_768 };
  const encoder = withTheta(config, withSight(config, withAttentionBias(config, likeLlama(config, defaults))));
  const attention = { ...encoder.attention, hasQueryKeyNorm: true };
  return withQwenWindows(config, { ...encoder, attention, names: { ...LLAMA_NAMES, ...HEAD_NORMS } });
}

function withAttentionBias(config: ConfigReader, encoder: EncoderDescription): EncoderDescription {
  const hasBias = config.boolean('attention_bias', false);
  return { ...encoder, attention: { ...encoder.attention, hasBias, hasOutputBias: hasBias } };
}

/** Windows from a layer on, where they are switched on at all. */
function withQwenWindows(config: ConfigReader, encoder: EncoderDescription): EncoderDescription {
  const isOn = config.boolean('use_sliding_window', false);
  const [window, from] = [slidingWindow(config, 4096), config.count('max_window_layers', 28)];
  const types = readLayerTypes(config, encoder.layers, (layer) =>
    isOn && window !== undefined && layer >= from ? 'sliding_attention' : 'full_attention',
  );
  if (types.includes('sliding_attention') && (!isOn || window === undefined))
    config.refuse('layer_types', 'there is no window for "sliding_attention"');
  return withWindows(encoder, windowsOf(types, (window ?? 1) - 1));
}

function describeEurobert(config: ConfigReader): EncoderDescription {
  const defaults = {
    layers: 12,
    heads: 12,
    hidden: 768,
    intermediate: 3072,
    vocabularySize: 128_256,
    rowLimit: 8192,
    epsilon: 1e-5,
  };
  return withTheta(config, seeingAll(withBiases(config, likeLlama(config, defaults))));
}

function describeUltrabert(config: ConfigReader): EncoderDescription {
  config.ignore('prediction_head_size');
  config.expectNothing('attention_windows', 'only layer_types and sliding_window are supported');
  const encoder = seeingAll(withBiases(config, likeLlama(config, { vocabularySize: 32_000, rowLimit: 32_768 })));
  const types = readLayerTypes(config, encoder.layers, (layer) =>
    (layer + 1) % 3 === 0 ? 'full_attention' : 'sliding_attention',
  );
  // older checkpoints have a list of bases in rope_theta
  if (Array.isArray(config.json.raw('rope_theta'))) config.refuse('rope_theta', 'only rope_parameters is supported');
  const attentionPositions = readThetas(
    config,
    types,
    { full_attention: ['rope_theta', 2_560_000], sliding_attention: ['rope_local_base_freq', 10_000] },
    { rowLimit: encoder.rowLimit, scaled: [] },
  );
  const radius = config.size('sliding_window', 128);
  return withWindows({ ...encoder, attentionPositions }, windowsOf(types, radius));
}

/** Gemma 3's text part. */
function describeGemma3(config: ConfigReader): EncoderDescription {
  for (const key of ['attn_logit_softcapping', 'final_logit_softcapping'])
    config.expectNothing(key, 'scores that are bent are not supported');
  const like = withAttentionBias(
    config,
    likeLlama(config, {
      layers: 26,
      heads: 8,
      kvHeads: 4,
      headSize: 256,
      hidden: 2304,
      intermediate: 9216,
      vocabularySize: 262_208,
      rowLimit: 131_072,
    }),
  );
  const isCausal = !config.boolean('use_bidirectional_attention', false);
  const every = config.size(['sliding_window_pattern', '_sliding_window_pattern'], 6);
  const types = readLayerTypes(config, like.layers, (layer) =>
    (layer + 1) % every === 0 ? 'full_attention' : 'sliding_attention',
  );
  const window = config.size('sliding_window', 4096);
  return {
    ...like,
    embeddings: { ...like.embeddings, scale: Math.sqrt(like.hidden) },
    attentionPositions: readThetas(
      config,
      types,
      { full_attention: ['rope_theta', 1_000_000], sliding_attention: ['rope_local_base_freq', 10_000] },
      { rowLimit: like.rowLimit, scaled: ['full_attention'] },
    ),
    norm: { ...like.norm, isPlusOne: true, placement: 'around' },
    attention: {
      ...like.attention,
      isCausal,
      windows: windowsOf(types, isCausal ? window - 1 : Math.floor(window / 2)),
      scale: 1 / Math.sqrt(config.positive('query_pre_attn_scalar', 256)),
      hasQueryKeyNorm: true,
    },
    feedForward: {
      ...like.feedForward,
      activation: activationOf(config, ['hidden_activation', 'hidden_act'], 'gelu_pytorch_tanh'),
    },
    names: GEMMA_NAMES,
  };
}

function seeingAll(encoder: EncoderDescription): EncoderDescription {
  return { ...encoder, attention: { ...encoder.attention, isCausal: false } };
}

function windowsOf(types: readonly LayerType[], distance: number): readonly (number | undefined)[] {
  return types.map((type) => (type === 'sliding_attention' ? distance : undefined));
}

/** Undefined where the file says null: no window. What it leaves out is the default. */
function slidingWindow(config: ConfigReader, otherwise: number): number | undefined {
  return config.json.raw('sliding_window') === null ? undefined : config.size('sliding_window', otherwise);
}

export const LLAMA_FAMILY: Readonly<Record<string, DescribeFamily>> = {
  llama: describeLlama,
  mistral: describeMistral,
  qwen2: describeQwen2,
  qwen3: describeQwen3,
  eurobert: describeEurobert,
  ultrabert: describeUltrabert,
  gemma3_text: describeGemma3,
};
