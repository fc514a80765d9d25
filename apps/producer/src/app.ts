// The HTTP interface: routes, and around them what holds for all: OpenAI's error bodies, metrics, the OpenAPI page.
// Fastify checks and serializes nothing here; it parses JSON, bounds bodies and finds routes. Where vectors come from
// is the Embedder's business.

import { STATUS_CODES, maxHeaderSize } from 'node:http';
import type { Socket } from 'node:net';
import swagger from '@fastify/swagger';
import { fastify, type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import type { Logger } from '@shoal/core';
import type { MetricRegistry, PRODUCER_METRICS } from '@shoal/ops';
import type { QueueDepth } from '@shoal/queue';
import type { Embedder } from './embedder.ts';
import { checkModel, parseEmbeddingsRequest, type ServedModel } from './embeddings-request.ts';
import { toResponse } from './embeddings-response.ts';
import {
  COSINE_SCHEMA,
  EMBEDDINGS_SCHEMA,
  HEALTH_SCHEMA,
  METRICS_SCHEMA,
  MODELS_SCHEMA,
  MODEL_SCHEMA,
  READY_SCHEMA,
  RESCORE_SCHEMA,
  SPREAD_SCHEMA,
  TOPK_SCHEMA,
} from './openapi.ts';
import { withPatience, type PatienceTerms } from './patience.ts';
import { parseJson } from './json-body.ts';
import { invalid, overloaded, toProblem, unavailable, type Problem } from './problem.ts';
import { RequestCounts } from './request-counts.ts';
import { parseCosine, parseRescore, parseSpread, parseTopK } from './similarity-request.ts';
import { toRankings, toScores } from './similarity-response.ts';

export interface AppParts {
  readonly model: ServedModel & { readonly maxTokens: number };
  readonly embedder: Embedder;
  /** How long answers of the queue `similarity` are waited for. */
  readonly similarity: Omit<PatienceTerms, 'what'>;
  readonly metrics: MetricRegistry<typeof PRODUCER_METRICS>;
  /** Rejects when the queue server does not answer; may wait long when it hangs. */
  readonly depth: () => Promise<QueueDepth>;
  readonly maxOpenRequests: number;
  readonly version: string;
  readonly log: Logger;
}

/** 2,048 inputs of 512 tokens are about 5 MB of English; what is far above that is a mistake of the caller. */
const MAX_BODY_BYTES = 16 * 1024 * 1024;
/** How long a request may take to arrive. */
const ARRIVAL_MS = 60_000;
/** An answer on readiness that comes later is of no use to whoever asks. */
const READY_MS = 2_000;
const RETRY_BUSY_SECONDS = 1;

export async function createApp(parts: AppParts): Promise<FastifyInstance> {
  const counts = new RequestCounts(parts.metrics);
  const app = fastify({
    bodyLimit: MAX_BODY_BYTES,
    requestTimeout: ARRIVAL_MS,
    exposeHeadRoutes: true,
    return503OnClosing: false, // before any hook, so that nobody would count it; `closer` refuses instead
    frameworkErrors: (error, request, reply) => {
      counts.began(request, reply); // no hook runs for these
      void answerProblem(error, request, reply, parts.log);
    },
    clientErrorHandler: (error, socket) => answerUnparsed(error, socket, counts),
  });
  app.setValidatorCompiler(() => () => true);
  app.setSerializerCompiler(() => (data) => JSON.stringify(data));
  app.setErrorHandler((error, request, reply) => answerProblem(error, request, reply, parts.log));
  app.setNotFoundHandler((request, reply) => answerProblem(notFound(app, request, reply), request, reply, parts.log));
  app.removeAllContentTypeParsers();
  app.addContentTypeParser(
    'application/json',
    { parseAs: 'buffer' },
    parseJson(app.getDefaultJsonParser('error', 'error')),
  );
  app.addHook('onRequest', async (request, reply) => counts.began(request, reply));
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Shoal',
        description:
          'Embeddings through a durable queue, in the shape of OpenAI’s API, and questions about similarity.',
        version: parts.version,
      },
    },
  });
  // Routes are registered after the plugin has loaded, so that it sees them.
  await app.register(async (routes) => {
    const inTurn = turns(parts);
    addEmbeddings(routes, parts, inTurn);
    addSimilarity(routes, parts, inTurn);
    addModels(routes, parts);
    addOperations(routes, parts);
  });
  return app;
}

