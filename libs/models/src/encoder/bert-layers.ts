// What BERT and the encoders built after it share: a norm with a bias behind each half of a layer, as many heads of keys
// and values as of queries, every token seeing all others.

import type { EncoderDescription } from './encoder-description.ts';

export interface BertLayers {
  readonly layers: number;
  readonly heads: number;
  readonly hidden: number;
  readonly tokenTypes: number;
  readonly epsilon: number;
  /** Of attention. Default true. */
  readonly hasBias?: boolean;
}

export function bertLayers({
  layers,
  heads,
  hidden,
  tokenTypes,
  epsilon,
  hasBias = true,
}: BertLayers): Pick<EncoderDescription, 'kvHeads' | 'headSize' | 'embeddings' | 'norm' | 'attention'> {
  return {
    kvHeads: heads,
    headSize: hidden / heads,
    embeddings: { size: hidden, scale: 1, tokenTypes, hasNorm: true, hasProjection: false },
    norm: {
      kind: 'layer',
      hasBias: true,
      isPlusOne: false,
      epsilon,
      placement: 'after',
      isBeforeFirst: true,
      isLast: false,
    },
    attention: {
      isCausal: false,
      windows: Array.from({ length: layers }, () => undefined),
      scale: 1 / Math.sqrt(hidden / heads),
      hasQueryKeyNorm: false,
      hasBias,
      hasOutputBias: hasBias,
    },
  };
}
