// The encoder for the CUDA provider: fused layers, with one operator for residual and norm in every precision. Two
// forms: padded rows with key lengths, and packed ones, where padding is taken out before the first layer and put back
// after the last. Both return the last hidden states [batch, seq, hidden]; in the packed form those of padding are
// zeros. On one H200 in fp16 the padded form with key lengths is fastest on rows of like length, the packed one for one
// short text and for rows in the order they came (2026-11; docs/gpu.md).

import { MICROSOFT, type BertParts } from './bert-parts.ts';
import { addFusedLayers, attendByLengths, type LayerForm } from './fused-encoder.ts';
import { addPlainEmbeddings } from './plain-encoder.ts';

export function addCudaEncoder(parts: BertParts): string {
  return addFusedLayers(parts, addNorm(parts, addPlainEmbeddings(parts)), {
    attend: attendByLengths(parts),
    norm: skipNorm(parts),
  });
}

/** Only the CUDA provider can run it, and only in fp16. */
export function addPackedEncoder(parts: BertParts): string {
  const {
    graph,
    config: { heads },
  } = parts;
  const packed = graph.node('RemovePadding', [addPlainEmbeddings(parts), 'lengths'], 'packed', {
    ...MICROSOFT,
    moreOutputs: ['token_places', 'starts', 'longest'],
  });
  const attend: LayerForm['attend'] = (input, qkv, qkvBias, output) =>
    graph.node('PackedAttention', [input, qkv, qkvBias, 'token_places', 'starts'], output, {
      ...MICROSOFT,
      integers: { num_heads: heads },
    });
  const hidden = addFusedLayers(parts, addNorm(parts, packed), { attend, norm: skipNorm(parts) });
  return graph.node('RestorePadding', [hidden, 'token_places'], 'unpacked', MICROSOFT);
}

/** Not EmbedLayerNormalization: its CUDA kernel sums in the type of the weights, LayerNormalization in fp32. */
function addNorm(parts: BertParts, input: string): string {
  return parts.graph.node('LayerNormalization', [input, ...parts.layerNorm('embeddings.LayerNorm')], 'embedded', {
    floats: { epsilon: parts.config.layerNormEpsilon },
  });
}

function skipNorm(parts: BertParts): LayerForm['norm'] {
  return (...args) => parts.skipNorm(...args);
}
