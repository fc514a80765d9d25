// What /openapi.json says of files, batches and jobs. It describes; the routes check. batches.test.ts holds answers
// against it.

import { refusals } from '../openapi.ts';
import { content, object, type Schema } from '../openapi/parts.ts';
import {
  EXPIRES,
  JOB_EXPIRES,
  MAX_FILES_PAGE,
  MAX_METADATA,
  MAX_METADATA_KEY,
  MAX_METADATA_VALUE,
  MAX_PAGE,
} from './fields.ts';
import { ENDPOINTS } from './records.ts';
import { WEBHOOK_SECRET } from './webhook.ts';

type BatchComponent =
  | 'File'
  | 'FileList'
  | 'FileDeleted'
  | 'Batch'
  | 'BatchList'
  | 'BatchRequest'
  | 'Job'
  | 'JobList'
  | 'JobRequest';

const ref = (name: BatchComponent): Schema => ({ $ref: `${name}#` });
const text: Schema = { type: 'string' };
const textOrNull: Schema = { type: ['string', 'null'] };
const seconds: Schema = { type: 'integer', description: 'Seconds since 1970.' };
const secondsOrNull: Schema = { type: ['integer', 'null'], description: 'Seconds since 1970.' };
const endpoint: Schema = { type: 'string', enum: [...ENDPOINTS] };
const metadata: Schema = {
  type: ['object', 'null'],
  description: 'Up to 16 texts of your own, given back as they are.',
  additionalProperties: { type: 'string' },
};
/** As it is asked; answers have it as it was taken. */
const metadataAsked: Schema = {
  ...metadata,
  maxProperties: MAX_METADATA,
  propertyNames: { maxLength: MAX_METADATA_KEY },
  additionalProperties: { type: 'string', maxLength: MAX_METADATA_VALUE },
};
const expiresAfter: Schema = {
  required: ['anchor', 'seconds'],
  additionalProperties: false,
  properties: {
    anchor: { type: 'string', enum: ['created_at'] },
    seconds: { type: 'integer', minimum: EXPIRES.from, maximum: EXPIRES.to },
  },
};
const listOf = (items: Schema): Schema =>
  object({
    object: { type: 'string', enum: ['list'] },
    data: { type: 'array', items },
    first_id: textOrNull,
    last_id: textOrNull,
    has_more: { type: 'boolean' },
  });
const webhookAsked: Schema = {
  type: ['object', 'null'],
  description: 'Told of the end by a POST that is signed as Standard Webhooks has it.',
  required: ['url'],
  additionalProperties: false,
  properties: {
    url: {
      type: 'string',
      pattern: '^https?://[A-Za-z0-9]',
      description: 'Of the internet, unless the server allows others.',
    },
    secret: {
      type: ['string', 'null'],
      pattern: WEBHOOK_SECRET.source,
      description: 'Needed where the server has none of its own.',
    },
  },
};
const webhookShown: Schema = {
  type: ['object', 'null'],
  required: ['url', 'status', 'attempts', 'last_error'],
  properties: {
    url: text,
    status: { type: 'string', enum: ['pending', 'delivered', 'failed'] },
    attempts: { type: 'integer' },
    last_error: textOrNull,
  },
};

const FILE: Schema = {
  type: 'object',
  required: ['id', 'object', 'bytes', 'created_at', 'filename', 'purpose', 'status'],
  properties: {
    id: text,
    object: { type: 'string', enum: ['file'] },
    bytes: { type: 'integer' },
    created_at: seconds,
    expires_at: seconds,
    filename: text,
    purpose: { type: 'string', enum: ['batch', 'batch_output'] },
    status: { type: 'string', enum: ['processed'] },
    status_details: textOrNull,
  },
};

