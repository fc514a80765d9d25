// An encoder as one ONNX graph: from token ids to vectors, mask and sentence head included.
//   in   input_ids int32 [batch, seq], padding 0;  lengths int32 [batch], tokens of each row
//   out  embeddings f32 [batch, dims]
// Where a row ends, its padding ends: neither attention nor the mean sees it.

import { ShoalError } from '@shoal/contract';
import type { EncoderDescription } from '../encoder/encoder-description.ts';
import { bertConfigOf } from './bert-config.ts';
import { BertParts } from './bert-parts.ts';
import type { Calibration } from './calibration.ts';
import { addCudaEncoder } from './cuda-encoder.ts';
import { EncoderTensors } from './encoder-tensors.ts';
import { addDescribedEncoder, type Operators } from './described-encoder.ts';
import { addFusedEncoder } from './fused-encoder.ts';
import { fusedOperators } from './fused-operators.ts';
import { GraphParts } from './graph-parts.ts';
import { plainOperators } from './plain-operators.ts';
import { kindProblem } from './unavailable-kinds.ts';
import { FORMS, type BertForm, type GraphKind } from './graph-kind.ts';
import { addInt8Encoder } from './int8-encoder.ts';
import { Int8Parts } from './int8-parts.ts';
import type { NamedTensors } from './named-tensors.ts';
import { OnnxFile, TYPE, type ElementType } from './onnx-file.ts';
import { addPlainEncoder } from './plain-encoder.ts';
import { addSentenceHead } from './pooling.ts';
import { headDims, type SentenceHead } from './sentence-head.ts';
import { addTableRows } from './table-rows.ts';

export interface EncoderGraphOptions {
  /** What makes a row's vector out of its last hidden states. */
  readonly head: SentenceHead;
  readonly kind: GraphKind;
  /** What an int8 graph is smoothed by; without it vectors are further from those of fp32. */
  readonly calibration?: Calibration | undefined;
}

/**
 * Names and shapes of the weights are checked here; their values are read by `write` of the result. MODEL_UNAVAILABLE
 * for a kind that this encoder has not; MODEL_CORRUPT for weights that do not add up to it.
 */
export function encoderGraph(
  encoder: EncoderDescription,
  file: NamedTensors,
  { head, ...options }: EncoderGraphOptions,
): OnnxFile {
  const { graph, hidden, type, batch } = statesGraph(encoder, file, options);
  addSentenceHead(graph, hidden, type, head);
  graph.output('embeddings', TYPE.FLOAT, [batch, headDims(head, encoder.hidden)]);
  return graph;
}

export interface StatesGraph {
  readonly graph: OnnxFile;
  /** Name of the last hidden states [batch, seq, hidden]. */
  readonly hidden: string;
  /** What they are in. */
  readonly type: ElementType;
  /** The size of the first dimension, as outputs name it. */
  readonly batch: string | undefined;
}

/** The encoder alone, up to its last hidden states, without an output. Refuses as `encoderGraph`. */
export function statesGraph(
  encoder: EncoderDescription,
  file: NamedTensors,
  { kind, calibration }: Omit<EncoderGraphOptions, 'head'>,
): StatesGraph {
  const begun = beginGraph(encoder, file, kind);
  const [hidden, type] = addEncoder(encoder, FORMS[kind], begun.parts, calibration);
  begun.parts.weights.expectAllTaken();
  return { graph: begun.parts.graph, hidden, type, batch: begun.batch };
}

export interface BegunGraph {
  readonly parts: GraphParts;
  /** The size of the first dimension, as outputs name it. */
  readonly batch: string | undefined;
}

/** A graph with the inputs that all have, and nothing in it. MODEL_UNAVAILABLE for a kind that this encoder has not. */
export function beginGraph(encoder: EncoderDescription, file: NamedTensors, kind: GraphKind): BegunGraph {
  const problem = kindProblem(encoder, kind);
  if (problem !== undefined)
    throw new ShoalError('MODEL_UNAVAILABLE', `no graph of the kind ${kind} for ${encoder.modelType}: ${problem}`, {
      kind,
      modelType: encoder.modelType,
    });
  const form = FORMS[kind];
  const graph = new OnnxFile('bert', form.encoder === 'plain' ? { '': 17 } : { '': 17, 'com.microsoft': 1 });
  const [batch, seq] = namesSizes(kind) ? ['batch', 'seq'] : [];
  graph.input('input_ids', TYPE.INT32, [batch, seq]);
  graph.input('lengths', TYPE.INT32, [batch]);
  return { parts: new GraphParts(graph, new EncoderTensors(file, encoder.names), form.floats, form.words), batch };
}

/**
 * Where sizes have names, the runtime sees which tensors are of one size, and a later one takes over the buffer of an
 * earlier one, which then lives through everything between them: the widest two of each layer through the attention of
 * the next. On CUDA that is 17 vectors of the hidden size a token in place of 9 (H200, ONNX Runtime 1.30, 2026-11-22).
 * The other graphs for GPUs add positions in a way whose sizes it cannot follow; those for the CPU have an arena laid
 * out for them.
 */
function namesSizes(kind: GraphKind): boolean {
  return kind !== 'fused-fp16';
}

/** A static model is a table, and BERT has graphs of its own; every other encoder is built from its description. */
function addEncoder(
  encoder: EncoderDescription,
  form: BertForm,
  parts: GraphParts,
  calibration: Calibration | undefined,
): readonly [hidden: string, type: ElementType] {
  if (encoder.table !== undefined) return [addTableRows(encoder, encoder.table, parts), parts.type];
  const config = bertConfigOf(encoder);
  if (config !== undefined) return [addBert(form, new BertParts(config, parts), calibration), parts.type];
  const taken =
    form.encoder === 'int8'
      ? new Int8Parts(parts.graph, parts.weights, { calibration, codes: form.codes ?? 'signed' })
      : parts;
  return [addDescribedEncoder(encoder, taken, operatorsOf(encoder, form, taken)), taken.type];
}

export function operatorsOf(encoder: EncoderDescription, form: BertForm, parts: GraphParts): Operators {
  return form.encoder === 'plain'
    ? plainOperators(encoder, parts)
    : fusedOperators(encoder, parts, {
        masksCausally: form.encoder === 'cuda',
        packsAttention: form.encoder !== 'int8',
      });
}

function addBert({ encoder, codes }: BertForm, parts: BertParts, calibration: Calibration | undefined): string {
  switch (encoder) {
    case 'fused':
      return addFusedEncoder(parts);
    case 'plain':
      return addPlainEncoder(parts);
    case 'cuda':
      return addCudaEncoder(parts);
    case 'int8':
      return addInt8Encoder(parts, calibration, codes ?? 'signed');
  }
}
