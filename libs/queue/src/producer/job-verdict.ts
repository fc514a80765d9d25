// What a producer may do with a job id that it wants to use, decided from what was found under that id. Pure: reads no
// server and changes nothing; job-producer.ts carries the verdict out.
//
//                            same fingerprint                 another fingerprint
//   no such job              add, or ready by its result      add, but conflict with an unread result
//   waiting, active, …       known: the same request again    conflict
//   finished, result unread  ready: fetch it                  conflict: somebody may still come for it
//   finished, result taken,  replace: remove the old job      conflict, unless asked to replace always
//     expired, or failed     and add it anew
//
// `again` shifts the last two lines: 'never' leaves a finished job alone, 'always' replaces it even when its own result
// is unread (it arrived damaged). A result that lies on a payload server is as good as used up for whoever cannot read it
// there, or needs one that is kept. A job that some plain BullMQ producer added without a fingerprint counts as the same
// request; whose vectors they are is seen from the fingerprint in the result.

import { ShoalError, decodeResultHeader, type ResultHeader } from '@shoal/contract';

/** What is to happen when the id belongs to a finished job. */
export type Again =
  /** Replaced when there is nothing left to fetch. The default. */
  | 'when-used-up'
  /** Replaced even if its result is there, as long as that result is this request's own or was taken. */
  | 'always'
  /** Left alone and reported as finished. */
  | 'never';

export interface Found {
  /** Bytes of JSON as the job holds them, undefined when there is no such job. */
  readonly data: string | undefined;
  readonly isFinished: boolean;
  readonly failedReason: string | undefined;
  readonly result: ResultHeader | undefined;
}

export type Verdict =
  | { readonly kind: 'add' | 'known' | 'ready' | 'replace' }
  | { readonly kind: 'finished'; readonly failedReason: string | undefined }
  | { readonly kind: 'conflict'; readonly error: ShoalError<'JOB_ID_CONFLICT'> };

/** `replies`: of HMGET job data finishedOn failedReason, and of GETRANGE result 0 31 as a Buffer. */
export function toFound(hash: readonly (string | null)[], head: Buffer): Found {
  const [data, finishedOn, failedReason] = hash;
  return {
    data: data ?? undefined,
    isFinished: typeof finishedOn === 'string',
    failedReason: failedReason ?? undefined,
    result: decodeResultHeader(head),
  };
}

/** `readsPointers`: the job's reader fetches bodies from payload servers. */
export function judge(jobId: string, fingerprint: string, found: Found, again: Again, readsPointers = false): Verdict {
  const { data, isFinished, failedReason, result } = found;
  const isUnread = result !== undefined && !result.isTaken;
  if (isUnread && result.fingerprint !== fingerprint) return conflict(jobId, result.fingerprint, fingerprint);
  const isBeyondReach = isUnread && result.isPointer && !readsPointers && again === 'when-used-up';
  const mayFetch = isUnread && again !== 'always' && !isBeyondReach;
  if (data === undefined) return { kind: mayFetch ? 'ready' : isBeyondReach ? 'replace' : 'add' };
  const theirs = requestOf(data, found) ?? fingerprint;
  if (theirs !== fingerprint && !(isFinished && again === 'always')) return conflict(jobId, theirs, fingerprint);
  if (!isFinished) return { kind: 'known' };
  if (mayFetch) return { kind: 'ready' };
  return again === 'never' ? { kind: 'finished', failedReason } : { kind: 'replace' };
}

/** The fingerprint of the request that the job is for, as far as job or result tell. */
function requestOf(data: string, { isFinished, result }: Found): string | undefined {
  return fingerprintIn(data) ?? (isFinished ? result?.fingerprint : undefined);
}

function fingerprintIn(data: string): string | undefined {
  try {
    const parsed: unknown = JSON.parse(data);
    const value: unknown =
      typeof parsed === 'object' && parsed !== null ? Reflect.get(parsed, 'fingerprint') : undefined;
    return typeof value === 'string' ? value : undefined;
  } catch {
    return undefined; // somebody's corrupt job: the worker fails it, and the failure is reported
  }
}

function conflict(jobId: string, found: string, asked: string): Verdict {
  const error = new ShoalError(
    'JOB_ID_CONFLICT',
    `job id "${jobId}" is in use for another request (its fingerprint is ${found}, this one's ${asked}); ` +
      'choose another id, or remove that job first',
    { jobId, found, asked },
  );
  return { kind: 'conflict', error };
}
