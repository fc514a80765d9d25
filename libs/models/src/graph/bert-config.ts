// config.json of a BERT-family encoder as checked facts. What the graph builder cannot compute exactly as the authors
// do (another activation, relative positions, a decoder) is refused by name here, before a weight is read. What a file
// leaves out is what transformers' BertConfig takes for it; shapes of tensors then agree or are refused.

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
  if (json.has('hidden_act')) expectOnly(json, 'hidden_act', 'gelu', 'gelu_python');
  if (json.has('position_embedding_type')) expectOnly(json, 'position_embedding_type', 'absolute');
  for (const flag of ['is_decoder', 'add_cross_attention'])
    if (json.has(flag) && json.boolean(flag)) refuse(json, `"${flag}" is true; only encoders give embeddings`);
  for (const key of ['quantization_config', 'pruned_heads'])
    if (json.has(key) && json.object(key).keys().length > 0)
      refuse(json, `"${key}" is set, and the weights are then not what their names say`);
  const integer = (key: string, otherwise: number): number => (json.has(key) ? json.integer(key, 1) : otherwise);
  const config = {
    layers: integer('num_hidden_layers', 12),
    heads: integer('num_attention_heads', 12),
    hidden: integer('hidden_size', 768),
    intermediate: integer('intermediate_size', 3072),
    vocabularySize: integer('vocab_size', 30_522),
    positions: integer('max_position_embeddings', 512),
    tokenTypes: integer('type_vocab_size', 2),
    layerNormEpsilon: json.has('layer_norm_eps') ? json.positive('layer_norm_eps') : 1e-12,
  };
  if (config.hidden % config.heads !== 0)
    refuse(json, `hidden_size ${config.hidden} cannot be shared by ${config.heads} heads`);
  return config;
}

/** The first is named as what is supported; the others are spellings of it. */
function expectOnly(json: CheckedJson, key: string, supported: string, ...spellings: readonly string[]): void {
  const found = json.string(key);
  if (found !== supported && !spellings.includes(found))
    refuse(json, `${key} ${JSON.stringify(found)} is not supported, only ${JSON.stringify(supported)}`);
}

function refuse(json: CheckedJson, problem: string): never {
  throw new ShoalError('MODEL_CORRUPT', `${json.where}: ${problem}`, { where: json.where });
}
