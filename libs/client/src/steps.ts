// The steps of an open job, and which comes after which. Pure: a job and what was learnt of it go in, its next step or
// its ending comes out; open-jobs.ts tells the whole life of a job, and carries the moves out.

import {
  ShoalError,
  decodeResultHeader,
  isShoalError,
  openResult,
  parseFailedReason,
  type ErrorCode,
  type ResultHeader,
} from '@shoal/contract';
import type { AddResult, Again, JobEnding, Peeked } from '@shoal/queue';
import type { ClientCounts } from './embedding.ts';
import { conflict, type Asked, type Delivery, type JobRequest } from './job-request.ts';

export type Step =
  | { readonly name: 'to-add'; readonly again: Again; readonly notBeforeMs: number }
  | { readonly name: 'adding'; readonly again: Again }
  | { readonly name: 'waiting'; readonly askAtMs: number; readonly patienceMs: number }
  | { readonly name: 'asking'; readonly patienceMs: number }
  | { readonly name: 'to-fetch' | 'fetching' | 'gone' };

export interface OpenJob {
  /** Jobs asked for earlier have lower ones. */
  readonly number: number;
  readonly request: JobRequest;
  readonly delivery: PromiseWithResolvers<Delivery>;
  step: Step;
  /** Who waits for it: the same request may be made twice at once. */
  readonly holders: Set<Asked>;
  /** We put it on the queue, so its end will be announced to us and we may take it off again. */
  isOurs: boolean;
  /** A reply that came while the job was being added or looked up. */
  announced: 'completed' | 'failed' | undefined;
  /** It has been on the queue: what was let in once is not refused again. */
  wasLetIn: boolean;
  /** It was on the queue before, and gone. */
  isLost: boolean;
  askedAgain: number;
  /** Since when the server refuses or does not answer for this job. */
  faultSinceMs: number | undefined;
}

/** What happens to a job next. */
export type Move =
  | { readonly kind: 'step'; readonly step: Step }
  /** It goes back to be added, unless that was tried too often: its result cannot be had. */
  | { readonly kind: 'ask-again'; readonly code: ErrorCode; readonly again: Again }
  | { readonly kind: 'reject'; readonly error: ShoalError }
  | { readonly kind: 'deliver'; readonly result: { readonly header: ResultHeader; readonly body: Buffer } };

/** What the moves of all jobs depend on besides the jobs. */
export interface MoveTerms {
  readonly nowMs: number;
  readonly askAfterMs: number;
  readonly giveUpAfterMs: number;
  readonly whenFull: 'wait' | 'fail';
}

/** How long a job that somebody else added is waited for before its first lookup. */
const FOREIGN_PATIENCE_MS = 250;
/** The pause before a job is sent again that the server could not take or look up. */
const RETRY_MS = 250;
/**
 * What somebody has to put right is told soon: a full disk, and a queue whose keys are damaged, which any worker puts
 * right within seconds. What fails over by itself is waited for longer.
 */
const SHORT_PATIENCE_MS = 10_000;
/** What passes by itself, or is soon put right. */
export const PASSING: ReadonlySet<ErrorCode> = new Set([
  'QUEUE_FULL',
  'QUEUE_REFUSES_WRITES',
  'QUEUE_UNREACHABLE',
  'QUEUE_DAMAGED',
]);
/**
 * Times at which jobs are looked up lie so far apart, as a share of their patience, that those of one time go together.
 */
const LOOK_STEP = 1 / 8;
const MAX_ASKED_AGAIN = 3;

/** The first step of every job. */
export const FIRST_STEP: Step = { name: 'to-add', again: 'when-used-up', notBeforeMs: 0 };

export function newJob(number: number, request: JobRequest): OpenJob {
  return {
    number,
    request,
    delivery: Promise.withResolvers(),
    step: FIRST_STEP,
    holders: new Set(),
    isOurs: false,
    announced: undefined,
    wasLetIn: false,
    isLost: false,
    askedAgain: 0,
    faultSinceMs: undefined,
  };
}

/** The move of a job that was sent to be added, by what the queue said. */
export function afterAdd(job: OpenJob, result: AddResult, terms: MoveTerms): Move {
  switch (result.outcome) {
    case 'refused': // waiting is no fault: however long it takes, it ends
      return terms.whenFull === 'fail' ? { kind: 'reject', error: result.error } : { kind: 'step', step: FIRST_STEP };
    case 'added':
      return toWait(job, terms.askAfterMs, terms);
    case 'known': {
      const patienceMs = job.isOurs ? terms.askAfterMs : Math.min(FOREIGN_PATIENCE_MS, terms.askAfterMs);
      return toWait(job, patienceMs, terms);
    }
    case 'ready':
      return { kind: 'step', step: { name: 'to-fetch' } };
    case 'finished':
      return result.failedReason === undefined
        ? { kind: 'ask-again', code: 'RESULT_EXPIRED', again: 'when-used-up' }
        : afterFailure(job, result.failedReason);
    case 'conflict':
      return { kind: 'reject', error: result.error };
  }
}

/** Returns the count that the answer to an add belongs to; undefined: it is not counted. */
export function countOf(job: OpenJob, { outcome }: AddResult): keyof ClientCounts | undefined {
  if (outcome === 'added') return job.isLost ? 'addedAgain' : 'added';
  if (outcome === 'known') return job.isOurs ? undefined : 'known';
  return outcome === 'ready' ? 'ready' : undefined;
}

