// Static models (model2vec, and StaticEmbedding of sentence-transformers): a text's vector is the mean of its tokens' rows
// of a table, so there is a table and no layer. The config.json that is read here is the one that Shoal writes at an
// import (store/static-model.ts): those of the authors do not say the sizes.

import { bertLayers } from './bert-layers.ts';
import type { ConfigReader } from './config-reader.ts';
import type { DescribeFamily } from './describe-encoder.ts';
import type { EncoderDescription, TableDescription, TensorNames } from './encoder-description.ts';

/** As the stored config.json calls it. */
export const STATIC_TYPE = 'static-embedding';

export const MAPPING = 'mapping';
export const WEIGHTS = 'weights';

/** Attention is none, and this is no limit of the model: rows end where those of all others do. */
const MOST_TOKENS = Number.MAX_SAFE_INTEGER;

export const STATIC_FAMILY: Readonly<Record<string, DescribeFamily>> = { [STATIC_TYPE]: describeStatic };

export interface StaticSizes {
  /** Length of a vector. */
  readonly dims: number;
  /** Ids of tokens are below this. */
  readonly tokens: number;
  readonly table: Omit<TableDescription, 'texts'>;
  readonly texts: Pick<TableDescription['texts'], 'charsPerToken' | 'dropsUnknown'>;
}

/** The config.json of a stored static model. */
export function staticConfig({ dims, tokens, table, texts }: StaticSizes): object {
  return {
    model_type: STATIC_TYPE,
    hidden_size: dims,
    tokens,
    table: table.name,
    table_rows: table.rows,
    has_mapping: table.hasMapping,
    has_weights: table.hasWeights,
    ...(texts.charsPerToken !== undefined && { chars_per_token: texts.charsPerToken }),
    drops_unknown: texts.dropsUnknown,
  };
}

function describeStatic(config: ConfigReader): EncoderDescription {
  const hidden = config.size('hidden_size', 0);
  const tokens = config.size('tokens', 0);
  const table = {
    name: config.text('table', ''),
    rows: config.size('table_rows', 0),
    hasMapping: config.boolean('has_mapping', false),
    hasWeights: config.boolean('has_weights', false),
    texts: {
      charsPerToken: config.has('chars_per_token') ? config.size('chars_per_token', 1) : undefined,
      dropsUnknown: config.boolean('drops_unknown', false),
      emptyId: tokens,
    },
  };
  const [layers, heads, tokenTypes] = [0, 1, 0];
  return {
    ...bertLayers({ layers, heads, hidden, tokenTypes, epsilon: 1e-12 }),
    modelType: STATIC_TYPE,
    layers,
    heads,
    hidden,
    intermediate: hidden,
    vocabularySize: tokens + 1,
    rowLimit: MOST_TOKENS,
    positions: { kind: 'none' },
    attentionPositions: { kind: 'none' },
    feedForward: { kind: 'plain', activation: 'gelu', hasBias: true, hasDownBias: true },
    names: { ...NO_NAMES, words: table.name },
    table,
  };
}

/** Its tensors have no prefix, and all of them are taken by their names. */
const NO_NAMES: TensorNames = {
  words: '',
  layer: '',
  queryKeyValue: { kind: 'fused', name: '' },
  output: '',
  attentionNorm: '',
  feedForwardNorm: '',
  up: { kind: 'plain', name: '' },
  down: '',
  withoutUse: /(?!)/,
  encoder: /(?!)/,
};
