// A stored model as a native encoder takes it: checked sizes, and the weights as fp32 arrays in the order of
// native/encoder/include/encoder.h. The same checks as for a graph: every tensor has its shape, and none of the encoder
// is left over.

import { ShoalError } from '@shoal/contract';
import { readDescription, type StoredModel } from '../store/stored-model.ts';
import { attentionParts } from './bert-parts.ts';
import { bertConfigOf, type BertConfig } from './bert-config.ts';
import { EncoderTensors } from './encoder-tensors.ts';
import type { MakeFloats } from './onnx-file.ts';
import { useTensors } from './named-tensors.ts';
import { givesUnitVectors, headInWords, type SentenceHead } from './sentence-head.ts';

export interface EncoderModel {
  readonly config: BertConfig;
  readonly pooling: 'mean' | 'cls';
  /** Vectors of length 1; else each has its own. */
  readonly isNormalized: boolean;
  readonly weights: readonly Float32Array[];
}

/**
 * MODEL_UNAVAILABLE for a reranker, for a model whose vectors do not come from fp32 weights, for an encoder that differs from BERT, and
 * for one with more behind its hidden states than the native encoder computes; MODEL_CORRUPT as for a graph.
 */
export async function readEncoder(model: StoredModel): Promise<EncoderModel> {
  if (model.kind === 'reranker')
    throw new ShoalError('MODEL_UNAVAILABLE', `${model.name} is a reranker; the native encoder gives vectors alone`, {
      name: model.name,
    });
  if (model.graphKind === 'imported' || model.graphKind === 'int8')
    throw new ShoalError(
      'MODEL_UNAVAILABLE',
      `${model.name} is ${model.graphKind === 'int8' ? 'an int8 model' : 'an imported graph'}; the native ` +
        'encoder takes weights',
      { name: model.name },
    );
  const pooling = poolingOf(model);
  const encoder = await readDescription(model.folder);
  const config = bertConfigOf(encoder);
  if (config === undefined)
    throw new ShoalError(
      'MODEL_UNAVAILABLE',
      `${model.name} is an encoder of the kind ${encoder.modelType} that differs from BERT, which is what the native ` +
        'encoder computes',
      { name: model.name, modelType: encoder.modelType },
    );
  return useTensors(model.folder, async (file) => {
    const weights = new EncoderTensors(file, encoder.names);
    const makers = [
      ...embeddings(config, weights),
      ...Array.from({ length: config.layers }, (_, layer) => layerOf(config, weights, `encoder.layer.${layer}`)).flat(),
    ];
    weights.expectAllTaken();
    const read: Float32Array[] = [];
    for (const make of makers) read.push(await make());
    return { config, pooling, isNormalized: givesUnitVectors(model.head), weights: read };
  });
}

function poolingOf({ name, head }: { readonly name: string; readonly head: SentenceHead }): 'mean' | 'cls' {
  const [pooling, ...more] = head.poolings;
  const isSimple = more.length === 0 && head.modules.every(({ kind }) => kind === 'normalize');
  if (isSimple && (pooling === 'mean' || pooling === 'cls')) return pooling;
  throw new ShoalError(
    'MODEL_UNAVAILABLE',
    `${name} makes its vectors by ${headInWords(head)}; the native encoder has the mean or the first token, with or ` +
      'without Normalize',
    { name },
  );
}

function embeddings(
  { vocabularySize, positions, tokenTypes, hidden }: BertConfig,
  weights: EncoderTensors,
): readonly MakeFloats[] {
  return [
    weights.tensor('embeddings.word_embeddings.weight', [vocabularySize, hidden]),
    weights.tensor('embeddings.position_embeddings.weight', [positions, hidden]),
    // the first row counts: every token is of type 0
    weights.tensor('embeddings.token_type_embeddings.weight', [tokenTypes, hidden]),
    ...norm(weights, 'embeddings', hidden),
  ];
}

function layerOf({ hidden, intermediate }: BertConfig, weights: EncoderTensors, from: string): readonly MakeFloats[] {
  const linear = (name: string, outputs: number, inputs: number): MakeFloats[] => [
    weights.tensor(`${name}.weight`, [outputs, inputs]),
    weights.tensor(`${name}.bias`, [outputs]),
  ];
  return [
    ...attentionParts(from).flatMap((part) => linear(part, hidden, hidden)),
    ...linear(`${from}.attention.output.dense`, hidden, hidden),
    ...norm(weights, `${from}.attention.output`, hidden),
    ...linear(`${from}.intermediate.dense`, intermediate, hidden),
    ...linear(`${from}.output.dense`, hidden, intermediate),
    ...norm(weights, `${from}.output`, hidden),
  ];
}

function norm(weights: EncoderTensors, from: string, size: number): MakeFloats[] {
  return [weights.tensor(`${from}.LayerNorm.weight`, [size]), weights.tensor(`${from}.LayerNorm.bias`, [size])];
}
