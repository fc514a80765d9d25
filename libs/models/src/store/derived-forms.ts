// The forms in which weights are kept smaller than fp32: each makes a model of its own out of another one's files
// (derived-model.ts), because its vectors are not the fp32 ones. What differs from one form to another stands here.

import type { Precision } from '@shoal/core';
import type { GraphKind } from '../graph/graph-kind.ts';
import { QUANTIZER_VERSION } from '../graph/quantize.ts';

export const WEIGHT_DTYPES = ['int8', 'f16'] as const;
export type WeightDtype = (typeof WEIGHT_DTYPES)[number];

export interface DerivedForm {
  /** Behind a model's description. */
  readonly inWords: string;
  /**
   * Below it no text's vector may come to lie. A vector further from its own fp32 one than int8's is no nearer to it than
   * passages on like matters are to each other, and its neighbours are others; it is what the benches ask of
   * minilm-int8, whose least is 0.998. Halves keep what the fp16 of a GPU keeps.
   */
  readonly leastCosine: number;
  /** Version of what makes the weights smaller. */
  readonly quantizer: number;
  /** Which graph its vectors come from on a CPU, and what that computes in. */
  readonly computation: { readonly graphKind: GraphKind; readonly precision: Precision };
}

export const DERIVED_FORMS: Readonly<Record<WeightDtype, DerivedForm>> = {
  int8: {
    inWords: 'in whole numbers of 8 bits',
    leastCosine: 0.99,
    quantizer: QUANTIZER_VERSION,
    computation: { graphKind: 'int8', precision: 'int8' },
  },
  f16: {
    inWords: 'with its word table in fp16',
    leastCosine: 0.9999,
    quantizer: 1,
    computation: { graphKind: 'fused-fp32-words16', precision: 'fp32' },
  },
};
