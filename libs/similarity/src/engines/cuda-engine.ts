// The kernels on a GPU, through the CUDA library. What stays on the device between calls is counted in a ledger (core's
// Residents) and leaves it, least recently used first; what may not stay, or is larger than all of it, passes by in
// pieces.
//
// Running out of memory: a call may use less and less memory for its work, down to LEAST_WORK_BYTES; then everything
// else leaves the device and it is tried once more; then OUT_OF_VRAM. What was learned that way is forgotten slowly, by
// doubling. A device that fails is DEVICE_LOST, for this call and every later one of this process.

import { ShoalError } from '@shoal/contract';
import { Residents, type Resident } from '@shoal/core';
import type { BestRows, Engine } from './kernels.ts';
import type { OpenedCuda } from './cuda-library.ts';
import type { Graph } from '../graphs/graph.ts';
import type { CudaAddon, CudaHandle, CudaLibrary, CudaTerms, NativeRows } from './native-addon.ts';
import { describedRows, unshared, withStop } from './native-engine.ts';
import { TurnBudget } from './turn-budget.ts';
import { BYTES_OF, METRICS, sliceRows, type Matrix, type Metric, type RowBlock } from './vectors.ts';

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

/** Where the time of the last call went that was not done at once, as the device's clock has it. */
export interface CudaTimes {
  readonly deviceUs: number;
  readonly copyUs: number;
  readonly kernelUs: number;
  readonly copiedBytes: number;
  /** Queries that were scored exactly against every row, because the choice of candidates could not be proven. */
  readonly redone: number;
}

type Keepable = RowBlock | Graph;
/**
 * Freed when it is not kept, or has left, and nobody uses it: a call that waits for its turn, or between two tries,
 * does not hold the handle itself.
 */
type Uploaded = Resident & { readonly handle: CudaHandle; users: number; isResident: boolean };

/** What a call needs, about: bytes that the device reads, products, and bytes that it gives back. */
interface Need {
  readonly bytes: number;
  readonly products: number;
  readonly resultBytes: number;
}
/** So much takes an H100 20 µs at most, and the caller's thread as long again to take the results. */
const AT_ONCE: Need = { bytes: 32 << 20, products: 2e9, resultBytes: 256 << 10 };
/** In products: one in fp64, and what a lane of a graph takes along an edge. */
const EXACT_PRODUCT = 8;
const EDGE = 32;
/**
 * Then the caller's thread waits for it, so long at most: handing it to another one takes longer than the call. A
 * device that others use is waited for elsewhere.
 */
const MOST_WAIT_US = 150;
const AT_ONCE_US = 50;
const AT_ONCE_US_OF_A_TURN = 2_000;
/** After waiting in vain, calls go elsewhere: one, then twice as many each time. */
const MOST_CALLS_ELSEWHERE = 64;

/** A call that is given less than this is not worth its launches. */
const LEAST_WORK_BYTES = 1 << 16;
/**
 * The smallest piece of some work is larger than what a call may use: so many times that it may have all the same, out
 * of the reserve.
 */
const MOST_GROWTH = 16;
/** So many calls that went well before one is given twice as much again. */
const CALLS_TO_REGAIN = 64;
/**
 * The fp16 form, by which searches choose what they score exactly, is kept beside wider rows where all of it takes no
 * more of the ledger.
 */
const HALF_SHARE = 0.5;

export class CudaEngine implements Engine {
  readonly isa = 'cuda';
  readonly threads = 1;
  readonly residents: Residents;
  readonly workBytes: number;
  readonly #addon: CudaAddon;
  readonly #library: CudaLibrary;
  readonly #device: number;
  readonly #nowMs: () => number;
  readonly #kept = new WeakSet<Keepable>();
  readonly #uploaded = new WeakMap<Keepable, Uploaded>();
  /** What did not fit although the ledger had room is tried again after so many calls. */
  readonly #refusedUntil = new WeakMap<Keepable, number>();
  readonly #times = new Float64Array(5);
  readonly #turn = new TurnBudget(AT_ONCE_US_OF_A_TURN);
  #callsElsewhere = 0;
  #atOnceFrom = 0;
  #calls = 0;
  /** What running out of memory has taught. */
  #mostWorkBytes: number;
  #goodCalls = 0;
  #lost: string | undefined;

