// A collection before a device, in as few tiles as memory allows: held as a whole where the budget has room, passing by
// where it has not. A tile that is too much for the device is halved until it fits; one row that does not fit alone is
// OUT_OF_VRAM. What was learned that way is forgotten slowly, by doubling, because memory that others took comes back.

import { ShoalError } from '@shoal/contract';
import type { Clock } from '../ports/clock.ts';
import type { Fitted, HeldRows, SimilarityDevice } from './device.ts';
import type { OpenCollection } from './fill.ts';
import type { Residents } from './ledger.ts';

export interface TileParts {
  readonly device: SimilarityDevice;
  readonly residents: Residents;
  readonly clock: Clock;
  /** A tile was halved: it had so many rows, or sets of seeds. */
  readonly onSplit: (rows: number, message: string) => void;
  /**
   * The device begins with something, or is through with it and waits for the next: what takes long is then a part, and
   * not all of them or the disk.
   */
  readonly onDevice: (isBusy: boolean) => void;
}

/** A collection that does not fit leaves this share of the budget to those that do, while it passes by. */
const PASSING_SHARE = 0.5;
/** So many tiles that went well before one twice as large is tried again. */
const TILES_TO_REGAIN = 64;
/**
 * What a CPU is given in one go ends long before it would be taken for hung (60 s), and before who cancels loses
 * patience: as many products as it does in that time, by the last part that said something; before one did, few enough
 * for plain JavaScript.
 */
const PART_MS = 10_000;
const FIRST_PRODUCTS_PER_MS = 2e6;
/** Rows that a CPU reads through a mapping may have to come from a disk of 200 MB/s. */
const MOST_PART_BYTES = 4 * 2 ** 30;
/** Sets of seeds that a run never has more of. */
const MOST_LANES = 4_096;

interface RowSize {
  readonly rowBytes: number;
  /** Products of numbers that a row takes part in: values of all queries; 0: not worth counting. */
  readonly products: number;
}

type Compute<Part> = (rows: HeldRows) => Promise<Fitted<Part>>;
type Take<Part> = (part: Part, first: number, count: number) => void;

export class Tiles {
  private readonly parts: TileParts;
  /** What running out of memory has taught. Infinite: nothing. */
  private mostTileBytes = Number.POSITIVE_INFINITY;
  /** Sets of seeds that spread together. */
  mostLanes = Number.POSITIVE_INFINITY;
  private goodTiles = 0;
  private productsPerMs = FIRST_PRODUCTS_PER_MS;

  constructor(parts: TileParts) {
    this.parts = parts;
  }

  /**
   * The whole collection, in as few tiles as memory allows; `take` gets each tile's part and which rows it is about.
   * `products`: of each row.
   */
  async each<Part>(
    open: OpenCollection,
    products: number,
    signal: AbortSignal,
    compute: Compute<Part>,
    take: Take<Part>,
  ): Promise<void> {
    const { source } = open;
    const { rows, rowBytes } = source;
    let first = 0;
    while (first < rows) {
      signal.throwIfAborted();
      const whole = await this.whole(open);
      if (whole !== undefined) return this.eachPart(whole, first, { rowBytes, products }, signal, compute, take);
      const count = Math.min(rows - first, this.tileRows(rowBytes));
      const bytes = count * rowBytes;
      if (!this.parts.residents.makeRoom(bytes))
        throw new ShoalError(
          'OUT_OF_VRAM',
          `one row of ${source.name} takes ${rowBytes} bytes, above the budget of ${this.parts.residents.budgetBytes}`,
        );
      const loaded = await source.load(first, count);
      if (!loaded.fits) {
        this.learn(count, rowBytes, loaded.message);
        continue;
      }
      try {
        await this.eachPart(loaded.value, 0, { rowBytes, products }, signal, compute, (part, at, length) =>
          take(part, first + at, length),
        );
      } finally {
        loaded.value.free();
      }
      first += count;
    }
  }

