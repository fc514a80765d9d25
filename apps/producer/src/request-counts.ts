// Every answer is counted once, whoever gave it: a route, Fastify before any hook has run, or what stands in for Node's
// parser, which knows no request.

import type { Socket } from 'node:net';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { MetricRegistry, PRODUCER_METRICS } from '@shoal/ops';
import { CALLER_LEFT } from './problem.ts';

/** In place of a path that is no route's: callers choose paths, and each would be a series of its own. */
const NO_ROUTE = 'none';

export class RequestCounts {
  private readonly metrics: MetricRegistry<typeof PRODUCER_METRICS>;
  /**
   * How the request that a connection is busy with is counted should the connection close before the answer is written.
   */
  private readonly open = new WeakMap<Socket, { status: number }>();

  constructor(metrics: MetricRegistry<typeof PRODUCER_METRICS>) {
    this.metrics = metrics;
  }

  /** Counts it when its answer is written, or its connection closed. */
  began(
    { routeOptions: { url: route = NO_ROUTE }, raw: { socket } }: FastifyRequest,
    { raw: answer }: FastifyReply,
  ): void {
    // Fastify takes no time of its own where it neither logs nor has a hook on responses
    const beganMs = performance.now();
    const unanswered = { status: CALLER_LEFT };
    this.open.set(socket, unanswered);
    answer.once('close', () => {
      this.open.delete(socket);
      this.count(route, answer.writableFinished ? answer.statusCode : unanswered.status);
      this.metrics.observe('shoal_http_request_duration_seconds', { route }, (performance.now() - beganMs) / 1_000);
    });
  }

  /** Node's parser gave up on this connection: on the request that it is busy with, or on one that nobody has seen. */
  refused(socket: Socket, status: number): void {
    const open = this.open.get(socket);
    if (open === undefined) this.count(NO_ROUTE, status);
    else open.status = status;
  }

  private count(route: string, status: number): void {
    this.metrics.count('shoal_http_requests_total', { route, status: String(status) });
  }
}