// ---- routes -------------------------------------------------------------------------------------------------------

function addEmbeddings(app: FastifyInstance, { model, embedder, metrics }: AppParts, inTurn: InTurn): void {
  app.post('/v1/embeddings', { schema: EMBEDDINGS_SCHEMA }, async (request, reply) => {
    const asked = parseEmbeddingsRequest(request.body, model);
    return inTurn(async () => {
      const { result, tokens } = await embedder.embed(asked, callerGone(reply));
      metrics.count('shoal_http_texts_total', {}, result.rows);
      metrics.count('shoal_http_tokens_total', {}, tokens);
      return toResponse(result, model.name, asked.encoding, tokens);
    });
  });
}

/** Texts among the queries are embedded on the way, by the model that is served. */
function addSimilarity(app: FastifyInstance, { embedder, similarity }: AppParts, inTurn: InTurn): void {
  const { textClient: client } = embedder;
  const ask = <Answer>(reply: FastifyReply, call: (signal: AbortSignal) => Promise<Answer>): Promise<Answer> =>
    inTurn(() => withPatience({ ...similarity, what: 'no answer' }, callerGone(reply), call));
  app.post('/v1/similarity/topk', { schema: TOPK_SCHEMA }, async (request, reply) => {
    const { collection, queries, ...options } = parseTopK(request.body);
    return toRankings(await ask(reply, (signal) => client.topK(collection, queries, { ...options, signal })));
  });
  app.post('/v1/similarity/rescore', { schema: RESCORE_SCHEMA }, async (request, reply) => {
    const { collection, queries, candidates, ...options } = parseRescore(request.body);
    return toRankings(
      await ask(reply, (signal) => client.rescore(collection, queries, candidates, { ...options, signal })),
    );
  });
  app.post('/v1/similarity/cosine', { schema: COSINE_SCHEMA }, async (request, reply) => {
    const { queries, others, ...options } = parseCosine(request.body);
    return toScores(await ask(reply, (signal) => client.cosine(queries, others, { ...options, signal })));
  });
  app.post('/v1/similarity/spread', { schema: SPREAD_SCHEMA }, async (request, reply) => {
    const { graph, seeds, options } = parseSpread(request.body);
    return toRankings(await ask(reply, (signal) => client.spread(graph, seeds, { ...options, signal })));
  });
}

type InTurn = <Answer>(answer: () => Promise<Answer>) => Promise<Answer>;

/** Answers so many requests at a time, whatever they ask for; those beyond are refused. */
function turns({ metrics, maxOpenRequests }: AppParts): InTurn {
  let open = 0;
  return async (answer) => {
    if (open >= maxOpenRequests)
      throw overloaded(
        'too_many_requests',
        `${open} requests are being answered, which is the most at a time; try again in a moment`,
        RETRY_BUSY_SECONDS,
      );
    metrics.set('shoal_http_requests_open', {}, ++open);
    try {
      return await answer();
    } finally {
      metrics.set('shoal_http_requests_open', {}, --open);
    }
  };
}

/** Aborted when the connection closes before the answer has been written. */
function callerGone(reply: FastifyReply): AbortSignal {
  const gone = new AbortController();
  reply.raw.once('close', () => {
    if (!reply.raw.writableFinished) gone.abort();
  });
  return gone.signal;
}

function addModels(app: FastifyInstance, { model }: AppParts): void {
  const { name: id, revision, dims: dimensions, maxTokens } = model;
  const shown = { id, object: 'model', created: 0, owned_by: 'shoal', revision, dimensions, max_tokens: maxTokens };
  app.get('/v1/models', { schema: MODELS_SCHEMA }, async () => ({ object: 'list', data: [shown] }));
  app.get<{ Params: { id: string } }>('/v1/models/:id', { schema: MODEL_SCHEMA }, async (request) => {
    checkModel(request.params.id, model);
    return shown;
  });
}

