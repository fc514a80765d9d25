// The SDK's face: connects, turns options into the terms of a run, and puts the blocks of a run together for those who
// want one array. What a call asked for is computed by workers; this process only tokenizes, waits and checks.

import {
  SUBMITTED_RESULT_TTL_MS,
  ShoalError,
  mainQueue,
  missingPrompt,
  promptText,
  rerankQueue,
  sidePrompt,
  storedName,
  type Matrix,
  type OutputDtype,
  type Ranking,
  type SeedSet,
} from '@shoal/contract';
import type { CancelResult, Waiting } from '@shoal/queue';
import { abortError } from './abort-error.ts';
import { cutAgain, cutChunks, pieceName, pieceSize, type PieceSize } from './chunks.ts';
import { matrixOf, rowIdsOf } from './comparands.ts';
import { asTextItems, rowsOf, type TextItem } from './embed-many.ts';
import { askedOfWorkers, makeRequest, type AskedOfWorkers, type RequestTerms } from './embed-request.ts';
import { embedStream, type StreamTerms } from './embed-stream.ts';
import type {
  ClientModel,
  ClientCounts,
  ClientOptions,
  EmbedOptions,
  EmbedResult,
  EmbeddedBlock,
  EmbeddedRow,
  JobHandle,
  JobOptions,
  KnownOptions,
  RerankHandle,
  RerankJobOptions,
  RerankModel,
  RerankOptions,
  RerankResult,
  SkippedRow,
  StreamBlock,
  StreamOptions,
  SubmitOptions,
  SubmitRerankOptions,
} from './embedding.ts';
import {
  checkCallOptions,
  checkClientOptions,
  checkId,
  checkItems,
  checkQueries,
  checkRerank,
  checkTexts,
  modelOf,
} from './options.ts';
import { refuseOldNode } from './node-version.ts';
import type { Placing, RowsRequest } from './job-request.ts';
import { joined } from './joined.ts';
import { openLine, placed, type Line } from './line.ts';
import { atHome } from './server-of.ts';
import type { RequestPart } from './request-record.ts';
import { RerankCalls } from './rerank-calls.ts';
import { fleetRevision } from './revision.ts';
import { alwaysUnit, refuseUnserved } from './unserved.ts';
import { hitsOf, type SearchResult } from './search.ts';
import type { Searched, Texts } from './searched.ts';
import {
  SimilarityCalls,
  type ComparisonOptions,
  type CosineOptions,
  type Queries,
  type RankingOptions,
  type RowIds,
  type Scores,
  type SearchOptions,
  type SpreadOptions,
} from './similarity-calls.ts';
import { Submitted, ofVectors } from './submitted.ts';
import { limited } from './time-limit.ts';

refuseOldNode();

/** Requests of up to so many texts are somebody waiting at a prompt, unless they say otherwise. */
const INTERACTIVE_TEXTS = 8;

type Piece = Parameters<typeof pieceName>[0];

/** How a call becomes jobs, and where they go. */
interface Cut {
  readonly size: PieceSize;
  readonly placing: Placing;
}

interface EmbedTerms extends StreamTerms {
  readonly asked: AskedOfWorkers;
}

export class ShoalClient {
  private readonly options: KnownOptions;
  /** name@revision */
  private readonly model: string;
  private readonly line: Line;
  private readonly similarity: SimilarityCalls;
  private readonly reranking: RerankCalls;
  private closing: Promise<void> | undefined;

  private constructor(options: KnownOptions, revision: string, line: Line) {
    this.options = options;
    this.model = `${options.model.name}@${revision}`;
    this.line = line;
    this.similarity = new SimilarityCalls(options);
    this.reranking = new RerankCalls(options, isReranker(options.model) ? { line, revision } : undefined);
  }

  /**
   * Connects and checks that the server answers. Throws QUEUE_UNREACHABLE or CONFIG_INVALID, MODEL_UNKNOWN where no
   * revision is given and no worker tells one, and a TypeError for options that cannot be.
   */
  static async connect(given: ClientOptions): Promise<ShoalClient> {
    checkClientOptions(given);
    const options = atHome(given);
    const model = modelOf(options.model);
    const name = storedName(model.name);
    const queue = isReranker(model) ? rerankQueue(name) : mainQueue(name);
    const revision = model.revision ?? (await fleetRevision(options, { name: model.name, queue }));
    return new ShoalClient(
      { ...options, model: { ...model, name } },
      revision,
      await openLine(options, { queue, name: 'client', mayLieBeside: !isReranker(model) }),
    );
  }

