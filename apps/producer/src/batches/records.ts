// What is stored of files, batches and jobs, and what callers see of it: OpenAI's objects, and of a job our own. Times
// that callers see are seconds since 1970, as OpenAI's are; others are milliseconds.

import { randomBytes } from 'node:crypto';
import type { Part, PartOutput, PartSource, Trace } from '@shoal/contract';
import type { LimitedKey } from '@shoal/queue';

/** What may be asked for in a line of a batch and in a job. */
export const ENDPOINTS = ['/v1/embeddings', '/v1/rerank'] as const;
export type Endpoint = (typeof ENDPOINTS)[number];

export type Kind = 'file' | 'batch' | 'job';

export interface FileRecord {
  readonly tenant: string;
  readonly id: string;
  readonly bytes: number;
  readonly created_at: number;
  readonly filename: string;
  readonly purpose: 'batch' | 'batch_output';
  readonly expires_at?: number | undefined;
}

/** What every notice of an ending needs; kept until it was delivered or given up. */
export interface WebhookState {
  readonly url: string;
  /** Undefined: that of the setting webhookSecret. */
  readonly secret?: string | undefined;
  readonly status: 'pending' | 'delivered' | 'failed';
  readonly attempts: number;
  /** Why the last attempt failed, in words without the address. */
  readonly last_error?: string | undefined;
  /** Epoch milliseconds. */
  readonly nextMs?: number | undefined;
}

/** Who works on a batch or a job; free again once `untilMs` (epoch) has passed. */
export interface Lease {
  readonly owner: string;
  readonly untilMs: number;
}

export interface LineError {
  readonly code: string;
  readonly line: number | null;
  readonly message: string;
  readonly param: string | null;
}

export type BatchStatus =
  | 'validating'
  | 'failed'
  | 'in_progress'
  | 'finalizing'
  | 'completed'
  | 'expired'
  | 'cancelling'
  | 'cancelled';

/** How far a batch has come: so many shards of its output are stored, and the input goes on at this byte. */
export interface Progress {
  readonly shards: number;
  /** Lines before `offset`, those without a request among them. */
  readonly line: number;
  readonly offset: number;
}

export interface Ending {
  readonly as: 'completed' | 'expired' | 'cancelled';
  readonly outputId: string;
  readonly errorId: string;
}

/**
 * What is asked of workers where they read the input by themselves, for requests of one kind: what parts have in common, and
 * which lines each has.
 */
export interface PartPlan {
  readonly run: string;
  readonly source: PartSource;
  readonly output: PartOutput;
  readonly model: Part['model'];
  /** Of vectors. */
  readonly dims: number;
  /** What their calls have in common (`Calls.groupOf`). */
  readonly group: string;
  readonly tenant: string;
  readonly ranges: readonly LineRange[];
}

/** Bytes of the input, and the number of the first line, from 1, and of all lines in them. */
export type LineRange = Omit<Extract<Part['range'], { kind: 'bytes' }>, 'kind'>;

export interface BatchRecord {
  readonly tenant: string;
  readonly id: string;
  readonly endpoint: Endpoint;
  readonly input_file_id: string;
  readonly completion_window: string;
  readonly status: BatchStatus;
  readonly model?: string | undefined;
  readonly errors?: readonly LineError[] | undefined;
  readonly output_file_id?: string | undefined;
  readonly error_file_id?: string | undefined;
  readonly created_at: number;
  readonly in_progress_at?: number | undefined;
  readonly expires_at: number;
  readonly finalizing_at?: number | undefined;
  readonly completed_at?: number | undefined;
  readonly failed_at?: number | undefined;
  readonly expired_at?: number | undefined;
  readonly cancelling_at?: number | undefined;
  readonly cancelled_at?: number | undefined;
  readonly request_counts: { readonly total: number; readonly completed: number; readonly failed: number };
  readonly tokens: number;
  readonly metadata: Readonly<Record<string, string>> | null;
  readonly output_expires_after?: { readonly anchor: 'created_at'; readonly seconds: number } | undefined;
  readonly progress: Progress;
  /** While workers read lines by themselves: of different kinds, each line in one part at most. */
  readonly parts?: readonly PartPlan[] | undefined;
  /** Once its output is being put together: how it ends, and the ids of its files, whoever goes on with it. */
  readonly ending?: Ending | undefined;
  readonly lease?: Lease | undefined;
  readonly webhook?: WebhookState | undefined;
  /** What it was made with, where that has limits: they hold for it as they were then. */
  readonly key?: LimitedKey | undefined;
  /** Of the request that made it, for its jobs of the queue. */
  readonly trace?: Trace | undefined;
}

