// The dashboard: the fleet page, quarantine, search and actions, and Bull Board behind them. It answers only to names it
// knows, so that no web page can read it through a name of its own (DNS rebinding); who may change something is the
// business of access/gate.ts. Nothing is asked of the queue server while nobody looks.

import type { AddressInfo } from 'node:net';
import { fastify, type FastifyInstance } from 'fastify';
import type { Logger, StoreFolders } from '@shoal/core';
import { hostGuard, listenFailure, type HostGuard } from '@shoal/ops';
import { BoardQueues, FleetSurvey, PayloadWatch, mainLanes, writeAudit } from '@shoal/queue';
import { DashboardKeys } from './access/dashboard-keys.ts';
import { Gate } from './access/gate.ts';
import { TrustedProxy } from './access/proxy.ts';
import { addActions } from './actions/routes.ts';
import { BOARD_PATH, addBoard } from './board/bull-board.ts';
import { CellsReader } from './fleet/cells-reading.ts';
import { FleetReader } from './fleet/fleet-reading.ts';
import { LivePages } from './fleet/live.ts';
import { QueueNames } from './fleet/queue-names.ts';
import { addFleetMetrics } from './fleet-metrics.ts';
import { addPages } from './page/routes.ts';
import { FirstTexts } from './search/first-text.ts';
import { searchJobs } from './search/search.ts';

export interface DashboardOptions {
  readonly redisUrl: string;
  /** As the setting: a table of them is shown, and the rest is of the one at `redisUrl`. */
  readonly cells?: string | undefined;
  /** As the setting: how each fares with this process is shown beside how it does with workers. */
  readonly payloadServers?: string | undefined;
  readonly prefix: string;
  readonly host: string;
  /** Names besides those of this machine that it answers to: the setting httpHosts. */
  readonly hosts?: string | undefined;
  /** 0: any free one. */
  readonly port: number;
  /** The settings dashboardKeyFile and dashboardProxyHeader with the two that belong to it. Neither: for looking only. */
  readonly keyFile?: string | undefined;
  readonly proxyHeader?: string | undefined;
  readonly proxies?: string | undefined;
  readonly operators?: string | undefined;
  /** Where models are, to show beginnings of texts: the setting dashboardTexts. */
  readonly textsOf?: StoreFolders | undefined;
  /** Of Shoal, for its metrics. */
  readonly version?: string | undefined;
  readonly log: Logger;
}

export interface Dashboard {
  /** http://127.0.0.1:8788 */
  readonly url: string;
  /** Safe to call twice. */
  stop(): Promise<void>;
}

/** A form with a thousand ids. */
const MOST_FORM_BYTES = 1_048_576;

/** Throws QUEUE_UNREACHABLE, and CONFIG_INVALID for keys or proxies that cannot be, or when it cannot listen there. */
export async function createDashboard(options: DashboardOptions): Promise<Dashboard> {
  const {
    redisUrl,
    cells: listed,
    payloadServers,
    prefix,
    host,
    port,
    keyFile,
    proxyHeader,
    proxies,
    operators,
    textsOf,
    log,
  } = options;
  const proxy = proxyHeader === undefined ? undefined : new TrustedProxy({ header: proxyHeader, proxies, operators });
  const keys = keyFile === undefined ? undefined : await DashboardKeys.open(keyFile, log);
  const queues = await BoardQueues.connect({ redisUrl, prefix, log });
  const survey = await FleetSurvey.connect({ redisUrl, prefix, log });
  const reader = new FleetReader({ survey, redisUrl, prefix, log });
  const cells = listed === undefined ? undefined : new CellsReader({ cells: listed, redisUrl, prefix, log });
  const payloads =
    payloadServers === undefined ? undefined : new PayloadWatch({ payloadServers, clientName: 'shoal:dashboard' });
  void payloads?.read(); // so that the first page waits for none that is away
  const app = fastify({
    forceCloseConnections: true,
    http: { requireHostHeader: false },
    bodyLimit: MOST_FORM_BYTES,
    routerOptions: { maxParamLength: 256 },
  });
  guardHost(app, hostGuard(options));
  keepToItself(app);
  takeForms(app);
  refuseWhileAway(app, () => queues.isConnected && survey.isConnected);
  const gate = new Gate({ keys, proxy, log });
  gate.guard(app);
  const names = new QueueNames({ find: () => queues.find(), show: addBoard(app), log });
  names.findWhenAsked(app, `${BOARD_PATH}/api/queues`);
  const readFleet = async (): ReturnType<FleetReader['read']> => {
    const [reading, read, payloadsHere] = await Promise.all([
      names.now().then((known) => reader.read(known)),
      cells?.read(),
      payloads?.readSoon(),
    ]);
    return { ...reading, ...(read !== undefined && { cells: read }), payloadsHere };
  };
  const live = new LivePages({ read: readFleet, find: (request) => gate.find(request), log });
  const tools = { redisUrl, prefix, log, queue: async (name: string) => reader.queue(await names.known(name)) };
  const look = async (asked: string): ReturnType<typeof searchJobs> =>
    searchJobs(reader.server, prefix, mainLanes(await names.now()), asked);
  const texts =
    textsOf === undefined ? undefined : new FirstTexts({ connection: reader.server, prefix, store: textsOf });
  addPages(app, { readFleet, names, tools, live, look, texts });
  addActions(app, { gate, tools, audit: (entry) => writeAudit(reader.server, prefix, entry, log) });
  const metrics = addFleetMetrics(app, { ...options, survey });
  let stopping: Promise<void> | undefined;
  const stop = (): Promise<void> =>
    (stopping ??= (async () => {
      live.stop();
      await app.close();
      await Promise.all([
        queues.close(),
        reader.close(),
        cells?.close(),
        payloads?.close(),
        metrics.stop(),
        survey.close(),
      ]);
    })());
  try {
    await app.listen({ host, port });
  } catch (error) {
    await stop();
    throw listenFailure(error, { host, port, what: 'the dashboard', setting: 'dashboardPort' });
  }
  return { url: addressOf(app.server.address(), host), stop };
}

