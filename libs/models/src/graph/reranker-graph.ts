// A cross-encoder as one ONNX graph: from token ids of pairs to one score a row, without any norm.
//   in   input_ids int32 [batch, seq], padding 0;  lengths int32 [batch], tokens of each row
//        second_from int32 [batch], the place of each row at which its second text begins; read where a model knows types
//   out  embeddings f32 [batch, 1], under the name that all graphs give what they make
// The encoder is built from its description, BERT's too: its own graphs fold token type 0 into the positions.

import { ShoalError } from '@shoal/contract';
import type { EncoderDescription } from '../encoder/encoder-description.ts';
import type { ScoreHead } from '../encoder/score-head.ts';
import { addDescribedEncoder } from './described-encoder.ts';
import { beginGraph, operatorsOf } from './encoder-graph.ts';
import { transposeInto, type EncoderTensors } from './encoder-tensors.ts';
import { FORMS, type GraphKind } from './graph-kind.ts';
import type { NamedTensors } from './named-tensors.ts';
import { TYPE, type ElementType, type MakeFloats, type OnnxFile } from './onnx-file.ts';
import { addActivation, addPooling, asFloats } from './pooling.ts';

export interface Reranker {
  readonly encoder: EncoderDescription;
  readonly head: ScoreHead;
}

/**
 * Names and shapes of the weights are checked here; their values are read by `write` of the result. MODEL_UNAVAILABLE
 * for a kind that rerankers have not; MODEL_CORRUPT for weights that do not add up to this model.
 */
export function rerankerGraph({ encoder, head }: Reranker, file: NamedTensors, kind: GraphKind): OnnxFile {
  const form = FORMS[kind];
  if (form.encoder === 'int8' || form.floats === 'bf16')
    throw new ShoalError('MODEL_UNAVAILABLE', `no graph of the kind ${kind} for a reranker`, { kind });
  const { parts, batch } = beginGraph(encoder, file, kind);
  const { graph, weights, type } = parts;
  graph.input('second_from', TYPE.INT32, [batch]);
  const { hasTypes } = head;
  const hidden = addDescribedEncoder(encoder, parts, operatorsOf(encoder, form, parts), { hasTypes });
  addScoreHead(graph, weights, { name: hidden, type, size: encoder.hidden }, head);
  weights.expectAllTaken();
  graph.output('embeddings', TYPE.FLOAT, [batch, 1]);
  return graph;
}

interface States {
  readonly name: string;
  readonly type: ElementType;
  readonly size: number;
}

/** In fp32 whatever the encoder computed in, as heads of embedders are. */
function addScoreHead(graph: OnnxFile, weights: EncoderTensors, states: States, head: ScoreHead): void {
  const { pooling, dense, norm, classifier, hasSigmoid } = head;
  const { size } = states;
  const tensor = (name: string, shape: readonly number[]): MakeFloats =>
    dense.isInEncoder && name.startsWith(dense.name) ? weights.tensor(name, shape) : weights.outside(name, shape);
  const vector = (name: string, length: number): string =>
    graph.initializer(`score.${name}`, TYPE.FLOAT, [length], tensor(name, [length]));
  const linear = (name: string, input: string, outputs: number, hasBias: boolean, output: string): string => {
    const matrix = graph.initializer(
      `score.${name}.weight`,
      TYPE.FLOAT,
      [size, outputs],
      turned(tensor(`${name}.weight`, [outputs, size]), outputs, size),
    );
    if (!hasBias) return graph.node('MatMul', [input, matrix], output);
    const product = graph.node('MatMul', [input, matrix], `${output}.product`);
    return graph.node('Add', [product, vector(`${name}.bias`, outputs)], output);
  };
  const pooled = addPooling(graph, asFloats(graph, states.name, states.type, 'hidden_f32'), pooling, 'pooled');
  const raw = linear(dense.name, pooled, size, dense.hasBias, 'score.dense');
  const active = addActivation(graph, dense.activation, raw, 'score.active');
  const normed = norm === undefined ? active : addNorm(graph, active, norm, vector, size);
  const score = linear(classifier, normed, 1, true, hasSigmoid ? 'score.raw' : 'embeddings');
  if (hasSigmoid) graph.node('Sigmoid', [score], 'embeddings');
}

function addNorm(
  graph: OnnxFile,
  input: string,
  { name, hasBias, epsilon }: NonNullable<ScoreHead['norm']>,
  vector: (name: string, length: number) => string,
  size: number,
): string {
  const factors = [vector(`${name}.weight`, size), ...(hasBias ? [vector(`${name}.bias`, size)] : [])];
  return graph.node('LayerNormalization', [input, ...factors], 'score.normed', { floats: { epsilon } });
}

/** A weight [outputs, inputs] as the matrix [inputs, outputs] that MatMul takes. */
function turned(make: MakeFloats, outputs: number, inputs: number): MakeFloats {
  return async () => {
    const matrix = new Float32Array(inputs * outputs);
    transposeInto(matrix, outputs, 0, await make(), outputs, inputs);
    return matrix;
  };
}
