// BERT and those that differ from it in names, in the first position, or in a projection: learned positions, a norm with
// bias after each half of a layer, a plain feed-forward part.

import { activationOf } from './activations.ts';
import type { ConfigReader } from './config-reader.ts';
import type { DescribeFamily } from './describe-encoder.ts';
import type { EncoderDescription, TensorNames } from './encoder-description.ts';

export const BERT_NAMES: TensorNames = {
  words: 'embeddings.word_embeddings.weight',
  positions: 'embeddings.position_embeddings.weight',
  types: 'embeddings.token_type_embeddings.weight',
  embeddingNorm: 'embeddings.LayerNorm',
  layer: 'encoder.layer.{l}.',
  queryKeyValue: {
    kind: 'apart',
    query: 'attention.self.query',
    key: 'attention.self.key',
    value: 'attention.self.value',
  },
  output: 'attention.output.dense',
  attentionNorm: 'attention.output.LayerNorm',
  feedForwardNorm: 'output.LayerNorm',
  up: { kind: 'plain', name: 'intermediate.dense' },
  down: 'output.dense',
  withoutUse:
    /^(pooler\.dense\.|embeddings\.position_ids$|embeddings\.token_type_ids$|cls\.(?:predictions|seq_relationship)\.)/,
  encoder: /^(embeddings|encoder)\./,
};

/** transformers' BertConfig. */
function describeBert(config: ConfigReader): EncoderDescription {
  config.expect('position_embedding_type', ['absolute'], 'only "absolute" is supported');
  const layers = config.size('num_hidden_layers', 12);
  const heads = config.size('num_attention_heads', 12);
  const hidden = config.size('hidden_size', 768);
  const rows = config.size('max_position_embeddings', 512);
  return {
    modelType: 'bert',
    layers,
    heads,
    kvHeads: heads,
    headSize: hidden / heads,
    hidden,
    intermediate: config.size('intermediate_size', 3072),
    vocabularySize: config.size('vocab_size', 30_522),
    rowLimit: rows,
    embeddings: {
      size: hidden,
      scale: 1,
      tokenTypes: config.size('type_vocab_size', 2),
      hasNorm: true,
      hasProjection: false,
    },
    positions: { kind: 'learned', rows, first: 0, padId: undefined },
    attentionPositions: { kind: 'none' },
    norm: {
      kind: 'layer',
      hasBias: true,
      isPlusOne: false,
      epsilon: config.positive('layer_norm_eps', 1e-12),
      placement: 'after',
      isBeforeFirst: true,
      isLast: false,
    },
    attention: {
      isCausal: false,
      windows: Array.from({ length: layers }, () => undefined),
      scale: 1 / Math.sqrt(hidden / heads),
      hasQueryKeyNorm: false,
      hasBias: true,
      hasOutputBias: true,
    },
    feedForward: {
      kind: 'plain',
      activation: activationOf(config, 'hidden_act', 'gelu'),
      hasBias: true,
      hasDownBias: true,
    },
    names: BERT_NAMES,
  };
}

export const BERT_FAMILY: Readonly<Record<string, DescribeFamily>> = { bert: describeBert };