  /**
   * Vectors of `texts`, in order, as one array of rows × dims. More than `jobTexts` texts become several jobs, at most
   * `maxInFlightJobs` of them at a time. Survives restarts of workers and server. Rejects with a ShoalError: the
   * failure of a job (INPUT_TOO_LONG, QUARANTINED, …), JOB_ID_CONFLICT, QUEUE_FULL, QUEUE_REFUSES_WRITES or
   * QUEUE_UNREACHABLE after `giveUpAfterMs` (where the server's disk is full: after 10 s), QUEUE_DAMAGED where no worker
   * puts a damaged key right within 10 s, JOB_VERSION_UNKNOWN where a worker is older than what is asked for, ADMISSION_REFUSED with `whenFull: 'fail'`, RESULT_EXPIRED, RESULT_TAKEN or RESULT_CORRUPT when
   * asking again did not help, INTERRUPTED by the signal or `close`.
   */
  async embed<Dtype extends OutputDtype = 'f32'>(
    texts: readonly string[],
    options: EmbedOptions<Dtype> = {},
  ): Promise<EmbedResult<Dtype>> {
    checkTexts(texts);
    checkCallOptions('embed', options);
    const { jobId, ...rest } = options;
    const { id, placing } = placed(this.line, jobId);
    const kind = texts.length <= INTERACTIVE_TEXTS ? 'interactive' : 'bulk';
    const size = pieceSize(this.line, this.jobTexts, texts.length);
    const terms = this.embedTerms(id, texts, { class: kind, ...rest }, { size, placing });
    const blocks: EmbeddedBlock<unknown, OutputDtype>[] = [];
    const limit = limited(options, 'vectors', () => this.line.whyWaiting());
    try {
      const signal = limit.signal === undefined ? {} : { signal: limit.signal };
      await this.checkWorkers(terms);
      for await (const block of embedStream(asItems(texts), terms, signal))
        if (block.kind === 'embedded') blocks.push(block);
    } finally {
      limit.end();
    }
    return joined(blocks, options.output?.dtype) as EmbedResult<OutputDtype> as EmbedResult<Dtype>;
  }

  /**
   * Vectors of a stream of any length, as blocks in input order without gaps; extra fields of an item come back in
   * `items`. Memory is bounded by `maxInFlightJobs` jobs; neither a slow caller nor a slow queue makes it grow. A
   * block's result is acknowledged when the caller asks for the next one; leaving the loop early takes what still waits
   * off the queue. Throws as `embed` does, and whatever `texts` throws, after the blocks before it.
   */
  embedStream<Item extends { readonly text: string }, Dtype extends OutputDtype = 'f32'>(
    texts: AsyncIterable<Item> | Iterable<Item>,
    options: StreamOptions<Dtype> = {},
  ): AsyncGenerator<StreamBlock<Item, Dtype>, void, undefined> {
    checkItems(texts);
    checkCallOptions('embedStream', options);
    const { runId, ...rest } = options;
    const { id, placing } = placed(this.line, runId);
    const terms = this.terms(
      id,
      { class: 'bulk', ...rest },
      {
        size: pieceSize(this.line, this.jobTexts),
        idOf: (chunk) => `${id}-${pieceName(chunk)}`,
        placing,
      },
    );
    // what comes has the form that was asked for: it is part of every fingerprint
    return this.limitedStream(texts, terms, rest) as AsyncGenerator<StreamBlock<Item, Dtype>, void, undefined>;
  }

