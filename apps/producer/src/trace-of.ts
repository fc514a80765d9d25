// What travels with the jobs of a request, so that logs and traces of its workers can be put beside those of its caller.

import type { IncomingMessage } from 'node:http';
import { randomUUID } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import { REQUEST_ID, readableTrace, type Trace } from '@shoal/contract';
import { contextOf } from './http-spans.ts';

/** What a caller called its request in `x-request-id`, or a name for it. */
export function requestId({ headers }: Pick<IncomingMessage, 'headers'>): string {
  const given = headers['x-request-id'];
  return typeof given === 'string' && REQUEST_ID.test(given) ? given : randomUUID();
}

/**
 * Of the request's own span, where one is made of it; else what its caller sent. A `traceparent` that cannot be read is
 * left out, as W3C's recommendation has it.
 */
export function traceOf(request: FastifyRequest): Trace | undefined {
  const { traceparent, tracestate } = contextOf(request) ?? request.headers;
  return readableTrace({ requestId: request.id, traceparent, tracestate });
}
