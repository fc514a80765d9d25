// The native code of native/similarity, loaded when it was built and fits this machine. Absent is no error: the plain
// engine gives the same answers. The only place that knows where the library lies and what it exports.

import { createRequire } from 'node:module';
import { nativeFile } from '@shoal/core/base';

/** Seven values that describe rows: data, count, dims, stride, type, scales, longest (shoal_rows in similarity.h). */
export type NativeRows = readonly [Uint8Array, number, number, number, number, Float32Array | null, number];

declare const opened: unique symbol;
declare const onDevice: unique symbol;
/** An opened CUDA library (similarity_cuda.h). */
export interface CudaLibrary {
  readonly [opened]: true;
}
/** Rows or a graph on a device; its memory is given back by `cudaFree`, or when nobody refers to it any more. */
export interface CudaHandle {
  readonly [onDevice]: true;
}

export interface CudaDevice {
  readonly name: string;
  /** 90 for compute capability 9.0. */
  readonly compute: number;
  readonly multiprocessors: number;
  readonly totalBytes: number;
  readonly freeBytes: number;
}

/**
 * Most bytes of work memory (0: what the call likes best), where times go or null (device, copies, kernels in µs; bytes
 * copied; queries done again), stop. More than 0 µs: in this thread, before the call returns, if the device is done
 * within that, else in another as with 0.
 */
export type CudaTerms = readonly [workBytes: number, times: Float64Array | null, stop: Uint8Array, mostWaitUs: number];

/**
 * Promises are rejected with an error whose `code` is a status of similarity_cuda.h: OUT_OF_MEMORY, STOPPED, NO_DEVICE,
 * INVALID, LOST.
 */
export interface CudaAddon {
  /** Or, in words, why it cannot be used. */
  cudaOpen(path: string): CudaLibrary | string;
  cudaDevices(library: CudaLibrary): CudaDevice[] | string;
  cudaHeldBytes(library: CudaLibrary, device: number): number;
  cudaTrim(library: CudaLibrary, device: number): Promise<void>;
  cudaRowsBytes(library: CudaLibrary, ...rest: [...NativeRows, hasHalf: number]): number;
  cudaGraphBytes(library: CudaLibrary, nodes: number, edges: number): number;
  cudaTopKBytes(library: CudaLibrary, rows: number, dims: number, queries: number, k: number): number;
  cudaUpload(
    library: CudaLibrary,
    device: number,
    ...rest: [...NativeRows, hasHalf: number, stop: Uint8Array]
  ): Promise<CudaHandle>;
  cudaUploadGraph(
    library: CudaLibrary,
    device: number,
    nodes: number,
    begin: Uint32Array,
    source: Uint32Array,
    weight: Float32Array,
    stop: Uint8Array,
  ): Promise<CudaHandle>;
  cudaFree(handle: CudaHandle): void;
  cudaTopK(
    handle: CudaHandle,
    queries: Float32Array,
    count: number,
    metric: number,
    k: number,
    foundAndBest: Uint32Array,
    scores: Float64Array,
    ...terms: CudaTerms
  ): Promise<void>;
  cudaTopKStreamed(
    library: CudaLibrary,
    device: number,
    ...rest: [
      ...NativeRows,
      queries: Float32Array,
      count: number,
      metric: number,
      k: number,
      foundAndBest: Uint32Array,
      scores: Float64Array,
      ...terms: CudaTerms,
    ]
  ): Promise<void>;
  cudaRescore(
    handle: CudaHandle,
    queries: Float32Array,
    count: number,
    metric: number,
    begin: Uint32Array,
    candidates: Uint32Array,
    scores: Float64Array,
    ...terms: CudaTerms
  ): Promise<void>;
  cudaMatrix(
    handle: CudaHandle,
    queries: Float32Array,
    count: number,
    metric: number,
    rows: number,
    ...terms: CudaTerms
  ): Promise<Float32Array>;
  cudaSpread(
    handle: CudaHandle,
    lanes: number,
    steps: number,
    decay: number,
    threshold: number,
    seeds: Float32Array,
    ...terms: CudaTerms
  ): Promise<Float32Array>;
}

/**
 * `isa` is an index of `isas()`; `threads` 0: in this thread, before the call returns (rows in a file that is not in
 * memory: in another all the same). Types and metrics are numbered as in similarity.h. Arrays must not be touched
 * before the promise is fulfilled, except `stop`, whose first byte ends the work early.
 */
export interface NativeAddon extends CudaAddon {
  isas(): string[];
  /** Whether each value is at most `most` without its sign; NaN is not. */
  allWithin(values: Float32Array, most: number): boolean;
  lengths(isa: number, threads: number, ...rest: [...NativeRows, lengths: Float64Array]): Promise<void>;
  /** `foundAndBest`: how many were found of each query, then queries × k row numbers. */
  topK(
    isa: number,
    threads: number,
    ...rest: [
      ...NativeRows,
      queries: Float32Array,
      count: number,
      metric: number,
      k: number,
      foundAndBest: Uint32Array,
      scores: Float64Array,
      stop: Uint8Array,
    ]
  ): Promise<void>;
  matrix(
    isa: number,
    threads: number,
    ...rest: [
      ...NativeRows,
      queries: Float32Array,
      count: number,
      metric: number,
      scores: Float32Array,
      stop: Uint8Array,
    ]
  ): Promise<void>;
  rescore(
    isa: number,
    threads: number,
    ...rest: [
      ...NativeRows,
      queries: Float32Array,
      count: number,
      metric: number,
      begin: Uint32Array,
      candidates: Uint32Array,
      scores: Float64Array,
      stop: Uint8Array,
    ]
  ): Promise<void>;
  /** The part [from, to) of the work of all steps, of which each is nodes + edges; see similarity.h. */
  spread(
    isa: number,
    threads: number,
    nodes: number,
    begin: Uint32Array,
    source: Uint32Array,
    weight: Float32Array,
    lanes: number,
    from: number,
    to: number,
    decay: number,
    threshold: number,
    activation: Float32Array,
    scratch: Float32Array,
    stop: Uint8Array,
  ): Promise<void>;
  peak(isa: number, threads: number, out: Float64Array): Promise<void>;
  mapFile(path: string): ArrayBuffer;
  isCut(bytes: Uint8Array): boolean;
}

const LIBRARY = nativeFile('addons', 'similarity', 'similarity.node');
/** Where `native/similarity/build.sh cuda` puts it, or its package has it. */
export const CUDA_LIBRARY = nativeFile('cuda', 'similarity', 'similarity_cuda.so');

let loaded: { readonly addon: NativeAddon } | { readonly problem: string } | undefined;

function load(): { readonly addon: NativeAddon } | { readonly problem: string } {
  try {
    return (loaded ??= { addon: createRequire(import.meta.url)(LIBRARY) as NativeAddon });
  } catch (error) {
    return (loaded = {
      problem: `${LIBRARY}: ${error instanceof Error ? error.message.split('\n')[0] : String(error)}`,
    });
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
