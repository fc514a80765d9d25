// The encoder for the CUDA provider in fp32 and bf16: fused layers, with one operator for residual and norm in every
// precision, over padded rows with key lengths. Returns the last hidden states [batch, seq, hidden].

import type { BertParts } from './bert-parts.ts';
import { addEmbeddingNorm, addFusedLayers } from './fused-encoder.ts';
import { addPlainEmbeddings } from './plain-encoder.ts';

/** Not EmbedLayerNormalization: its CUDA kernel sums in the type of the weights, LayerNormalization in fp32. */
export function addCudaEncoder(parts: BertParts): string {
  const embedded = addEmbeddingNorm(parts, addPlainEmbeddings(parts));
  return addFusedLayers(parts, embedded, (...args) => parts.skipNorm(...args));
}