  /**
   * The same as rows: for each text its vector, in input order. `texts`: texts, or items that have one and come back as
   * `item`; an array, or anything that can be iterated, of any length. The input is read as fast as the loop takes rows,
   * and `maxInFlightJobs` jobs further. With `onError: 'skip'` a row of kind "skipped" and its error stands for each
   * text of a job that failed. Throws as `embedStream` does.
   */
  embedMany<Item extends TextItem, Dtype extends OutputDtype = 'f32'>(
    texts: AsyncIterable<Item> | Iterable<Item>,
    options?: StreamOptions<Dtype> & { readonly onError?: 'fail' },
  ): AsyncGenerator<EmbeddedRow<Item, Dtype>, void, undefined>;
  embedMany<Item extends TextItem, Dtype extends OutputDtype = 'f32'>(
    texts: AsyncIterable<Item> | Iterable<Item>,
    options: StreamOptions<Dtype>,
  ): AsyncGenerator<EmbeddedRow<Item, Dtype> | SkippedRow<Item>, void, undefined>;
  embedMany<Item extends TextItem>(
    texts: AsyncIterable<Item> | Iterable<Item>,
    options: StreamOptions = {},
  ): AsyncGenerator<EmbeddedRow<Item, OutputDtype> | SkippedRow<Item>, void, undefined> {
    checkItems(texts, 'embedMany');
    checkCallOptions('embedMany', options);
    return rowsOf(this.embedStream(asTextItems(texts), options));
  }

  /**
   * Puts `texts` on the queue and returns once it has all of them: what comes back is a handle, from which vectors can
   * be fetched later, here or by `job(id)` in another process. The result is kept for a day once it is computed
   * (`resultTtlMs`). Rejects as `embed` does before anything is computed; aborted, it takes back what it has added.
   */
  async submit<Dtype extends OutputDtype = 'f32'>(
    texts: readonly string[],
    options: SubmitOptions<Dtype> = {},
  ): Promise<JobHandle<Dtype>> {
    checkTexts(texts, 'submit');
    checkCallOptions('submit', options);
    if (texts.length === 0) throw new TypeError('submit needs at least one text');
    const { jobId, signal, ...rest } = options;
    const { id, placing } = placed(this.line, jobId);
    const asked = { class: 'bulk', resultTtlMs: SUBMITTED_RESULT_TTL_MS, ...rest } as const;
    const size = pieceSize(this.line, this.jobTexts, texts.length);
    const terms = this.embedTerms(id, texts, asked, { size, placing });
    await this.checkWorkers(terms);
    const requests: RowsRequest[] = [];
    for await (const chunk of cutChunks(asItems(texts), 0, size)) {
      if (signal?.aborted === true) throw abortError(signal.reason);
      const part = chunk.items.map(({ text }) => text);
      requests.push(await terms.requestOf(terms.jobIdOf(chunk), part));
    }
    const { tenant = this.options.tenant ?? 'default', meta, output } = options;
    const dtype: OutputDtype = output?.dtype ?? 'f32';
    const cutAs = async (parts: readonly RequestPart[]): Promise<RowsRequest[]> => {
      const again: RowsRequest[] = [];
      for (const { part, texts: own } of cutAgain(texts, parts)) again.push(await terms.requestOf(part.jobId, own));
      return again;
    };
    const request = { requestId: `${tenant}~${id}`, model: this.model, dtype, meta, requests, cutAs };
    const cell = await this.line.submit(request, placing, signal);
    return new Submitted(this.line, { id, cell, tenant }, ofVectors<Dtype>());
  }

  /**
   * The handle of a request that was submitted to this client's model, by its id; `tenant` where it was not this
   * client's. Asks nobody: the handle of an unknown id has the state "unknown".
   */
  job(id: string, options: JobOptions = {}): JobHandle {
    checkId('job', id);
    checkCallOptions('job', options);
    const { tenant = this.options.tenant ?? 'default' } = options;
    return new Submitted(this.line, { ...this.line.placeOf(id), tenant }, ofVectors<OutputDtype>());
  }

  /**
   * How well each of the documents answers the query, by a reranker: scores in their order, and the best of them by
   * index. Any number of documents become jobs of up to `jobTexts` pairs. Rejects as `embed` does (INPUT_TOO_LONG with
   * `truncate: 'error'`), with NOT_SERVED or MODEL_UNKNOWN where no worker serves the reranker and its revision is not
   * given, and with a TypeError for options that cannot be.
   */
  async rerank(options: RerankOptions): Promise<RerankResult> {
    checkRerank(options);
    this.needsReranker('rerank', options.model);
    return this.reranking.rerank(options);
  }

  /**
   * Puts the question on the queue of the reranker and returns once it has all of it, as `submit` does for texts: scores
   * are fetched by the handle, here or by `rerankJob(id)` in another process.
   */
  async submitRerank(options: SubmitRerankOptions): Promise<RerankHandle> {
    checkRerank(options, 'submitRerank');
    this.needsReranker('submitRerank', options.model);
    if (options.documents.length === 0) throw new TypeError('submitRerank needs at least one document');
    return this.reranking.submit(options);
  }

