// /v1/batches, as OpenAI has it, with a webhook of our own. Routes only write down what is asked; the runner does it.

import type { FastifyInstance, FastifyRequest } from 'fastify';
import { limitedKey } from '../access/allowances.ts';
import { callerOf } from '../access/caller.ts';
import { checkedBody, missing, shown, wrongType } from '../body-fields.ts';
import { invalid } from '../problem.ts';
import { traceOf } from '../trace-of.ts';
import type { BatchStore } from './batch-store.ts';
import { MAX_PAGE, config, noSuch, parseEndpoint, parseExpiresAfter, parseListQuery, parseMetadata } from './fields.ts';
import { listOf } from './file-routes.ts';
import {
  CANCEL_BATCH_SCHEMA,
  CREATE_BATCH_SCHEMA,
  LIST_BATCHES_SCHEMA,
  RETRIEVE_BATCH_SCHEMA,
} from './openapi-batches.ts';
import { newId, nowSeconds, shownBatch, type BatchRecord } from './records.ts';
import { parseWebhook, type WebhookOptions } from './webhook.ts';

export interface BatchRoutesOptions {
  readonly webhooks: WebhookOptions;
  /** Batches of one tenant that have not ended. */
  readonly maxOpen: number;
  /** Something is to be done, or has changed. */
  readonly kick: (id?: string) => void;
}

const DEFAULT_PAGE = 20;
const FIELDS = [
  'input_file_id',
  'endpoint',
  'completion_window',
  'metadata',
  'output_expires_after',
  'webhook',
] as const;
const WINDOW = /^([1-9]\d{0,3})([mhd])$/;
const SECONDS = { m: 60, h: 3_600, d: 86_400 };
/** Two weeks. */
const LONGEST_SECONDS = 14 * SECONDS.d;

interface ById {
  Params: { id: string };
}

export function addBatchRoutes(app: FastifyInstance, store: BatchStore, options: BatchRoutesOptions): void {
  app.post('/v1/batches', { schema: CREATE_BATCH_SCHEMA, config }, async (request) => {
    const batch = await parseBatch(request, store, options);
    const open = await store.tooMany('batch', batch.tenant, options.maxOpen);
    if (open !== undefined)
      throw invalid(
        'too_many_batches',
        null,
        `there are ${open} batches that have not ended, as many as there may be (the setting maxOpenBatches); ` +
          'wait for one, or cancel one',
        429,
      );
    await store.mark('batch', batch.tenant, batch.id);
    const { record } = await store.create('batch', batch);
    options.kick();
    return shownBatch(record);
  });
  app.get('/v1/batches', { schema: LIST_BATCHES_SCHEMA, config }, async (request) => {
    const asked = parseListQuery(request.query, { most: MAX_PAGE, byDefault: DEFAULT_PAGE });
    const page = await store.page('batch', callerOf(request).tenant, asked);
    if (page === undefined) throw noSuch('batch', asked.after ?? '', 'after');
    return listOf(page.data.map(shownBatch), page.data, page.hasMore);
  });
  app.get<ById>('/v1/batches/:id', { schema: RETRIEVE_BATCH_SCHEMA, config }, async (request) => {
    const { id } = request.params;
    const found = await store.find('batch', callerOf(request).tenant, id);
    if (found === undefined) throw noSuch('batch', id);
    return shownBatch(found.record);
  });
  app.post<ById>(
    '/v1/batches/:id/cancel',
    { schema: CANCEL_BATCH_SCHEMA, config: { ...config, mayLackBody: true } },
    async (request) => {
      const { id } = request.params;
      if (request.body !== undefined && request.body !== null) checkedBody(request.body, []);
      const found = await store.update('batch', callerOf(request).tenant, id, cancelled);
      if (found === undefined) throw noSuch('batch', id);
      options.kick(id);
      return shownBatch(found.record);
    },
  );
}

/** Where its output is being put together already, it is put together to the end. */
function cancelled(batch: BatchRecord): BatchRecord | undefined {
  switch (batch.status) {
    case 'cancelling':
    case 'cancelled':
      return undefined; // asked twice
    case 'validating':
    case 'in_progress':
      return { ...batch, status: 'cancelling', cancelling_at: nowSeconds() };
    default:
      throw invalid(
        'batch_not_cancellable',
        'batch_id',
        `the batch has the status "${batch.status}"; only one that is validating or in_progress can be cancelled`,
        409,
      );
  }
}

async function parseBatch(
  request: FastifyRequest,
  store: BatchStore,
  { webhooks }: BatchRoutesOptions,
): Promise<BatchRecord> {
  const fields = checkedBody(request.body, FIELDS);
  const endpoint = parseEndpoint(fields.endpoint);
  const { completion_window: window } = fields;
  if (window === undefined) throw missing('completion_window', '"24h"');
  const seconds = secondsOf(window);
  const metadata = parseMetadata(fields.metadata);
  const kept = parseExpiresAfter('output_expires_after', fields.output_expires_after);
  const webhook = parseWebhook(fields.webhook, webhooks);
  const fileId = fields.input_file_id;
  if (fileId === undefined) throw missing('input_file_id', 'the id of a file that was uploaded with purpose "batch"');
  if (typeof fileId !== 'string') throw wrongType('input_file_id', 'the id of a file', fileId);
  const tenant = callerOf(request).tenant;
  const file = await store.find('file', tenant, fileId);
  if (file === undefined) throw noSuch('file', fileId, 'input_file_id');
  if (file.record.purpose !== 'batch')
    throw invalid(
      'invalid_value',
      'input_file_id',
      `the file ${fileId} has the purpose "${file.record.purpose}"; the input of a batch is uploaded with "batch"`,
    );
  const created = nowSeconds();
  return {
    tenant,
    id: newId('batch'),
    endpoint,
    input_file_id: fileId,
    completion_window: String(window),
    status: 'validating',
    created_at: created,
    expires_at: created + seconds,
    request_counts: { total: 0, completed: 0, failed: 0 },
    tokens: 0,
    metadata,
    ...(kept !== undefined && { output_expires_after: { anchor: 'created_at' as const, seconds: kept } }),
    progress: { shards: 0, line: 0, offset: 0 },
    key: limitedKey(callerOf(request)),
    trace: traceOf(request),
    ...(webhook !== undefined && { webhook }),
  };
}

function secondsOf(window: unknown): number {
  const [, number, unit] = (typeof window === 'string' ? WINDOW.exec(window) : null) ?? [];
  const seconds = number === undefined ? 0 : Number(number) * SECONDS[unit as keyof typeof SECONDS];
  if (seconds > 0 && seconds <= LONGEST_SECONDS) return seconds;
  throw invalid(
    'invalid_value',
    'completion_window',
    `"completion_window" must be "24h", or another number of minutes, hours or days up to "14d", found ${shown(window)}`,
  );
}
