// What a similarity executor needs of whatever computes for it, said as interfaces: rows that can be held in memory as
// a whole or in part, and the four computations on what is held. A library of kernels (SIMD on the CPU, CUDA) joins by
// implementing these; core knows no files and no kernels. Running out of memory is a value here, as everywhere.

import type { ErrorCode, Ranking, Matrix, SeedSet, SimilarityMetric } from '@shoal/contract';

export type Fitted<Value> =
  | { readonly fits: true; readonly value: Value }
  | { readonly fits: false; readonly message: string };

export interface SimilarityDevice {
  /** What really computes: e.g. "cpu:avx512". */
  readonly device: string;
  /** "docs" becomes "docs@3", the newest version there is. Throws COLLECTION_UNKNOWN. */
  newest(name: string): Promise<string>;
  /**
   * `name`: name@version, of a graph its name. Throws COLLECTION_UNKNOWN, COLLECTION_GONE or COLLECTION_CORRUPT. Holds
   * no rows yet.
   */
  openCollection(name: string): Promise<RowSource>;
  /** Throws GRAPH_INVALID and what `openCollection` throws. */
  openGraph(name: string): Promise<GraphSource>;
  /** Vectors that came with a job, as rows to compare with. */
  rowsOf(matrix: Matrix): HeldRows;
  /**
   * Whether it compares with rows in memory of its own: a part of what is held there would have to be brought again,
   * and all of it does not take long.
   */
  readonly hasOwnMemory?: boolean;
  /** What computed since this was last asked; absent where that is always `device`. */
  takeUse?(): DeviceUse;
}

export interface DeviceUse {
  /** e.g. "cuda:0", "cpu:avx512", or both with a plus between them. */
  readonly device: string;
  /** Set when another device was to compute and could not. */
  readonly fellBack?: ErrorCode | undefined;
}

/** Somewhere that rows come from. */
export interface RowSource {
  readonly name: string;
  /** The model that made the rows, name@revision; absent: not known. */
  readonly model?: string;
  readonly rows: number;
  readonly dims: number;
  /** Memory that a held row takes. */
  readonly rowBytes: number;
  /**
   * False when another is there under its name. Throws COLLECTION_GONE or COLLECTION_CORRUPT when it may not be used
   * any more.
   */
  isCurrent(): Promise<boolean>;
  load(first: number, count: number): Promise<Fitted<HeldRows>>;
  /** What rows are called, by their ids; '' where one has no name. Absent: no row has one. */
  names?(ids: BigUint64Array): Promise<readonly string[]>;
  /** What was loaded stays held. */
  close(): Promise<void>;
}

export interface GraphSource {
  readonly name: string;
  readonly nodes: number;
  /** Memory for its edges, and for a run over them. */
  readonly bytes: number;
  isCurrent(): Promise<boolean>;
  load(): Promise<Fitted<HeldGraph>>;
  close(): Promise<void>;
}

/** Something in the device's memory. */
export interface Held {
  readonly bytes: number;
  /** It is not used after this. */
  free(): void;
}

export interface RankOptions {
  readonly k: number;
  readonly metric: SimilarityMetric;
  /** The call ends early with the signal's reason. */
  readonly signal: AbortSignal;
}

/** Row ids in rankings are those of the whole collection, whatever part of it is held. */
export interface HeldRows extends Held {
  readonly rows: number;
  /** A part of these, without a copy; `free` of it does nothing. */
  slice(first: number, count: number): HeldRows;
  has(id: bigint): boolean;
  /** The k best of each query by exact search, best first, ties to the lower id. */
  topK(queries: Matrix, options: RankOptions): Promise<Fitted<readonly Ranking[]>>;
  /** The same among `candidates`, a list for each query: ids of these rows, each once. */
  rescore(
    queries: Matrix,
    candidates: readonly BigUint64Array[],
    options: RankOptions,
  ): Promise<Fitted<readonly Ranking[]>>;
  /** Every score, queries × rows. */
  scores(queries: Matrix, options: Omit<RankOptions, 'k'>): Promise<Fitted<Float32Array>>;
}

export interface SpreadTerms {
  readonly steps: number;
  readonly decay: number;
  readonly threshold: number;
  readonly k: number;
  readonly signal: AbortSignal;
  /**
   * The device is through with a part of it and begins with the next. None may last as long as would be taken for a
   * device that hangs.
   */
  readonly onPart: () => void;
}

export interface HeldGraph extends Held {
  /** The k most activated nodes for each set of seeds. */
  spread(seeds: readonly SeedSet[], terms: SpreadTerms): Promise<Fitted<readonly Ranking[]>>;
}
