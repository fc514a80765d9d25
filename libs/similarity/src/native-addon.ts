// The native code of native/similarity, loaded when it was built and fits this machine. Absent is no error: the plain engine
// gives the same answers. The only place that knows where the library lies and what it exports.

import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

/** Seven values that describe rows: data, count, dims, stride, type, scales, longest (shoal_rows in similarity.h). */
export type NativeRows = readonly [Uint8Array, number, number, number, number, Float32Array | null, number];

/** `isa` is an index of `isas()`; types and metrics are numbered as in similarity.h. Arrays must not be touched before the promise is fulfilled, except `stop`, whose first byte ends the work early. */
export interface NativeAddon {
  isas(): string[];
  lengths(isa: number, threads: number, ...rest: [...NativeRows, lengths: Float64Array]): Promise<void>;
  /** `foundAndBest`: how many were found of each query, then queries × k row numbers. */
  topK(isa: number, threads: number, ...rest: [...NativeRows, queries: Float32Array, count: number, metric: number, k: number, foundAndBest: Uint32Array, scores: Float64Array, stop: Uint8Array]): Promise<void>;
  matrix(isa: number, threads: number, ...rest: [...NativeRows, queries: Float32Array, count: number, metric: number, scores: Float32Array, stop: Uint8Array]): Promise<void>;
  rescore(isa: number, threads: number, ...rest: [...NativeRows, queries: Float32Array, count: number, metric: number, begin: Uint32Array, candidates: Uint32Array, scores: Float64Array, stop: Uint8Array]): Promise<void>;
  spread(isa: number, threads: number, nodes: number, begin: Uint32Array, source: Uint32Array, weight: Float32Array, lanes: number, steps: number, decay: number, threshold: number, activation: Float32Array, scratch: Float32Array, stop: Uint8Array): Promise<void>;
  peak(isa: number, threads: number, out: Float64Array): Promise<void>;
  mapFile(path: string): ArrayBuffer;
  isCut(bytes: Uint8Array): boolean;
}

const LIBRARY = fileURLToPath(new URL('../../../dist/native/similarity/similarity.node', import.meta.url));

let loaded: { readonly addon: NativeAddon } | { readonly problem: string } | undefined;

function load(): { readonly addon: NativeAddon } | { readonly problem: string } {
  try {
    return (loaded ??= { addon: createRequire(import.meta.url)(LIBRARY) as NativeAddon });
  } catch (error) {
    return (loaded = { problem: `${LIBRARY}: ${error instanceof Error ? error.message.split('\n')[0] : String(error)}` });
  }
}

export function nativeAddon(): NativeAddon | undefined {
  const outcome = load();
  return 'addon' in outcome ? outcome.addon : undefined;
}

/** Why there is no native code; undefined when there is. */
export function nativeProblem(): string | undefined {
  const outcome = load();
  return 'problem' in outcome ? outcome.problem : undefined;
}