/** The move of a job that was looked up. */
export function afterLookUp(
  job: OpenJob,
  patienceMs: number,
  { state, failedReason }: Pick<JobEnding, 'state' | 'failedReason'>,
  terms: MoveTerms,
): Move {
  switch (state) {
    case 'open':
      return toWait(job, Math.min(2 * patienceMs, terms.askAfterMs), terms);
    case 'completed':
      return { kind: 'step', step: { name: 'to-fetch' } };
    case 'failed':
      return afterFailure(job, failedReason ?? '');
    case 'unknown':
      return { kind: 'step', step: FIRST_STEP };
  }
}

/** The step of a *waiting* job that was announced: a failed one is looked up at once, because a reply has no reason. */
export function afterReply(step: Extract<Step, { name: 'waiting' }>, outcome: 'completed' | 'failed'): Step {
  return outcome === 'completed' ? { name: 'to-fetch' } : { ...step, askAtMs: 0 };
}

/** The move of a job whose result was read. */
export function afterFetch({ request }: OpenJob, bytes: Peeked): Move {
  if (isShoalError(bytes)) return afterBadResult(bytes);
  if (bytes === undefined) return { kind: 'ask-again', code: 'RESULT_EXPIRED', again: 'when-used-up' };
  const header = decodeResultHeader(bytes);
  if (header !== undefined && header.fingerprint !== request.fingerprint)
    return { kind: 'reject', error: conflict(request, header.fingerprint) };
  try {
    return { kind: 'deliver', result: openResult(bytes) };
  } catch (error) {
    if (isShoalError(error)) return afterBadResult(error);
    throw error;
  }
}

/**
 * One that was taken may be there again, and one that lies where only another reader looks goes to the queue server when
 * it is asked for again; what is damaged or lost is computed again, whatever is there.
 */
function afterBadResult(error: ShoalError): Move {
  switch (error.code) {
    case 'RESULT_TAKEN':
    case 'PAYLOAD_ELSEWHERE':
      return { kind: 'ask-again', code: error.code, again: 'when-used-up' };
    case 'RESULT_CORRUPT':
    case 'PAYLOAD_LOST':
      return { kind: 'ask-again', code: error.code, again: 'always' };
    default:
      return { kind: 'reject', error };
  }
}

/** The move of a job for which the server could not do something now: after a pause it is added again. */
export function afterFault({ step }: OpenJob, error: unknown, faultSinceMs: number, terms: MoveTerms): Move {
  const { nowMs, giveUpAfterMs } = terms;
  const isPassing = isShoalError(error) && PASSING.has(error.code);
  const isToldSoon = isFullDisk(error) || isShoalError(error, 'QUEUE_DAMAGED');
  const patienceMs = isToldSoon ? Math.min(giveUpAfterMs, SHORT_PATIENCE_MS) : giveUpAfterMs;
  if (!isPassing || nowMs - faultSinceMs > patienceMs) return { kind: 'reject', error: toShoalError(error) };
  const again = step.name === 'adding' ? step.again : 'never';
  return { kind: 'step', step: { name: 'to-add', again, notBeforeMs: nowMs + RETRY_MS } };
}

/** The queue server cannot write its append-only file or its snapshot, and says so itself (MISCONF). */
function isFullDisk(error: unknown): boolean {
  return isShoalError(error, 'QUEUE_REFUSES_WRITES') && String(error.fields['reply']).startsWith('MISCONF');
}

/** The error of a job whose result was asked for again too often; undefined while it was not. */
export function askedTooOften({ request: { jobId }, askedAgain }: OpenJob, code: ErrorCode): ShoalError | undefined {
  if (askedAgain < MAX_ASKED_AGAIN) return undefined;
  return new ShoalError(
    code,
    `job "${jobId}" ended ${askedAgain + 1} times without a result that could be read (${code}); does ` +
      'another client take its results?',
    { jobId },
  );
}

function afterFailure({ request: { jobId } }: OpenJob, reason: string): Move {
  const { code, message } = parseFailedReason(reason);
  if (code === 'INPUT_LOST') return { kind: 'ask-again', code, again: 'when-used-up' }; // the input is still here
  return { kind: 'reject', error: new ShoalError(code, message, { jobId }) };
}

/** Waits for a reply, or goes on with one that came meanwhile. */
function toWait({ announced }: OpenJob, patienceMs: number, { nowMs }: MoveTerms): Move {
  if (announced === 'completed') return { kind: 'step', step: { name: 'to-fetch' } };
  const askAtMs = announced === 'failed' ? 0 : roundedUp(nowMs + patienceMs, patienceMs * LOOK_STEP);
  return { kind: 'step', step: { name: 'waiting', askAtMs, patienceMs } };
}

function roundedUp(ms: number, stepMs: number): number {
  return Math.ceil(ms / stepMs) * stepMs;
}

function toShoalError(error: unknown): ShoalError {
  if (error instanceof ShoalError) return error;
  return new ShoalError(
    'QUEUE_UNREACHABLE',
    `the queue server refused: ${error instanceof Error ? error.message : String(error)}`,
    {},
    error,
  );
}