  /** What is held, from row `from` on, in as few parts as the kernels have memory for, none of which takes long. */
  async eachPart<Part>(
    held: HeldRows,
    from: number,
    { rowBytes, products }: RowSize,
    signal: AbortSignal,
    compute: Compute<Part>,
    take: Take<Part>,
  ): Promise<void> {
    let first = from;
    while (first < held.rows) {
      signal.throwIfAborted();
      const count = Math.min(
        held.rows - first,
        Math.max(1, Math.floor(Math.min(this.mostTileBytes / rowBytes, this.rowsInTime(rowBytes, products)))),
      );
      const startedMs = this.parts.clock.nowMs();
      const part = await this.onDevice(() => compute(count === held.rows ? held : held.slice(first, count)));
      if (!part.fits) {
        this.learn(count, rowBytes, part.message);
        continue;
      }
      this.learnSpeed(count * products, this.parts.clock.nowMs() - startedMs);
      this.wentWell();
      take(part.value, first, count);
      first += count;
    }
  }

  /** All of it, where it is held or fits; else undefined, and it passes by in tiles. */
  private async whole(open: OpenCollection): Promise<HeldRows | undefined> {
    const held = open.whole();
    if (held !== undefined) return held;
    const { source } = open;
    const bytes = source.rows * source.rowBytes;
    if (bytes > Math.min(this.mostTileBytes, this.parts.residents.budgetBytes)) return undefined;
    const loaded = await open.holdWhole(bytes, () => source.load(0, source.rows));
    if (loaded?.fits === false) this.learn(source.rows, source.rowBytes, loaded.message);
    return loaded?.fits === true ? loaded.value : undefined;
  }

  private tileRows(rowBytes: number): number {
    return Math.max(
      1,
      Math.floor(Math.min(this.mostTileBytes, this.parts.residents.budgetBytes * PASSING_SHARE) / rowBytes),
    );
  }

  private learn(rows: number, rowBytes: number, message: string): void {
    this.mostTileBytes = this.halved(rows, message) * rowBytes;
  }

  private halved(rows: number, message: string): number {
    if (rows <= 1) throw new ShoalError('OUT_OF_VRAM', `not even one row at a time fits this device: ${message}`);
    this.goodTiles = 0;
    this.parts.onSplit(rows, message);
    return Math.floor(rows / 2);
  }

  async onDevice<Part>(work: () => Promise<Part>): Promise<Part> {
    this.parts.onDevice(true);
    try {
      return await work();
    } finally {
      this.parts.onDevice(false);
    }
  }

  /** Within what the device was given in one go. */
  nextPart(): void {
    this.parts.onDevice(false);
    this.parts.onDevice(true);
  }

  /** Something went well within `limit`: whether enough has to try twice as much again. */
  private isRegained(limit: number): boolean {
    if (limit === Number.POSITIVE_INFINITY || ++this.goodTiles < TILES_TO_REGAIN) return false;
    this.goodTiles = 0;
    return true;
  }

  private rowsInTime(rowBytes: number, products: number): number {
    if (this.parts.device.hasOwnMemory === true) return Number.POSITIVE_INFINITY;
    return Math.min(MOST_PART_BYTES / rowBytes, (PART_MS * this.productsPerMs) / products);
  }

  /** A short part says only that the device is at least that fast. */
  private learnSpeed(products: number, ms: number): void {
    const perMs = products / Math.max(ms, 1e-3);
    if (perMs > this.productsPerMs || ms > PART_MS / 10) this.productsPerMs = Math.max(FIRST_PRODUCTS_PER_MS, perMs);
  }

  private wentWell(): void {
    if (!this.isRegained(this.mostTileBytes)) return;
    this.mostTileBytes *= 2;
    if (this.mostTileBytes >= this.parts.residents.budgetBytes) this.mostTileBytes = Number.POSITIVE_INFINITY;
  }

  /** So many sets of seeds were too much: half as many from now on. */
  lanesDidNotFit(lanes: number, message: string): void {
    this.mostLanes = this.halved(lanes, message);
  }

  lanesWentWell(): void {
    if (this.isRegained(this.mostLanes))
      this.mostLanes = 2 * this.mostLanes > MOST_LANES ? Number.POSITIVE_INFINITY : 2 * this.mostLanes;
  }
}
