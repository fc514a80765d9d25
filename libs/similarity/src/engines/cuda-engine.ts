// The kernels on a GPU, through the CUDA library. What stays on the device between calls is counted in a ledger (core's
// Residents) and leaves it, least recently used first; what may not stay, or is larger than all of it, passes by in
// pieces.
//
// Running out of memory: a call may use less and less memory for its work, down to LEAST_WORK_BYTES; then everything
// else leaves the device and it is tried once more; then OUT_OF_VRAM. What was learned that way is forgotten slowly, by
// doubling. A device that fails is DEVICE_LOST, for this call and every later one of this process.
//
// Why: docs/decisions/similarity-gpu.md#what-stays-on-a-gpu-is-held-in-memory-of-the-process-too

import { Residents } from '@shoal/core/similarity';
import type { Graph } from '../graphs/graph.ts';
import { CudaCalls, type CudaTimes, type Need } from './cuda-calls.ts';
import type { OpenedCuda } from './cuda-library.ts';
import { CudaResidents, type Keepable, type Uploaded } from './cuda-residents.ts';
import type { BestRows, Engine } from './engine.ts';
import type { CudaAddon, CudaLibrary } from './native-addon.ts';
import { describedRows, unshared } from './native-engine.ts';
import { BYTES_OF, METRICS, type Matrix, type Metric, type RowBlock } from './vectors.ts';

export interface CudaEngineOptions {
  readonly cuda: OpenedCuda;
  /** As this process counts its devices. */
  readonly device: number;
  /** For what stays on the device. */
  readonly residentBytes: number;
  /** Most memory of the device that one call uses for its work, and for rows that pass by. */
  readonly workBytes: number;
  readonly nowMs?: () => number;
}

/** In products: one in fp64, and what a lane of a graph takes along an edge. */
const EXACT_PRODUCT = 8;
const EDGE = 32;

export class CudaEngine implements Engine {
  readonly isa = 'cuda';
  readonly threads = 1;
  readonly residents: Residents;
  readonly workBytes: number;
  readonly #addon: CudaAddon;
  readonly #library: CudaLibrary;
  readonly #device: number;
  readonly #calls: CudaCalls;
  readonly #residents: CudaResidents;

  constructor({ cuda, device, residentBytes, workBytes, nowMs }: CudaEngineOptions) {
    this.#addon = cuda.addon;
    this.#library = cuda.library;
    this.#device = device;
    this.residents = new Residents(residentBytes);
    this.workBytes = workBytes;
    this.#calls = new CudaCalls({ cuda, device, residents: this.residents, workBytes, nowMs });
    this.#residents = new CudaResidents(cuda, device, this.residents, this.#calls);
  }

  get lastTimes(): CudaTimes {
    return this.#calls.lastTimes;
  }

  /** Everything on the device that this process took, work memory included. */
  get heldBytes(): number {
    return this.#addon.cudaHeldBytes(this.#library, this.#device);
  }

  /** From now on it stays on the device between calls, as far as the ledger has room. */
  keep(what: Keepable): void {
    this.#residents.keep(what);
  }

  /** The device forgets it, as soon as no call uses it. */
  letGo(what: Keepable): void {
    this.#residents.letGo(what);
  }

  isKept(what: Keepable): boolean {
    return this.#residents.isKept(what);
  }

  isHeld(what: Keepable): boolean {
    return this.#residents.isHeld(what);
  }

  /** On the device, with what is kept beside the rows. */
  bytesOf(what: Keepable): number {
    return this.#residents.bytesOf(what);
  }

  close(): void {
    this.residents.clear();
  }

