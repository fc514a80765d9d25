// BERT and those that differ from it in names, in the first position, in a projection or in buckets of distances: learned
// positions, a norm with bias after each half of a layer, a plain feed-forward part with biases. Defaults are those of
// transformers' config classes (5.24).

import { activationOf } from './activations.ts';
import { bertLayers } from './bert-layers.ts';
import type { ConfigReader } from './config-reader.ts';
import type { DescribeFamily } from './describe-encoder.ts';
import type { EncoderDescription, TensorNames } from './encoder-description.ts';

const WITHOUT_USE =
  /^(pooler\.dense\.|embeddings\.(?:position|token_type)_ids$|cls\.(?:predictions|seq_relationship)\.)/;

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
  withoutUse: WITHOUT_USE,
  encoder: /^(embeddings|encoder)\./,
};

/** Where the masked-language heads of RoBERTa and its kin lie. */
const ROBERTA_NAMES: TensorNames = { ...BERT_NAMES, withoutUse: new RegExp(`${WITHOUT_USE.source}|^lm_head\\.`) };

const ELECTRA_NAMES: TensorNames = {
  ...BERT_NAMES,
  projection: 'embeddings_project',
  withoutUse: new RegExp(
    `${WITHOUT_USE.source}|^(?:discriminator_predictions|generator_predictions|generator_lm_head)\\.`,
  ),
  encoder: /^(embeddings|encoder|embeddings_project)\./,
};

const ALBERT_NAMES: TensorNames = {
  ...BERT_NAMES,
  projection: 'encoder.embedding_hidden_mapping_in',
  layer: 'encoder.albert_layer_groups.0.albert_layers.0.',
  queryKeyValue: { kind: 'apart', query: 'attention.query', key: 'attention.key', value: 'attention.value' },
  output: 'attention.dense',
  attentionNorm: 'attention.LayerNorm',
  feedForwardNorm: 'full_layer_layer_norm',
  up: { kind: 'plain', name: 'ffn' },
  down: 'ffn_output',
  withoutUse: /^(pooler\.|embeddings\.(?:position|token_type)_ids$|predictions\.|sop_classifier\.)/,
};

const DISTILBERT_NAMES: TensorNames = {
  words: BERT_NAMES.words,
  positions: 'embeddings.position_embeddings.weight',
  embeddingNorm: 'embeddings.LayerNorm',
  layer: 'transformer.layer.{l}.',
  queryKeyValue: { kind: 'apart', query: 'attention.q_lin', key: 'attention.k_lin', value: 'attention.v_lin' },
  output: 'attention.out_lin',
  attentionNorm: 'sa_layer_norm',
  feedForwardNorm: 'output_layer_norm',
  up: { kind: 'plain', name: 'ffn.lin1' },
  down: 'ffn.lin2',
  withoutUse: /^(embeddings\.position_ids$|vocab_(?:transform|layer_norm|projector)\.)/,
  encoder: /^(embeddings|transformer)\./,
};

const MPNET_NAMES: TensorNames = {
  words: BERT_NAMES.words,
  positions: 'embeddings.position_embeddings.weight',
  embeddingNorm: 'embeddings.LayerNorm',
  buckets: 'encoder.relative_attention_bias.weight',
  layer: BERT_NAMES.layer,
  queryKeyValue: { kind: 'apart', query: 'attention.attn.q', key: 'attention.attn.k', value: 'attention.attn.v' },
  output: 'attention.attn.o',
  attentionNorm: 'attention.LayerNorm',
  feedForwardNorm: 'output.LayerNorm',
  up: { kind: 'plain', name: 'intermediate.dense' },
  down: 'output.dense',
  withoutUse: /^(pooler\.dense\.|embeddings\.position_ids$|lm_head\.)/,
  encoder: BERT_NAMES.encoder,
};

interface BertDefaults {
  readonly layers: number;
  readonly heads: number;
  readonly hidden: number;
  readonly intermediate: number;
  readonly vocabularySize: number;
  readonly activation: string;
}

const BERT_DEFAULTS: BertDefaults = {
  layers: 12,
  heads: 12,
  hidden: 768,
  intermediate: 3072,
  vocabularySize: 30_522,
  activation: 'gelu',
};

function describeBert(config: ConfigReader): EncoderDescription {
  return describeLikeBert(config, BERT_DEFAULTS, BERT_NAMES);
}

/** T5's buckets in MPNet end at this distance whatever the config says. */
const FARTHEST_BUCKET = 128;

function describeMpnet(config: ConfigReader): EncoderDescription {
  const buckets = config.size('relative_attention_num_buckets', 32);
  if (buckets % 4 !== 0)
    config.refuse('relative_attention_num_buckets', 'only a multiple of 4 can be shared by both sides');
  const like = describeLikeBert(config, { ...BERT_DEFAULTS, vocabularySize: 30_527 }, MPNET_NAMES);
  // MPNet's padding is token 1 in its code, whatever pad_token_id says
  return {
    ...withPositionsAfterPadding(like, 1),
    attentionPositions: { kind: 'buckets', buckets, farthest: FARTHEST_BUCKET },
  };
}

