// /metrics of the whole fleet, as `shoal exporter` serves them, and probes beside them: open to all who reach the
// dashboard, for they hold numbers and no text.

import type { FastifyInstance } from 'fastify';
import type { Logger } from '@shoal/core';
import { createExporterMetrics } from '@shoal/ops';
import { ServerWatch, type FleetSurvey } from '@shoal/queue';

export interface FleetMetricsOptions {
  /** Closed by whoever opened it. */
  readonly survey: FleetSurvey;
  readonly redisUrl: string;
  readonly prefix: string;
  /** Of Shoal. */
  readonly version?: string | undefined;
  readonly log: Logger;
}

/** Adds the routes; what they ask over is closed by `stop`. */
export function addFleetMetrics(
  app: FastifyInstance,
  { survey, redisUrl, prefix, version = '' }: FleetMetricsOptions,
): { stop(): Promise<void> } {
  const server = ServerWatch.open({ redisUrl, prefix });
  const metrics = createExporterMetrics({ process: 'dashboard', server, version, survey: () => survey.read() });
  server.onRoundTrip((ms) => metrics.roundTrip(ms));
  app.get('/metrics', async (_request, reply) => reply.type(metrics.contentType).send(await metrics.text()));
  app.get('/livez', async () => ({ status: 'alive' }));
  app.get('/readyz', async (_request, reply) =>
    server.isUp
      ? { status: 'ready' }
      : reply.status(503).send({ status: 'not ready', reasons: ['the queue server does not answer'] }),
  );
  return { stop: () => server.stop() };
}
