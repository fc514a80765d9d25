// Computes for jobs that run together: their queries become one matrix, the collection is held as a whole where the
// budget has room and passes by in tiles where it has not, and every job gets its own part of the answer. A tile that
// is too much for the device is halved until it fits; one row that does not fit alone is OUT_OF_VRAM. What was learned
// that way is forgotten slowly, by doubling, because memory that others took comes back.

import {
  ShoalError,
  type Failure,
  invariant,
  unreachable,
  BodyRooms,
  encodeRankings,
  type Ranking,
  type Matrix,
  type SimilarityRequest,
} from '@shoal/contract';
import { EMPTY_RANKING, mergeRankings } from './rankings.ts';
import type { Clock } from '../ports/clock.ts';
import type { Residents } from './ledger.ts';
import type { Fitted, HeldRows, SimilarityDevice } from './device.ts';
import type { OpenCollection, OpenGraph, Work } from './fill.ts';

/** The body of a job's result, or why it has none. */
export type Computed =
  | { readonly ok: true; readonly dtype: 'f32' | 'ranking'; readonly dims: number; readonly body: Uint8Array }
  | { readonly ok: false; readonly failure: Failure };

export interface SimilarityRunParts {
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

type RankingRequest = Extract<SimilarityRequest, { kind: 'topk' | 'rescore' }>;

export class SimilarityRun {
  private readonly parts: SimilarityRunParts;
  /** What running out of memory has taught. Infinite: nothing. */
  private mostTileBytes = Number.POSITIVE_INFINITY;
  private mostLanes = Number.POSITIVE_INFINITY;
  private goodTiles = 0;
  private productsPerMs = FIRST_PRODUCTS_PER_MS;
  private readonly rooms = new BodyRooms();

  constructor(parts: SimilarityRunParts) {
    this.parts = parts;
  }

  /**
   * One value per work, in order: all of one request. Throws OUT_OF_VRAM, what the device throws, and the signal's
   * reason.
   */
  async compute(request: SimilarityRequest, works: readonly Work[], signal: AbortSignal): Promise<Computed[]> {
    const [first] = works;
    invariant(first !== undefined, 'something is computed');
    if (request.kind === 'spread')
      return this.spread(
        request,
        works.filter((work) => work.kind === 'graph'),
        signal,
      );
    if (first.kind === 'matrix') {
      invariant(request.kind === 'cosine', 'what names no collection asks for scores');
      return [await this.matrix(request.metric, first, signal)];
    }
    const ofRows = works.filter((work) => work.kind === 'rows');
    return this.together(ofRows, (queries) => {
      switch (request.kind) {
        case 'topk':
          return this.topK(request, ofRows, queries, signal);
        case 'rescore':
          return this.rescore(request, ofRows, queries, signal);
        case 'cosine':
          return this.scores(request.metric, ofRows, queries, signal);
        default:
          return unreachable(request);
      }
    });
  }

  /** With the queries of all of them in one matrix, in memory that the next run uses again. */
  private async together<Value>(works: readonly RowsWork[], use: (queries: Matrix) => Promise<Value>): Promise<Value> {
    const [first] = works;
    invariant(first !== undefined, 'something is computed');
    if (works.length === 1) return use(first.queries);
    const { dims } = first.queries;
    const rows = rowsBefore(works, works.length);
    const { buffer, byteOffset } = this.rooms.take(4 * rows * dims);
    const values = new Float32Array(buffer, byteOffset, rows * dims);
    let at = 0;
    for (const { queries } of works) {
      values.set(queries.values, at);
      at += queries.values.length;
    }
    try {
      return await use({ values, rows, dims });
    } finally {
      this.rooms.giveBack(buffer);
    }
  }

  // ---- kinds ----------------------------------------------------------------------------------------------------

  private async topK(
    { k, metric }: RankingRequest,
    works: readonly RowsWork[],
    queries: Matrix,
    signal: AbortSignal,
  ): Promise<Computed[]> {
    const best = noRankings(queries.rows);
    await this.eachTile(
      works[0]!.collection,
      queries.values.length,
      signal,
      (rows) => rows.topK(queries, { k, metric, signal }),
      (part) => mergeInto(best, part, k, metric),
    );
    return rankingsOf(
      works.map((work) => work.queries.rows),
      best,
      k,
    );
  }

