// The encoder for the CUDA provider in fp32 and bf16: fused layers, with one operator for residual and norm in every
// precision, over padded rows with key lengths. Returns the last hidden states [batch, seq, hidden].

import type { BertParts } from './bert-parts.ts';
import { addFusedLayers } from './fused-encoder.ts';
import { addPlainEmbeddings } from './plain-encoder.ts';

export function addCudaEncoder(parts: BertParts): string {
  return addFusedLayers(parts, addNorm(parts, addPlainEmbeddings(parts)), (...args) => parts.skipNorm(...args));
}

/** Not EmbedLayerNormalization: its CUDA kernel sums in the type of the weights, LayerNormalization in fp32. */
function addNorm(parts: BertParts, input: string): string {
  return parts.graph.node('LayerNormalization', [input, ...parts.layerNorm('embeddings.LayerNorm')], 'embedded', {
    floats: { epsilon: parts.config.layerNormEpsilon },
  });
}
