// An encoder as one ONNX graph: from token ids to vectors of length 1, mask, pooling and norm included.
//   in   input_ids int32 [batch, seq], padding 0;  lengths int32 [batch], tokens of each row
//   out  embeddings f32 [batch, hidden]
// Where a row ends, its padding ends: neither attention nor the mean sees it.

import { ShoalError } from '@shoal/contract';
import type { EncoderDescription } from '../encoder/encoder-description.ts';
import { bertConfigOf } from './bert-config.ts';
import { BertParts } from './bert-parts.ts';
import type { Calibration } from './calibration.ts';
import { addCudaEncoder } from './cuda-encoder.ts';
import { EncoderTensors } from './encoder-tensors.ts';
import { addFusedEncoder } from './fused-encoder.ts';
import { FORMS, type BertForm, type GraphKind } from './graph-kind.ts';
import { addInt8Encoder } from './int8-encoder.ts';
import type { NamedTensors } from './named-tensors.ts';
import { OnnxFile, TYPE } from './onnx-file.ts';
import { addPlainEncoder } from './plain-encoder.ts';
import { addPooling, type Pooling } from './pooling.ts';

export interface EncoderGraphOptions {
  readonly pooling: Pooling;
  readonly kind: GraphKind;
  /** What an int8 graph is smoothed by; without it vectors are further from those of fp32. */
  readonly calibration?: Calibration | undefined;
}

/** Names and shapes of the weights are checked here; their values are read by `write` of the result. */
export function encoderGraph(
  encoder: EncoderDescription,
  file: NamedTensors,
  { pooling, kind, calibration }: EncoderGraphOptions,
): OnnxFile {
  const form = FORMS[kind];
  const graph = new OnnxFile('bert', form.encoder === 'plain' ? { '': 17 } : { '': 17, 'com.microsoft': 1 });
  const tensors = new EncoderTensors(file, encoder.names);
  const [batch, seq] = namesSizes(kind) ? ['batch', 'seq'] : [];
  graph.input('input_ids', TYPE.INT32, [batch, seq]);
  graph.input('lengths', TYPE.INT32, [batch]);
  const config = bertConfigOf(encoder);
  if (config === undefined)
    throw new ShoalError('MODEL_UNAVAILABLE', `no graph is built for encoders of the kind ${encoder.modelType} yet`);
  const parts = new BertParts(graph, config, tensors, form.floats);
  const hidden = addBert(form, parts, calibration);
  tensors.expectAllTaken();
  addPooling(graph, hidden, parts.type, pooling);
  graph.output('embeddings', TYPE.FLOAT, [batch, encoder.hidden]);
  return graph;
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
