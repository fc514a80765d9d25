// Documents weighed against a query by a reranker. Owns the line to the queue of each reranker, which is opened with the
// first question to it. Documents go through the same stream of jobs as texts that are embedded; their scores come as
// rows of one value.

import { randomUUID } from 'node:crypto';
import { SUBMITTED_RESULT_TTL_MS, ShoalError, isShoalError, rerankQueue, storedName } from '@shoal/contract';
import type { CancelResult, Waiting } from '@shoal/queue';
import { abortError } from './abort-error.ts';
import { cutAgain, cutChunks, pieceName, pieceSize } from './chunks.ts';
import { embedStream, type StreamTerms } from './embed-stream.ts';
import type {
  KnownOptions,
  RerankHandle,
  RerankJobOptions,
  RerankModel,
  RerankOptions,
  RerankResult,
  SubmitRerankOptions,
} from './embedding.ts';
import { closedError, type CallTerms, type RowsRequest } from './job-request.ts';
import { openLine, placed, type Line } from './line.ts';
import type { RequestPart } from './request-record.ts';
import { rerankRequest } from './rerank-request.ts';
import { fleetRevision } from './revision.ts';
import { Submitted, type Gathered } from './submitted.ts';
import { limited } from './time-limit.ts';
import { unlessAborted } from './unless-aborted.ts';

/** Whoever asks for so few documents waits for them, unless they say otherwise. */
const INTERACTIVE_DOCUMENTS = 64;

type CallOptions = Omit<RerankOptions, 'signal' | 'query' | 'topN' | 'onProgress' | 'timeoutMs' | 'model'>;

interface Opened {
  readonly line: Line;
  /** As the workers of the queue told it, once they were asked. */
  revision: Promise<string> | undefined;
}

interface Named {
  /** The store's. */
  readonly name: string;
  /** As it was asked for. */
  readonly asked: string;
  readonly revision?: string;
}

export class RerankCalls {
  private readonly options: KnownOptions;
  /** By queue. */
  private readonly opened = new Map<string, Promise<Opened>>();
  private isClosed = false;

  /** `own`: the client's own model, where that is a reranker, and the line to it. */
  constructor(options: KnownOptions, own: { readonly line: Line; readonly revision: string } | undefined) {
    this.options = options;
    if (own === undefined) return;
    const opened = { line: own.line, revision: Promise.resolve(own.revision) };
    this.opened.set(rerankQueue(options.model.name), Promise.resolve(opened));
  }

  /** Rejects as `ShoalClient.rerank` says. */
  async rerank({ signal, timeoutMs, deadline, ...asked }: RerankOptions): Promise<RerankResult> {
    const model = this.modelOf(asked.model);
    const limit = limited({ signal, timeoutMs, deadline }, 'scores', () => this.whyWaiting(model));
    try {
      const { line, revision } = await unlessAborted(limit.signal, () => this.reach(model));
      const terms = { ...asked, ...(deadline !== undefined && { deadline }) };
      return await this.ask(line, `${model.name}@${revision}`, terms, limit.signal);
    } catch (error) {
      if (isShoalError(error, 'FINGERPRINT_MISMATCH')) await this.forgetRevision(model);
      throw error;
    } finally {
      limit.end();
    }
  }

  /** Why what a reranker was asked for has not come yet. Throws QUEUE_UNREACHABLE, and what opening its line throws. */
  async whyWaiting(model: RerankModel): Promise<Waiting> {
    return (await this.lineOf(this.modelOf(model).name)).line.whyWaiting();
  }

  /** Takes back what was asked of any reranker. `ids`: of requests, tenant included. */
  async cancelRequests(ids: readonly string[]): Promise<CancelResult[]> {
    const opened = await this.lines();
    return (await Promise.all(opened.map(({ line }) => line.cancelRequests(ids)))).flat();
  }

  /** Gives up what is open and closes the lines; none is opened any more. */
  async close(): Promise<void> {
    this.isClosed = true;
    await Promise.all((await this.lines()).map(({ line }) => line.close()));
  }

