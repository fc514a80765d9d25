// What computes: an instruction set of the CPU, a GPU, or whichever of both is sooner. Values are checked before they
// come here (kernels.ts).

import type { Graph } from '../graphs/graph.ts';
import type { Matrix, Metric, RowBlock } from './vectors.ts';

/** Instruction sets of the native code, best first, and `plain`: no native code at all. */
export const ISAS = ['avx512', 'avx2', 'neon', 'portable', 'plain'] as const;
export type Isa = (typeof ISAS)[number];
/** What computes: an instruction set, the GPU, or whichever of a CPU and a GPU is faster. */
export type EngineName = Isa | 'cuda' | 'hybrid';

export interface Stoppable {
  /** The call ends early with the signal's reason; checked every few milliseconds of work. */
  readonly signal?: AbortSignal;
}

export interface SpreadOptions extends Stoppable {
  readonly steps: number;
  /** 0 to 1: what is left of an activation after one edge of weight 1. */
  readonly decay: number;
  /** A node whose activation of the last step is below gives nothing on. */
  readonly threshold: number;
  readonly k: number;
  /** Whoever computes is through with a part of it and begins with the next. */
  readonly onPart?: () => void;
}

/** Best rows by number, best first, with fp64 scores: what engines give back. Laid out like `TopK`. */
export interface BestRows {
  readonly found: Uint32Array;
  readonly rows: Uint32Array;
  readonly scores: Float64Array;
}

/** What computes. Everything it is given was checked; it may not look at `ids`. */
export interface Engine {
  readonly isa: EngineName;
  readonly threads: number;
  topK(queries: Matrix, rows: RowBlock, metric: Metric, k: number, signal?: AbortSignal): Promise<BestRows>;
  matrix(queries: Matrix, rows: RowBlock, metric: Metric, signal?: AbortSignal): Promise<Float32Array>;
  /** Scores in fp64 of the rows `candidates[begin[q]] … candidates[begin[q + 1] − 1]`. */
  rescore(
    queries: Matrix,
    rows: RowBlock,
    metric: Metric,
    begin: Uint32Array,
    candidates: Uint32Array,
    signal?: AbortSignal,
  ): Promise<Float64Array>;
  /**
   * The totals. `activation` is nodes × lanes and holds the seeds; where the device failed it still does, otherwise it
   * may hold the totals.
   */
  spread(graph: Graph, lanes: number, activation: Float32Array, options: SpreadOptions): Promise<Float32Array>;
}
