// /metrics and /healthz of a process that serves nothing else over HTTP: a worker. On loopback unless told otherwise;
// there is no authentication, so a wider address belongs behind a firewall. Knows nothing of what the metrics mean.

import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { invariant } from '@shoal/contract';
import { hostGuard, type HostGuard } from './host-guard.ts';
import { listenFailure } from './listen-failure.ts';

export interface MetricsServerOptions {
  /** Default 127.0.0.1. */
  readonly host?: string;
  /** Names besides those of loopback that it answers to, see host-guard.ts. */
  readonly hosts?: string | undefined;
  /** 0: any free port. */
  readonly port: number;
  readonly metrics: { readonly contentType: string; text(): Promise<string> };
  /** Facts for /healthz; `isHealthy` false answers 503. Default: healthy. */
  readonly health?: () => { readonly isHealthy: boolean } & Readonly<Record<string, unknown>>;
}

export interface MetricsServer {
  /** http://127.0.0.1:9100 */
  readonly url: string;
  readonly port: number;
  /** Resolves when the port is free again. Safe to call twice. */
  stop(): Promise<void>;
}

/** Throws CONFIG_INVALID when it cannot listen there. */
export async function startMetricsServer(options: MetricsServerOptions): Promise<MetricsServer> {
  const { host = '127.0.0.1', port } = options;
  const guard = hostGuard({ host, hosts: options.hosts });
  const server = createServer(
    { requireHostHeader: false }, // the guard does, with words
    (request, response) => void answer(request, response, options, guard),
  );
  server.listen({ host, port });
  await once(server, 'listening').catch((error: unknown) => {
    throw listenFailure(error, { host, port, what: 'metrics', setting: 'metricsPort' });
  });
  const address = server.address();
  invariant(typeof address === 'object' && address !== null, 'a listening server has an address');
  return {
    url: `http://${host.includes(':') ? `[${host}]` : host}:${address.port}`,
    port: address.port,
    stop: () => close(server),
  };
}

async function answer(
  request: IncomingMessage,
  response: ServerResponse,
  { metrics, health }: MetricsServerOptions,
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
    case '/healthz': {
      const { isHealthy, ...facts } = health?.() ?? { isHealthy: true };
      return reply(
        response,
        isHealthy ? 200 : 503,
        'application/json',
        `${JSON.stringify({ status: isHealthy ? 'ok' : 'failing', ...facts })}\n`,
      );
    }
    case 'refused':
      return reply(response, 405, 'text/plain', 'only GET\n');
    default:
      return reply(response, 404, 'text/plain', 'here are /metrics and /healthz\n');
  }
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
