// /metrics, /livez, /readyz and /healthz of a process that serves nothing else over HTTP: a worker, the exporter. On
// loopback unless told otherwise; there is no authentication, so a wider address belongs behind a firewall. Knows nothing
// of what the metrics mean, nor of what makes a process ready.

import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { invariant } from '@shoal/contract';
import { hostGuard, type HostGuard } from './host-guard.ts';
import { listenFailure } from './listen-failure.ts';

/** 200 where there are no reasons against it, else 503; the facts are told in both. */
export interface Probe {
  readonly reasons: readonly string[];
  readonly facts?: Readonly<Record<string, unknown>>;
}

export interface MetricsServerOptions {
  /** Default 127.0.0.1. */
  readonly host?: string;
  /** Names besides those of loopback that it answers to, see host-guard.ts. */
  readonly hosts?: string | undefined;
  /** 0: any free port. */
  readonly port: number;
  /** Ports to try, from `port` on, where others are taken or forbidden. Default 1. */
  readonly ports?: number | undefined;
  /** Setting that has the port, for messages. */
  readonly setting?: string | undefined;
  readonly metrics: { readonly contentType: string; text(): Promise<string> };
  /** /livez: whether the process can do its work at all. Default: it does, because it answers. */
  readonly live?: (() => Probe) | undefined;
  /** /readyz: whether it does its work now. Default: as /livez. */
  readonly ready?: (() => Probe) | undefined;
}

export interface MetricsServer {
  /** http://127.0.0.1:9464 */
  readonly url: string;
  readonly port: number;
  /** Resolves when the port is free again. Safe to call twice. */
  stop(): Promise<void>;
}

/** Throws CONFIG_INVALID when it cannot listen there. */
export async function startMetricsServer(options: MetricsServerOptions): Promise<MetricsServer> {
  const { host = '127.0.0.1' } = options;
  const guard = hostGuard({ host, hosts: options.hosts });
  const server = createServer(
    { requireHostHeader: false }, // the guard does, with words
    (request, response) => void answer(request, response, options, guard),
  );
  await listen(server, options);
  const address = server.address();
  invariant(typeof address === 'object' && address !== null, 'a listening server has an address');
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${address.port}`,
    port: address.port,
    stop: () => close(server),
  };
}

/** At the first port that is free. */
async function listen(
  server: Server,
  { host = '127.0.0.1', port: first, ports = 1, setting = 'metricsPort' }: MetricsServerOptions,
): Promise<void> {
  for (let port = first; ; port++) {
    server.listen({ host, port });
    const failure: unknown = await once(server, 'listening').then(
      () => undefined,
      (error: unknown) => error,
    );
    if (failure === undefined) return;
    const code: unknown = failure instanceof Error ? Reflect.get(failure, 'code') : undefined;
    const isLast = port + 1 >= first + ports || port >= 65_535;
    if (isLast || (code !== 'EADDRINUSE' && code !== 'EACCES'))
      throw listenFailure(failure, { host, port, what: 'metrics', setting });
  }
}

async function answer(
  request: IncomingMessage,
  response: ServerResponse,
  { metrics, live = () => ({ reasons: [] }), ready = live }: MetricsServerOptions,
  guard: HostGuard,
): Promise<void> {
  const refusal = guard(request);
  if (refusal !== undefined) return reply(response, refusal.status, 'text/plain', `${refusal.message}\n`);
  const isRead = request.method === 'GET' || request.method === 'HEAD';
  switch (isRead ? request.url?.split('?')[0] : 'refused') {
    case '/metrics':
      return metrics.text().then(
        (text) => reply(response, 200, metrics.contentType, text),
        (error: unknown) =>
          reply(
            response,
            500,
            'text/plain',
            `the metrics could not be written: ${error instanceof Error ? error.message : String(error)}\n`,
          ),
      );
    case '/livez':
      return replyProbe(response, 'alive', live());
    case '/readyz':
      return replyProbe(response, 'ready', ready());
    case '/healthz': // what it said before there were two: the process has a port
      return replyProbe(response, 'ok', { reasons: [] });
    case 'refused':
      return reply(response, 405, 'text/plain', 'only GET\n');
    default:
      return reply(response, 404, 'text/plain', 'here are /metrics, /livez, /readyz and /healthz\n');
  }
}

function replyProbe(response: ServerResponse, well: string, { reasons, facts = {} }: Probe): void {
  const isWell = reasons.length === 0;
  const said = { status: isWell ? well : `not ${well}`, ...(isWell ? {} : { reasons }), ...facts };
  reply(response, isWell ? 200 : 503, 'application/json', `${JSON.stringify(said)}\n`);
}

function reply(response: ServerResponse, status: number, contentType: string, body: string): void {
  response.writeHead(status, { 'content-type': contentType, 'content-length': Buffer.byteLength(body) });
  response.end(response.req.method === 'HEAD' ? undefined : body);
}

async function close(server: Server): Promise<void> {
  if (!server.listening) return;
  const closed = once(server, 'close');
  server.close();
  server.closeAllConnections();
  await closed;
}