  /** Rejects as `ShoalClient.submitRerank` says. */
  async submit({ signal, ...asked }: SubmitRerankOptions): Promise<RerankHandle> {
    const model = this.modelOf(asked.model);
    const { line, revision } = await unlessAborted(signal, () => this.reach(model));
    const { query, documents, meta, resultTtlMs = SUBMITTED_RESULT_TTL_MS } = asked;
    const { id, placing } = placed(line, asked.jobId);
    const named = `${model.name}@${revision}`;
    const call = this.callOf(line, named, { class: 'bulk', ...asked, jobId: id, resultTtlMs });
    const { requestId } = call;
    const requestOf = (jobId: string, texts: readonly string[]): RowsRequest => ({
      ...rerankRequest(jobId, query, texts, call),
      placing,
    });
    const requests: RowsRequest[] = [];
    const size = pieceSize(line, this.options.jobTexts ?? 64, documents.length);
    for await (const piece of cutChunks(itemsOf(documents), 0, size)) {
      if (signal?.aborted === true) throw abortError(signal.reason);
      const isOneJob = piece.first === 0 && documents.length <= piece.most;
      const jobId = isOneJob ? requestId : `${requestId}-${pieceName(piece)}`;
      requests.push(
        requestOf(
          jobId,
          piece.items.map(({ text }) => text),
        ),
      );
    }
    const cutAs = async (parts: readonly RequestPart[]): Promise<RowsRequest[]> =>
      [...cutAgain(documents, parts)].map(({ part, texts }) => requestOf(part.jobId, texts));
    const cell = await line.submit({ requestId, model: named, dtype: 'f32', meta, requests, cutAs }, placing, signal);
    return new Submitted(line, { id, cell, tenant: call.tenant }, OF_SCORES);
  }

  /** Rejects with QUEUE_UNREACHABLE. */
  async job(id: string, { model, tenant = this.options.tenant ?? 'default' }: RerankJobOptions): Promise<RerankHandle> {
    const { line } = await this.lineOf(this.modelOf(model).name);
    return new Submitted(line, { ...line.placeOf(id), tenant }, OF_SCORES);
  }

  /** What all jobs of a call have in common. */
  private callOf(line: Line, model: string, { documents, jobId, ...given }: CallOptions): CallTerms {
    const tenant = given.tenant ?? this.options.tenant ?? 'default';
    return {
      requestId: `${tenant}~${jobId ?? randomUUID()}`,
      model,
      tenant,
      reply: line.replyChannel,
      truncate: given.truncate ?? 'end',
      class: given.class ?? (documents.length <= INTERACTIVE_DOCUMENTS ? 'interactive' : 'bulk'),
      deadline: given.deadline === undefined ? undefined : Math.trunc(Number(given.deadline)),
      resultTtlMs: given.resultTtlMs,
      meta: given.meta,
      trace: given.trace,
    };
  }

  private async ask(
    line: Line,
    model: string,
    { query, topN, onProgress, ...given }: Omit<RerankOptions, 'signal'>,
    signal: AbortSignal | undefined,
  ): Promise<RerankResult> {
    const { documents } = given;
    const { maxInFlightJobs = line.usualInFlightJobs, jobTexts = 64 } = this.options;
    const { id: jobId, placing } = placed(line, given.jobId);
    const call = this.callOf(line, model, { ...given, jobId });
    const { requestId, truncate } = call;
    const jobIds: string[] = [];
    const terms: StreamTerms = {
      requestOf: async (id, texts) => {
        jobIds.push(id);
        return { ...rerankRequest(id, query, texts, call), placing };
      },
      jobs: line.jobs,
      maxInFlightJobs,
      size: pieceSize(line, jobTexts, documents.length),
      jobIdOf: (piece) => {
        const name = pieceName(piece);
        return name === '0' ? requestId : `${requestId}-${name}`;
      },
      hasOwnId: !placing.isNew,
      truncate,
      tokenizer: undefined,
      what: 'scores',
    };
    const scores = new Float32Array(documents.length);
    let [isTruncated, isSimulated] = [false, false];
    for await (const block of embedStream(itemsOf(documents), terms, signal === undefined ? {} : { signal })) {
      if (block.kind === 'skipped') continue;
      if (block.dims !== 1)
        throw new ShoalError('RESULT_CORRUPT', `${model} gave ${block.dims} values for a document; a score is one`);
      scores.set(block.toFloat32(), block.first);
      isTruncated ||= block.truncated === true;
      isSimulated ||= block.isSimulated;
      onProgress?.(block.first + block.rows);
    }
    const counts = countsOf(jobIds.length === 0 ? [] : await line.returnValues(jobIds).catch(() => [undefined]));
    return { scores, ranked: rankedBy(scores, topN ?? documents.length), model, ...counts, isTruncated, isSimulated };
  }

