// What a search needs beside the rows, for whoever keeps account of memory. An upper bound, not a measurement.

export interface SearchSize {
  readonly queries: number;
  readonly dims: number;
  readonly k: number;
  readonly threads: number;
}

/** Packed queries, a block of packed rows for each thread, the best rows of each query and thread, and the answer. */
export function workBytes({ queries, dims, k, threads }: SearchSize, tileRows: number): number {
  const kept = Math.min(k, tileRows);
  const packed = (queries + 16) * dims * 4 * 2 + threads * (PACKED_BLOCK_BYTES + 64 * dims * 4);
  return packed + queries * kept * (threads * 16 + 12 + 32) + tileRows * 4;
}

/** BLOCK_BYTES in native/similarity/cpu/topk.cc, and what a row more than fits. */
const PACKED_BLOCK_BYTES = 2 << 20;
