// The sizes of an encoder that is BERT itself: what its own graphs (fused-encoder.ts, plain-encoder.ts, int8-encoder.ts)
// and the native encoder take. An encoder that differs from BERT in any other switch has none.

import { ShoalError } from '@shoal/contract';
import { CheckedJson } from '../checked-json.ts';
import { BERT_NAMES } from '../encoder/bert-family.ts';
import { bertLayers } from '../encoder/bert-layers.ts';
import { describeEncoder } from '../encoder/describe-encoder.ts';
import type { EncoderDescription } from '../encoder/encoder-description.ts';

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

/** Undefined where a switch is not BERT's. */
export function bertConfigOf(encoder: EncoderDescription): BertConfig | undefined {
  const { layers, heads, hidden, intermediate, vocabularySize, embeddings, positions, norm } = encoder;
  if (positions.kind !== 'learned' || embeddings.tokenTypes === 0) return undefined;
  const config = {
    layers,
    heads,
    hidden,
    intermediate,
    vocabularySize,
    positions: positions.rows,
    tokenTypes: embeddings.tokenTypes,
    layerNormEpsilon: norm.epsilon,
  };
  return isSame({ ...encoder, modelType: 'bert' }, bertWith(config)) ? config : undefined;
}

/** Of the text of a config.json; MODEL_CORRUPT where it describes another encoder than BERT. */
export function parseBertConfig(text: string, where: string): BertConfig {
  const encoder = describeEncoder(CheckedJson.parse(text, where));
  const config = bertConfigOf(encoder);
  if (config !== undefined) return config;
  throw new ShoalError('MODEL_CORRUPT', `${where}: it describes another encoder (${encoder.modelType}) than BERT`, {
    where,
  });
}

function bertWith(config: BertConfig): EncoderDescription {
  const { layers, heads, hidden, intermediate, vocabularySize, positions, tokenTypes, layerNormEpsilon } = config;
  return {
    ...bertLayers({ layers, heads, hidden, tokenTypes, epsilon: layerNormEpsilon }),
    modelType: 'bert',
    layers,
    heads,
    hidden,
    intermediate,
    vocabularySize,
    rowLimit: positions,
    positions: { kind: 'learned', rows: positions, first: 0, padId: undefined },
    attentionPositions: { kind: 'none' },
    feedForward: { kind: 'plain', activation: 'gelu', hasBias: true, hasDownBias: true },
    names: BERT_NAMES,
  };
}

/** Whether both have the same values; the names are compared as one object. */
function isSame(one: unknown, other: unknown): boolean {
  if (one === other) return true;
  if (typeof one !== 'object' || typeof other !== 'object' || one === null || other === null) return false;
  const keys = new Set([...Object.keys(one), ...Object.keys(other)]);
  return [...keys].every((key) => isSame(Reflect.get(one, key), Reflect.get(other, key)));
}
