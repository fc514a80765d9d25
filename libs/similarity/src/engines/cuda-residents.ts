// What lies on a GPU between calls: rows and graphs that were asked to stay, under a ledger of its own, brought there
// when they are used first and freed when they left and nobody uses them. Rows that may not stay pass by in pieces.

import { Residents, type Resident } from '@shoal/core/similarity';
import type { Graph } from '../graphs/graph.ts';
import { isShoalCode, type CudaCalls } from './cuda-calls.ts';
import type { OpenedCuda } from './cuda-library.ts';
import type { CudaAddon, CudaHandle, CudaLibrary, NativeRows } from './native-addon.ts';
import { describedRows } from './native-engine.ts';
import { sliceRows, type RowBlock } from './vectors.ts';

export type Keepable = RowBlock | Graph;
/**
 * Freed when it is not kept, or has left, and nobody uses it: a call that waits for its turn, or between two tries,
 * does not hold the handle itself.
 */
export type Uploaded = Resident & { readonly handle: CudaHandle; users: number; isResident: boolean };

/**
 * The fp16 form, by which searches choose what they score exactly, is kept beside wider rows where all of it takes no
 * more of the ledger.
 */
const HALF_SHARE = 0.5;

/** What did not fit although the ledger had room is tried again after so many calls. */
const CALLS_TO_REGAIN = 64;

export class CudaResidents {
  readonly ledger: Residents;
  readonly #addon: CudaAddon;
  readonly #library: CudaLibrary;
  readonly #device: number;
  readonly #calls: CudaCalls;
  readonly #kept = new WeakSet<Keepable>();
  readonly #uploaded = new WeakMap<Keepable, Uploaded>();
  readonly #refusedUntil = new WeakMap<Keepable, number>();

  constructor({ addon, library }: OpenedCuda, device: number, ledger: Residents, calls: CudaCalls) {
    this.#addon = addon;
    this.#library = library;
    this.#device = device;
    this.ledger = ledger;
    this.#calls = calls;
  }

  /** From now on it stays on the device between calls, as far as the ledger has room. */
  keep(what: Keepable): void {
    this.#kept.add(what);
  }

  /** The device forgets it, as soon as no call uses it. */
  letGo(what: Keepable): void {
    this.#kept.delete(what);
    const uploaded = this.#uploaded.get(what);
    if (uploaded !== undefined) this.ledger.remove(uploaded);
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

  /**
   * What is kept and on the device, brought there if need be, and used from now on until it is released; undefined for
   * what has to pass by.
   */
  async held(what: Keepable, signal: AbortSignal | undefined): Promise<Uploaded | undefined> {
    const call = this.#calls.begin();
    const known = this.#uploaded.get(what);
    if (known !== undefined) return this.#used(known);
    if (!this.#kept.has(what) || call < (this.#refusedUntil.get(what) ?? 0)) return undefined;
    const bytes = this.bytesOf(what);
    if (!this.ledger.makeRoom(bytes)) return undefined;
    try {
      const uploaded = await this.withRoom(() =>
        'data' in what ? this.#uploadRows(what, signal) : this.uploadGraph(what, signal),
      );
      const again = this.#uploaded.get(what);
      if (again !== undefined || !this.#kept.has(what) || !this.ledger.makeRoom(uploaded.bytes)) {
        this.#release(uploaded); // somebody else was faster, or it is not wanted any more
        return again === undefined ? undefined : this.#used(again);
      }
      this.ledger.add(uploaded);
      uploaded.isResident = true;
      this.#uploaded.set(what, uploaded);
      return uploaded;
    } catch (error) {
      if (!isShoalCode(error, 'OUT_OF_VRAM')) throw error;
      this.#refusedUntil.set(what, call + CALLS_TO_REGAIN);
      return undefined;
    }
  }

  /** The driver has the last word on what is free: residents leave until it fits, or nothing is left. */
  async withRoom<Value>(upload: () => Promise<Value>): Promise<Value> {
    for (;;) {
      try {
        return await upload();
      } catch (error) {
        if (!isShoalCode(error, 'OUT_OF_VRAM') || !this.ledger.evictOldest()) throw error;
        await this.#calls.trim();
      }
    }
  }

  async #uploadRows(rows: RowBlock, signal: AbortSignal | undefined): Promise<Uploaded> {
    const described = describedRows(rows, rows.scales ?? null, 0);
    const { bytes, hasHalf } = this.#rowsBytes(described);
    return this.#uploadedAs(
      rows,
      bytes,
      await this.#calls.call(signal, (stop) =>
        this.#addon.cudaUpload(this.#library, this.#device, ...described, hasHalf ? 1 : 0, stop),
      ),
    );
  }

  async uploadGraph(graph: Graph, signal: AbortSignal | undefined): Promise<Uploaded> {
    const { nodes, begin, source, weight } = graph;
    return this.#uploadedAs(
      graph,
      this.#graphBytes(graph),
      await this.#calls.call(signal, (stop) =>
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
    this.ledger.touch(uploaded);
    uploaded.users++;
    return uploaded;
  }

  releasedAfter<Value>(uploaded: Uploaded, work: Promise<Value>): Promise<Value> {
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
    const hasHalf = withHalf > bytes && withHalf <= HALF_SHARE * this.ledger.budgetBytes;
    return { bytes: hasHalf ? withHalf : bytes, hasHalf };
  }

  #graphBytes({ nodes, source }: Graph): number {
    return this.#addon.cudaGraphBytes(this.#library, nodes, source.length);
  }

  /**
   * Rows that may not stay, in as large pieces as work memory takes; halved when even that is too much, and alone on
   * the device at last.
   */
  async eachPiece(
    rows: RowBlock,
    signal: AbortSignal | undefined,
    work: (piece: Uploaded, first: number, count: number) => Promise<void>,
  ): Promise<void> {
    const rowBytes = Math.max(
      1,
      this.#addon.cudaRowsBytes(this.#library, ...describedRows(rows, rows.scales ?? null, 0), 0) / rows.rows,
    );
    let most = Math.max(1, Math.floor(this.#calls.mostWorkBytes / rowBytes));
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
          this.ledger.clear();
        } else {
          most = Math.floor(count / 2);
        }
      } finally {
        if (piece !== undefined) this.#release(piece);
      }
    }
  }
}