  /**
   * The handle of a request that was submitted to a reranker, by its id. Asks nobody whether there is one: the handle of
   * an unknown id has the state "unknown". Rejects with QUEUE_UNREACHABLE.
   */
  async rerankJob(id: string, options: RerankJobOptions = {}): Promise<RerankHandle> {
    checkId('rerankJob', id);
    checkCallOptions('rerankJob', options);
    this.needsReranker('rerankJob', options.model);
    return this.reranking.job(id, options);
  }

  /**
   * The rows of a collection ("docs", or "docs@3" for one version of it) that are most like each query, by exact search:
   * `hits` has for each query up to `k` of them with score and name, best first; `collection` and `collectionModel` say
   * which version was searched and which model made its rows. Queries are texts, which this client's model embeds first,
   * or vectors. Rejects as `topK` does.
   */
  async search(collection: string, queries: Queries, options: SearchOptions = {}): Promise<SearchResult> {
    checkQueries('search', queries);
    checkCallOptions('search', options);
    const { k = 10, names = true, ...rest } = options;
    return hitsOf(await this.topK(collection, queries, { k, names, ...rest }));
  }

  /**
   * The k best rows of a collection ("docs@3", or "docs" for its newest version) for each query, best first, by exact
   * search; one ranking per query, in order. The list itself has `collection`, which version was searched, and
   * `collectionModel`, which model made its rows, undefined where that is not known. Texts as queries are embedded by
   * this client's model first, and refused (COLLECTION_MODEL_MISMATCH) where the rows come from another; vectors are
   * compared as they are. Rejects as `embed` does, and with COLLECTION_UNKNOWN, COLLECTION_GONE, COLLECTION_CORRUPT, COLLECTION_EMPTY, DIMENSIONS_MISMATCH, VECTOR_INVALID,
   * RESULT_TOO_LARGE or OUT_OF_VRAM.
   */
  async topK(collection: string, queries: Queries, given: RankingOptions): Promise<Ranking[] & Searched> {
    checkCallOptions('topK', given);
    const { k, metric, names, ...options } = given;
    return this.bounded(options, async (bound) =>
      this.similarity.rankings(
        { kind: 'topk', collection, k, metric, names },
        await this.vectorsOf(queries, bound),
        bound,
        this.textsIn(queries),
      ),
    );
  }

  /**
   * The same among chosen rows: `candidates` has a list of row ids for each query. Also rejects with SEARCH_INVALID
   * where an id is no row; where it cannot be one, at once.
   */
  async rescore(
    collection: string,
    queries: Queries,
    candidates: readonly RowIds[],
    asked: RankingOptions,
  ): Promise<Ranking[] & Searched> {
    checkCallOptions('rescore', asked);
    const { k, metric, names, ...options } = asked;
    const lists = candidates.map(rowIdsOf);
    const given = 'dims' in queries ? matrixOf(queries) : queries;
    const count = 'dims' in given ? given.rows : given.length;
    if (lists.length !== count)
      throw new ShoalError(
        'SEARCH_INVALID',
        `there are ${lists.length} lists of candidates for ${count} queries; pass one for each query`,
        { candidates: lists.length, queries: count },
      );
    return this.bounded(options, async (bound) =>
      this.similarity.rankings(
        { kind: 'rescore', collection, k, metric, names, candidates: lists },
        await this.vectorsOf(given, bound),
        bound,
        this.textsIn(queries),
      ),
    );
  }

  /** Every score of the queries against a collection, or against other vectors or texts. Rejects as `topK` does. */
  async cosine(
    queries: Queries,
    others: { readonly collection: string } | Queries,
    asked: CosineOptions = {},
  ): Promise<Scores> {
    checkCallOptions('cosine', asked);
    const { metric, ...options } = asked;
    return this.bounded(options, async (bound) => {
      const matrix = await this.vectorsOf(queries, bound);
      if ('collection' in others)
        return this.similarity.scores(
          { kind: 'cosine', collection: others.collection, metric },
          matrix,
          bound,
          this.textsIn(queries),
        );
      const against = await this.vectorsOf(others, bound);
      return this.similarity.scores({ kind: 'cosine', against, metric }, matrix, bound);
    });
  }

