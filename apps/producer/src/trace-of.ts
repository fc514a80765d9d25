// What travels with the jobs of a request, so that logs and traces of its workers can be put beside those of its caller.

import type { IncomingMessage } from 'node:http';
import { randomUUID } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import { REQUEST_ID, readableTrace, type Trace } from '@shoal/contract';

/** What a caller called its request in `x-request-id`, or a name for it. */
export function requestId({ headers }: Pick<IncomingMessage, 'headers'>): string {
  const given = headers['x-request-id'];
  return typeof given === 'string' && REQUEST_ID.test(given) ? given : randomUUID();
}

/** A `traceparent` that cannot be read is left out, as W3C's recommendation has it. */
export function traceOf({ id, headers }: Pick<FastifyRequest, 'id' | 'headers'>): Trace | undefined {
  const { traceparent, tracestate } = headers;
  return readableTrace({ requestId: id, traceparent, tracestate });
}
