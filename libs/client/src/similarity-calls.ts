// Questions about similarity, asked of the queue and answered as arrays. Owns the line to the queue `similarity`, which
// is opened with the first question. What became of a job on the queue is open-jobs.ts's business, as for embeddings.

import { randomUUID } from 'node:crypto';
import {
  SIMILARITY_QUEUE,
  decodeRankings,
  searchedIn,
  type Matrix,
  type Meta,
  type Ranking,
  type SeedSet,
  type SimilarityMetric,
  type Trace,
} from '@shoal/contract';
import type { Waiting } from '@shoal/queue';
import type { ClientOptions } from './embedding.ts';
import { abortError } from './abort-error.ts';
import { isNewest, refuseUntold, searchedOf, withSearched, type Searched, type Texts } from './searched.ts';
import { closedError, type Asked, type Delivery, type JobRequest } from './job-request.ts';
import { QueueLine } from './queue-line.ts';
import {
  compareRequests,
  spreadRequests,
  type SimilarityQuestion,
  type SimilarityTerms,
  type SpreadQuestion,
} from './similarity-request.ts';
import { refuseOlder } from './unserved.ts';
import { unlessAborted } from './unless-aborted.ts';
import { widen } from './stored-rows.ts';

/** Texts are embedded by the client's model first; `values` are rows × dims, row-major. */
export type Queries = readonly string[] | { readonly values: Float32Array | readonly number[]; readonly dims: number };

/** Ids of rows of a collection. Numbers and bigints of a plain array are whole and below 2^53. */
export type RowIds = BigUint64Array | readonly (number | bigint)[];

/** What every question may have. */
export interface ComparisonOptions {
  /** Takes the call back: it rejects with INTERRUPTED, called AbortError, and its jobs are taken off the queue. */
  readonly signal?: AbortSignal;
  /** How long the call may take, in milliseconds. Then it rejects with DEADLINE_PASSED, and its jobs are taken back. */
  readonly timeoutMs?: number;
  /** The same as a moment, by this machine's clock; jobs that are not begun by then never run. A Date or epoch ms. */
  readonly deadline?: Date | number;
  /** Instead of the client's. */
  readonly tenant?: string;
  /** How long the result may lie unread, in milliseconds. */
  readonly resultTtlMs?: number;
  /**
   * Stable id of this request: asking again with the same id and question never computes twice. Default: a random one.
   */
  readonly jobId?: string;
  readonly class?: 'interactive' | 'bulk';
  /** Fields of your own in every job of the call, as of `embed`. */
  readonly meta?: Meta;
  /** The request that the call is a part of, as of `embed`. */
  readonly trace?: Trace;
}

export interface RankingOptions extends ComparisonOptions {
  readonly k: number;
  /** Default cosine. */
  readonly metric?: SimilarityMetric;
  /** Each ranking has `names` as well: what its rows are called, '' where one has no name. */
  readonly names?: boolean;
}

export interface SearchOptions extends Omit<RankingOptions, 'k'> {
  /** How many hits a query has at most. Default 10. */
  readonly k?: number;
}

export interface CosineOptions extends ComparisonOptions {
  readonly metric?: SimilarityMetric;
}

export interface SpreadOptions extends ComparisonOptions {
  readonly k: number;
  /** Edges that activation goes along. Default 3. */
  readonly steps?: number;
  /** What is left of it after each edge of weight 1. Default 0.5. */
  readonly decay?: number;
  /** Nodes with less give nothing on. Default 0. */
  readonly threshold?: number;
}

/** rows × columns scores, row-major: a row for each query. Of a collection, it is told which. */
export interface Scores extends Partial<Searched> {
  readonly rows: number;
  readonly columns: number;
  readonly scores: Float32Array;
}

export class SimilarityCalls {
  private readonly options: ClientOptions;
  private line: Promise<QueueLine> | undefined;
  private isClosed = false;

  constructor(options: ClientOptions) {
    this.options = options;
  }

  async rankings(
    question: Extract<SimilarityQuestion, { kind: 'topk' | 'rescore' }>,
    queries: Matrix,
    options: ComparisonOptions,
    texts?: Texts,
  ): Promise<Ranking[] & Searched> {
    const { answers, searched } = await this.search(question, queries, options, texts, readRankings);
    return withSearched(answers.flat(), searched);
  }

  async spread(question: SpreadQuestion, seeds: readonly SeedSet[], options: ComparisonOptions): Promise<Ranking[]> {
    const { answers } = await this.ask(options, (terms) => spreadRequests(question, seeds, terms), readRankings);
    return answers.flat();
  }

  async scores(
    question: Extract<SimilarityQuestion, { kind: 'cosine' }>,
    queries: Matrix,
    options: ComparisonOptions,
    texts?: Texts,
  ): Promise<Scores> {
    let [columns, scores, at] = [0, new Float32Array(), 0];
    const read = ({ header, body }: Delivery): void => {
      if (at === 0) [columns, scores] = [header.dims, new Float32Array(queries.rows * header.dims)];
      const part = widen(header, body);
      scores.set(part, at);
      at += part.length;
    };
    if ('against' in question) {
      await this.ask(options, (terms) => compareRequests(question, queries, terms), read);
      return { rows: queries.rows, columns, scores };
    }
    const { searched } = await this.search(question, queries, options, texts, read);
    return { rows: queries.rows, columns, scores, ...searched };
  }