  /**
   * The k nodes of a graph ("links") that activation spreading from each set of seeds reaches most; one ranking per
   * set. A seed is a node, or a node and its activation. Also rejects with GRAPH_INVALID.
   */
  async spread(graph: string, seeds: readonly SeedSet[], options: SpreadOptions): Promise<Ranking[]> {
    checkCallOptions('spread', options);
    const { k, steps, decay, threshold, ...rest } = options;
    const question = { graph, k, steps, decay, threshold };
    return this.bounded(rest, (bound) => this.similarity.spread(question, seeds, bound));
  }

  /**
   * Takes requests back, whoever made them and wherever they are: those that wait have failed with CANCELLED when this
   * resolves, running ones are dropped by their workers in less than a batch. `ids` as given to `embed` (`jobId`) or
   * `embedStream` (`runId`) or `submit`; of what this client has not open itself, submitted requests and those of a
   * single job are found. One
   * result per job that was found.
   */
  async cancel(ids: readonly string[]): Promise<CancelResult[]> {
    const { tenant = 'default' } = this.options;
    const requestIds = ids.map((id) => `${tenant}~${id}`);
    const results = (await Promise.all(this.lines().map((line) => line.cancelRequests(requestIds)))).flat();
    return results.filter(({ outcome }) => outcome !== 'unknown');
  }

  /**
   * Why what is asked for has not come yet: one look at the queue of this client's model, or of a reranker. Throws
   * QUEUE_UNREACHABLE.
   */
  whyWaiting({ reranker }: { readonly reranker?: RerankModel } = {}): Promise<Waiting> {
    return reranker === undefined ? this.line.whyWaiting() : this.reranking.whyWaiting(reranker);
  }

  /** What happened to this client's jobs since it connected. */
  counts(): ClientCounts {
    return this.line.jobs.counts();
  }

  /**
   * Gives up whatever is open (INTERRUPTED), acknowledges what was delivered, closes the connections. Safe to call
   * twice.
   */
  close(): Promise<void> {
    const parts = [...this.lines(), this.similarity];
    return (this.closing ??= Promise.all(parts.map((part) => part.close())).then(() => undefined));
  }

  /** `await using client = await ShoalClient.connect(…)` closes it at the end of the block. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  private async *limitedStream<Item extends { readonly text: string }>(
    texts: AsyncIterable<Item> | Iterable<Item>,
    terms: EmbedTerms,
    options: StreamOptions,
  ): AsyncGenerator<StreamBlock<Item, OutputDtype>, void, undefined> {
    const limit = limited(options, 'vectors', () => this.line.whyWaiting());
    const { signal: _, ...rest } = options;
    try {
      await this.checkWorkers(terms);
      yield* embedStream(texts, terms, limit.signal === undefined ? rest : { ...rest, signal: limit.signal });
    } finally {
      limit.end();
    }
  }

  private needsReranker(call: string, model: RerankModel | undefined): void {
    if (model !== undefined || isReranker(this.options.model)) return;
    throw new TypeError(
      `${call} needs model, the name of a reranker: this client's own model, ${this.options.model.name}, gives vectors ` +
        '(where it is one, connect with model: { name, kind: "reranker" })',
    );
  }

  /** What workers would have to refuse is refused before anything is added, as far as they tell. */
  private async checkWorkers({ asked }: EmbedTerms): Promise<void> {
    if (asked.version === 1 && asked.prompt === undefined) return;
    refuseUnserved(await this.line.workers(), asked, this.options.model.name);
  }

  /** The same call, whose signal ends it when its time is over as well. */
  private async bounded<Answer>(
    { signal, timeoutMs, ...options }: ComparisonOptions,
    work: (options: ComparisonOptions) => Promise<Answer>,
  ): Promise<Answer> {
    const { deadline } = options;
    const limit = limited({ signal, timeoutMs, deadline }, 'answer', async () => {
      return (await this.similarity.whyWaiting()) ?? this.line.whyWaiting();
    });
    try {
      return await work({ ...options, ...(limit.signal !== undefined && { signal: limit.signal }) });
    } finally {
      limit.end();
    }
  }