  constructor({
    cuda: { addon, library },
    device,
    residentBytes,
    workBytes,
    nowMs = () => performance.now(),
  }: CudaEngineOptions) {
    this.#addon = addon;
    this.#library = library;
    this.#device = device;
    this.#nowMs = nowMs;
    this.residents = new Residents(residentBytes);
    this.workBytes = workBytes;
    this.#mostWorkBytes = workBytes;
  }

  get lastTimes(): CudaTimes {
    const [deviceUs, copyUs, kernelUs, copiedBytes, redone] = this.#times as unknown as [
      number,
      number,
      number,
      number,
      number,
    ];
    return { deviceUs, copyUs, kernelUs, copiedBytes, redone };
  }

  /** Everything on the device that this process took, work memory included. */
  get heldBytes(): number {
    return this.#addon.cudaHeldBytes(this.#library, this.#device);
  }

  /** From now on it stays on the device between calls, as far as the ledger has room. */
  keep(what: Keepable): void {
    this.#kept.add(what);
  }

  /** The device forgets it, as soon as no call uses it. */
  letGo(what: Keepable): void {
    this.#kept.delete(what);
    const uploaded = this.#uploaded.get(what);
    if (uploaded !== undefined) this.residents.remove(uploaded);
  }

  isKept(what: Keepable): boolean {
    return this.#kept.has(what);
  }

  isHeld(what: Keepable): boolean {
    return this.#uploaded.has(what);
  }

  /** On the device, with what is kept beside the rows. */
  bytesOf(what: Keepable): number {
    return 'data' in what ? this.#rowsBytes(describedRows(what, what.scales ?? null, 0)).bytes : this.#graphBytes(what);
  }

  close(): void {
    this.residents.clear();
  }

  async topK(queries: Matrix, rows: RowBlock, metric: Metric, k: number, signal?: AbortSignal): Promise<BestRows> {
    const found = new Uint32Array(queries.rows * (k + 1));
    const scores = new Float64Array(queries.rows * k);
    const ask = [unshared(queries.values), queries.rows, METRICS.indexOf(metric), k, found, scores] as const;
    const held = await this.#held(rows, signal);
    if (held !== undefined) {
      await this.#releasedAfter(
        held,
        this.#withinMemory(held, needOf(rows, queries.rows, found.byteLength + scores.byteLength), signal, (...terms) =>
          this.#addon.cudaTopK(held.handle, ...ask, ...terms),
        ),
      );
    } else {
      const described = describedRows(rows, rows.scales ?? null, 0);
      await this.#withinMemory(undefined, undefined, signal, (...terms) =>
        this.#addon.cudaTopKStreamed(this.#library, this.#device, ...described, ...ask, ...terms),
      );
    }
    return { found: found.subarray(0, queries.rows), rows: found.subarray(queries.rows), scores };
  }

  async matrix(queries: Matrix, rows: RowBlock, metric: Metric, signal?: AbortSignal): Promise<Float32Array> {
    const values = unshared(queries.values);
    const scoresOf = (on: Uploaded, count: number): Promise<Float32Array> =>
      this.#withinMemory(on, needOf(rows, queries.rows, 4 * queries.rows * count), signal, (...terms) =>
        this.#addon.cudaMatrix(on.handle, values, queries.rows, METRICS.indexOf(metric), count, ...terms),
      );
    const held = await this.#held(rows, signal);
    if (held !== undefined) return this.#releasedAfter(held, scoresOf(held, rows.rows));
    const all = new Float32Array(queries.rows * rows.rows);
    await this.#eachPiece(rows, signal, async (piece, first, count) => {
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
      await this.#withinMemory(on, need, signal, (...terms) =>
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
    const held = await this.#held(rows, signal);
    if (held !== undefined) return this.#releasedAfter(held, scoresOf(held, begin, candidates));
    const all = new Float64Array(candidates.length);
    await this.#eachPiece(rows, signal, async (piece, first, count) => {
      const isHere = (row: number): boolean => row >= first && row < first + count;
      const places = Uint32Array.from(candidates.keys()).filter((place) => isHere(candidates[place]!));
      const from = new Uint32Array(begin.length);
      for (let query = 0, at = 0; query < begin.length; query++) {
        while (at < places.length && places[at]! < begin[query]!) at++;
        from[query] = at;
      }
      const scores = await scoresOf(
        piece,
        from,
        places.map((place) => candidates[place]! - first),
      );
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
    const held = (await this.#held(graph, signal)) ?? (await this.#withRoom(() => this.#uploadGraph(graph, signal)));
    const need = {
      bytes: steps * held.bytes,
      products: EDGE * steps * graph.source.length * lanes,
      resultBytes: activation.byteLength,
    };
    return this.#releasedAfter(
      held,
      this.#withinMemory(held, need, signal, (...terms) =>
        this.#addon.cudaSpread(held.handle, lanes, steps, decay, threshold, unshared(activation), ...terms),
      ),
    );
  }

  // ---- what is on the device ----------------------------------------------------------------------------------------

  /**
   * What is kept and on the device, brought there if need be, and used from now on until it is released; undefined for
   * what has to pass by.
   */
  async #held(what: Keepable, signal: AbortSignal | undefined): Promise<Uploaded | undefined> {
    this.#refuseLost();
    this.#calls++;
    const known = this.#uploaded.get(what);
    if (known !== undefined) return this.#used(known);
    if (!this.#kept.has(what) || this.#calls < (this.#refusedUntil.get(what) ?? 0)) return undefined;
    const bytes = this.bytesOf(what);
    if (!this.residents.makeRoom(bytes)) return undefined;
    try {
      const uploaded = await this.#withRoom(() =>
        'data' in what ? this.#uploadRows(what, signal) : this.#uploadGraph(what, signal),
      );
      const again = this.#uploaded.get(what);
      if (again !== undefined || !this.#kept.has(what) || !this.residents.makeRoom(uploaded.bytes)) {
        this.#release(uploaded); // somebody else was faster, or it is not wanted any more
        return again === undefined ? undefined : this.#used(again);
      }
      this.residents.add(uploaded);
      uploaded.isResident = true;
      this.#uploaded.set(what, uploaded);
      return uploaded;
    } catch (error) {
      if (!isShoalCode(error, 'OUT_OF_VRAM')) throw error;
      this.#refusedUntil.set(what, this.#calls + CALLS_TO_REGAIN);
      return undefined;
    }
  }

  /** The driver has the last word on what is free: residents leave until it fits, or nothing is left. */
  async #withRoom<Value>(upload: () => Promise<Value>): Promise<Value> {
    for (;;) {
      try {
        return await upload();
      } catch (error) {
        if (!isShoalCode(error, 'OUT_OF_VRAM') || !this.residents.evictOldest()) throw error;
        await this.#addon.cudaTrim(this.#library, this.#device);
      }
    }
  }

  async #uploadRows(rows: RowBlock, signal: AbortSignal | undefined): Promise<Uploaded> {
    const described = describedRows(rows, rows.scales ?? null, 0);
    const { bytes, hasHalf } = this.#rowsBytes(described);
    return this.#uploadedAs(
      rows,
      bytes,
      await this.#call(signal, (stop) =>
        this.#addon.cudaUpload(this.#library, this.#device, ...described, hasHalf ? 1 : 0, stop),
      ),
    );
  }

  async #uploadGraph(graph: Graph, signal: AbortSignal | undefined): Promise<Uploaded> {
    const { nodes, begin, source, weight } = graph;
    return this.#uploadedAs(
      graph,
      this.#graphBytes(graph),
      await this.#call(signal, (stop) =>
        this.#addon.cudaUploadGraph(this.#library, this.#device, nodes, begin, source, weight, stop),
      ),
    );
  }

  #uploadedAs(what: Keepable, bytes: number, handle: CudaHandle): Uploaded {
    const leave = (): void => {
      this.#uploaded.delete(what);
      uploaded.isResident = false;
      this.#freeUnused(uploaded);
    };
    const uploaded: Uploaded = { bytes, handle, leave, users: 1, isResident: false };
    return uploaded;
  }

  #used(uploaded: Uploaded): Uploaded {
    this.residents.touch(uploaded);
    uploaded.users++;
    return uploaded;
  }

  #releasedAfter<Value>(uploaded: Uploaded, work: Promise<Value>): Promise<Value> {
    return work.finally(() => this.#release(uploaded));
  }

  #release(uploaded: Uploaded): void {
    uploaded.users--;
    this.#freeUnused(uploaded);
  }

  #freeUnused({ handle, users, isResident }: Uploaded): void {
    if (users === 0 && !isResident) this.#addon.cudaFree(handle);
  }

  #rowsBytes(described: NativeRows): { readonly bytes: number; readonly hasHalf: boolean } {
    const bytes = this.#addon.cudaRowsBytes(this.#library, ...described, 0);
    const withHalf = this.#addon.cudaRowsBytes(this.#library, ...described, 1);
    const hasHalf = withHalf > bytes && withHalf <= HALF_SHARE * this.residents.budgetBytes;
    return { bytes: hasHalf ? withHalf : bytes, hasHalf };
  }

  #graphBytes({ nodes, source }: Graph): number {
    return this.#addon.cudaGraphBytes(this.#library, nodes, source.length);
  }

  /**
   * Rows that may not stay, in as large pieces as work memory takes; halved when even that is too much, and alone on
   * the device at last.
   */
  async #eachPiece(
    rows: RowBlock,
    signal: AbortSignal | undefined,
    work: (piece: Uploaded, first: number, count: number) => Promise<void>,
  ): Promise<void> {
    const rowBytes = Math.max(
      1,
      this.#addon.cudaRowsBytes(this.#library, ...describedRows(rows, rows.scales ?? null, 0), 0) / rows.rows,
    );
    let most = Math.max(1, Math.floor(this.#mostWorkBytes / rowBytes));
    for (let first = 0, hasCleared = false; first < rows.rows;) {
      const count = Math.min(most, rows.rows - first);
      const part = sliceRows(rows, first, first + count);
      let piece: Uploaded | undefined;
      try {
        piece = await this.#uploadRows(part, signal);
        await work(piece, first, count);
        first += count;
      } catch (error) {
        if (!isShoalCode(error, 'OUT_OF_VRAM') || (count === 1 && hasCleared)) throw error;
        if (count === 1) {
          hasCleared = true;
          this.residents.clear();
        } else {
          most = Math.floor(count / 2);
        }
      } finally {
        if (piece !== undefined) this.#release(piece);
      }
    }
  }

  // ---- calls --------------------------------------------------------------------------------------------------------

  /**
   * Tries with less and less work memory, then with nothing else on the device. `need`: undefined for what cannot be
   * done at once.
   */
  async #withinMemory<Value>(
    on: Uploaded | undefined,
    need: Need | undefined,
    signal: AbortSignal | undefined,
    call: (...terms: CudaTerms) => Promise<Value>,
  ): Promise<Value> {
    let workBytes = this.#mostWorkBytes;
    for (let hasCleared = false, hasGrown = false; ;) {
      try {
        const value = await this.#call(signal, (stop) =>
          this.#soon(need, (mostWaitUs) => call(workBytes, mostWaitUs > 0 ? null : this.#times, stop, mostWaitUs)),
        );
        this.#wentWell();
        return value;
      } catch (error) {
        if (!isShoalCode(error, 'OUT_OF_VRAM')) throw error;
        const neededBytes = neededFor(error, workBytes);
        if (neededBytes !== undefined && !hasGrown && neededBytes <= MOST_GROWTH * this.workBytes) {
          hasGrown = true;
          workBytes = neededBytes;
          continue; // it was not memory that was short
        }
        if (neededBytes !== undefined || workBytes <= LEAST_WORK_BYTES) {
          if (hasCleared || !this.residents.clear(on)) throw error; // alone already: less would not help
          [hasCleared, hasGrown] = [true, false];
          workBytes = this.workBytes;
        } else {
          workBytes = Math.max(LEAST_WORK_BYTES, Math.floor(workBytes / 2));
        }
        this.#mostWorkBytes = Math.min(workBytes, this.workBytes);
        this.#goodCalls = 0;
        await this.#addon.cudaTrim(this.#library, this.#device);
      }
    }
  }

  #wentWell(): void {
    if (this.#mostWorkBytes === this.workBytes || ++this.#goodCalls < CALLS_TO_REGAIN) return;
    this.#goodCalls = 0;
    this.#mostWorkBytes = Math.min(this.workBytes, 2 * this.#mostWorkBytes);
  }

  /** At once, where it needs little and the device was free the last time. */
  #soon<Value>(need: Need | undefined, call: (mostWaitUs: number) => Promise<Value>): Promise<Value> {
    const isLittle =
      need !== undefined &&
      need.bytes <= AT_ONCE.bytes &&
      need.products <= AT_ONCE.products &&
      need.resultBytes <= AT_ONCE.resultBytes;
    if (!isLittle || this.#calls < this.#atOnceFrom || !this.#turn.take(AT_ONCE_US)) return call(0);
    const startedMs = this.#nowMs();
    const value = call(MOST_WAIT_US);
    const isLate = this.#nowMs() - startedMs > MOST_WAIT_US / 1e3;
    this.#callsElsewhere = isLate ? Math.min(MOST_CALLS_ELSEWHERE, 2 * this.#callsElsewhere + 1) : 0;
    this.#atOnceFrom = this.#calls + 1 + this.#callsElsewhere;
    return value;
  }

  async #call<Value>(signal: AbortSignal | undefined, call: (stop: Uint8Array) => Promise<Value>): Promise<Value> {
    this.#refuseLost();
    try {
      return await withStop(signal, call);
    } catch (error) {
      throw this.#translated(error);
    }
  }

  #refuseLost(): void {
    if (this.#lost !== undefined) throw new ShoalError('DEVICE_LOST', this.#lost);
  }

  #translated(error: unknown): unknown {
    if (!(error instanceof Error)) return error;
    switch ((error as { code?: unknown }).code) {
      case 'OUT_OF_MEMORY':
        return new ShoalError('OUT_OF_VRAM', `the GPU has too little memory: ${error.message}`, {}, error);
      case 'INVALID':
        return new ShoalError('SEARCH_INVALID', `the GPU cannot compute this: ${error.message}`, {}, error);
      case 'NO_DEVICE':
      case 'LOST':
        this.#lost = `the GPU failed: ${error.message}`;
        return new ShoalError('DEVICE_LOST', this.#lost, {}, error);
      default:
        return error;
    }
  }
}

function needOf({ rows, dims, strideBytes }: RowBlock, queries: number, resultBytes: number): Need {
  return { bytes: rows * strideBytes, products: queries * rows * dims, resultBytes };
}

/**
 * What the library says that its smallest piece takes, as what the call as a whole has to be allowed; undefined where
 * memory itself was short.
 */
function neededFor(error: unknown, workBytes: number): number | undefined {
  const [, takes, allowed] =
    /smallest piece of this work takes (\d+) bytes, and (\d+) are allowed/.exec(
      error instanceof Error ? error.message : '',
    ) ?? [];
  return takes === undefined ? undefined : Math.ceil((1.01 * workBytes * Number(takes)) / Number(allowed));
}

function isShoalCode(error: unknown, code: ShoalError['code']): boolean {
  return error instanceof ShoalError && error.code === code;
}