/** Questions to a server that is away would wait for it, one more at each look of each browser. */
function refuseWhileAway(app: FastifyInstance, isConnected: () => boolean): void {
  const away = 'the queue server is away; this page will be right again when it is back';
  app.addHook('onRequest', async (request, reply) => {
    const path = request.url.split('?')[0] ?? '';
    const asksServer = path.startsWith(`${BOARD_PATH}/api/`) || ASKING.test(path);
    if (!asksServer || isConnected()) return;
    void reply.status(503).header('retry-after', '5');
    await (path.startsWith(BOARD_PATH) ? reply.send({ error: away }) : reply.type('text/plain').send(`${away}\n`));
  });
}

const ASKING = /^\/($|events$|quarantine$|search$|job$|act\/)/;

function guardHost(app: FastifyInstance, guard: HostGuard): void {
  app.addHook('onRequest', async ({ raw }, reply) => {
    const refusal = guard(raw);
    if (refusal !== undefined) await reply.status(refusal.status).type('text/plain').send(`${refusal.message}\n`);
  });
}

/** Our pages have no style, script or picture within them; Bull Board's page has. */
const POLICY =
  "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; " +
  "frame-ancestors 'none'; base-uri 'none'; form-action 'self'";
const BOARD_POLICY =
  "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self' data:; " +
  "frame-ancestors 'none'; base-uri 'self'; form-action 'none'";
/** Where something may be sent to; Bull Board's read-only mode still answers 200 to "pause all" (9.10.1). */
const TAKES_POST = /^\/(login|logout|act\/[^/]*)$/;

/** No browser asks anybody else on behalf of these pages, shows them inside another, or keeps them. */
function keepToItself(app: FastifyInstance): void {
  app.addHook('onRequest', async ({ method, url }, reply) => {
    const path = url.split('?')[0] ?? '';
    void reply.headers({
      'content-security-policy': path.startsWith(BOARD_PATH) ? BOARD_POLICY : POLICY,
      'x-content-type-options': 'nosniff',
      // with "no-referrer" a browser would not tell where a form comes from either
      'referrer-policy': 'same-origin',
      'cache-control': 'no-store',
    });
    const isLook = method === 'GET' || method === 'HEAD';
    if (!isLook && !(method === 'POST' && TAKES_POST.test(path)))
      await reply.status(405).header('allow', 'GET, HEAD').send({ error: 'this is for looking only' });
  });
}

function takeForms(app: FastifyInstance): void {
  app.removeAllContentTypeParsers();
  app.addContentTypeParser('application/x-www-form-urlencoded', { parseAs: 'string' }, (_request, body, done) =>
    done(null, new URLSearchParams(String(body))),
  );
}

function addressOf(address: AddressInfo | string | null, host: string): string {
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`;
}
