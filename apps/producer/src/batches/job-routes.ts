// /v1/jobs: one request handed in now and fetched later. Its answer is stored, so it is there however often it is asked
// for, until it expires; what is wrong with the request is said at once.

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { limitedKey, type Allowances } from '../access/allowances.ts';
import { callerOf } from '../access/caller.ts';
import { checkedBody, missing, wholeNumber } from '../body-fields.ts';
import type { Gate } from '../gate.ts';
import { Problem, invalid } from '../problem.ts';
import { traceOf } from '../trace-of.ts';
import type { BatchRoutesOptions } from './batch-routes.ts';
import type { BatchStore } from './batch-store.ts';
import { rowsOf, type Calls } from './calls.ts';
import { JOB_EXPIRES, MAX_PAGE, config, noSuch, parseEndpoint, parseListQuery, parseMetadata } from './fields.ts';
import { listOf } from './file-routes.ts';
import { CANCEL_JOB_SCHEMA, CREATE_JOB_SCHEMA, LIST_JOBS_SCHEMA, RETRIEVE_JOB_SCHEMA } from './openapi-batches.ts';
import { hasEnded, newId, nowSeconds, shownJob, type JobRecord } from './records.ts';
import { parseWebhook } from './webhook.ts';

export interface JobRoutesOptions extends Omit<BatchRoutesOptions, 'maxOpen'> {
  /** Jobs of one tenant that have not ended. */
  readonly maxOpen: number;
  readonly calls: Pick<Calls, 'check'>;
  readonly allowances: Pick<Allowances, 'take'>;
}

const FIELDS = ['endpoint', 'body', 'metadata', 'webhook', 'expires_in'] as const;
const DEFAULT_EXPIRES = 86_400;
const DEFAULT_PAGE = 20;

interface ById {
  Params: { id: string };
}

export function addJobRoutes(app: FastifyInstance, store: BatchStore, gate: Gate, options: JobRoutesOptions): void {
  app.post('/v1/jobs', { schema: CREATE_JOB_SCHEMA, config }, async (request, reply) => {
    const { body, rows, ...job } = await parseJob(request, options);
    await options.allowances.take(request, reply, rows);
    const open = await store.tooMany('job', job.tenant, options.maxOpen);
    if (open !== undefined)
      throw invalid(
        'too_many_jobs',
        null,
        `there are ${open} jobs that have not ended, as many as there may be (the setting maxOpenJobs); wait ` +
          'for some, or hand in a batch',
        429,
      );
    await store.storage.write(store.askedKey(job.tenant, job.id), [Buffer.from(JSON.stringify(body))]);
    await store.mark('job', job.tenant, job.id);
    const { record } = await store.create('job', job);
    options.kick();
    void reply.status(202).header('location', `/v1/jobs/${job.id}`);
    return { ...shownJob(record), result: null };
  });
  app.get('/v1/jobs', { schema: LIST_JOBS_SCHEMA, config }, async (request) => {
    const asked = parseListQuery(request.query, { most: MAX_PAGE, byDefault: DEFAULT_PAGE });
    const page = await store.page('job', callerOf(request).tenant, asked);
    if (page === undefined) throw noSuch('job', asked.after ?? '', 'after');
    return listOf(page.data.map(shownJob), page.data, page.hasMore);
  });
  app.get<ById>('/v1/jobs/:id', { schema: RETRIEVE_JOB_SCHEMA, config }, async (request, reply) => {
    const job = await found(request, store);
    return withResult(job, store, gate, reply);
  });
  app.delete<ById>('/v1/jobs/:id', { schema: CANCEL_JOB_SCHEMA, config }, async (request, reply) => {
    const { id } = request.params;
    const job = await store.update('job', callerOf(request).tenant, id, cancelled);
    if (job === undefined) throw noSuch('job', id);
    options.kick(id);
    return withResult(job.record, store, gate, reply);
  });
}

/** One that has ended stays as it is. */
function cancelled(job: JobRecord): JobRecord | undefined {
  if (hasEnded(job)) return undefined;
  const webhook = job.webhook && { ...job.webhook, nextMs: Date.now() };
  return { ...job, status: 'cancelled', ended_at: nowSeconds(), ...(webhook !== undefined && { webhook }) };
}

async function found(request: FastifyRequest<ById>, store: BatchStore): Promise<JobRecord> {
  const { id } = request.params;
  const job = await store.find('job', callerOf(request).tenant, id);
  if (job === undefined) throw noSuch('job', id);
  return job.record;
}

/** The answer is stored as text, and is sent as it is. */
async function withResult(job: JobRecord, store: BatchStore, gate: Gate, reply: FastifyReply): Promise<object> {
  if (job.status !== 'completed') return { ...shownJob(job), result: null };
  const result = await store.storage.open(store.resultKey(job.tenant, job.id));
  if (result === undefined) return { ...shownJob(job), result: null };
  const head = JSON.stringify(shownJob(job));
  return gate.sendBytes(
    reply,
    'application/json; charset=utf-8',
    around(`${head.slice(0, -1)},"result":`, result, '}'),
  );
}

async function* around(
  head: string,
  pieces: AsyncIterable<Uint8Array>,
  tail: string,
): AsyncGenerator<Uint8Array, void, undefined> {
  yield Buffer.from(head);
  yield* pieces;
  yield Buffer.from(tail);
}

async function parseJob(
  request: FastifyRequest,
  { webhooks, calls }: JobRoutesOptions,
): Promise<JobRecord & { readonly body: object; readonly rows: number }> {
  const fields = checkedBody(request.body, FIELDS);
  request.body = undefined;
  const endpoint = parseEndpoint(fields.endpoint);
  if (fields.body === undefined) throw missing('body', `what would be sent to ${endpoint}`);
  const { expires_in: asked } = fields;
  const expires = asked === undefined ? DEFAULT_EXPIRES : wholeNumber('expires_in', asked, JOB_EXPIRES);
  const metadata = parseMetadata(fields.metadata);
  const webhook = parseWebhook(fields.webhook, webhooks);
  const call = await calls
    .check(endpoint, fields.body)
    .catch((error: unknown) => Promise.reject(within('body', error)));
  const created = nowSeconds();
  return {
    tenant: callerOf(request).tenant,
    id: newId('job'),
    endpoint,
    status: 'queued',
    created_at: created,
    expires_at: created + expires,
    metadata,
    key: limitedKey(callerOf(request)),
    trace: traceOf(request),
    ...(webhook !== undefined && { webhook }),
    body: fields.body as object,
    rows: rowsOf(call),
  };
}

/** The same problem, of a field of an object in the body. */
function within(place: string, error: unknown): unknown {
  if (!(error instanceof Problem)) return error;
  const { param } = error.facts;
  return new Problem(error.message, { ...error.facts, param: param === null ? place : `${place}.${param}` });
}
