// A span for each request, as OpenTelemetry's conventions of HTTP servers have it: a child of its caller's, where that
// said in `traceparent` what it is. Probes and scrapes have none. The path is that of the route: what callers put into
// paths and questions is theirs.

import type { FastifyReply, FastifyRequest } from 'fastify';
import { readableTrace } from '@shoal/contract';
import type { Span, TraceContext, Tracer } from '@shoal/core';
import { callerOf } from './access/caller.ts';
import { HEALTH_ROUTES } from './health-routes.ts';
import { CALLER_LEFT } from './problem.ts';

const spans = new WeakMap<FastifyRequest, Span>();

/** For what goes on with the request: of its span, or undefined where none is made. */
export function contextOf(request: FastifyRequest): TraceContext | undefined {
  return spans.get(request)?.context;
}

/** To be called once a request, before its jobs are made. It ends when the answer is written or nobody waits for it. */
export function beginSpan(tracer: Tracer, request: FastifyRequest, { raw: answer }: FastifyReply): void {
  const { url: route } = request.routeOptions;
  if (!tracer.isOn || HEALTH_ROUTES.has(route)) return;
  const { traceparent, tracestate } = request.headers;
  const span = tracer.start(route === undefined ? request.method : `${request.method} ${route}`, {
    kind: 'server',
    parent: readableTrace({ requestId: undefined, traceparent, tracestate }),
    facts: {
      'http.request.method': request.method,
      'http.route': route,
      'url.scheme': 'http',
      'network.protocol.version': request.raw.httpVersion,
      'shoal.request_id': request.id,
    },
  });
  spans.set(request, span);
  answer.once('close', () => {
    const status = answer.writableFinished ? answer.statusCode : CALLER_LEFT;
    const facts = { 'http.response.status_code': status, 'shoal.key_id': callerOf(request).keyId };
    span.end(facts, status >= 500 ? String(status) : undefined);
  });
}
