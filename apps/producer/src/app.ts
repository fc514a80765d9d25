// The HTTP interface: routes, and around them what holds for all: OpenAI's error bodies, metrics, the OpenAPI page.
// Fastify checks and serializes nothing here; it parses JSON, bounds bodies and finds routes. Where vectors come from
// is the Embedder's business.

import { randomUUID } from 'node:crypto';
import { STATUS_CODES, maxHeaderSize, type IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { setTimeout as after } from 'node:timers/promises';
import swagger from '@fastify/swagger';
import swaggerUi from '@fastify/swagger-ui';
import { fastify, type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import type { RerankResult } from '@shoal/client';
import type { Logger } from '@shoal/core';
import { processClock } from '@shoal/core/base';
import { mayUse, setCaller } from './access/caller.ts';
import type { Doorman } from './access/doorman.ts';
import type { AppParts, Around } from './app-parts.ts';
import { batchComponents } from './batches/openapi-batches.ts';
import { Catalogue, type Served } from './catalogue.ts';
import { addCors } from './cors.ts';
import { parseEmbeddingsRequest } from './embeddings-request.ts';
import { toResponse } from './embeddings-response.ts';
import { Gate } from './gate.ts';
import { beginSpan } from './http-spans.ts';
import type { JsonList } from './json-stream.ts';
import {
  EMBEDDINGS_SCHEMA,
  HEALTH_SCHEMA,
  METRICS_SCHEMA,
  MODELS_SCHEMA,
  MODEL_SCHEMA,
  READY_SCHEMA,
  RERANK_SCHEMA,
  TEI_RERANK_SCHEMA,
  components,
} from './openapi.ts';
import {
  CALLER_LEFT,
  Problem,
  invalid,
  overloaded,
  spreadSeconds,
  toProblem,
  unavailable,
  writesRefused,
} from './problem.ts';
import { ARRIVAL } from './read-body.ts';
import { RefusalLines } from './refusal-lines.ts';
import { RequestCounts } from './request-counts.ts';
import { parseRerankRequest, parseTeiRequest, type RerankRequest } from './rerank-request.ts';
import { rerankBytes, toRerankResponse, toTeiResponse } from './rerank-response.ts';
import type { ServedReranker } from './reranker.ts';
import { SERVICE_MS, answerVectors, countUsage, simulatedNow, takenBody } from './route-parts.ts';
import { addCollections } from './routes/collections.ts';
import { addSimilarity } from './routes/similarity.ts';
import { addTei } from './routes/tei.ts';
import { requestId } from './trace-of.ts';

/** How long the headers of a request may take to arrive; read-body.ts has the limits of what follows. */
const HEADERS_MS = 15_000;
/** Of a request that never reaches a route, and whose body nobody reads. */
const ARRIVAL_MS = 60_000;
/** Of the longest upload of a file; what else has a body has ARRIVAL_MS. */
const UPLOAD_MS = 2 * 3_600_000;
const LOOK_AT_CONNECTIONS_MS = 2_000;
/** The page that shows the OpenAPI document; it needs no key, and what it asks for does. */
const DOCS = '/docs';
/** The page asks this server alone. */
const DOCS_POLICY =
  "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; base-uri 'self'; form-action 'none'; " +
  "frame-ancestors 'none'; object-src 'none'";
/** An answer on readiness that comes later is of no use to whoever asks. */
const READY_MS = 2_000;
const RETRY_BUSY_SECONDS = 1;
/** Beyond those that are counted, to be told that there are too many. */
const SPARE_CONNECTIONS = 8;

export async function createApp(parts: AppParts): Promise<FastifyInstance> {
  const counts = new RequestCounts(parts.metrics);
  const refusals = new RefusalLines(parts.log, parts.gate.clock ?? processClock);
  const told = { log: parts.log, refusals };
  const gate = new Gate(parts.gate);
  const app = fastify({
    bodyLimit: ARRIVAL.mostBytes,
    requestTimeout: UPLOAD_MS,
    genReqId: (request) => requestId(request as IncomingMessage),
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
      void answerProblem(error, request, reply, told);
    },
    clientErrorHandler: (error, socket) => answerUnparsed(error, socket, { counts, refusals }),
  });
  app.setValidatorCompiler(() => () => true);
  app.setSerializerCompiler(() => (data) => JSON.stringify(data));
  app.setErrorHandler((error, request, reply) => answerProblem(error, request, reply, told));
  app.setNotFoundHandler((request, reply) => answerProblem(notFound(app, request, reply), request, reply, told));
  app.addHook('onClose', async () => refusals.stop());
  app.addHook('onRequest', async (request, reply) => {
    counts.began(request, reply);
    beginSpan(parts.tracer, request, reply);
    void reply.header('x-request-id', request.id);
    if (request.routeOptions.url !== '/v1/files') endUnlessArrived(request.raw);
  });
  gate.addTo(app);
  await addCors(app, parts.corsOrigins); // a browser asks whether it may ask before it shows its key
  askForKeys(app, parts.doorman);
  app.addHook('onRequest', async (request, reply) => {
    if (request.is404) throw notFound(app, request, reply); // before anything is said of its body
  });
  refuseWhatIsNoRequest(app, gate, { counts, refusals });
  const catalogue = new Catalogue(parts.models);
  for (const schema of components(parts.models.map(({ model }) => model))) app.addSchema(schema);
  if (parts.batches !== undefined) for (const schema of batchComponents()) app.addSchema(schema);
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
      components: { securitySchemes: { apiKey: { type: 'http', scheme: 'bearer' } } },
      security: [{ apiKey: [] }, {}],
    },
  });
  await app.register(swaggerUi, {
    routePrefix: DOCS,
    staticCSP: DOCS_POLICY,
    theme: { title: 'Shoal' },
    // without the bar that would show another server's document
    uiConfig: { layout: 'BaseLayout', displayRequestDuration: true, persistAuthorization: false },
  });
  // Routes are registered after the plugin has loaded, so that it sees them.
  await app.register(async (routes) => {
    const around = { ...parts, catalogue, gate };
    addEmbeddings(routes, around);
    addReranking(routes, around);
    addSimilarity(routes, around);
    addCollections(routes, around);
    addModels(routes, around);
    addTei(routes, around);
    addOperations(routes, parts, catalogue);
    await parts.batches?.addRoutes(routes, around);
  });
  return app;
}