  private async rescore(
    { k, metric }: RankingRequest,
    works: readonly RowsWork[],
    queries: Matrix,
    signal: AbortSignal,
  ): Promise<Computed[]> {
    const candidates = works.flatMap((work) => work.candidates ?? []).map(unique);
    invariant(candidates.length === queries.rows, 'every query has candidates');
    const best = noRankings(queries.rows);
    const found = candidates.map(() => 0);
    await this.eachTile(
      works[0]!.collection,
      0,
      signal,
      async (rows) => {
        const here = candidates.map((ids) => ids.filter((id) => rows.has(id)));
        if (here.every((ids) => ids.length === 0))
          return { fits: true, value: { ranked: noRankings(queries.rows), here } };
        const ranked = await rows.rescore(queries, here, { k, metric, signal });
        return ranked.fits ? { fits: true, value: { ranked: ranked.value, here } } : ranked;
      },
      ({ ranked, here }) => {
        mergeInto(best, ranked, k, metric);
        here.forEach((ids, query) => (found[query]! += ids.length));
      },
    );
    const stranger = (query: number): boolean => found[query] !== candidates[query]!.length;
    return rankingsOf(
      works.map((work) => work.queries.rows),
      best,
      k,
    ).map((computed, i) => {
      const from = rowsBefore(works, i);
      const at = works[i]!.queries.rows;
      const query = Array.from({ length: at }, (_, row) => row).find((row) => stranger(from + row));
      if (query === undefined) return computed;
      const message =
        `candidates of query ${query}: ${candidates[from + query]!.length - found[from + query]!} of ` +
        `${candidates[from + query]!.length} ids are no rows of ${works[i]!.collection.source.name}`;
      return { ok: false, failure: { code: 'SEARCH_INVALID', message } };
    });
  }

  private async scores(
    metric: RankingRequest['metric'],
    works: readonly RowsWork[],
    queries: Matrix,
    signal: AbortSignal,
  ): Promise<Computed[]> {
    const { collection } = works[0]!;
    const columns = collection.source.rows;
    const all = new ScoresOfParts(queries.rows, columns);
    await this.eachTile(
      collection,
      queries.values.length,
      signal,
      (rows) => rows.scores(queries, { metric, signal }),
      (part, first, count) => all.add(part, first, count),
    );
    const matrix = all.whole();
    return works.map((work, i) => {
      const from = rowsBefore(works, i) * columns;
      return matrixOf(matrix.subarray(from, from + work.queries.rows * columns), columns);
    });
  }

  private async matrix(
    metric: RankingRequest['metric'],
    { queries, against }: Extract<Work, { kind: 'matrix' }>,
    signal: AbortSignal,
  ): Promise<Computed> {
    const all = new ScoresOfParts(queries.rows, against.rows);
    const rows = this.parts.device.rowsOf(against);
    await this.eachPart(
      rows,
      0,
      { rowBytes: 4 * against.dims, products: queries.values.length },
      signal,
      (part) => part.scores(queries, { metric, signal }),
      (part, first, count) => all.add(part, first, count),
    );
    return matrixOf(all.whole(), against.rows);
  }

  private async spread(
    { k, steps, decay, threshold }: Extract<SimilarityRequest, { kind: 'spread' }>,
    works: readonly Extract<Work, { kind: 'graph' }>[],
    signal: AbortSignal,
  ): Promise<Computed[]> {
    const graph = await this.wholeGraph(works[0]!.graph);
    const seeds = works.flatMap((work) => work.seeds);
    const best: Ranking[] = [];
    while (best.length < seeds.length) {
      signal.throwIfAborted();
      const lanes = Math.min(this.mostLanes, seeds.length - best.length);
      const part = await this.onDevice(() =>
        graph.spread(seeds.slice(best.length, best.length + lanes), {
          k,
          steps,
          decay,
          threshold,
          signal,
          onPart: () => this.nextPart(),
        }),
      );
      if (!part.fits) {
        this.mostLanes = this.halved(lanes, part.message);
        continue;
      }
      best.push(...part.value);
      if (this.isRegained(this.mostLanes))
        this.mostLanes = 2 * this.mostLanes > MOST_LANES ? Number.POSITIVE_INFINITY : 2 * this.mostLanes;
    }
    return rankingsOf(
      works.map((work) => work.seeds.length),
      best,
      k,
    );
  }

