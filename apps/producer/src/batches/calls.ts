// One request of a batch or a job: its body checked as the route of its endpoint does, and answered by the queue as bulk
// work of its tenant. Requests for vectors on equal terms go into one job; where that fails, each is asked alone in the end, so
// that an error is that of the request at fault. Knows no files and no leases.

import { isShoalError, type ErrorCode, type Trace } from '@shoal/contract';
import { firstRowOf, type EmbedResult } from '@shoal/client';
import { tenantOf } from '../access/caller.ts';
import type { Catalogue } from '../catalogue.ts';
import { checkModel, parseEmbeddingsRequest, type EmbeddingsRequest, type ServedModel } from '../embeddings-request.ts';
import { toResponse } from '../embeddings-response.ts';
import { Problem, toProblem } from '../problem.ts';
import { parseRerankRequest, type RerankRequest } from '../rerank-request.ts';
import { toRerankResponse } from '../rerank-response.ts';
import { withPlace, type Reranker, type ServedReranker } from '../reranker.ts';
import { toTokenTexts, tooLong } from '../token-rows.ts';
import type { BulkClients } from './bulk-clients.ts';
import type { Endpoint } from './records.ts';

export interface CallsParts {
  readonly catalogue: Pick<Catalogue, 'ofBody' | 'named'>;
  readonly bulk: Pick<BulkClients, 'clientOf' | 'tokenizerOf'>;
  readonly reranker: Pick<Reranker, 'named'>;
}

/** What became of one text. */
export interface EmbeddedRow {
  readonly vector: Float32Array;
  readonly tokens: number;
  readonly isTruncated: boolean;
  readonly isSimulated: boolean;
}

export interface Embeddings {
  readonly kind: 'embeddings';
  readonly model: ServedModel;
  readonly asked: EmbeddingsRequest;
  readonly texts: readonly string[];
  readonly cut: number;
}

/** A request whose body was checked. */
export type Call =
  | Embeddings
  | { readonly kind: 'rerank'; readonly asked: RerankRequest; readonly model: ServedReranker };

export interface CallTerms {
  /** Of the jobs that this becomes; asked again with the same, results are found that are there already. */
  readonly id: string;
  readonly tenant: string;
  readonly trace?: Trace | undefined;
  readonly signal: AbortSignal;
}

/** The body of the answer and its tokens, or what is wrong with the request. */
export type CallAnswer = { readonly body: object; readonly tokens: number } | { readonly problem: Problem };

/** Results lie so long for whoever starts again, in milliseconds. */
const RESULT_TTL_MS = 24 * 3_600_000;

/** What fails together is asked again in pieces of so many, before each is asked alone. */
const SMALL_GROUP = 64;

/** What is wrong with the queue or its workers, and not with a request: it is asked again later. */
const NOT_OF_THE_REQUEST: ReadonlySet<ErrorCode> = new Set<ErrorCode>([
  'QUEUE_UNREACHABLE',
  'QUEUE_FULL',
  'QUEUE_REFUSES_WRITES',
  'QUEUE_DAMAGED',
  'QUEUE_UNSAFE',
  'ADMISSION_REFUSED',
  'INTERRUPTED',
  'CANCELLED', // by whoever had the lease before, or by an operator: a batch itself is cancelled otherwise
  'NOT_SERVED',
  'TOKENIZER_MISMATCH',
  'FINGERPRINT_MISMATCH',
  'JOB_VERSION_UNKNOWN',
  'RESULT_EXPIRED',
  'RESULT_TAKEN',
  'RESULT_CORRUPT',
  'PAYLOAD_ELSEWHERE',
  'PAYLOAD_LOST',
  'INPUT_LOST',
  'DEVICE_LOST',
  'EXECUTOR_LOST',
  'LEASE_LOST',
  'QUEUE_STUCK',
]);

/** Whether a failure is none of the request's. */
export function isPassing(error: unknown): boolean {
  return isShoalError(error) && NOT_OF_THE_REQUEST.has(error.code);
}

/** Texts, or documents, that a call asks about. */
export function rowsOf(call: Call): number {
  return call.kind === 'rerank' ? call.asked.documents.length : call.texts.length;
}

/** Real tokens of what was answered. */
export function tokensOf(answers: readonly CallAnswer[]): number {
  return answers.reduce((sum, answer) => ('body' in answer ? sum + answer.tokens : sum), 0);
}

export class Calls {
  private readonly parts: CallsParts;

  constructor(parts: CallsParts) {
    this.parts = parts;
  }

  /** Whether the model that a body names is served. Rejects with a Problem where not, and QUEUE_UNREACHABLE. */
  async checkModel(endpoint: Endpoint, model: unknown): Promise<void> {
    const { catalogue, reranker } = this.parts;
    if (endpoint === '/v1/embeddings') checkModel(model, catalogue.ofBody({ model }).model);
    else if (typeof model === 'string') await reranker.named(model);
  }

  /** Rejects with a Problem that names the field, as the route would; QUEUE_UNREACHABLE. */
  async check(endpoint: Endpoint, body: unknown): Promise<Call> {
    if (endpoint === '/v1/rerank') {
      const asked = parseRerankRequest(body);
      return { kind: 'rerank', asked, model: await this.parts.reranker.named(asked.model) };
    }
    const { model } = this.parts.catalogue.ofBody(body);
    const asked = parseEmbeddingsRequest(body, model);
    const { texts, cut } =
      asked.input.kind === 'texts'
        ? { texts: asked.input.texts, cut: 0 }
        : toTokenTexts(asked.input.rows, this.parts.bulk.tokenizerOf(model.name), asked.truncate);
    return { kind: 'embeddings', model, asked, texts, cut };
  }