function describeElectra(config: ConfigReader): EncoderDescription {
  const defaults = { ...BERT_DEFAULTS, heads: 4, hidden: 256, intermediate: 1024 };
  return withEmbeddingsOf(config, describeLikeBert(config, defaults, ELECTRA_NAMES), { isAlways: false });
}

function describeAlbert(config: ConfigReader): EncoderDescription {
  for (const key of ['num_hidden_groups', 'inner_group_num'])
    config.expect(key, [1], 'only layers that all share one set of weights are supported');
  config.ignore('net_structure_type', 'gap_size', 'num_memory_blocks', 'down_scale_factor');
  const defaults = {
    ...BERT_DEFAULTS,
    heads: 64,
    hidden: 4096,
    intermediate: 16_384,
    vocabularySize: 30_000,
    activation: 'gelu_new',
  };
  return withEmbeddingsOf(config, describeLikeBert(config, defaults, ALBERT_NAMES), { isAlways: true });
}

function describeDistilbert(config: ConfigReader): EncoderDescription {
  config.ignore('sinusoidal_pos_embds'); // how the table was filled before it was trained; it is in the weights
  return describeSizes(config, {
    layers: config.layers(['n_layers', 'num_hidden_layers'], 6),
    heads: config.size(['n_heads', 'num_attention_heads'], 12),
    hidden: config.size(['dim', 'hidden_size'], 768),
    intermediate: config.size('hidden_dim', 3072),
    vocabularySize: config.size('vocab_size', 30_522),
    tokenTypes: 0,
    epsilon: 1e-12, // in its code
    activation: activationOf(config, 'activation', 'gelu'),
    names: DISTILBERT_NAMES,
  });
}

/** RoBERTa, XLM-R and CamemBERT. */
function describeRoberta(vocabularySize: number): DescribeFamily {
  return (config) =>
    withPositionsAfterPadding(
      describeLikeBert(config, { ...BERT_DEFAULTS, vocabularySize }, ROBERTA_NAMES),
      config.count('pad_token_id', 1),
    );
}

function describeLikeBert(config: ConfigReader, defaults: BertDefaults, names: TensorNames): EncoderDescription {
  config.expect('position_embedding_type', ['absolute'], 'only "absolute" is supported');
  return describeSizes(config, {
    layers: config.layers('num_hidden_layers', defaults.layers),
    heads: config.size('num_attention_heads', defaults.heads),
    hidden: config.size('hidden_size', defaults.hidden),
    intermediate: config.size('intermediate_size', defaults.intermediate),
    vocabularySize: config.size('vocab_size', defaults.vocabularySize),
    tokenTypes: names.types === undefined ? 0 : config.size('type_vocab_size', 2),
    epsilon: config.positive('layer_norm_eps', 1e-12),
    activation: activationOf(config, 'hidden_act', defaults.activation),
    names,
  });
}

type BertSizes = Pick<
  EncoderDescription,
  'layers' | 'heads' | 'hidden' | 'intermediate' | 'vocabularySize' | 'names'
> & {
  readonly tokenTypes: number;
  readonly epsilon: number;
  readonly activation: EncoderDescription['feedForward']['activation'];
};

function describeSizes(config: ConfigReader, sizes: BertSizes): EncoderDescription {
  const { tokenTypes, epsilon, activation, ...rest } = sizes;
  const rows = config.size('max_position_embeddings', 512);
  return {
    ...rest,
    ...bertLayers({ ...rest, tokenTypes, epsilon }),
    modelType: config.text('model_type', 'bert'),
    rowLimit: rows,
    positions: { kind: 'learned', rows, first: 0, padId: undefined },
    attentionPositions: { kind: 'none' },
    feedForward: { kind: 'plain', activation, hasBias: true, hasDownBias: true },
  };
}

/** The first token has the row behind the padding's own. */
function withPositionsAfterPadding(encoder: EncoderDescription, padId: number): EncoderDescription {
  const rows = encoder.rowLimit;
  return {
    ...encoder,
    rowLimit: rows - padId - 1,
    positions: { kind: 'learned', rows, first: padId + 1, padId },
  };
}

/** Tables of another width than the layers, and a projection between; `isAlways`: one of equal widths as well. */
function withEmbeddingsOf(
  config: ConfigReader,
  encoder: EncoderDescription,
  { isAlways }: { readonly isAlways: boolean },
): EncoderDescription {
  const size = config.size('embedding_size', 128);
  const hasProjection = isAlways || size !== encoder.hidden;
  return { ...encoder, embeddings: { ...encoder.embeddings, size, hasProjection } };
}

export const BERT_FAMILY: Readonly<Record<string, DescribeFamily>> = {
  bert: describeBert,
  mpnet: describeMpnet,
  roberta: describeRoberta(50_265),
  'xlm-roberta': describeRoberta(30_522),
  camembert: describeRoberta(30_522),
  distilbert: describeDistilbert,
  electra: describeElectra,
  albert: describeAlbert,
};