  /** The client's own model unless another is asked for. */
  private modelOf(asked: RerankModel | undefined): Named {
    const { name, revision } = partsOf(asked ?? this.options.model);
    return { name: storedName(name), asked: name, ...(revision !== undefined && { revision }) };
  }

  /** The line to a reranker, and its revision. Throws MODEL_UNKNOWN or NOT_SERVED where nobody tells it. */
  private async reach(model: Named): Promise<{ readonly line: Line; readonly revision: string }> {
    const opened = await this.lineOf(model.name);
    if (model.revision !== undefined) return { line: opened.line, revision: model.revision };
    opened.revision ??= this.toldRevision(opened.line, model).catch((error: unknown) => {
      opened.revision = undefined; // a worker may come
      throw error;
    });
    return { line: opened.line, revision: await opened.revision };
  }

  private async lineOf(name: string): Promise<Opened> {
    if (this.isClosed) throw closedError();
    const queue = rerankQueue(name);
    const known = this.opened.get(queue);
    if (known !== undefined) return known;
    const opening = openLine(this.options, { queue, name: 'rerank' }).then((line) => ({
      line,
      revision: undefined,
    }));
    this.opened.set(queue, opening);
    opening.catch(() => this.opened.delete(queue));
    return opening;
  }

  private async toldRevision(line: Line, { name, asked }: Named): Promise<string> {
    try {
      return await fleetRevision(this.options, { name: asked, queue: rerankQueue(name) });
    } catch (error) {
      const waiting = isShoalError(error, 'MODEL_UNKNOWN') ? await line.whyWaiting() : undefined;
      if (waiting?.reason !== 'not-served') throw error;
      throw new ShoalError(
        'NOT_SERVED',
        asked === name ? waiting.message : `"${asked}" is "${name}" in the store: ${waiting.message}`,
        { model: name },
        error,
      );
    }
  }

  /** Workers serve another revision than they told: the next call asks them again. */
  private async forgetRevision({ name }: Named): Promise<void> {
    const opened = await this.opened.get(rerankQueue(name));
    if (opened !== undefined) opened.revision = undefined;
  }

  private async lines(): Promise<Opened[]> {
    const opened = await Promise.all([...this.opened.values()].map((one) => one.catch(() => undefined)));
    return opened.filter((one) => one !== undefined);
  }
}

function itemsOf(documents: readonly string[]): { readonly text: string }[] {
  return documents.map((text) => ({ text }));
}

/** Requests for scores: rows of one value. */
const OF_SCORES = {
  what: 'scores',
  toResult: ({ record: { model, meta }, rows, truncated: isTruncated, isSimulated, returned }: Gathered) => {
    if (rows.dims !== 1 || !(rows.vectors instanceof Float32Array))
      throw new ShoalError('RESULT_CORRUPT', `${model} gave ${rows.dims} values for a document; a score is one`);
    const { vectors: scores } = rows;
    const ranked = rankedBy(scores, scores.length);
    return {
      scores,
      ranked,
      model,
      ...countsOf(returned),
      isTruncated,
      isSimulated,
      ...(meta !== undefined && { meta }),
    };
  },
} as const;

function partsOf(asked: RerankModel): Exclude<RerankModel, string> {
  if (typeof asked !== 'string') return asked;
  const [name = '', revision] = asked.split('@');
  return revision === undefined ? { name } : { name, revision };
}

/** Best first, equal ones in their order. */
function rankedBy(scores: Float32Array, topN: number): number[] {
  return Array.from(scores, (_, index) => index)
    .sort((a, b) => scores[b]! - scores[a]! || a - b)
    .slice(0, topN);
}

/** What workers counted over all jobs; undefined where the queue has forgotten what one of them said. */
function countsOf(returned: readonly (string | undefined)[]): {
  readonly tokens: number | undefined;
  readonly truncated: number | undefined;
} {
  const counts = returned.map((text): unknown => JSON.parse(text ?? 'null'));
  const sum = (field: 'tokens' | 'truncated'): number | undefined =>
    counts.reduce<number | undefined>((total, one) => {
      const count: unknown = typeof one === 'object' && one !== null ? Reflect.get(one, field) : undefined;
      return total === undefined || typeof count !== 'number' ? undefined : total + count;
    }, 0);
  return { tokens: sum('tokens'), truncated: sum('truncated') };
}