  /** What calls must have in common to be asked together; undefined: it is asked alone. */
  groupOf(call: Call): string | undefined {
    if (call.kind === 'rerank') return undefined;
    const { input, truncate, prompt, dimensions, normalize, user } = call.asked;
    return JSON.stringify([call.model.name, input.kind, truncate, prompt, dimensions, normalize, user]);
  }

  /**
   * Answers in order. `calls` are one, or several of one group. Rejects only with what is passing (`isPassing`), and
   * when the signal is aborted.
   */
  async answer(calls: readonly Call[], terms: CallTerms): Promise<readonly CallAnswer[]> {
    try {
      return await this.ask(calls, terms);
    } catch (error) {
      if (terms.signal.aborted || isPassing(error)) throw error;
      // the server takes or tokenizes texts otherwise than when these were asked before
      if (isShoalError(error, 'JOB_ID_CONFLICT') && !terms.id.endsWith('.again'))
        return this.answer(calls, { ...terms, id: `${terms.id}.again` });
      if (calls.length === 1) return [{ problem: toProblem(error) }];
      const size = calls.length > SMALL_GROUP ? SMALL_GROUP : 1;
      const parts = Array.from({ length: Math.ceil(calls.length / size) }, (_, at) =>
        this.answer(calls.slice(at * size, (at + 1) * size), { ...terms, id: `${terms.id}.${at}` }),
      );
      return (await Promise.all(parts)).flat();
    }
  }

  /** The answer of a call for vectors whose vector somebody has: a row of its own. */
  embedded({ model, asked, cut }: Embeddings, row: EmbeddedRow): CallAnswer {
    const { vector, tokens, isTruncated, isSimulated } = row;
    const result = { rows: 1, dims: vector.length, vectors: vector };
    const usage = { tokens, truncated: cut + (isTruncated ? 1 : 0) };
    return { body: marked(toResponse(result, model.name, asked.encoding, usage).whole(), { isSimulated }), tokens };
  }

  private async ask(calls: readonly Call[], terms: CallTerms): Promise<readonly CallAnswer[]> {
    const [first] = calls;
    if (first === undefined) return [];
    if (first.kind === 'rerank') return [await this.rerank(first, terms)];
    return this.embed(calls as readonly Embeddings[], first, terms);
  }

  private async embed(
    calls: readonly Embeddings[],
    { model, asked: { input, truncate, prompt, dimensions, normalize, user } }: Embeddings,
    { id, tenant, trace, signal }: CallTerms,
  ): Promise<readonly CallAnswer[]> {
    const { bulk } = this.parts;
    const client = await bulk.clientOf(input.kind, model.name);
    const texts = calls.flatMap((call) => call.texts);
    const result = await client
      .embed(texts, {
        jobId: `${id}.${model.revision.slice(0, 12)}`,
        class: 'bulk',
        tenant: tenantOf({ tenant }, user),
        truncate,
        signal,
        resultTtlMs: RESULT_TTL_MS,
        ...(trace !== undefined && { trace }),
        ...(prompt !== undefined && { prompt }),
        output: { ...(dimensions !== undefined && { dimensions }), ...(normalize && { normalize }) },
      })
      .catch((error: unknown) => Promise.reject(withInput(error, bulk.tokenizerOf(model.name).maxTokens)));
    let first = 0;
    return calls.map(({ asked, texts: own, cut }) => {
      const rows = { first, end: (first += own.length) };
      const { tokens, truncated } = countsOf(result, rows);
      const vectors = result.vectors.subarray(rows.first * result.dims, rows.end * result.dims);
      const usage = { tokens, truncated: cut + truncated };
      const list = toResponse({ rows: own.length, dims: result.dims, vectors }, model.name, asked.encoding, usage);
      return { body: marked(list.whole(), result), tokens };
    });
  }

  private async rerank(
    { asked, model }: Extract<Call, { kind: 'rerank' }>,
    { id, tenant, trace, signal }: CallTerms,
  ): Promise<CallAnswer> {
    const { query, documents, truncate, topN } = asked;
    const client = await this.parts.bulk.clientOf('texts');
    const result = await client
      .rerank({
        model,
        query,
        documents,
        truncate,
        ...(topN !== undefined && { topN }),
        jobId: `${id}.${model.revision.slice(0, 12)}`,
        class: 'bulk',
        tenant,
        signal,
        resultTtlMs: RESULT_TTL_MS,
        ...(trace !== undefined && { trace }),
      })
      .catch((error: unknown) => Promise.reject(withPlace(error)));
    const list = toRerankResponse(result, asked, { id, model: model.name });
    return { body: marked(list.whole(), result), tokens: result.tokens ?? 0 };
  }
}

/** The client counts rows by job; a caller counts inputs. Of several calls it is not said: each is asked alone then. */
function withInput(error: unknown, maxTokens: number): unknown {
  if (!isShoalError(error, 'INPUT_TOO_LONG')) return error;
  const { jobId, row } = error.fields;
  if (typeof row !== 'number') return error;
  return tooLong(firstRowOf(String(jobId)) + row, undefined, maxTokens);
}

/** Answers do not show that they are those of a trial. */
function marked(body: object, { isSimulated }: { readonly isSimulated: boolean }): object {
  return isSimulated ? { ...body, simulated: true } : body;
}

function countsOf(
  { tokens, truncated }: Pick<EmbedResult, 'tokens' | 'truncated'>,
  { first, end }: { readonly first: number; readonly end: number },
): { readonly tokens: number; readonly truncated: number } {
  return {
    tokens: (tokens ?? []).slice(first, end).reduce((sum, count) => sum + count, 0),
    truncated: typeof truncated === 'boolean' ? 0 : truncated.filter((row) => row >= first && row < end).length,
  };
}