function addOperations(app: FastifyInstance, { metrics, depth }: AppParts): void {
  app.get('/healthz', { schema: HEALTH_SCHEMA }, async () => ({ status: 'ok' }));
  // Without workers it is ready all the same: requests wait, and a fleet that scales from zero needs somebody to take
  // them.
  app.get('/readyz', { schema: READY_SCHEMA }, async () => {
    const { workers, jobs } = await inTime(depth());
    return { status: 'ready', workers, waiting: jobs.waiting };
  });
  app.get('/metrics', { schema: METRICS_SCHEMA }, async (_request, reply) =>
    reply.type(metrics.contentType).send(await metrics.text()),
  );
  app.get('/openapi.json', { schema: { hide: true } }, async () => app.swagger());
}

async function inTime(depth: Promise<QueueDepth>): Promise<QueueDepth> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(
      () =>
        reject(
          unavailable(
            'queue_unreachable',
            `the queue server has not answered for ${READY_MS / 1_000} s`,
            RETRY_BUSY_SECONDS,
          ),
        ),
      READY_MS,
    );
  });
  return Promise.race([depth, late]).finally(() => clearTimeout(timer));
}

// ---- around all routes --------------------------------------------------------------------------------------------

function answerProblem(error: unknown, request: FastifyRequest, reply: FastifyReply, log: Logger): FastifyReply {
  const problem = toProblem(error);
  const { status, code, retryAfterSeconds } = problem.facts;
  if (status >= 500)
    log.warn(
      { route: request.routeOptions.url, status, code, err: problem.cause ?? problem },
      'request could not be answered',
    );
  if (retryAfterSeconds !== undefined) void reply.header('retry-after', String(retryAfterSeconds));
  return reply.status(status).type('application/json; charset=utf-8').send(problem.body);
}

/**
 * What Node's parser refuses comes without a request: the answer is written by hand, and the connection is of no
 * further use.
 */
function answerUnparsed(error: NodeJS.ErrnoException, socket: Socket, counts: RequestCounts): void {
  if (error.code === 'ECONNRESET' || socket.destroyed) return;
  if (!socket.writable) return void socket.destroy();
  const { facts, body } = unparsed(error.code);
  counts.refused(socket, facts.status);
  const text = JSON.stringify(body);
  socket.write(
    `HTTP/1.1 ${facts.status} ${STATUS_CODES[facts.status]}\r\ncontent-type: application/json; ` +
      `charset=utf-8\r\ncontent-length: ${Buffer.byteLength(text)}\r\nconnection: close\r\n\r\n${text}`,
  );
  socket.destroySoon(); // whoever sends nonsense may never close its end
}

function unparsed(code: string | undefined): Problem {
  switch (code) {
    case 'HPE_HEADER_OVERFLOW':
      return invalid(
        'headers_too_large',
        null,
        `the headers of the request are too large; send fewer than ${maxHeaderSize} bytes of them`,
        431,
      );
    case 'ERR_HTTP_REQUEST_TIMEOUT':
      return invalid('request_timeout', null, `the request did not arrive within ${ARRIVAL_MS / 1_000} s`, 408);
    default:
      return invalid(
        'bad_request',
        null,
        `what was sent is not an HTTP request${code === undefined ? '' : ` (${code})`}`,
      );
  }
}

function notFound(app: FastifyInstance, { method, url }: FastifyRequest, reply: FastifyReply): Error {
  const [path = ''] = url.split('?');
  const others = (['GET', 'HEAD', 'POST'] as const).filter((other) => app.hasRoute({ method: other, url: path }));
  if (others.length > 0) {
    void reply.header('allow', others.join(', '));
    return invalid(
      'method_not_supported',
      null,
      `${method} is not possible on ${path}; use ${others.join(' or ')}`,
      405,
    );
  }
  return invalid('unknown_url', null, `there is nothing at ${method} ${path.slice(0, 200)}; see /openapi.json`, 404);
}