  private async wholeGraph(open: OpenGraph): Promise<NonNullable<ReturnType<OpenGraph['whole']>>> {
    const held = open.whole();
    if (held !== undefined) return held;
    const { source } = open;
    const loaded = await open.holdWhole(source.bytes, () => source.load());
    if (loaded?.fits === true) return loaded.value;
    const why = loaded === undefined ? `the budget is ${this.parts.residents.budgetBytes} bytes` : loaded.message;
    throw new ShoalError(
      'OUT_OF_VRAM',
      `${source.name} has ${source.nodes} nodes and needs ${source.bytes} bytes, but ${why}; graphs are not ` +
        'spread over in parts',
    );
  }

  // ---- tiles ----------------------------------------------------------------------------------------------------

  /**
   * The whole collection, in as few tiles as memory allows; `take` gets each tile's part and which rows it is about.
   * `products`: of each row.
   */
  private async eachTile<Part>(
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
  private async eachPart<Part>(
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

  private async onDevice<Part>(work: () => Promise<Part>): Promise<Part> {
    this.parts.onDevice(true);
    try {
      return await work();
    } finally {
      this.parts.onDevice(false);
    }
  }

  /** Within what the device was given in one go. */
  private nextPart(): void {
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
}

interface RowSize {
  readonly rowBytes: number;
  /** Products of numbers that a row takes part in: values of all queries; 0: not worth counting. */
  readonly products: number;
}

type RowsWork = Extract<Work, { kind: 'rows' }>;
type Compute<Part> = (rows: HeldRows) => Promise<Fitted<Part>>;
type Take<Part> = (part: Part, first: number, count: number) => void;

function noRankings(queries: number): Ranking[] {
  return Array.from({ length: queries }, () => EMPTY_RANKING);
}

function mergeInto(best: Ranking[], part: readonly Ranking[], k: number, metric: RankingRequest['metric']): void {
  part.forEach((ranking, query) => (best[query] = mergeRankings(best[query]!, ranking, k, metric)));
}

function rankingsOf(rows: readonly number[], best: readonly Ranking[], k: number): Computed[] {
  let from = 0;
  return rows.map((count): Computed => {
    const body = encodeRankings(best.slice(from, from + count));
    from += count;
    return { ok: true, dtype: 'ranking', dims: k, body };
  });
}

function matrixOf(scores: Float32Array, columns: number): Computed {
  return {
    ok: true,
    dtype: 'f32',
    dims: columns,
    body: new Uint8Array(scores.buffer, scores.byteOffset, scores.byteLength),
  };
}

/**
 * A matrix of parts that have all rows and some columns each. The part that has all of them is the matrix: copying 400
 * MB takes longer than a GPU with them.
 */
class ScoresOfParts {
  private readonly rows: number;
  private readonly columns: number;
  private matrix: Float32Array | undefined;

  constructor(rows: number, columns: number) {
    this.rows = rows;
    this.columns = columns;
  }

  /** `count` columns from `first` on. */
  add(part: Float32Array, first: number, count: number): void {
    if (count === this.columns) {
      this.matrix = part;
      return;
    }
    this.matrix ??= new Float32Array(this.rows * this.columns);
    for (let row = 0; row < this.rows; row++)
      this.matrix.set(part.subarray(row * count, (row + 1) * count), row * this.columns + first);
  }

  whole(): Float32Array {
    return this.matrix ?? new Float32Array(this.rows * this.columns);
  }
}

function rowsBefore(works: readonly RowsWork[], index: number): number {
  return works.slice(0, index).reduce((sum, work) => sum + work.queries.rows, 0);
}

function unique(ids: BigUint64Array): BigUint64Array {
  const set = new Set(ids);
  return set.size === ids.length ? ids : BigUint64Array.from(set);
}
