// The HTTP interface over made-up vectors, without queue or worker: for tests of what lies around its routes.

import { connect, type Socket } from 'node:net';
import { once } from 'node:events';
import { ShoalError } from '@shoal/contract';
import { noLog, noTracer } from '@shoal/core';
import { PRODUCER_METRICS, createMetrics } from '@shoal/ops';
import { parseMetrics } from '@shoal/ops/testing';
import { ANYBODY } from '../access/caller.ts';
import { createApp } from '../app.ts';
import type { AppParts } from '../app-parts.ts';
import type { Served } from '../catalogue.ts';
import { closer } from '../close-app.ts';
import type { Answering } from '../gate.ts';
import type { EmbeddingsRequest } from '../embeddings-request.ts';
import { rowsAsked } from '../embeddings-request.ts';
import { invalid } from '../problem.ts';

const DIMS = 384;
/** Document n has the score 1 / (1 + n). */
export const RERANKER = { name: 'my-reranker', revision: 'def456' };

export interface AppUnderTest {
  readonly port: number;
  readonly url: string;
  /** What was asked for, in the order in which it was. */
  readonly asked: EmbeddingsRequest[];
  value(metric: string, labels?: Readonly<Record<string, string>>): Promise<number | undefined>;
  post(body: unknown, headers?: Readonly<Record<string, string>>, path?: string): Promise<Response>;
  /** A connection that says what it is told to. */
  connection(): Promise<Socket>;
  stop(): Promise<void>;
}

export interface AppUnderTestOptions {
  readonly gate?: Partial<AppParts['gate']>;
  readonly parts?: Partial<AppParts>;
  /** Called before vectors are given; a request is open for as long as it lasts. */
  readonly whileOpen?: (answering: Answering) => Promise<void>;
}

/** The model of the app, which no file has. */
export const MINILM = {
  name: 'minilm',
  revision: 'abc123',
  dims: DIMS,
  vocabularySize: 30_522,
  rowEnds: { first: 101, last: 102 },
  tokenRows: 'whole',
  truncate: 'error',
  isNormalized: true,
  prompts: { query: '', passage: '' },
  maxTokens: 256,
} as const;

/** Gives each text a vector of equal values of length 1, and three tokens. */
export function embedderOf(
  modelDims = DIMS,
  asked: EmbeddingsRequest[] = [],
  whileOpen: (answering: Answering) => Promise<void> = async () => undefined,
): Served['embedder'] {
  return {
    embed: async (request, answering) => {
      asked.push(request);
      await whileOpen(answering);
      const rows = rowsAsked(request);
      const dims = request.dimensions ?? modelDims;
      const vectors = new Float32Array(rows * dims).fill(1 / Math.sqrt(dims));
      const row = (at: number): Float32Array => vectors.subarray(at * dims, (at + 1) * dims);
      const block = { rows, dims, dtype: 'f32', vectors, scales: undefined, row, toFloat32: () => vectors } as const;
      return {
        result: { ...block, tokens: undefined, truncated: [], isSimulated: false },
        tokens: 3 * rows,
        truncated: 0,
      };
    },
    tokens: async (texts) => texts.map((text) => ({ ids: [101, ...Buffer.from(text), 102], isTruncated: false })),
    texts: async (rows) => rows.map((ids) => String.fromCharCode(...ids)),
    textClient: { topK: nobody, rescore: nobody, cosine: nobody, spread: nobody },
  };
}

/** Of the app: one that is everybody's, and one of a tenant. */
const COLLECTIONS = [
  { name: 'notes', versions: [2, 1], rows: 7, dims: DIMS, dtype: 'f16', createdMs: 5_000, model: 'minilm@abc123' },
  { name: 'private', versions: [1], rows: 3, dims: DIMS, dtype: 'f32', createdMs: 6_000, owner: 'acme' },
] as const;

async function nobody(): Promise<never> {
  throw new ShoalError('COLLECTION_UNKNOWN', 'there are no collections here');
}

export async function startApp({
  gate = {},
  parts = {},
  whileOpen = async () => undefined,
}: AppUnderTestOptions = {}): Promise<AppUnderTest> {
  const metrics = createMetrics(PRODUCER_METRICS);
  const asked: EmbeddingsRequest[] = [];
  const app = await createApp({
    models: [{ model: MINILM, embedder: embedderOf(DIMS, asked, whileOpen) }],
    reranker: {
      served: async () => [RERANKER],
      named: async (model) => {
        if (model === undefined || model === RERANKER.name || model === `${RERANKER.name}@${RERANKER.revision}`)
          return RERANKER;
        throw invalid('model_not_found', 'model', `there is no reranker "${model}" here`, 404);
      },
      rerank: async ({ documents, topN }, { name, revision }) => ({
        scores: Float32Array.from(documents, (_, at) => 1 / (1 + at)),
        ranked: documents.map((_, at) => at).slice(0, topN),
        model: `${name}@${revision}`,
        tokens: 3 * documents.length,
        truncated: 0,
        isTruncated: false,
        isSimulated: false,
      }),
    },
    similarity: { backlog: async () => undefined, refusedWrites: { whileWaiting: () => () => undefined } },
    collections: { all: async () => COLLECTIONS },
    metrics,
    readiness: async () => ({
      reason: 'busy',
      message: '1 worker serves embed-minilm, 0 jobs wait and 0 run',
      waiting: 0,
      active: 0,
      workers: 1,
      drained: 0,
      isPaused: false,
      refusal: undefined,
    }),
    readyNeedsWorkers: false,
    doorman: { callerOf: () => ANYBODY },
    allowances: { take: async () => undefined, spent: () => undefined },
    version: '0.0.0',
    tracer: noTracer,
    log: noLog,
    ...parts,
    gate: {
      host: '127.0.0.1',
      maxOpenRequests: 64,
      maxWaitingRequests: 64,
      maxHttpBytes: 64 * 1024 * 1024,
      maxHttpConnections: 256,
      requestTimeoutMs: 20_000,
      metrics,
      log: noLog,
      ...gate,
    },
  });
  const close = closer(app);
  const url = await app.listen({ host: '127.0.0.1', port: 0 });
  const port = Number(new URL(url).port);
  return {
    port,
    url,
    asked,
    value: async (metric, labels) => parseMetrics(await metrics.text()).value(metric, labels),
    post: (body, headers = {}, path = '/v1/embeddings') =>
      fetch(url + path, {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...headers },
        body: typeof body === 'string' ? body : JSON.stringify(body),
      }),
    connection: async () => {
      const socket = connect(port, '127.0.0.1');
      socket.on('error', () => undefined); // a server that closes it is what some tests are about
      await once(socket, 'connect');
      return socket;
    },
    stop: close,
  };
}