const BATCH: Schema = {
  type: 'object',
  required: ['id', 'object', 'endpoint', 'input_file_id', 'completion_window', 'status', 'created_at', 'expires_at'],
  properties: {
    id: text,
    object: { type: 'string', enum: ['batch'] },
    endpoint,
    model: textOrNull,
    errors: {
      type: ['object', 'null'],
      properties: {
        object: { type: 'string', enum: ['list'] },
        data: {
          type: 'array',
          items: object({
            code: text,
            line: { type: ['integer', 'null'] },
            message: text,
            param: textOrNull,
          }),
        },
      },
    },
    input_file_id: text,
    completion_window: text,
    status: {
      type: 'string',
      enum: ['validating', 'failed', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled'],
    },
    output_file_id: textOrNull,
    error_file_id: textOrNull,
    created_at: seconds,
    in_progress_at: secondsOrNull,
    expires_at: seconds,
    finalizing_at: secondsOrNull,
    completed_at: secondsOrNull,
    failed_at: secondsOrNull,
    expired_at: secondsOrNull,
    cancelling_at: secondsOrNull,
    cancelled_at: secondsOrNull,
    request_counts: object({
      total: { type: 'integer' },
      completed: { type: 'integer' },
      failed: { type: 'integer' },
    }),
    usage: { type: 'object', properties: { input_tokens: { type: 'integer' }, total_tokens: { type: 'integer' } } },
    metadata,
    webhook: webhookShown,
  },
};

const BATCH_REQUEST: Schema = {
  type: 'object',
  required: ['input_file_id', 'endpoint', 'completion_window'],
  additionalProperties: false,
  properties: {
    input_file_id: { type: 'string', description: 'A file that was uploaded with the purpose "batch".' },
    endpoint,
    completion_window: {
      type: 'string',
      pattern: '^([1-9]\\d{0,3}m|([1-9]\\d?|[12]\\d\\d|3[0-2]\\d|33[0-6])h|([1-9]|1[0-4])d)$',
      description: '"24h", or another number of m, h or d up to "14d".',
    },
    metadata: metadataAsked,
    output_expires_after: { type: ['object', 'null'], ...expiresAfter },
    webhook: webhookAsked,
  },
};

const JOB: Schema = {
  type: 'object',
  required: ['id', 'object', 'endpoint', 'status', 'created_at', 'expires_at', 'error', 'metadata', 'webhook'],
  properties: {
    id: text,
    object: { type: 'string', enum: ['job'] },
    endpoint,
    status: { type: 'string', enum: ['queued', 'in_progress', 'completed', 'failed', 'cancelled', 'expired'] },
    created_at: seconds,
    started_at: secondsOrNull,
    ended_at: secondsOrNull,
    expires_at: seconds,
    error: {
      type: ['object', 'null'],
      required: ['message', 'type', 'param', 'code'],
      properties: { message: text, type: text, param: textOrNull, code: textOrNull },
    },
    metadata,
    webhook: webhookShown,
    result: { type: ['object', 'null'], description: 'Once completed: what the endpoint answers. Not in lists.' },
  },
};

const JOB_REQUEST: Schema = {
  type: 'object',
  required: ['endpoint', 'body'],
  additionalProperties: false,
  properties: {
    endpoint,
    body: {
      description: 'What would be sent to the endpoint.',
      oneOf: [{ $ref: 'EmbeddingsRequest#' }, { $ref: 'RerankRequest#' }],
    },
    metadata: metadataAsked,
    webhook: webhookAsked,
    expires_in: {
      type: ['integer', 'null'],
      minimum: JOB_EXPIRES.from,
      maximum: JOB_EXPIRES.to,
      description: 'Seconds that it may take; a day when left out.',
    },
  },
};

/** The named schemas of files, batches and jobs. */
export function batchComponents(): readonly Schema[] {
  const schemas: Readonly<Record<BatchComponent, Schema>> = {
    File: FILE,
    FileList: listOf(ref('File')),
    FileDeleted: object({ id: text, object: { type: 'string', enum: ['file'] }, deleted: { type: 'boolean' } }),
    Batch: BATCH,
    BatchList: listOf(ref('Batch')),
    BatchRequest: BATCH_REQUEST,
    Job: JOB,
    JobList: listOf(ref('Job')),
    JobRequest: JOB_REQUEST,
  };
  return Object.entries(schemas).map(([$id, schema]) => ({ $id, ...schema }));
}

// ---- operations ---------------------------------------------------------------------------------------------------

type Tag = 'files' | 'batches' | 'jobs';

const answered = (status: number, description: string, given: BatchComponent, ...no: [number, string][]): Schema => ({
  [status]: { description, content: content(ref(given)) },
  ...refusals([400, 'The request is wrong; `param` says where.'], ...no),
});
const operation = (operationId: string, summary: string, tag: Tag, response: Schema, rest: Schema = {}): Schema => ({
  operationId,
  summary,
  tags: [tag],
  ...rest,
  response,
});
const gone = (what: string): [number, string] => [404, `There is no such ${what} of yours.`];
const byId = (what: string): Schema => ({
  params: object({ id: { type: 'string', description: `Id of a ${what}.` } }),
});
const paged = (most: number, more: Readonly<Record<string, Schema>> = {}): Schema => ({
  querystring: {
    type: 'object',
    properties: {
      limit: { type: 'integer', minimum: 1, maximum: most },
      after: { type: 'string', description: 'Id of the last one of the page before.' },
      ...more,
    },
  },
});

export const CREATE_FILE_SCHEMA = operation(
  'createFile',
  'Upload the input of a batch',
  'files',
  answered(
    200,
    'It is stored.',
    'File',
    [413, 'It is too large.'],
    [415, 'It is no form.'],
    [429, 'Too much at a time.'],
  ),
  {
    consumes: ['multipart/form-data'],
    body: {
      type: 'object',
      required: ['file', 'purpose'],
      additionalProperties: false,
      properties: {
        file: { type: 'string', format: 'binary', description: 'JSON lines, one request each.' },
        purpose: { type: 'string', enum: ['batch'] },
        expires_after: { type: 'object', ...expiresAfter },
      },
    },
  },
);
export const LIST_FILES_SCHEMA = operation(
  'listFiles',
  'Files, the newest first',
  'files',
  answered(200, 'A page of them.', 'FileList', gone('file')),
  paged(MAX_FILES_PAGE, { order: { type: 'string', enum: ['asc', 'desc'] }, purpose: { type: 'string' } }),
);
export const RETRIEVE_FILE_SCHEMA = operation(
  'retrieveFile',
  'One file, without its content',
  'files',
  answered(200, 'It is here.', 'File', gone('file')),
  byId('file'),
);
export const DELETE_FILE_SCHEMA = operation(
  'deleteFile',
  'Delete a file',
  'files',
  answered(200, 'It is gone.', 'FileDeleted', gone('file'), [409, 'An open batch reads it.']),
  byId('file'),
);
export const FILE_CONTENT_SCHEMA = operation(
  'downloadFile',
  'The content of a file',
  'files',
  {
    200: {
      description: 'Its bytes.',
      content: { 'application/octet-stream': { schema: { type: 'string', format: 'binary' } } },
    },
    ...refusals(gone('file')),
  },
  byId('file'),
);
export const CREATE_BATCH_SCHEMA = operation(
  'createBatch',
  'Begin a batch',
  'batches',
  answered(200, 'It begins.', 'Batch', gone('file'), [429, 'There are too many open ones.']),
  { body: ref('BatchRequest') },
);
export const LIST_BATCHES_SCHEMA = operation(
  'listBatches',
  'Batches, the newest first',
  'batches',
  answered(200, 'A page of them.', 'BatchList', gone('batch')),
  paged(MAX_PAGE),
);
export const RETRIEVE_BATCH_SCHEMA = operation(
  'retrieveBatch',
  'How far a batch is',
  'batches',
  answered(200, 'As it is now.', 'Batch', gone('batch')),
  byId('batch'),
);
export const CANCEL_BATCH_SCHEMA = operation(
  'cancelBatch',
  'Cancel a batch; what is answered already comes into its output',
  'batches',
  answered(200, 'It is being cancelled.', 'Batch', gone('batch'), [409, 'It has ended, or nearly.']),
  byId('batch'),
);
export const CREATE_JOB_SCHEMA = operation(
  'createJob',
  'Hand in one request, to be fetched later',
  'jobs',
  answered(202, 'It is stored.', 'Job', [404, 'There is no such model here.'], [429, 'There are too many open ones.']),
  { body: ref('JobRequest') },
);
export const LIST_JOBS_SCHEMA = operation(
  'listJobs',
  'Jobs, the newest first',
  'jobs',
  answered(200, 'A page of them.', 'JobList', gone('job')),
  paged(MAX_PAGE),
);
export const RETRIEVE_JOB_SCHEMA = operation(
  'retrieveJob',
  'How far a job is, and its result',
  'jobs',
  answered(200, 'As it is now.', 'Job', gone('job')),
  byId('job'),
);
export const CANCEL_JOB_SCHEMA = operation(
  'cancelJob',
  'Cancel a job; one that has ended stays as it is',
  'jobs',
  answered(200, 'As it is now.', 'Job', gone('job')),
  byId('job'),
);
