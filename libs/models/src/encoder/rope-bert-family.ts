// Encoders of BERT's build whose queries and keys are turned by their places: NomicBERT, GTE, Jina v3 with norms after
// each half of a layer, ModernBERT with norms before and windows. Two spellings of config.json each: that of
// transformers 5, and that of the authors' own code or of transformers 4.

import { activationOf } from './activations.ts';
import { bertLayers } from './bert-layers.ts';
import type { ConfigReader } from './config-reader.ts';
import type { DescribeFamily } from './describe-encoder.ts';
import type { AttentionPositions, EncoderDescription, TensorNames } from './encoder-description.ts';
import { LAYER_TYPES, readAuthorsTheta, readLayerTypes, readTheta, readThetas } from './rope.ts';

const NOMIC_NAMES: TensorNames = {
  words: 'embeddings.word_embeddings.weight',
  types: 'embeddings.token_type_embeddings.weight',
  embeddingNorm: 'emb_ln',
  layer: 'encoder.layers.{l}.',
  queryKeyValue: { kind: 'fused', name: 'attn.Wqkv' },
  output: 'attn.out_proj',
  attentionNorm: 'norm1',
  feedForwardNorm: 'norm2',
  up: { kind: 'apart', up: 'mlp.fc11', gate: 'mlp.fc12' },
  down: 'mlp.fc2',
  withoutUse:
    /^(pooler\.|cls\.predictions\.|embeddings\.position_ids$|encoder\.layers\.\d+\.attn\.rotary_emb\.inv_freq$)/,
  encoder: /^(embeddings|emb_ln|encoder)\./,
};

const JINA_NAMES: TensorNames = {
  ...NOMIC_NAMES,
  queryKeyValue: { kind: 'fused', name: 'mixer.Wqkv' },
  output: 'mixer.out_proj',
  up: { kind: 'plain', name: 'mlp.fc1' },
  withoutUse: /^(pooler\.dense\.|lm_head\.|embeddings\.position_ids$)/,
};

const GTE_NAMES: TensorNames = {
  words: 'embeddings.word_embeddings.weight',
  types: 'embeddings.token_type_embeddings.weight',
  embeddingNorm: 'embeddings.LayerNorm',
  layer: 'encoder.layer.{l}.',
  queryKeyValue: { kind: 'fused', name: 'attention.qkv_proj' },
  output: 'attention.o_proj',
  attentionNorm: 'attn_ln',
  feedForwardNorm: 'mlp_ln',
  up: { kind: 'fused', name: 'mlp.up_gate_proj', isGateFirst: false },
  down: 'mlp.down_proj',
  withoutUse: /^(pooler\.dense\.|lm_head\.|embeddings\.(?:position_ids|rotary_emb\.inv_freq)$)/,
  encoder: /^(embeddings|encoder)\./,
};

const MODERNBERT_NAMES: TensorNames = {
  words: 'embeddings.tok_embeddings.weight',
  embeddingNorm: 'embeddings.norm',
  lastNorm: 'final_norm',
  layer: 'layers.{l}.',
  queryKeyValue: { kind: 'fused', name: 'attn.Wqkv' },
  output: 'attn.Wo',
  attentionNorm: 'attn_norm',
  feedForwardNorm: 'mlp_norm',
  up: { kind: 'fused', name: 'mlp.Wi', isGateFirst: true },
  down: 'mlp.Wo',
  withoutUse: /^(head\.(?:dense|norm)\.|decoder\.)/,
  encoder: /^(embeddings|layers|final_norm)\./,
};

interface RopeBert {
  readonly layers: number;
  readonly heads: number;
  readonly hidden: number;
  readonly intermediate: number;
  readonly vocabularySize: number;
  readonly rowLimit: number;
  readonly tokenTypes: number;
  readonly epsilon: number;
  readonly attentionPositions: AttentionPositions;
  readonly hasBias: boolean;
  readonly feedForward: EncoderDescription['feedForward'];
  readonly names: TensorNames;
}

