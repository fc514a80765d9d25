// What is kept on the queue server of a request that somebody comes back for: of which jobs it consists and what they
// have in common, never a text. JSON; written by whoever submits, read by whoever has the id.

import { ShoalError, type Meta, type OutputDtype } from '@shoal/contract';
import type { RowsRequest } from './job-request.ts';

export interface RequestPart {
  readonly jobId: string;
  readonly rows: number;
  readonly fingerprint: string;
}

export interface RequestRecord {
  readonly v: 1;
  /** name@revision */
  readonly model: string;
  readonly rows: number;
  readonly dtype: OutputDtype;
  /** Its jobs, in order. */
  readonly parts: readonly RequestPart[];
  /** Epoch milliseconds, by the clock of whoever submitted it. */
  readonly submittedMs: number;
  readonly meta?: Meta;
}

export interface NewRequest {
  readonly requestId: string;
  readonly model: string;
  readonly dtype: OutputDtype;
  readonly meta: Meta | undefined;
  readonly requests: readonly RowsRequest[];
  /** The same rows as jobs of these names and sizes, as they were submitted before. */
  readonly cutAs: (parts: readonly RequestPart[]) => Promise<readonly RowsRequest[]>;
}

export function recordOf({ model, dtype, meta, requests }: Omit<NewRequest, 'cutAs'>): RequestRecord {
  const parts = requests.map(({ jobId, rows, fingerprint }) => ({ jobId, rows, fingerprint }));
  return {
    v: 1,
    model,
    rows: parts.reduce((sum, { rows }) => sum + rows, 0),
    dtype,
    parts,
    submittedMs: Date.now(),
    ...(meta !== undefined && { meta }),
  };
}

/** Throws JOB_VERSION_UNKNOWN for one that a later version wrote. */
export function readRecord(text: string): RequestRecord {
  const record = JSON.parse(text) as RequestRecord;
  if (record.v === 1) return record;
  throw new ShoalError(
    'JOB_VERSION_UNKNOWN',
    `the request was submitted by a later version of the SDK (its record has version ${String(record.v)}); fetch it with ` +
      'that one',
  );
}

/** Ids of the jobs of a request; none where there is no record of it. */
export function recordedIds(text: string | undefined): string[] {
  return text === undefined ? [] : readRecord(text).parts.map(({ jobId }) => jobId);
}