  /** Why nothing has come yet; undefined where nothing was asked. Throws QUEUE_UNREACHABLE. */
  async whyWaiting(): Promise<Waiting | undefined> {
    return (await this.line)?.whyWaiting();
  }

  /** Gives up what is open and closes the line, if there is one; none is opened any more. */
  async close(): Promise<void> {
    this.isClosed = true;
    await (await this.line?.catch(() => undefined))?.close();
  }

  /**
   * A question to a collection. Where the newest version is asked for, the first job finds out which that is, and the
   * others ask for the same one.
   */
  private async search<Answer>(
    question: Extract<SimilarityQuestion, { readonly collection: string }>,
    queries: Matrix,
    { jobId = randomUUID(), ...options }: ComparisonOptions,
    texts: Texts | undefined,
    read: (delivery: Delivery) => Answer,
  ): Promise<{ readonly answers: readonly Answer[]; readonly searched: Searched }> {
    const requestsOf = (collection: string, terms: SimilarityTerms): readonly JobRequest[] =>
      compareRequests({ ...question, collection }, queries, terms);
    const { collection } = question;
    const asked = { jobId, ...options };
    const first = await this.ask(
      asked,
      (terms) => requestsOf(collection, terms).slice(0, isNewest(collection) ? 1 : undefined),
      read,
    );
    const found = searchedOf(collection, first.returned.map(searchedIn), texts);
    if (first.answers.length === 0 || !isNewest(collection)) return { answers: first.answers, searched: found };
    const restOf = (terms: SimilarityTerms): readonly JobRequest[] => {
      const rest = requestsOf(found.collection, terms).slice(1);
      if (rest.length > 0) refuseUntold(found.collection);
      return rest;
    };
    const others = await this.ask(asked, restOf, read);
    return {
      answers: [...first.answers, ...others.answers],
      searched: searchedOf(collection, [...first.returned, ...others.returned].map(searchedIn), texts),
    };
  }

  /** What `read` makes of each answer, in order, keeping nothing of it: its memory is used again. */
  private async ask<Answer>(
    { jobId = randomUUID(), signal, class: kind, deadline, resultTtlMs, meta, ...given }: ComparisonOptions,
    toRequests: (terms: SimilarityTerms) => readonly JobRequest[],
    read: (delivery: Delivery) => Answer,
  ): Promise<{ readonly answers: readonly Answer[]; readonly returned: readonly (string | undefined)[] }> {
    const line = await unlessAborted(signal, () => this.opened());
    if (meta !== undefined) refuseOlder(await line.workers(), { what: 'meta', queue: SIMILARITY_QUEUE });
    const trace = meta === undefined ? await line.readable(given.trace) : given.trace;
    const { jobs, replyChannel } = line;
    const tenant = given.tenant ?? this.options.tenant ?? 'default';
    const jobIdOf = (first: number): string => (first === 0 ? `${tenant}~${jobId}` : `${tenant}~${jobId}-${first}`);
    const requests = toRequests({
      tenant,
      reply: replyChannel,
      class: kind,
      deadline: deadline === undefined ? undefined : Math.trunc(Number(deadline)),
      resultTtlMs,
      meta,
      trace,
      jobIdOf,
    });
    const asked = requests.map((request) => jobs.ask(request));
    const stop = (): void => void jobs.abandon(asked, abortError(signal?.reason));
    signal?.addEventListener('abort', stop, { once: true });
    try {
      const deliveries = await this.delivered(asked);
      const answers = deliveries.map((delivery) => {
        const answer = read(delivery);
        jobs.letGo(delivery);
        return answer;
      });
      const jobIds = requests.map((request) => request.jobId);
      const returned = await line.returnValues(jobIds);
      jobs.release(jobIds);
      return { answers, returned };
    } catch (error) {
      await jobs.abandon(asked, abortError(error));
      throw error;
    } finally {
      signal?.removeEventListener('abort', stop);
    }
  }

  /** All of them, or the first failure; the others are not left to reject unheard. */
  private async delivered(asked: readonly Asked[]): Promise<Delivery[]> {
    const deliveries = asked.map(({ delivery }) => delivery);
    for (const delivery of deliveries) delivery.catch(() => undefined);
    return Promise.all(deliveries);
  }

  private async opened(): Promise<QueueLine> {
    if (this.isClosed) throw closedError();
    this.line ??= QueueLine.open(this.options, { queue: SIMILARITY_QUEUE, name: 'similarity' });
    this.line.catch(() => (this.line = undefined));
    return this.line;
  }
}

function readRankings({ header, body }: Delivery): Ranking[] {
  return decodeRankings(header, body);
}