export type JobStatus = 'queued' | 'in_progress' | 'completed' | 'failed' | 'cancelled' | 'expired';

/** OpenAI's error object. */
export interface ErrorObject {
  readonly message: string;
  readonly type: string;
  readonly param: string | null;
  readonly code: string | null;
}

export interface JobRecord {
  readonly tenant: string;
  readonly id: string;
  readonly endpoint: Endpoint;
  readonly status: JobStatus;
  readonly created_at: number;
  readonly started_at?: number | undefined;
  readonly ended_at?: number | undefined;
  readonly expires_at: number;
  readonly error?: ErrorObject | undefined;
  readonly metadata: Readonly<Record<string, string>> | null;
  readonly lease?: Lease | undefined;
  readonly webhook?: WebhookState | undefined;
  /** What it was made with, where that has limits: they hold for it as they were then. */
  readonly key?: LimitedKey | undefined;
  /** Of the request that made it, for its jobs of the queue. */
  readonly trace?: Trace | undefined;
}

export const nowSeconds = (): number => Math.floor(Date.now() / 1_000);

const PREFIX: Readonly<Record<Kind, string>> = { file: 'file-', batch: 'batch_', job: 'job_' };
const LATEST_MS = 2 ** 48 - 1;

/** A new id. In the order of their code units the newest comes first, as lists do. */
export function newId(kind: Kind): string {
  const age = (LATEST_MS - Date.now()).toString(16).padStart(12, '0');
  return `${PREFIX[kind]}${age}${randomBytes(10).toString('hex')}`;
}

/** When an id was made, in epoch milliseconds. */
export function madeMs(id: string): number {
  return LATEST_MS - Number.parseInt(id.slice(-32, -20), 16);
}

/** Whether `id` could be one that `newId` made. What is not is never looked for: no id leads to another key. */
export function isId(kind: Kind, id: string): boolean {
  return id.startsWith(PREFIX[kind]) && /^[0-9a-f]{32}$/.test(id.slice(PREFIX[kind].length));
}

export function hasEnded({ status }: BatchRecord | JobRecord): boolean {
  return ['completed', 'failed', 'expired', 'cancelled'].includes(status);
}

/** In seconds since 1970; undefined while it goes on. */
export function endedAt(record: BatchRecord | JobRecord): number | undefined {
  if ('ended_at' in record) return record.ended_at;
  if (!('progress' in record)) return undefined;
  const { completed_at, failed_at, expired_at, cancelled_at } = record;
  return completed_at ?? failed_at ?? expired_at ?? cancelled_at;
}

// ---- as callers see them ------------------------------------------------------------------------------------------

export function shownFile(record: FileRecord): object {
  const { tenant: _, ...file } = record;
  return { object: 'file', ...file, status: 'processed', status_details: null };
}

export function shownBatch(batch: BatchRecord): object {
  const { tenant: _, progress: __, ending: ___, lease: ____, trace: _____, key: ______, ...known } = batch;
  const { parts: _______, tokens, webhook, errors, ...shown } = known;
  const usage = {
    input_tokens: tokens,
    input_tokens_details: { cached_tokens: 0 },
    output_tokens: 0,
    output_tokens_details: { reasoning_tokens: 0 },
    total_tokens: tokens,
  };
  return {
    object: 'batch',
    ...TIMES,
    ...shown,
    errors: errors === undefined ? null : { object: 'list', data: errors },
    usage,
    webhook: shownWebhook(webhook),
  };
}

/** What has not happened is null, as OpenAI has it. */
const TIMES = {
  model: null,
  output_file_id: null,
  error_file_id: null,
  in_progress_at: null,
  finalizing_at: null,
  completed_at: null,
  failed_at: null,
  expired_at: null,
  cancelling_at: null,
  cancelled_at: null,
};

/** Without its result, which is stored as it is to be answered. */
export function shownJob(record: JobRecord): object {
  const { tenant: _, lease: __, trace: ___, key: ____, webhook, error, ...job } = record;
  return {
    object: 'job',
    started_at: null,
    ended_at: null,
    ...job,
    error: error ?? null,
    webhook: shownWebhook(webhook),
  };
}

function shownWebhook(webhook: WebhookState | undefined): object | null {
  if (webhook === undefined) return null;
  const { url, status, attempts, last_error = null } = webhook;
  return { url, status, attempts, last_error };
}
