// Bull Board over every queue of a prefix, to look at and nothing else: read-only, texts begun and vectors left out.
// Queues that come later appear by themselves, and nothing is asked of the server while nobody looks. There is no
// authentication here: it belongs on loopback. It answers only to names it knows, so that no web page can read it through
// a name of its own (DNS rebinding).

import type { AddressInfo } from 'node:net';
import { createBullBoard } from '@bull-board/api';
import { BullMQAdapter } from '@bull-board/api/bullMQAdapter';
import { FastifyAdapter } from '@bull-board/fastify';
import { fastify, type FastifyInstance } from 'fastify';
import type { Logger } from '@shoal/core';
import { hostGuard, listenFailure, type HostGuard } from '@shoal/ops';
import { BoardQueues, type BoardQueue } from '@shoal/queue';
import { shorten } from './shorten.ts';

export interface DashboardOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  readonly host: string;
  /** Names besides those of this machine that it answers to: the setting httpHosts. */
  readonly hosts?: string | undefined;
  /** 0: any free port. */
  readonly port: number;
  readonly log: Logger;
}

export interface Dashboard {
  /** http://127.0.0.1:8788 */
  readonly url: string;
  /** Safe to call twice. */
  stop(): Promise<void>;
}

/**
 * Finding queues walks over all keys of the server in small steps: at most once in so long, and a twentieth of the
 * time.
 */
const FIND_EVERY_MS = 1_000;
const FIND_SHARE = 20;

/** Throws QUEUE_UNREACHABLE, and CONFIG_INVALID when it cannot listen there. */
export async function createDashboard(options: DashboardOptions): Promise<Dashboard> {
  const { redisUrl, prefix, host, port, log } = options;
  const queues = await BoardQueues.connect({ redisUrl, prefix, log });
  const app = fastify({ forceCloseConnections: true, http: { requireHostHeader: false } });
  guardHost(app, hostGuard(options));
  keepToItself(app);
  refuseWhileAway(app, queues);
  const show = addBoard(app);
  findWhenAsked(app, queues, show, log);
  let stopping: Promise<void> | undefined;
  const stop = (): Promise<void> => (stopping ??= stopAll(app, queues));
  try {
    await app.listen({ host, port });
  } catch (error) {
    await stop();
    throw listenFailure(error, { host, port, what: 'the dashboard', setting: 'dashboardPort' });
  }
  return { url: addressOf(app.server.address(), host), stop };
}

function addBoard(app: FastifyInstance): (queues: readonly BoardQueue[]) => void {
  const serverAdapter = new FastifyAdapter();
  const board = createBullBoard({
    queues: [],
    serverAdapter,
    options: { uiConfig: { boardTitle: 'Shoal', hideDocsLink: true, sortQueues: true, showMetrics: false } },
  });
  void app.register(serverAdapter.registerPlugin());
  const shown = new Map<string, BullMQAdapter>();
  return (queues) => {
    for (const queue of queues) if (!shown.has(queue.name)) shown.set(queue.name, adapterOf(queue));
    board.replaceQueues(queues.map(({ name }) => shown.get(name)!));
  };
}

/** BullMQ has no state for jobs that were cancelled, and Bull Board no list of its own for them. */
const ABOUT_FAILED =
  'Cancelled jobs are listed, and counted, among the failed ones; their name says so. shoal queue counts tells them apart.';

/** Of a job as BullMQ writes it down. */
function nameOf({ name, failedReason }: { readonly name?: string; readonly failedReason?: string }): string {
  return failedReason?.startsWith('CANCELLED:') === true ? `${name ?? ''} (cancelled)` : (name ?? '');
}

function adapterOf(queue: BoardQueue): BullMQAdapter {
  const adapter = new BullMQAdapter(queue, { readOnlyMode: true, allowRetries: false, description: ABOUT_FAILED });
  adapter.setFormatter('name', nameOf);
  for (const field of ['data', 'returnValue', 'progress'] as const)
    adapter.setFormatter(field, (value: unknown) => shorten(value));
  return adapter;
}

/**
 * Looks for queues when somebody looks at them; one search at a time, and one that fails is made up for by the next.
 */
function findWhenAsked(
  app: FastifyInstance,
  queues: BoardQueues,
  show: (found: readonly BoardQueue[]) => void,
  log: Logger,
): void {
  let notBeforeMs = 0;
  let search: Promise<void> | undefined;
  const find = async (): Promise<void> => {
    const startedMs = performance.now();
    await queues.find().then(show, (error: unknown) => log.debug({ err: error }, 'queues could not be looked for'));
    notBeforeMs = performance.now() + Math.max(FIND_EVERY_MS, FIND_SHARE * (performance.now() - startedMs));
    search = undefined;
  };
  app.addHook('preHandler', async ({ url }) => {
    if (!url.startsWith('/api/queues') || performance.now() < notBeforeMs) return;
    await (search ??= find());
  });
}

/** Questions to a server that is away would wait for it, one more at each look of each browser. */
function refuseWhileAway(app: FastifyInstance, queues: BoardQueues): void {
  app.addHook('onRequest', async (request, reply) => {
    if (!request.url.startsWith('/api/') || queues.isConnected) return;
    await reply
      .status(503)
      .header('retry-after', '5')
      .send({ error: 'the queue server is away; this page will be right again when it is back' });
  });
}

function guardHost(app: FastifyInstance, guard: HostGuard): void {
  app.addHook('onRequest', async ({ raw }, reply) => {
    const refusal = guard(raw);
    if (refusal !== undefined) await reply.status(refusal.status).type('text/plain').send(`${refusal.message}\n`);
  });
}

/**
 * Bull Board's page asks a font server of another company; its read-only mode still answers 200 to "pause all"
 * (9.10.1).
 */
const POLICY =
  "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; " +
  "frame-ancestors 'none'; base-uri 'self'; form-action 'none'";

/** Nothing is changed, and no browser asks anybody else on behalf of this page or shows it inside another. */
function keepToItself(app: FastifyInstance): void {
  app.addHook('onRequest', async ({ method }, reply) => {
    void reply.headers({
      'content-security-policy': POLICY,
      'x-content-type-options': 'nosniff',
      'referrer-policy': 'no-referrer',
    });
    if (method !== 'GET' && method !== 'HEAD')
      await reply.status(405).header('allow', 'GET, HEAD').send({ error: 'this dashboard is for looking only' });
  });
}

async function stopAll(app: FastifyInstance, queues: BoardQueues): Promise<void> {
  await app.close();
  await queues.close();
}

function addressOf(address: AddressInfo | string | null, host: string): string {
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`;
}