/** With norms after, which have biases, and without learned positions. */
function ropeBert(config: ConfigReader, sizes: RopeBert): EncoderDescription {
  const { tokenTypes, epsilon, hasBias, ...rest } = sizes;
  return {
    ...rest,
    ...bertLayers({ ...rest, tokenTypes, epsilon, hasBias }),
    modelType: config.text('model_type', ''),
    positions: { kind: 'none' },
  };
}

/** The authors' names where transformers' are not there. */
function describeNomic(config: ConfigReader): EncoderDescription {
  expectNomicBert(config);
  const heads = config.size(['num_attention_heads', 'n_head'], 12);
  const hidden = config.size(['hidden_size', 'n_embd'], 768);
  const layers = config.layers(['num_hidden_layers', 'n_layer'], 12);
  config.expect('head_dim', [hidden / heads], 'heads share the hidden size');
  const bias = config.boolean('mlp_fc1_bias', false);
  const rowLimit = nomicLimit(config);
  return ropeBert(config, {
    layers,
    heads,
    hidden,
    intermediate: config.size(['intermediate_size', 'n_inner'], 4 * hidden),
    vocabularySize: config.size('vocab_size', 30_528),
    rowLimit,
    tokenTypes: config.count('type_vocab_size', 2),
    epsilon: config.positive(['layer_norm_eps', 'layer_norm_epsilon'], 1e-12),
    attentionPositions: readTheta(config, { layers, rowLimit }, config.positive('rotary_emb_base', 1000)),
    hasBias: config.boolean('qkv_proj_bias', false),
    feedForward: {
      kind: 'gated',
      activation: activationOf(config, 'hidden_act', 'silu'),
      hasBias: bias,
      hasDownBias: config.boolean('mlp_fc2_bias', bias),
    },
    names: NOMIC_NAMES,
  });
}

/** With a scaling angles change with the length of a row, but not before the length that the model was trained at. */
function nomicLimit(config: ConfigReader): number {
  const all = config.size(['max_position_embeddings', 'n_positions'], 2048);
  const trained = config.size('max_trained_positions', 2048);
  return config.has('rotary_scaling_factor') ? Math.min(all, trained) : all;
}

/** What the authors' code could also do. */
function expectNomicBert(config: ConfigReader): void {
  config.expect('activation_function', ['swiglu'], 'only "swiglu" is supported');
  for (const key of [
    'prenorm',
    'causal',
    'parallel_block',
    'parallel_block_tied_norm',
    'use_rms_norm',
    'rotary_emb_interleaved',
    'rotary_emb_scale_base',
    'scale_attn_by_inverse_layer_idx',
    'reorder_and_upcast_attn',
    'mup',
  ])
    config.expectNothing(key, 'what it changes is not computed here');
  config.expect('rotary_emb_fraction', [1], 'heads that are turned in part are not supported');
  config.expect('scale_attn_weights', [true], 'scores without a scale are not supported');
  config.ignore('dense_seq_output');
}

function describeGte(config: ConfigReader): EncoderDescription {
  const isAuthors = config.text('model_type', '') === 'new';
  config.expect('position_embedding_type', ['rope'], 'only "rope" is supported');
  config.expect('layer_norm_type', ['layer_norm'], 'only "layer_norm" is supported');
  config.expect('pack_qkv', [true], 'only one matrix of queries, keys and values is supported');
  for (const key of ['logn_attention_scale', 'logn_attention_clip1'])
    config.expectNothing(key, 'scores that depend on the length of the row are not supported');
  const heads = config.size('num_attention_heads', 12);
  const hidden = config.size('hidden_size', 768);
  const layers = config.layers('num_hidden_layers', 12);
  const rowLimit = config.size('max_position_embeddings', 8192);
  const sizes = { layers, rowLimit, headSize: hidden / heads };
  return ropeBert(config, {
    layers,
    heads,
    hidden,
    intermediate: config.size('intermediate_size', 3072),
    vocabularySize: config.size('vocab_size', 250_048),
    rowLimit,
    tokenTypes: config.count('type_vocab_size', 1),
    epsilon: config.positive('layer_norm_eps', 1e-12),
    attentionPositions: isAuthors ? readAuthorsTheta(config, sizes, 160_000) : readTheta(config, sizes, 160_000),
    hasBias: true,
    feedForward: {
      kind: 'gated',
      activation: activationOf(config, 'hidden_act', 'gelu'),
      hasBias: false,
      hasDownBias: true,
    },
    names: GTE_NAMES,
  });
}