function askForKeys(app: FastifyInstance, doorman: Pick<Doorman, 'callerOf'>): void {
  app.addHook('onRequest', async (request, reply) => {
    const { config, url } = request.routeOptions;
    if (config.isOpen === true || url?.startsWith(DOCS) === true) return;
    if (request.is404 && request.method === 'OPTIONS') return; // browsers ask without a key, and are told why not
    try {
      const caller = doorman.callerOf(request.headers);
      if (config.scope !== undefined && !mayUse(caller, config.scope)) throw missingScope(config.scope, caller.scopes);
      setCaller(request, caller);
    } catch (error) {
      if (error instanceof Problem && error.facts.status === 401)
        void reply.header('www-authenticate', 'Bearer realm="shoal"');
      throw error;
    }
  });
}

function missingScope(scope: string, scopes: ReadonlySet<string>): Problem {
  return invalid(
    'missing_scope',
    null,
    `the API key is not for this: it would need the scope "${scope}" and has ${[...scopes].join(', ')} ` +
      '(shoal key create --scopes makes another one)',
    403,
  );
}

// ---- routes -------------------------------------------------------------------------------------------------------

function addEmbeddings(app: FastifyInstance, around: Around): void {
  app.post('/v1/embeddings', { schema: EMBEDDINGS_SCHEMA, config: { scope: 'embed' } }, async (request, reply) => {
    const body = takenBody(request);
    const served = around.catalogue.ofBody(body);
    const asked = parseEmbeddingsRequest(body, served.model);
    return answerVectors(around, served, asked, { request, reply }, (result, usage) =>
      toResponse(result, served.model.name, asked.encoding, usage),
    );
  });
}

