// What is asked of a client's open jobs, and what comes back. Nothing here does anything but make errors.

import { ShoalError, type Meta, type ResultHeader, type Trace } from '@shoal/contract';
import type { NewJob } from '@shoal/queue';

/** One job to be put on the queue, whatever it asks for. */
export interface JobRequest {
  readonly jobId: string;
  /** The call that it is a part of, as `idsOf` finds it. Left out: nobody looks for it. */
  readonly requestId?: string | undefined;
  readonly fingerprint: string;
  readonly job: NewJob;
  /** Where there are cells: what is known of where it is. Left out: it may be anywhere. */
  readonly placing?: Placing | undefined;
}

/** What is known of where a request may be before it is added. */
export interface Placing {
  /** Its id was made at random for it, so that it can be nowhere yet. */
  readonly isNew: boolean;
  /** It is to be in this cell and in no other. */
  readonly cell?: string | undefined;
}

/** A job with rows, each of which gets its own piece of the result. */
export interface RowsRequest extends JobRequest {
  readonly rows: number;
  /** Known when the client tokenized: tokens of each row, and the rows that were cut. */
  readonly tokens: readonly number[] | undefined;
  readonly truncated: readonly number[] | undefined;
}

/** What all jobs of one call have in common, whatever they ask for. */
export interface CallTerms {
  /** The call's own id, tenant included. */
  readonly requestId: string;
  /** name@revision */
  readonly model: string;
  readonly tenant: string;
  readonly reply: string;
  readonly truncate: 'end' | 'error';
  readonly class: 'interactive' | 'bulk' | undefined;
  /** Epoch milliseconds, after which a job that has not begun never runs. */
  readonly deadline?: number | undefined;
  readonly resultTtlMs?: number | undefined;
  readonly meta?: Meta | undefined;
  readonly trace?: Trace | undefined;
}

/** The same, with the channel on which its ending is announced. Asked for elsewhere it may have another. */
export function announcedOn<Request extends JobRequest>(reply: string, request: Request): Request {
  const { job } = request;
  return !('reply' in job.data) || job.data.reply === reply
    ? request
    : { ...request, job: { ...job, data: { ...job.data, reply } } };
}

/** Texts up to this many bytes travel inside the job; finished jobs are kept for a while, inputs are not. */
export const MAX_INLINE_TEXT_BYTES = 4_096;

/** The terms as fields of `data`; what has its default is left out. */
export function termFieldsOf({ tenant, reply, truncate, class: kind, deadline, resultTtlMs, meta, trace }: CallTerms) {
  return {
    tenant,
    reply,
    ...(kind !== undefined && { class: kind }),
    ...(deadline !== undefined && { deadline }),
    ...(resultTtlMs !== undefined && { resultTtlMs }),
    ...(truncate === 'error' && { truncate }),
    ...(meta !== undefined && { meta }),
    ...(trace !== undefined && { trace }),
  };
}

export class Delivery {
  readonly header: ResultHeader;
  /** As `openResult` returned it; checksum verified. Good until `letGo`. */
  readonly body: Buffer;
  /** How many have yet to read it; one that was abandoned meanwhile never will, and its memory is collected. */
  readers: number;

  constructor({ header, body }: Pick<Delivery, 'header' | 'body'>, readers: number) {
    this.header = header;
    this.body = body;
    this.readers = readers;
  }
}

/** One caller's interest in one job. */
export interface Asked<Request extends JobRequest = JobRequest> {
  readonly request: Request;
  readonly delivery: Promise<Delivery>;
}

/** What every call hears after `close`. */
export function closedError(): ShoalError<'INTERRUPTED'> {
  return new ShoalError('INTERRUPTED', 'the client was closed before the result came');
}

/** The job id belongs to a request with another fingerprint. */
export function conflict(
  { jobId, fingerprint }: Pick<JobRequest, 'jobId' | 'fingerprint'>,
  found: string,
): ShoalError<'JOB_ID_CONFLICT'> {
  return new ShoalError(
    'JOB_ID_CONFLICT',
    `job id "${jobId}" is in use for another request (its fingerprint is ${found}, this one's ${fingerprint}); ` +
      'choose another id',
    {
      jobId,
      found,
      asked: fingerprint,
    },
  );
}

/** The server was away for longer than it is waited for. */
export function noAnswer(jobId: string, giveUpAfterMs: number): ShoalError<'QUEUE_UNREACHABLE'> {
  return new ShoalError(
    'QUEUE_UNREACHABLE',
    `the queue server has not answered for ${Math.round(giveUpAfterMs / 1_000)} s; jobs that it has go on, ask again ` +
      'with the same ids to get their results',
    { jobId },
  );
}