/** As transformers has it, without adapters: the authors' own spelling calls itself xlm-roberta and carries them. */
function describeJina(config: ConfigReader): EncoderDescription {
  const layers = config.layers('num_hidden_layers', 24);
  const rowLimit = config.size('max_position_embeddings', 8194);
  return ropeBert(config, {
    layers,
    heads: config.size('num_attention_heads', 16),
    hidden: config.size('hidden_size', 1024),
    intermediate: config.size('intermediate_size', 4096),
    vocabularySize: config.size('vocab_size', 250_002),
    rowLimit,
    tokenTypes: config.count('type_vocab_size', 1),
    epsilon: config.positive('layer_norm_eps', 1e-5),
    attentionPositions: readTheta(config, { layers, rowLimit }, 20_000),
    hasBias: true,
    feedForward: {
      kind: 'plain',
      activation: activationOf(config, 'hidden_act', 'gelu'),
      hasBias: true,
      hasDownBias: true,
    },
    names: JINA_NAMES,
  });
}

function describeModernbert(config: ConfigReader): EncoderDescription {
  // read by nobody since RoPE: older files say "absolute" there
  config.ignore('position_embedding_type', 'layer_norm_eps');
  const heads = config.size('num_attention_heads', 12);
  const hidden = config.size('hidden_size', 768);
  const layers = config.layers('num_hidden_layers', 22);
  const every = config.size('global_attn_every_n_layers', 3);
  const types = readLayerTypes(config, layers, (layer) =>
    layer % every === 0 ? 'full_attention' : 'sliding_attention',
  );
  const radius = Math.floor(config.size('local_attention', 128) / 2);
  const bias = config.boolean('attention_bias', false);
  const wideBias = config.boolean('mlp_bias', false);
  const rowLimit = config.size('max_position_embeddings', 8192);
  return {
    modelType: 'modernbert',
    layers,
    heads,
    kvHeads: heads,
    headSize: hidden / heads,
    hidden,
    intermediate: config.size('intermediate_size', 1152),
    vocabularySize: config.size('vocab_size', 50_368),
    rowLimit,
    embeddings: { size: hidden, scale: 1, tokenTypes: 0, hasNorm: true, hasProjection: false },
    positions: { kind: 'none' },
    attentionPositions: readThetas(
      config,
      types,
      { full_attention: ['global_rope_theta', 160_000], sliding_attention: ['local_rope_theta', 10_000] },
      { rowLimit, scaled: LAYER_TYPES },
    ),
    norm: {
      kind: 'layer',
      hasBias: config.boolean('norm_bias', false),
      isPlusOne: false,
      epsilon: config.positive('norm_eps', 1e-5),
      placement: 'before',
      isBeforeFirst: false,
      isLast: true,
    },
    attention: {
      isCausal: false,
      windows: types.map((type) => (type === 'sliding_attention' ? radius : undefined)),
      scale: 1 / Math.sqrt(hidden / heads),
      hasQueryKeyNorm: false,
      hasBias: bias,
      hasOutputBias: bias,
    },
    feedForward: {
      kind: 'gated',
      activation: activationOf(config, 'hidden_activation', 'gelu'),
      hasBias: wideBias,
      hasDownBias: wideBias,
    },
    names: MODERNBERT_NAMES,
  };
}

export const ROPE_BERT_FAMILY: Readonly<Record<string, DescribeFamily>> = {
  nomic_bert: describeNomic,
  gte: describeGte,
  new: describeGte,
  jina_embeddings_v3: describeJina,
  modernbert: describeModernbert,
};
