// config.json of a BERT-family encoder as checked facts. What the graph builder cannot compute exactly as the authors
// do (another activation, relative positions, a decoder) is refused by name here, before a weight is read.

import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';

export interface BertConfig {
  readonly layers: number;
  readonly heads: number;
  readonly hidden: number;
  readonly intermediate: number;
  readonly vocabularySize: number;
  readonly positions: number;
  readonly tokenTypes: number;
  readonly layerNormEpsilon: number;
}

export function parseBertConfig(text: string, where: string): BertConfig {
  const json = CheckedJson.parse(text, where);
  expectOnly(json, 'model_type', 'bert');
  expectOnly(json, 'hidden_act', 'gelu');
  if (json.has('position_embedding_type')) expectOnly(json, 'position_embedding_type', 'absolute');
  for (const flag of ['is_decoder', 'add_cross_attention'])
    if (json.has(flag) && json.boolean(flag)) refuse(json, `"${flag}" is true; only encoders give embeddings`);
  const config = {
    layers: json.integer('num_hidden_layers', 1),
    heads: json.integer('num_attention_heads', 1),
    hidden: json.integer('hidden_size', 1),
    intermediate: json.integer('intermediate_size', 1),
    vocabularySize: json.integer('vocab_size', 1),
    positions: json.integer('max_position_embeddings', 1),
    tokenTypes: json.integer('type_vocab_size', 1),
    layerNormEpsilon: json.positive('layer_norm_eps'),
  };
  if (config.hidden % config.heads !== 0)
    refuse(json, `hidden_size ${config.hidden} cannot be shared by ${config.heads} heads`);
  return config;
}

function expectOnly(json: CheckedJson, key: string, supported: string): void {
  const found = json.string(key);
  if (found !== supported)
    refuse(json, `${key} ${JSON.stringify(found)} is not supported, only ${JSON.stringify(supported)}`);
}

function refuse(json: CheckedJson, problem: string): never {
  throw new ShoalError('MODEL_CORRUPT', `${json.where}: ${problem}`, { where: json.where });
}
