// The first verb of an executor that compares: what a job order asks for becomes vectors, candidates or seeds, checked
// against the collection or graph they are compared with, or the reason why it cannot. A fault in one order is that
// order's alone.

import {
  isShoalError,
  ShoalError,
  toFailure,
  type Failure,
  similarityFingerprint,
  invariant,
  RESULT_HEADER_BYTES,
  decodeResultHeader,
  type ResultHeader,
  decodeComparands,
  type Comparands,
  type Matrix,
  MAX_RESULT_BYTES,
  checkValues,
  dimensionsMismatch,
  dimsOf,
  nodeOf,
  resultTooLarge,
  rowsOf,
  type SeedSet,
  type SimilarityInput,
} from '@shoal/contract';
import { conflict } from '../executor/fill.ts';
import type { InputRead, PayloadStore } from '../ports/payload.ts';
import type { SimilarityOrder } from '../protocol.ts';
import type { Residents } from './ledger.ts';
import type { GraphSource, HeldGraph, HeldRows, RowSource, SimilarityDevice } from './device.ts';
import { Sources, type OpenSource } from './sources.ts';

export type OpenCollection = OpenSource<RowSource, HeldRows>;
export type OpenGraph = OpenSource<GraphSource, HeldGraph>;

/** What one job needs computed. */
export type Work = Comparison;

type Comparison =
  | {
      readonly kind: 'rows';
      readonly collection: OpenCollection;
      readonly queries: Matrix;
      readonly candidates: readonly BigUint64Array[] | undefined;
    }
  | { readonly kind: 'matrix'; readonly queries: Matrix; readonly against: Matrix }
  | { readonly kind: 'graph'; readonly graph: OpenGraph; readonly seeds: readonly SeedSet[] };

/** Which rows were compared with. */
export interface Searched {
  /** name@version, or the name alone where nobody knows which version it was. */
  readonly collection: string;
  readonly model: string | undefined;
}

export type FilledWork =
  | { readonly kind: 'failed'; readonly failure: Failure }
  /** A result of the same request is there. */
  | { readonly kind: 'already'; readonly header: ResultHeader; readonly searched: Searched | undefined }
  | { readonly kind: 'work'; readonly fingerprint: string; readonly work: Work };

export interface SimilarityFillerParts {
  readonly store: PayloadStore;
  readonly device: SimilarityDevice;
  readonly residents: Residents;
}

export class SimilarityFiller {
  private readonly store: PayloadStore;
  private readonly device: SimilarityDevice;
  private readonly collections: Sources<RowSource, HeldRows>;
  private readonly graphs: Sources<GraphSource, HeldGraph>;

  constructor({ store, device, residents }: SimilarityFillerParts) {
    this.store = store;
    this.device = device;
    this.collections = new Sources((name) => device.openCollection(name), residents);
    this.graphs = new Sources((name) => device.openGraph(name), residents);
  }

  /** One value per order, in order. */
  async fill(orders: readonly SimilarityOrder[]): Promise<FilledWork[]> {
    const reads = await this.store.read(
      orders.map(({ jobId, resultId, input }) => ({ jobId, resultId, hasInput: hasInput(input) })),
    );
    return Promise.all(orders.map((order, i) => this.fillOne(order, reads[i]!)));
  }

  /** The job has run, or will not. */
  async release(work: Work): Promise<void> {
    if (work.kind === 'rows') await this.collections.giveBack(work.collection);
    if (work.kind === 'graph') await this.graphs.giveBack(work.graph);
  }

  async close(): Promise<void> {
    await Promise.all([this.collections.close(), this.graphs.close()]);
  }

  private async fillOne(order: SimilarityOrder, { input, resultHead }: InputRead): Promise<FilledWork> {
    try {
      const known = resultHead === undefined ? undefined : decodeResultHeader(resultHead);
      if (hasInput(order.input) && input === undefined) return await this.already(order, withoutInput(order, known));
      const compared = comparedIn(order, input);
      const fingerprint = checkedFingerprint(order, compared, input);
      if (known !== undefined && known.fingerprint !== fingerprint)
        throw conflict(order.jobId, known.fingerprint, fingerprint);
      return known === undefined
        ? { kind: 'work', fingerprint, work: await this.comparisonOf(order, compared) }
        : await this.already(order, known);
    } catch (error) {
      if (!(error instanceof ShoalError)) throw error;
      return { kind: 'failed', failure: toFailure(error) };
    }
  }

  /** Its rows are looked at again for what is said of them; a version that is gone says nothing. */
  private async already({ request }: SimilarityOrder, header: ResultHeader): Promise<FilledWork> {
    const name = request.kind === 'spread' ? undefined : request.collection;
    if (name === undefined) return { kind: 'already', header, searched: undefined };
    if (isNewest(name)) return { kind: 'already', header, searched: { collection: name, model: undefined } };
    try {
      const collection = await this.collections.take(name);
      const { model } = collection.source;
      await this.collections.giveBack(collection);
      return { kind: 'already', header, searched: { collection: name, model } };
    } catch (error) {
      if (!(error instanceof ShoalError)) throw error;
      return { kind: 'already', header, searched: { collection: name, model: undefined } };
    }
  }