/** Cohere's first version is at /v1 and its second at /v2, Jina's at /v1, TEI's at the root. */
function addReranking(app: FastifyInstance, { reranker, allowances, metrics, gate }: Around): void {
  const answerWith = async (
    request: FastifyRequest,
    reply: FastifyReply,
    asked: RerankRequest,
    toList: (result: RerankResult, model: ServedReranker) => JsonList,
  ): Promise<object> => {
    const model = await reranker.named(asked.model);
    await allowances.take(request, reply, asked.documents.length);
    return gate.inTurn(request, reply, rerankBytes(asked), async (answering) => {
      const result = await reranker.rerank(asked, model, answering);
      const truncated = result.isTruncated ? (result.truncated ?? 1) : 0;
      const usage = { texts: asked.documents.length, tokens: result.tokens ?? 0, truncated };
      countUsage({ allowances, metrics }, { request, reply }, usage);
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
  const config = { scope: 'rerank' } as const;
  app.post('/v1/rerank', { schema: RERANK_SCHEMA, config }, rerank);
  app.post('/v2/rerank', { schema: { hide: true }, config }, rerank);
  app.post('/rerank', { schema: TEI_RERANK_SCHEMA, config }, async (request, reply) => {
    const asked = parseTeiRequest(takenBody(request));
    return answerWith(request, reply, asked, (result) => toTeiResponse(result, asked));
  });
}

/** A model is there under its own name and under each alias; `root` is the name that all of them stand for. */
function addModels(app: FastifyInstance, { catalogue, reranker }: Around): void {
  const own = { object: 'model', created: 0 };
  const embedder = async ({ model, service }: Served, id: string = model.name): Promise<object> => {
    const { name: root, revision, dims: dimensions, maxTokens: max_tokens, aliases = [] } = model;
    const simulated = await simulatedNow({ service });
    const owned_by = ownerOf(root);
    return { id, ...own, owned_by, kind: 'embedder', root, aliases, revision, dimensions, max_tokens, ...simulated };
  };
  const shown = ({ name: id, revision }: ServedReranker): object => ({
    id,
    ...own,
    owned_by: ownerOf(id),
    kind: 'reranker',
    root: id,
    revision,
  });
  app.get('/v1/models', { schema: MODELS_SCHEMA }, async () => {
    const served = reranker.served().catch(() => []); // while the queue server is away nobody serves anything
    const rerankers = await Promise.race([served, after(SERVICE_MS, [], { ref: false })]);
    const embedders = catalogue.all.flatMap((one) =>
      [one.model.name, ...(one.model.aliases ?? [])].map((id) => embedder(one, id)),
    );
    return { object: 'list', data: [...(await Promise.all(embedders)), ...rerankers.map(shown)] };
  });
  app.get<{ Params: { id: string } }>('/v1/models/:id', { schema: MODEL_SCHEMA }, async ({ params: { id } }) => {
    const found = catalogue.find(id);
    if (found !== undefined) return embedder(found, found.model.aliases?.includes(id) === true ? id : undefined);
    const other = reranker.named(id).catch(() => undefined);
    const known = await Promise.race([other, after(SERVICE_MS, undefined, { ref: false })]);
    return known === undefined ? embedder(catalogue.named(id)) : shown(known);
  });
}

/** Of a model of the hub, whose repository it is. */
function ownerOf(name: string): string {
  return /^(.+?)--/.exec(name)?.[1] ?? 'shoal';
}

function addOperations(
  app: FastifyInstance,
  { metrics, readiness, readyNeedsWorkers }: AppParts,
  { first }: Catalogue,
): void {
  const config = { isOpen: true } as const;
  app.get('/healthz', { schema: HEALTH_SCHEMA, config }, async () => ({ status: 'ok' }));
  for (const other of ['/livez', '/health'])
    app.get(other, { schema: { hide: true }, config }, async () => ({ status: 'ok' }));
  // Without workers it is ready all the same, unless told otherwise: jobs are accepted and kept, and a fleet that scales
  // from zero needs somebody to take them.
  app.get('/readyz', { schema: READY_SCHEMA, config }, async () => {
    const { refusal, reason, message, waiting, workers, drained, isPaused } = await inTime(readiness());
    if (refusal !== undefined) throw writesRefused(refusal, 503);
    if (readyNeedsWorkers && reason !== 'busy') throw unavailable('no_worker', message, RETRY_BUSY_SECONDS);
    const simulated = await simulatedNow(first);
    return { status: 'ready', workers: workers + drained, drained, paused: isPaused, waiting, ...simulated };
  });
  app.get('/metrics', { schema: METRICS_SCHEMA, config: { scope: 'metrics' } }, async (_request, reply) =>
    reply.type(metrics.contentType).send(await metrics.text()),
  );
  app.get('/openapi.json', { schema: { hide: true }, config }, async () => app.swagger());
}

/** Where a route reads its body, read-body.ts sees to the time; this is for what nobody reads. */
function endUnlessArrived(raw: IncomingMessage): void {
  const hasBody = raw.headers['transfer-encoding'] !== undefined || Number(raw.headers['content-length'] ?? 0) > 0;
  if (!hasBody) return;
  const timer = setTimeout(() => raw.socket.destroy(), ARRIVAL_MS + LOOK_AT_CONNECTIONS_MS).unref();
  raw.once('end', () => clearTimeout(timer)).once('close', () => clearTimeout(timer));
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

interface ToldOfProblems {
  readonly log: Logger;
  readonly refusals: RefusalLines;
}

function answerProblem(
  error: unknown,
  request: FastifyRequest,
  reply: FastifyReply,
  { log, refusals }: ToldOfProblems,
): FastifyReply {
  const problem = toProblem(error);
  const { status, code, retryAfterSeconds } = problem.facts;
  const facts = { route: request.routeOptions.url, requestId: request.id, status };
  if (status === CALLER_LEFT) log.info(facts, 'caller left before its answer');
  if (status >= 500) log.warn({ ...facts, code, err: problem.cause ?? problem }, 'request could not be answered');
  if (status < 500 && status !== CALLER_LEFT) refusals.add(problem.facts, request);
  if (retryAfterSeconds !== undefined) void reply.header('retry-after', String(spreadSeconds(retryAfterSeconds)));
  const { routeOptions } = request;
  const detail = routeOptions.url?.endsWith('/rerank') === true && { detail: problem.message }; // what Jina's clients show
  return reply
    .status(status)
    .type('application/json; charset=utf-8')
    .send({ ...problem.body, ...detail, ...(status === 500 && { request_id: request.id }) });
}

interface Refusing {
  readonly counts: RequestCounts;
  readonly refusals: RefusalLines;
}

/** What Node hands over without a request that a route could answer: each is answered in OpenAI's shape, and counted. */
function refuseWhatIsNoRequest({ server }: FastifyInstance, { connections }: Gate, refusing: Refusing): void {
  connections.watch(server, (socket) =>
    writeRefusal(
      socket,
      overloaded('too_many_connections', 'as many connections are busy as there may be; try again', RETRY_BUSY_SECONDS),
      refusing,
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
      refusing,
    ),
  );
  server.on('connect', (_request: IncomingMessage, socket: Socket) =>
    writeRefusal(
      socket,
      invalid('method_not_supported', null, 'this server is no proxy: CONNECT is not possible', 405),
      refusing,
    ),
  );
}

/**
 * What Node's parser refuses comes without a request: the answer is written by hand, and the connection is of no
 * further use.
 */
function answerUnparsed(error: NodeJS.ErrnoException, socket: Socket, refusing: Refusing): void {
  if (error.code === 'ECONNRESET' || socket.destroyed) return;
  if (!socket.writable) return void socket.destroy();
  writeRefusal(socket, unparsed(error.code), refusing);
}

function writeRefusal(socket: Socket, { facts, body }: Problem, { counts, refusals }: Refusing): void {
  counts.refused(socket, facts.status);
  refusals.add(facts);
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
  const others = (['GET', 'HEAD', 'POST', 'DELETE'] as const).filter((other) =>
    app.hasRoute({ method: other, url: path }),
  );
  if (others.length > 0) {
    void reply.header('allow', others.join(', '));
    const isPreflight = method === 'OPTIONS' && headers['access-control-request-method'] !== undefined;
    return invalid(
      'method_not_supported',
      null,
      isPreflight
        ? 'browsers may not ask this server from pages of other origins: it allows none (CORS). Name them in its ' +
            'setting httpCors (SHOAL_HTTP_CORS=https://app.example.com), or ask it from a server of your own'
        : `${method} is not possible on ${path}; use ${others.join(' or ')}`,
      405,
    );
  }
  const isStored = app.hasRoute({ method: 'GET', url: '/v1/files' });
  const instead =
    !isStored && /^\/v1\/(batches|files|jobs)(\/|$)/.test(path)
      ? 'there are no batches, files and jobs here: nothing can be stored in its batchDir; send up to 2,048 texts a ' +
        'request to /v1/embeddings, which waits for its turn'
      : `there is nothing at ${method} ${path.slice(0, 200)}; see /openapi.json`;
  return invalid('unknown_url', null, instead, 404);
}