  private async vectorsOf(queries: Queries, { signal, tenant, meta, trace }: ComparisonOptions): Promise<Matrix> {
    if ('dims' in queries) return matrixOf(queries);
    const {
      vectors: values,
      rows,
      dims,
    } = await this.embed(queries, {
      ...(await this.queryPrompt()),
      ...(signal === undefined ? {} : { signal }),
      ...(tenant === undefined ? {} : { tenant }),
      ...(meta === undefined ? {} : { meta }),
      ...(trace === undefined ? {} : { trace }),
    });
    return { values, rows, dims };
  }

  /** The prompt of queries, where the model has one, as it is known here or its workers tell. */
  private async queryPrompt(): Promise<{ readonly prompt?: string }> {
    const { model } = this.options;
    if (model.prompts !== undefined) return sidePrompt({ prompts: {}, ...model }, 'query');
    const workers = (await this.line.workers()) ?? [];
    return workers.some(({ facts }) => facts?.prompts?.includes('query') === true) ? { prompt: 'query' } : {};
  }

  /** What is to be known of queries that were texts. */
  private textsIn(queries: Queries): Texts | undefined {
    return 'dims' in queries ? undefined : { model: this.model };
  }

  /** Of texts that are all there. */
  private embedTerms(id: string, texts: readonly string[], options: EmbedOptions, cut: Cut): EmbedTerms {
    // few texts, but long ones, are several jobs as well
    const isOneJob = ({ first, most }: Piece): boolean => first === 0 && texts.length <= most;
    const idOf = (piece: Piece): string => (isOneJob(piece) ? id : `${id}-${pieceName(piece)}`);
    return this.terms(id, options, { ...cut, idOf });
  }

  private get jobTexts(): number {
    return this.options.jobTexts ?? 64;
  }

  private terms(
    id: string,
    { truncate = 'end', prompt, output, class: kind, deadline, resultTtlMs, meta, trace, ...given }: EmbedOptions,
    { size, placing, idOf }: Cut & { readonly idOf: (piece: Piece) => string },
  ): EmbedTerms {
    const { model, tokenizer, maxInFlightJobs = this.line.usualInFlightJobs } = this.options;
    if (isReranker(model))
      throw new TypeError(
        `the client's model ${model.name} is a reranker, which gives scores and no vectors: use rerank`,
      );
    const tenant = given.tenant ?? this.options.tenant ?? 'default';
    if (model.prompts !== undefined && promptText({ prompts: {}, ...model }, prompt) === undefined)
      throw noPrompt(model, prompt);
    if (output?.normalize === false && model.isNormalized === true) throw alwaysUnit(model.name);
    const call: RequestTerms = {
      requestId: `${tenant}~${id}`,
      model: this.model,
      prompts: model.prompts === undefined ? undefined : { prompts: {}, ...model },
      isNormalized: model.isNormalized,
      tokenizer,
      tenant,
      reply: this.line.replyChannel,
      truncate,
      prompt,
      output,
      class: kind,
      deadline: deadline === undefined ? undefined : Math.trunc(Number(deadline)),
      resultTtlMs,
      meta,
    };
    const asked = askedOfWorkers(call);
    return {
      asked,
      requestOf: async (jobId, texts) => {
        const known = asked.version === 2 ? trace : await this.line.readable(trace);
        return { ...(await makeRequest(jobId, texts, { ...call, trace: known })), placing };
      },
      what: 'vectors',
      truncate,
      tokenizer,
      hasOwnId: !placing.isNew,
      jobs: this.line.jobs,
      maxInFlightJobs,
      size,
      jobIdOf: (piece) => `${tenant}~${idOf(piece)}`,
    };
  }

  /** Those to models; the one to a reranker that is this client's own is among those of `reranking`. */
  private lines(): readonly Pick<Line, 'cancelRequests' | 'close'>[] {
    return isReranker(this.options.model) ? [this.reranking] : [this.reranking, this.line];
  }
}

function isReranker({ kind }: ClientModel): boolean {
  return kind === 'reranker';
}

function noPrompt({ name, prompts = {} }: ClientModel, prompt: string | undefined): ShoalError<'JOB_INVALID'> {
  return new ShoalError(
    'JOB_INVALID',
    `the prompt ${JSON.stringify(prompt)} was asked for, and ${name} ${missingPrompt({ prompts })}`,
    { model: name, prompt },
  );
}

function* asItems(texts: readonly string[]): Generator<{ readonly text: string }, void, undefined> {
  for (const text of texts) yield { text };
}