  async topK(queries: Matrix, rows: RowBlock, metric: Metric, k: number, signal?: AbortSignal): Promise<BestRows> {
    const found = new Uint32Array(queries.rows * (k + 1));
    const scores = new Float64Array(queries.rows * k);
    const ask = [unshared(queries.values), queries.rows, METRICS.indexOf(metric), k, found, scores] as const;
    const held = await this.#residents.held(rows, signal);
    if (held !== undefined) {
      await this.#residents.releasedAfter(
        held,
        this.#calls.withinMemory(
          held,
          needOf(rows, queries.rows, found.byteLength + scores.byteLength),
          signal,
          (...terms) => this.#addon.cudaTopK(held.handle, ...ask, ...terms),
        ),
      );
    } else {
      const described = describedRows(rows, rows.scales ?? null, 0);
      await this.#calls.withinMemory(undefined, undefined, signal, (...terms) =>
        this.#addon.cudaTopKStreamed(this.#library, this.#device, ...described, ...ask, ...terms),
      );
    }
    return { found: found.subarray(0, queries.rows), rows: found.subarray(queries.rows), scores };
  }

  async matrix(queries: Matrix, rows: RowBlock, metric: Metric, signal?: AbortSignal): Promise<Float32Array> {
    const values = unshared(queries.values);
    const scoresOf = (on: Uploaded, count: number): Promise<Float32Array> =>
      this.#calls.withinMemory(on, needOf(rows, queries.rows, 4 * queries.rows * count), signal, (...terms) =>
        this.#addon.cudaMatrix(on.handle, values, queries.rows, METRICS.indexOf(metric), count, ...terms),
      );
    const held = await this.#residents.held(rows, signal);
    if (held !== undefined) return this.#residents.releasedAfter(held, scoresOf(held, rows.rows));
    const all = new Float32Array(queries.rows * rows.rows);
    await this.#residents.eachPiece(rows, signal, async (piece, first, count) => {
      const scores = await scoresOf(piece, count);
      for (let query = 0; query < queries.rows; query++)
        all.set(scores.subarray(query * count, (query + 1) * count), query * rows.rows + first);
    });
    return all;
  }

  async rescore(
    queries: Matrix,
    rows: RowBlock,
    metric: Metric,
    begin: Uint32Array,
    candidates: Uint32Array,
    signal?: AbortSignal,
  ): Promise<Float64Array> {
    const values = unshared(queries.values);
    const scoresOf = async (on: Uploaded, from: Uint32Array, chosen: Uint32Array): Promise<Float64Array> => {
      const scores = new Float64Array(chosen.length);
      if (chosen.length === 0) return scores;
      const products = chosen.length * rows.dims;
      const need = {
        bytes: products * BYTES_OF[rows.dtype],
        products: EXACT_PRODUCT * products,
        resultBytes: scores.byteLength,
      };
      await this.#calls.withinMemory(on, need, signal, (...terms) =>
        this.#addon.cudaRescore(
          on.handle,
          values,
          queries.rows,
          METRICS.indexOf(metric),
          from,
          chosen,
          scores,
          ...terms,
        ),
      );
      return scores;
    };
    const held = await this.#residents.held(rows, signal);
    if (held !== undefined) return this.#residents.releasedAfter(held, scoresOf(held, begin, candidates));
    const all = new Float64Array(candidates.length);
    await this.#residents.eachPiece(rows, signal, async (piece, first, count) => {
      const { places, from, chosen } = candidatesWithin(begin, candidates, first, count);
      const scores = await scoresOf(piece, from, chosen);
      places.forEach((place, i) => (all[place] = scores[i]!));
    });
    return all;
  }

  async spread(
    graph: Graph,
    lanes: number,
    activation: Float32Array,
    { steps, decay, threshold, signal }: Parameters<Engine['spread']>[3],
  ): Promise<Float32Array> {
    const held =
      (await this.#residents.held(graph, signal)) ??
      (await this.#residents.withRoom(() => this.#residents.uploadGraph(graph, signal)));
    const need = {
      bytes: steps * held.bytes,
      products: EDGE * steps * graph.source.length * lanes,
      resultBytes: activation.byteLength,
    };
    return this.#residents.releasedAfter(
      held,
      this.#calls.withinMemory(held, need, signal, (...terms) =>
        this.#addon.cudaSpread(held.handle, lanes, steps, decay, threshold, unshared(activation), ...terms),
      ),
    );
  }
}

function needOf({ rows, dims, strideBytes }: RowBlock, queries: number, resultBytes: number): Need {
  return { bytes: rows * strideBytes, products: queries * rows * dims, resultBytes };
}

/** Finds the candidates that lie in a piece of the rows: their places in the list, by query, and their rows there. */
function candidatesWithin(
  begin: Uint32Array,
  candidates: Uint32Array,
  first: number,
  count: number,
): { readonly places: Uint32Array; readonly from: Uint32Array; readonly chosen: Uint32Array } {
  const isHere = (row: number): boolean => row >= first && row < first + count;
  const places = Uint32Array.from(candidates.keys()).filter((place) => isHere(candidates[place]!));
  const from = new Uint32Array(begin.length);
  for (let query = 0, at = 0; query < begin.length; query++) {
    while (at < places.length && places[at]! < begin[query]!) at++;
    from[query] = at;
  }
  return { places, from, chosen: places.map((place) => candidates[place]! - first) };
}
