// Which request a job belongs to, for whoever follows it through logs and traces: the id that HTTP gives each request, or
// its caller did, and W3C's trace context (https://www.w3.org/TR/trace-context/). It changes nothing of what is computed
// and is part of no fingerprint.

import { z } from 'zod';

/** What may be a request's id: it goes into logs as it is. */
export const REQUEST_ID = /^[\w.:@/+=-]{1,128}$/;
/** version-traceid-parentid-flags, none of the ids all zeros. */
const TRACEPARENT = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;
const TRACESTATE = /^[\x20-\x7e]{1,512}$/;

const fields = {
  requestId: z
    .string()
    .regex(REQUEST_ID, 'must be 1 to 128 of A-Z a-z 0-9 _ . : @ / + = -')
    .optional()
    .describe('Of the request that the job is a part of. Workers name it where they log what became of the job.'),
  traceparent: z
    .string()
    .regex(TRACEPARENT, 'must be version-traceid-parentid-flags in lower-case hex digits, as W3C Trace Context has it')
    .optional(),
  tracestate: z.string().regex(TRACESTATE, 'must be 1 to 512 printable characters of ASCII').optional(),
};

/** Version 2. */
export const traceField = z
  .strictObject(fields)
  .optional()
  .describe('The request that the job belongs to, for logs and traces.');

/** Each part may be there without the others. */
export interface Trace {
  readonly requestId?: string | undefined;
  /** W3C's header of this name. */
  readonly traceparent?: string | undefined;
  readonly tracestate?: string | undefined;
}

/**
 * What of `given` may travel with a job; undefined where nothing may. For what others have sent: as W3C's recommendation
 * has it, a trace context that cannot be read is left out, and the state with it.
 */
export function readableTrace(given: Readonly<Record<keyof Trace, unknown>>): Trace | undefined {
  const [requestId, traceparent, tracestate] = [
    fields.requestId.safeParse(given.requestId).data,
    fields.traceparent.safeParse(given.traceparent).data,
    fields.tracestate.safeParse(given.tracestate).data,
  ];
  if (requestId === undefined && traceparent === undefined) return undefined;
  return {
    ...(requestId !== undefined && { requestId }),
    ...(traceparent !== undefined && { traceparent }),
    ...(traceparent !== undefined && tracestate !== undefined && { tracestate }),
  };
}

/**
 * The request's id in the data of a job, for a log line; undefined where there is none. The data may be anything: jobs
 * that cannot be read fail as well.
 */
export function requestIdIn(data: unknown): string | undefined {
  const trace: unknown = typeof data === 'object' && data !== null ? Reflect.get(data, 'trace') : undefined;
  const id: unknown = typeof trace === 'object' && trace !== null ? Reflect.get(trace, 'requestId') : undefined;
  return typeof id === 'string' && REQUEST_ID.test(id) ? id : undefined;
}
