// Computes for jobs that run together: their queries become one matrix, the collection passes by in as few tiles as
// there is memory for (tiles.ts), and every job gets its own part of the answer.
//
// Why: docs/decisions/similarity-cpu.md#what-a-cpu-is-given-in-one-go-ends-within-ten-seconds

import {
  ShoalError,
  type Failure,
  invariant,
  unreachable,
  encodeRankings,
  MAX_RESULT_BYTES,
  RESULT_HEADER_BYTES,
  resultTooLarge,
  toFailure,
  type Ranking,
  type Matrix,
  type SimilarityRequest,
} from '@shoal/contract';
import { EMPTY_RANKING, mergeRankings } from './rankings.ts';
import type { RowSource } from './device.ts';
import type { OpenGraph, Work } from './fill.ts';
import { Tiles, type TileParts } from './tiles.ts';

/** The body of a job's result, or why it has none. */
export type Computed =
  | { readonly ok: true; readonly dtype: 'f32' | 'ranking'; readonly dims: number; readonly body: Uint8Array }
  | { readonly ok: false; readonly failure: Failure };

type RankingRequest = Extract<SimilarityRequest, { kind: 'topk' | 'rescore' }>;

export class SimilarityRun {
  private readonly parts: TileParts;
  private readonly tiles: Tiles;

  constructor(parts: TileParts) {
    this.parts = parts;
    this.tiles = new Tiles(parts);
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

  /** With the queries of all of them in one matrix. */
  private async together<Value>(works: readonly RowsWork[], use: (queries: Matrix) => Promise<Value>): Promise<Value> {
    const [first] = works;
    invariant(first !== undefined, 'something is computed');
    if (works.length === 1) return use(first.queries);
    const { dims } = first.queries;
    const rows = rowsBefore(works, works.length);
    const values = new Float32Array(rows * dims);
    let at = 0;
    for (const { queries } of works) {
      values.set(queries.values, at);
      at += queries.values.length;
    }
    return use({ values, rows, dims });
  }

  // ---- kinds ----------------------------------------------------------------------------------------------------

  private async topK(
    { k, metric, names }: RankingRequest,
    works: readonly RowsWork[],
    queries: Matrix,
    signal: AbortSignal,
  ): Promise<Computed[]> {
    const best = noRankings(queries.rows);
    await this.tiles.each(
      works[0]!.collection,
      queries.values.length,
      signal,
      (rows) => rows.topK(queries, { k, metric, signal }),
      (part) => mergeInto(best, part, k, metric),
    );
    return rankingsOf(
      works.map((work) => work.queries.rows),
      names === true ? await withNames(works[0]!.collection.source, best) : best,
      k,
    );
  }

  private async rescore(
    { k, metric, names }: RankingRequest,
    works: readonly RowsWork[],
    queries: Matrix,
    signal: AbortSignal,
  ): Promise<Computed[]> {
    const candidates = works.flatMap((work) => work.candidates ?? []).map(unique);
    invariant(candidates.length === queries.rows, 'every query has candidates');
    const best = noRankings(queries.rows);
    const found = candidates.map(() => 0);
    await this.tiles.each(
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
      names === true ? await withNames(works[0]!.collection.source, best) : best,
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
    await this.tiles.each(
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
    await this.tiles.eachPart(
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
      const lanes = Math.min(this.tiles.mostLanes, seeds.length - best.length);
      const part = await this.tiles.onDevice(() =>
        graph.spread(seeds.slice(best.length, best.length + lanes), {
          k,
          steps,
          decay,
          threshold,
          signal,
          onPart: () => this.tiles.nextPart(),
        }),
      );
      if (!part.fits) {
        this.tiles.lanesDidNotFit(lanes, part.message);
        continue;
      }
      best.push(...part.value);
      this.tiles.lanesWentWell();
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
}

type RowsWork = Extract<Work, { kind: 'rows' }>;
function noRankings(queries: number): Ranking[] {
  return Array.from({ length: queries }, () => EMPTY_RANKING);
}

function mergeInto(best: Ranking[], part: readonly Ranking[], k: number, metric: RankingRequest['metric']): void {
  part.forEach((ranking, query) => (best[query] = mergeRankings(best[query]!, ranking, k, metric)));
}

async function withNames(source: RowSource, rankings: readonly Ranking[]): Promise<Ranking[]> {
  const named: Ranking[] = [];
  for (const ranking of rankings)
    named.push({ ...ranking, names: (await source.names?.(ranking.ids)) ?? Array.from(ranking.ids, () => '') });
  return named;
}

function rankingsOf(rows: readonly number[], best: readonly Ranking[], k: number): Computed[] {
  let from = 0;
  return rows.map((count): Computed => {
    const body = encodeRankings(best.slice(from, from + count));
    from += count;
    if (body.length + RESULT_HEADER_BYTES > MAX_RESULT_BYTES)
      return {
        ok: false,
        failure: toFailure(
          resultTooLarge(
            `its result would have ${body.length} bytes with the names of its rows, above the ${MAX_RESULT_BYTES} of ` +
              'one result; ask for fewer rows, a smaller k, or without names',
          ),
        ),
      };
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
