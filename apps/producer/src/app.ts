// The HTTP interface: routes, and around them what holds for all: OpenAI's error bodies, metrics, the OpenAPI page.
// Fastify checks and serializes nothing here; it parses JSON, bounds bodies and finds routes. Where vectors come from
// is the Embedder's business.

import { randomUUID } from 'node:crypto';
import { STATUS_CODES, maxHeaderSize, type IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { setTimeout as after } from 'node:timers/promises';
import swagger from '@fastify/swagger';
import { fastify, type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import type { RerankResult, ShoalClient } from '@shoal/client';
import type { Logger } from '@shoal/core';
import type { MetricRegistry, PRODUCER_METRICS } from '@shoal/ops';
import type { QueueReadiness, QueueService } from '@shoal/queue';
import type { Embedder } from './embedder.ts';
import { checkModel, isModel, parseEmbeddingsRequest, rowsAsked, type ServedModel } from './embeddings-request.ts';
import { answerBytes, toResponse } from './embeddings-response.ts';
import { Gate, type GateOptions } from './gate.ts';
import type { JsonList } from './json-stream.ts';
import {
  COSINE_SCHEMA,
  EMBEDDINGS_SCHEMA,
  HEALTH_SCHEMA,
  METRICS_SCHEMA,
  MODELS_SCHEMA,
  MODEL_SCHEMA,
  READY_SCHEMA,
  RERANK_SCHEMA,
  RESCORE_SCHEMA,
  SPREAD_SCHEMA,
  TEI_RERANK_SCHEMA,
  TOPK_SCHEMA,
  components,
} from './openapi.ts';
import { withPatience, type PatienceTerms } from './patience.ts';
import {
  CALLER_LEFT,
  invalid,
  overloaded,
  spreadSeconds,
  toProblem,
  unavailable,
  writesRefused,
  type Problem,
} from './problem.ts';
import { ARRIVAL } from './read-body.ts';
import { RequestCounts } from './request-counts.ts';
import { parseRerankRequest, parseTeiRequest, type RerankRequest } from './rerank-request.ts';
import { rerankBytes, toRerankResponse, toTeiResponse } from './rerank-response.ts';
import type { Reranker, ServedReranker } from './reranker.ts';
import { parseCosine, parseRescore, parseSpread, parseTopK, rowsOf } from './similarity-request.ts';
import { rankingBytes, toRankings, toScores } from './similarity-response.ts';

export interface AppParts {
  readonly model: ServedModel & { readonly maxTokens: number };
  readonly embedder: Pick<Embedder, 'embed'> & {
    readonly textClient: Pick<ShoalClient, 'topK' | 'rescore' | 'cosine' | 'spread'>;
  };
  readonly reranker: Pick<Reranker, 'served' | 'named' | 'rerank'>;
  /** How long answers of the queue `similarity` are waited for. */
  readonly similarity: Omit<PatienceTerms, 'what' | 'timeoutMs'>;
  readonly metrics: MetricRegistry<typeof PRODUCER_METRICS>;
  /** Rejects when the queue server does not answer; may wait long when it hangs. */
  readonly readiness: () => Promise<QueueReadiness>;
  readonly readyNeedsWorkers: boolean;
  /** Undefined, or resolved so: not known. Never rejects. */
  readonly service?: (() => Promise<QueueService | undefined>) | undefined;
  readonly gate: GateOptions;
  readonly version: string;
  readonly log: Logger;
}

/** How long the headers of a request may take to arrive; read-body.ts has the limits of what follows. */
const HEADERS_MS = 15_000;
/** Of a request that never reaches a route, and whose body nobody reads. */
const ARRIVAL_MS = 60_000;
const LOOK_AT_CONNECTIONS_MS = 2_000;
/** An answer on readiness that comes later is of no use to whoever asks. */
const READY_MS = 2_000;
/** A list of models does not wait for a queue server that hangs. */
const SERVICE_MS = 1_000;
const RETRY_BUSY_SECONDS = 1;
/** Beyond those that are counted, to be told that there are too many. */
const SPARE_CONNECTIONS = 8;

export async function createApp(parts: AppParts): Promise<FastifyInstance> {
  const counts = new RequestCounts(parts.metrics);
  const gate = new Gate(parts.gate);
  const app = fastify({
    bodyLimit: ARRIVAL.mostBytes,
    requestTimeout: ARRIVAL_MS,
    http: {
      headersTimeout: HEADERS_MS,
      connectionsCheckingInterval: LOOK_AT_CONNECTIONS_MS,
      requireHostHeader: false, // the gate asks for it, in words of OpenAI's shape
    },
    routerOptions: { ignoreTrailingSlash: true, ignoreDuplicateSlashes: true },
    // `GET http://name/path` asks for the path; the gate looks at the name
    rewriteUrl: ({ url = '/' }) => url.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, '') || '/',
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
  app.addHook('onRequest', async (request, reply) => counts.began(request, reply));
  gate.addTo(app);
  app.addHook('onRequest', async (request, reply) => {
    if (request.is404) throw notFound(app, request, reply); // before anything is said of its body
  });
  refuseWhatIsNoRequest(app, gate, counts);
  for (const schema of components(parts.model)) app.addSchema(schema);
  await app.register(swagger, {
    refResolver: { buildLocalReference: ({ $id }) => String($id) },
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Shoal',
        description:
          'Embeddings through a durable queue, in the shape of OpenAI’s API, reranking in Cohere’s and Jina’s, and ' +
          'questions about similarity.',
        version: parts.version,
      },
    },
  });
  // Routes are registered after the plugin has loaded, so that it sees them.
  await app.register(async (routes) => {
    addEmbeddings(routes, parts, gate);
    addReranking(routes, parts, gate);
    addSimilarity(routes, parts, gate);
    addModels(routes, parts);
    addOperations(routes, parts);
  });
  return app;
}

// ---- routes -------------------------------------------------------------------------------------------------------

/** Vectors do not show that they are those of a trial. */
async function tellTrial(reply: FastifyReply, { service }: Pick<AppParts, 'service'>): Promise<void> {
  if ((await service?.()) === 'simulation') void reply.header('x-shoal-simulated', '1');
}

/** The same as a field; no part of it where the model is computed. The queue server may be away. */
async function simulatedNow({ service }: Pick<AppParts, 'service'>): Promise<{ readonly simulated?: true }> {
  if (service === undefined) return {};
  const found = await Promise.race([service(), after(SERVICE_MS, undefined, { ref: false })]);
  return found === 'simulation' ? { simulated: true } : {};
}

function addEmbeddings(app: FastifyInstance, { model, embedder, metrics, service }: AppParts, gate: Gate): void {
  app.post('/v1/embeddings', { schema: EMBEDDINGS_SCHEMA }, async (request, reply) => {
    const asked = parseEmbeddingsRequest(takenBody(request), model);
    const bytes = answerBytes(rowsAsked(asked), asked.dimensions ?? model.dims);
    return gate.inTurn(request, reply, bytes, async (answering) => {
      const { result, ...usage } = await embedder.embed(asked, answering);
      metrics.count('shoal_http_texts_total', {}, result.rows);
      metrics.count('shoal_http_tokens_total', {}, usage.tokens);
      if (usage.truncated > 0) void reply.header('x-shoal-truncated', String(usage.truncated));
      await tellTrial(reply, { service });
      return gate.send(reply, toResponse(result, model.name, asked.encoding, usage));
    });
  });
}

/** Cohere's first version is at /v1 and its second at /v2, Jina's at /v1, TEI's at the root. */
function addReranking(app: FastifyInstance, { reranker, metrics }: AppParts, gate: Gate): void {
  const answerWith = async (
    request: FastifyRequest,
    reply: FastifyReply,
    asked: RerankRequest,
    toList: (result: RerankResult, model: ServedReranker) => JsonList,
  ): Promise<object> => {
    const model = await reranker.named(asked.model);
    return gate.inTurn(request, reply, rerankBytes(asked), async (answering) => {
      const result = await reranker.rerank(asked, model, answering);
      metrics.count('shoal_http_texts_total', {}, asked.documents.length);
      metrics.count('shoal_http_tokens_total', {}, result.tokens ?? 0);
      if (result.isTruncated) void reply.header('x-shoal-truncated', String(result.truncated ?? 1));
      if (result.isSimulated) void reply.header('x-shoal-simulated', '1');
      return gate.send(reply, toList(result, model));
    });
  };
  const rerank = async (request: FastifyRequest, reply: FastifyReply): Promise<object> => {
    const asked = parseRerankRequest(takenBody(request));
    return answerWith(request, reply, asked, (result, { name }) =>
      toRerankResponse(result, asked, { id: randomUUID(), model: name }),
    );
  };
  app.post('/v1/rerank', { schema: RERANK_SCHEMA }, rerank);
  app.post('/v2/rerank', { schema: { hide: true } }, rerank);
  app.post('/rerank', { schema: TEI_RERANK_SCHEMA }, async (request, reply) => {
    const asked = parseTeiRequest(takenBody(request));
    return answerWith(request, reply, asked, (result) => toTeiResponse(result, asked));
  });
}

/** Texts among the queries are embedded on the way, by the model that is served. */
function addSimilarity(app: FastifyInstance, { embedder, similarity, service }: AppParts, gate: Gate): void {
  const { textClient: client } = embedder;
  const answerWith = (
    request: FastifyRequest,
    reply: FastifyReply,
    bytes: number,
    call: (signal: AbortSignal) => Promise<JsonList>,
  ): Promise<object> =>
    gate.inTurn(request, reply, bytes, async ({ gone, leftMs }) => {
      const list = await withPatience({ ...similarity, timeoutMs: leftMs(), what: 'no answer' }, gone, call);
      await tellTrial(reply, { service });
      return gate.send(reply, list);
    });
  app.post('/v1/similarity/topk', { schema: TOPK_SCHEMA }, async (request, reply) => {
    const { collection, queries, ...options } = parseTopK(takenBody(request));
    return answerWith(request, reply, rankingBytes(rowsOf(queries), options.k, options.names), async (signal) =>
      toRankings(await client.topK(collection, queries, { ...options, signal })),
    );
  });
  app.post('/v1/similarity/rescore', { schema: RESCORE_SCHEMA }, async (request, reply) => {
    const { collection, queries, candidates, ...options } = parseRescore(takenBody(request));
    return answerWith(request, reply, rankingBytes(rowsOf(queries), options.k, options.names), async (signal) =>
      toRankings(await client.rescore(collection, queries, candidates, { ...options, signal })),
    );
  });
  app.post('/v1/similarity/cosine', { schema: COSINE_SCHEMA }, async (request, reply) => {
    const { queries, others, ...options } = parseCosine(takenBody(request));
    return answerWith(request, reply, 0, async (signal) => {
      const scores = await client.cosine(queries, others, { ...options, signal });
      const list = toScores(scores);
      gate.makeRoom(request, scores.scores.byteLength); // as many as the collection has rows, which only a worker knows
      return list;
    });
  });
  app.post('/v1/similarity/spread', { schema: SPREAD_SCHEMA }, async (request, reply) => {
    const { graph, seeds, options } = parseSpread(takenBody(request));
    return answerWith(request, reply, rankingBytes(seeds.length, options.k), async (signal) =>
      toRankings(await client.spread(graph, seeds, { ...options, signal })),
    );
  });
}

/** Nobody needs what was parsed once the route has read it, and a request may wait long. */
function takenBody(request: FastifyRequest): unknown {
  const { body } = request;
  request.body = undefined;
  return body;
}

function addModels(app: FastifyInstance, { model, reranker, service }: AppParts): void {
  const own = { object: 'model', created: 0, owned_by: 'shoal' };
  const embedder = async (): Promise<object> => {
    const { name: id, revision, dims: dimensions, maxTokens: max_tokens } = model;
    const simulated = await simulatedNow({ service });
    return { id, ...own, kind: 'embedder', revision, dimensions, max_tokens, ...simulated };
  };
  const shown = ({ name: id, revision }: ServedReranker): object => ({ id, ...own, kind: 'reranker', revision });
  app.get('/v1/models', { schema: MODELS_SCHEMA }, async () => {
    const served = reranker.served().catch(() => []); // while the queue server is away nobody serves anything
    const rerankers = await Promise.race([served, after(SERVICE_MS, [], { ref: false })]);
    return { object: 'list', data: [await embedder(), ...rerankers.map(shown)] };
  });
  app.get<{ Params: { id: string } }>('/v1/models/:id', { schema: MODEL_SCHEMA }, async ({ params: { id } }) => {
    const found = isModel(id, model)
      ? undefined
      : await Promise.race([reranker.named(id).catch(() => undefined), after(SERVICE_MS, undefined, { ref: false })]);
    if (found !== undefined) return shown(found);
    checkModel(id, model);
    return embedder();
  });
}

function addOperations(app: FastifyInstance, { metrics, readiness, readyNeedsWorkers, service }: AppParts): void {
  app.get('/healthz', { schema: HEALTH_SCHEMA }, async () => ({ status: 'ok' }));
  // Without workers it is ready all the same, unless told otherwise: jobs are accepted and kept, and a fleet that scales
  // from zero needs somebody to take them.
  app.get('/readyz', { schema: READY_SCHEMA }, async () => {
    const { refusal, reason, message, waiting, workers, drained, isPaused } = await inTime(readiness());
    if (refusal !== undefined) throw writesRefused(refusal, 503);
    if (readyNeedsWorkers && reason !== 'busy') throw unavailable('no_worker', message, RETRY_BUSY_SECONDS);
    const simulated = await simulatedNow({ service });
    return { status: 'ready', workers: workers + drained, drained, paused: isPaused, waiting, ...simulated };
  });
  app.get('/metrics', { schema: METRICS_SCHEMA }, async (_request, reply) =>
    reply.type(metrics.contentType).send(await metrics.text()),
  );
  app.get('/openapi.json', { schema: { hide: true } }, async () => app.swagger());
}

async function inTime<Answer>(answer: Promise<Answer>): Promise<Answer> {
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
  return Promise.race([answer, late]).finally(() => clearTimeout(timer));
}

// ---- around all routes --------------------------------------------------------------------------------------------

function answerProblem(error: unknown, request: FastifyRequest, reply: FastifyReply, log: Logger): FastifyReply {
  const problem = toProblem(error);
  const { status, code, retryAfterSeconds } = problem.facts;
  if (status === CALLER_LEFT) log.info({ route: request.routeOptions.url, status }, 'caller left before its answer');
  if (status >= 500)
    log.warn(
      { route: request.routeOptions.url, status, code, err: problem.cause ?? problem },
      'request could not be answered',
    );
  if (retryAfterSeconds !== undefined) void reply.header('retry-after', String(spreadSeconds(retryAfterSeconds)));
  const { routeOptions } = request;
  const detail = routeOptions.url?.endsWith('/rerank') === true && { detail: problem.message }; // what Jina's clients show
  return reply
    .status(status)
    .type('application/json; charset=utf-8')
    .send({ ...problem.body, ...detail });
}

/** What Node hands over without a request that a route could answer: each is answered in OpenAI's shape, and counted. */
function refuseWhatIsNoRequest({ server }: FastifyInstance, { connections }: Gate, counts: RequestCounts): void {
  connections.watch(server, (socket) =>
    writeRefusal(
      socket,
      overloaded('too_many_connections', 'as many connections are busy as there may be; try again', RETRY_BUSY_SECONDS),
      counts,
    ),
  );
  server.maxConnections = connections.most + SPARE_CONNECTIONS;
  server.on('checkExpectation', ({ headers, socket }: IncomingMessage) =>
    writeRefusal(
      socket,
      invalid(
        'expectation_failed',
        null,
        `"expect: ${String(headers.expect).slice(0, 80)}" cannot be met; send the request without it`,
        417,
      ),
      counts,
    ),
  );
  server.on('connect', (_request: IncomingMessage, socket: Socket) =>
    writeRefusal(
      socket,
      invalid('method_not_supported', null, 'this server is no proxy: CONNECT is not possible', 405),
      counts,
    ),
  );
}

/**
 * What Node's parser refuses comes without a request: the answer is written by hand, and the connection is of no
 * further use.
 */
function answerUnparsed(error: NodeJS.ErrnoException, socket: Socket, counts: RequestCounts): void {
  if (error.code === 'ECONNRESET' || socket.destroyed) return;
  if (!socket.writable) return void socket.destroy();
  writeRefusal(socket, unparsed(error.code), counts);
}

function writeRefusal(socket: Socket, { facts, body }: Problem, counts: RequestCounts): void {
  counts.refused(socket, facts.status);
  const text = JSON.stringify(body);
  const { retryAfterSeconds: seconds } = facts;
  socket.on('error', () => undefined); // whoever hears of it has left
  socket.write(
    `HTTP/1.1 ${facts.status} ${STATUS_CODES[facts.status]}\r\ncontent-type: application/json; ` +
      `charset=utf-8\r\n${seconds === undefined ? '' : `retry-after: ${spreadSeconds(seconds)}\r\n`}` +
      `content-length: ${Buffer.byteLength(text)}\r\nconnection: close\r\n\r\n${text}`,
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

function notFound(app: FastifyInstance, { method, url, headers }: FastifyRequest, reply: FastifyReply): Error {
  const [path = ''] = url.split('?');
  const others = (['GET', 'HEAD', 'POST'] as const).filter((other) => app.hasRoute({ method: other, url: path }));
  if (others.length > 0) {
    void reply.header('allow', others.join(', '));
    const isPreflight = method === 'OPTIONS' && headers['access-control-request-method'] !== undefined;
    return invalid(
      'method_not_supported',
      null,
      isPreflight
        ? 'browsers may not ask this server from pages of other origins: it allows none (CORS); ask it from a server ' +
            'of your own, or put a proxy in front that answers for it'
        : `${method} is not possible on ${path}; use ${others.join(' or ')}`,
      405,
    );
  }
  const instead = /^\/v1\/(batches|files)(\/|$)/.test(path)
    ? 'there are no batches and files here; send up to 2,048 texts a request to /v1/embeddings, which waits for its turn'
    : `there is nothing at ${method} ${path.slice(0, 200)}; see /openapi.json`;
  return invalid('unknown_url', null, instead, 404);
}
