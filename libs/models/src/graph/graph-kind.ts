// The forms a model's graph comes in. All take the same inputs and give the same output; which one a device likes best
// is the worker's choice, except for int8 and for a word table in halves, which are models of their own because their
// vectors are not the fp32 ones.

import type { FloatForm } from './graph-parts.ts';
import type { CodeForm } from './int8-linear.ts';

export const GRAPH_KINDS = [
  'fused-fp32',
  'fused-fp32-words16',
  'fused-fp16',
  'plain-fp32',
  'plain-fp16',
  'int8',
  'int8-unsigned',
  'cuda-fp32',
  'cuda-bf16',
] as const;
export type GraphKind = (typeof GRAPH_KINDS)[number];

export interface BertForm {
  /** Which operators: the file <encoder>-encoder.ts. */
  readonly encoder: 'fused' | 'plain' | 'int8' | 'cuda';
  readonly floats: FloatForm;
  /** What the word table is kept in, if not in `floats`: its rows are cast as they are looked up. */
  readonly words?: 'fp16';
  /** How an int8 encoder keeps its matrices; int8-kind.ts has which processor runs which. Default signed. */
  readonly codes?: CodeForm;
}

export const FORMS: Readonly<Record<GraphKind, BertForm>> = {
  'fused-fp32': { encoder: 'fused', floats: 'fp32' },
  'fused-fp32-words16': { encoder: 'fused', floats: 'fp32', words: 'fp16' },
  'fused-fp16': { encoder: 'fused', floats: 'fp16' },
  'plain-fp32': { encoder: 'plain', floats: 'fp32' },
  'plain-fp16': { encoder: 'plain', floats: 'fp16' },
  int8: { encoder: 'int8', floats: 'fp32' },
  'int8-unsigned': { encoder: 'int8', floats: 'fp32', codes: 'unsigned' },
  'cuda-fp32': { encoder: 'cuda', floats: 'fp32' },
  'cuda-bf16': { encoder: 'cuda', floats: 'bf16' },
};

/** The kinds that only the CUDA provider has kernels for. */
export const CUDA_ONLY_KINDS: readonly GraphKind[] = ['cuda-bf16'];