  private async comparisonOf({ jobId, request }: SimilarityOrder, compared: Compared): Promise<Comparison> {
    if (request.kind === 'spread') {
      invariant(!('queries' in compared), 'a spread begins at seeds');
      return this.graphWork(request.graph, compared);
    }
    invariant('queries' in compared, 'everything but a spread compares vectors');
    const { queries, against, candidates } = compared;
    if (request.collection !== undefined)
      return this.rowsWork(jobId, request.collection, request.kind === 'cosine', queries, candidates);
    invariant(against !== undefined, 'who names no collection brings vectors');
    return { kind: 'matrix', queries, against };
  }

  private async rowsWork(
    jobId: string,
    asked: string,
    isMatrix: boolean,
    queries: Matrix,
    candidates: readonly BigUint64Array[] | undefined,
  ): Promise<Comparison> {
    const collection = await this.takeNamed(asked);
    const { name, rows, dims } = collection.source;
    const matrixBytes = 4 * queries.rows * rows + RESULT_HEADER_BYTES;
    const problem =
      rows === 0
        ? new ShoalError('COLLECTION_EMPTY', `${name} has no rows to compare with`)
        : dims !== queries.dims
          ? dimensionsMismatch(
              `job "${jobId}": its queries have ${queries.dims} dimensions, the rows of ${name} have ${dims}; ` +
                'both must come from one model',
            )
          : isMatrix && matrixBytes > MAX_RESULT_BYTES
            ? resultTooLarge(
                `job "${jobId}": ${queries.rows} × ${rows} scores have ${matrixBytes} bytes, above the ` +
                  `${MAX_RESULT_BYTES} of one result; ask with fewer queries, or for the best k`,
              )
            : undefined;
    if (problem === undefined) return { kind: 'rows', collection, queries, candidates };
    await this.collections.giveBack(collection);
    throw problem;
  }

  /** By name and version, or the newest version: another may be published and an old one removed in between. */
  private async takeNamed(asked: string): Promise<OpenCollection> {
    if (!isNewest(asked)) return this.collections.take(asked);
    const takeNewest = async (): Promise<OpenCollection> => this.collections.take(await this.device.newest(asked));
    return takeNewest().catch((error: unknown) => {
      if (isShoalError(error, 'COLLECTION_GONE')) return takeNewest();
      throw error;
    });
  }

  private async graphWork(name: string, seeds: readonly SeedSet[]): Promise<Comparison> {
    const graph = await this.graphs.take(name);
    const { nodes } = graph.source;
    const at = seeds.findIndex((set) => set.some((seed) => nodeOf(seed) >= nodes));
    if (at < 0) return { kind: 'graph', graph, seeds };
    await this.graphs.giveBack(graph);
    throw new ShoalError(
      'GRAPH_INVALID',
      `seeds ${at}: there is no node ${String(seeds[at]!.map(nodeOf).find((node) => node >= nodes))} in ` +
        `${name}; it has ${nodes} nodes, counted from 0`,
    );
  }
}

/** Without a version. */
function isNewest(collection: string): boolean {
  return !collection.includes('@');
}

type Compared = Comparands | readonly SeedSet[];

function hasInput(input: SimilarityInput): boolean {
  return input.form === 'vectors' && input.queries.form === 'key';
}

/** The result that was there before; throws where there is none of this request. */
function withoutInput(order: SimilarityOrder, known: ResultHeader | undefined): ResultHeader {
  const { jobId, fingerprint } = order;
  if (known === undefined)
    throw new ShoalError(
      'INPUT_LOST',
      `job "${jobId}" has neither an input key nor a result; add it again with its input`,
      { jobId },
    );
  if (fingerprint !== undefined && fingerprint !== known.fingerprint)
    throw conflict(jobId, known.fingerprint, fingerprint);
  return known;
}

function comparedIn({ jobId, input }: SimilarityOrder, bytes: Buffer | undefined): Compared {
  if (input.form === 'seeds') return input.seeds;
  const { queries, against, candidates } = input;
  if (queries.form === 'inline') {
    invariant(against?.form !== 'key' && candidates !== 'key', 'a job is inline as a whole or not at all');
    return { queries: queries.matrix, against: against?.matrix, candidates };
  }
  invariant(bytes !== undefined, 'an input that is missing was noticed before');
  const expected = {
    queries: rowsOf(queries),
    against: against === undefined ? 0 : rowsOf(against),
    dims: dimsOf(queries),
    hasCandidates: candidates === 'key',
  };
  const compared = decodeComparands(bytes, expected);
  checkValues(jobId, 'queries', compared.queries);
  if (compared.against !== undefined) checkValues(jobId, 'against', compared.against);
  return { ...compared, candidates: candidates === 'key' ? compared.candidates : candidates };
}

function checkedFingerprint(
  { jobId, request, input, fingerprint: given }: SimilarityOrder,
  compared: Compared,
  bytes: Buffer | undefined,
): string {
  const isWhole = input.form === 'vectors' && (input.candidates === undefined || input.candidates === 'key');
  const fingerprint = similarityFingerprint(request, compared, isWhole && hasInput(input) ? bytes : undefined);
  if (given === undefined || given === fingerprint) return fingerprint;
  throw new ShoalError(
    'FINGERPRINT_MISMATCH',
    `job "${jobId}" came with fingerprint ${given}, but its input and options have ${fingerprint}; the ` +
      'producer makes fingerprints differently',
    { jobId },
  );
}
