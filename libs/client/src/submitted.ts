// Requests that somebody comes back for, perhaps in another process: what was asked is kept on the queue server as a
// *record*, the names and fingerprints of its jobs, so that an id alone brings state and vectors back. Nothing here
// holds texts: what the queue has lost is asked for again by submitting it again, with the same id.
//
// The state of a request is that of its jobs: *failed* or *cancelled* as soon as one of them is, *completed* when all
// are and their results lie there, *expired* when one of these is gone, else *running* or *waiting*. A job that the
// queue has forgotten is completed where its result is there.

import { setTimeout as sleep } from 'node:timers/promises';
import {
  ShoalError,
  decodeResultHeader,
  isShoalError,
  openResult,
  parseFailedReason,
  type OutputDtype,
} from '@shoal/contract';
import type { CancelResult, NewJob, Peeked } from '@shoal/queue';
import { abortError } from './abort-error.ts';
import type { JobState, JobStatus, RequestHandle, SubmittedResult, WaitOptions } from './embedding.ts';
import type { Line, PlacedId } from './line.ts';
import { closedError, conflict, type RowsRequest } from './job-request.ts';
import { checkCallOptions } from './options.ts';
import type { QueueLine } from './queue-line.ts';
import { readRecord, recordOf, type NewRequest, type RequestRecord, type RequestPart } from './request-record.ts';
import { PASSING } from './steps.ts';
import { joinedRows, storedRows, type StoredRows } from './stored-rows.ts';
import { limited } from './time-limit.ts';
import { withRows } from './with-rows.ts';

type PartState = { readonly state: JobState; readonly error?: ShoalError };

/** Longer than any result lives: a queue may be paused for weeks. */
const RECORD_TTL_MS = 60 * 86_400_000;
/** Between two looks at a request that nobody speaks of; the second is the longest. */
const FIRST_LOOK_MS = 100;
const LAST_LOOK_MS = 2_000;
/** The pause before the queue is asked again that could not answer. */
const RETRY_MS = 250;
/** Results read in one go. */
const FETCHED_AT_ONCE = 32;

/** Where a request lies. */
export type SubmittedLine = Pick<
  QueueLine,
  'cancel' | 'isClosed' | 'producer' | 'reader' | 'replies' | 'returnValues' | 'terms'
>;

/**
 * Puts all jobs of a request on the queue, waiting for room where it is full, and for the server's disk: whoever submits
 * may be gone when the server loses power. May be repeated after any fault.
 */
export async function submit(line: SubmittedLine, request: NewRequest, signal: AbortSignal | undefined): Promise<void> {
  const { requestId } = request;
  const text = JSON.stringify(recordOf(request));
  const found = await patiently(line, signal, () => line.producer.records.keep(requestId, text, RECORD_TTL_MS));
  const requests = await cutAsBefore(readRecord(found), request);
  const ours: string[] = [];
  try {
    let jobs: readonly NewJob[] = requests.map(({ job }) => job);
    while (jobs.length > 0) jobs = await added(line, jobs, ours, signal);
    await patiently(line, signal, () => line.producer.durable());
  } catch (error) {
    // what the server did not answer may be asked for again; what is refused, or not wanted, leaves nothing behind
    if (signal?.aborted === true || isShoalError(error, 'ADMISSION_REFUSED') || isShoalError(error, 'JOB_ID_CONFLICT'))
      await Promise.allSettled([
        line.cancel(ours),
        ...(found === text ? [line.producer.records.forget(requestId)] : []),
      ]);
    throw error;
  }
}

/**
 * The id has a record already: the same request may be made again, and has the jobs that it had then, however many rows
 * this client, or the workers that are there now, would give each. Throws JOB_ID_CONFLICT where it is another.
 */
async function cutAsBefore(record: RequestRecord, { requests, cutAs }: NewRequest): Promise<readonly RowsRequest[]> {
  const { parts, rows } = record;
  const isCutSo = parts.length === requests.length && parts.every((part, at) => part.rows === requests[at]!.rows);
  const hasSameRows = rows === requests.reduce((sum, one) => sum + one.rows, 0);
  const again = isCutSo || !hasSameRows ? requests : await cutAs(parts);
  refuseOther(record, again);
  return again;
}

function refuseOther({ parts }: RequestRecord, requests: readonly RowsRequest[]): void {
  const at = requests.findIndex(({ fingerprint }, part) => parts[part]?.fingerprint !== fingerprint);
  if (at >= 0) throw conflict(requests[at]!, parts[at]?.fingerprint ?? 'none');
  if (parts.length > requests.length) throw conflict(requests.at(-1)!, parts[requests.length]!.fingerprint);
}

/** Those that there was no room for, once there may be. `ours` gets the ids of those that were not there before. */
async function added(
  line: SubmittedLine,
  jobs: readonly NewJob[],
  ours: string[],
  signal: AbortSignal | undefined,
): Promise<NewJob[]> {
  line.reader.asksAnew(jobs.map(({ jobId }) => jobId));
  const results = await patiently(line, signal, () => line.producer.add(jobs));
  ours.push(...results.flatMap(({ jobId, outcome }) => (outcome === 'added' ? [jobId] : [])));
  let waitMs = 0;
  const left = jobs.filter((_, at) => {
    const result = results[at]!;
    if (result.outcome === 'conflict') throw result.error;
    if (result.outcome !== 'refused') return false;
    if (line.terms.whenFull === 'fail') throw result.error;
    waitMs = Number(result.error.fields['retryAfterMs']);
    return true;
  });
  if (left.length > 0) {
    line.terms.onHeldBack?.(waitMs);
    await pause(waitMs, signal);
    line.terms.onHeldBack?.(undefined);
  }
  return left;
}

/** What all jobs of a request gave, in order. */
export interface Gathered {
  readonly record: RequestRecord;
  readonly rows: StoredRows;
  /** Whether anything was cut. */
  readonly truncated: boolean;
  readonly isSimulated: boolean;
  /** What its jobs returned, as far as the queue remembers it. */
  readonly returned: readonly (string | undefined)[];
}

interface Kind<Result> {
  readonly what: 'vectors' | 'scores';
  readonly toResult: (gathered: Gathered) => Result;
}

/** Requests for vectors. */
export function ofVectors<Dtype extends OutputDtype>(): Kind<SubmittedResult<Dtype>> {
  return {
    what: 'vectors',
    toResult: ({ record: { model, meta }, rows, truncated, isSimulated }) =>
      withRows({
        ...rows,
        tokens: undefined,
        truncated,
        isSimulated,
        model,
        ...(meta !== undefined && { meta }),
      }) as SubmittedResult<OutputDtype> as SubmittedResult<Dtype>,
  };
}

/** Where requests lie that were submitted. */
type Lines = Pick<Line, 'find' | 'isClosed' | 'terms' | 'whyWaiting'>;

export class Submitted<Result> implements RequestHandle<Result> {
  readonly id: string;
  readonly tenant: string;
  private readonly requestId: string;
  private readonly lines: Lines;
  private readonly kind: Kind<Result>;
  private cell: string | undefined;
  private record: RequestRecord | undefined;

  constructor(lines: Lines, { id, cell, tenant }: PlacedId & { readonly tenant: string }, kind: Kind<Result>) {
    this.lines = lines;
    this.kind = kind;
    this.id = cell === undefined ? id : `${id}@${cell}`;
    this.cell = cell;
    this.tenant = tenant;
    this.requestId = `${tenant}~${id}`;
  }

  async status(): Promise<JobStatus> {
    const line = await this.found();
    const record = await this.known(line);
    if (record === undefined) return { state: 'unknown', rows: 0, rowsDone: 0, error: undefined };
    const states = await this.look(line, record.parts);
    const rowsDone = record.parts.reduce((sum, { rows }, at) => (isDone(states[at]!) ? sum + rows : sum), 0);
    const worst = worstOf(states);
    return {
      ...worst,
      rows: record.rows,
      rowsDone,
      model: record.model,
      submittedAt: new Date(record.submittedMs),
      ...(record.meta !== undefined && { meta: record.meta }),
    };
  }

  async result(options: WaitOptions = {}): Promise<Result> {
    checkCallOptions('result', options);
    const { signal, timeoutMs } = options;
    const limit = limited({ signal, timeoutMs }, this.kind.what, () => this.lines.whyWaiting());
    try {
      const line = await patiently(this.lines, limit.signal, () => this.found());
      const record = await patiently(line, limit.signal, () => this.known(line));
      if (record === undefined) throw this.unknown();
      await this.ended(line, record.parts, limit.signal);
      return await this.fetched(line, record, limit.signal);
    } finally {
      limit.end();
    }
  }

  async cancel(): Promise<CancelResult['outcome']> {
    const line = await this.found();
    const record = await this.known(line);
    if (record === undefined) return 'unknown';
    const results = await line.cancel(record.parts.map(({ jobId }) => jobId));
    const outcomes = new Set(results.map(({ outcome }) => outcome));
    return (['asked', 'cancelled', 'finished', 'unknown'] as const).find((outcome) => outcomes.has(outcome))!;
  }

  async release(): Promise<void> {
    const line = await this.found();
    const record = await this.known(line);
    if (record === undefined) return;
    await line.reader.acknowledge(record.parts.map(({ jobId }) => jobId));
    await line.producer.records.forget(this.requestId);
    this.record = undefined;
  }

  /** Where it lies; looked for once where its cell is not known. */
  private async found(): Promise<SubmittedLine> {
    const { line, cell } = await this.lines.find(this.requestId, this.cell);
    this.cell = cell;
    return line;
  }

  private async known(line: SubmittedLine): Promise<RequestRecord | undefined> {
    if (this.record !== undefined) return this.record;
    const text = await line.producer.records.read(this.requestId);
    return (this.record = text === undefined ? undefined : readRecord(text));
  }

  /** Resolves when no job of the request is open any more; rejects with the failure of the first that failed. */
  private async ended(
    line: SubmittedLine,
    parts: readonly RequestPart[],
    signal: AbortSignal | undefined,
  ): Promise<void> {
    let [open, lookMs] = [parts, FIRST_LOOK_MS];
    for (;;) {
      const states = await patiently(line, signal, () => this.look(line, open));
      const { state, error } = worstOf(states);
      if (error !== undefined) throw error;
      if (state === 'expired') throw this.expired();
      open = open.filter((_, at) => !isDone(states[at]!));
      if (open.length === 0) return;
      const heard = line.replies.wait(open.map(({ jobId }) => jobId));
      await pause(lookMs, signal, heard.promise).finally(heard.end);
      lookMs = Math.min(2 * lookMs, LAST_LOOK_MS);
    }
  }

  private async look({ producer }: SubmittedLine, parts: readonly RequestPart[]): Promise<PartState[]> {
    const jobIds = parts.map(({ jobId }) => jobId);
    // in this order: a result is there before its job is completed, so one that is missing afterwards has expired
    const endings = await producer.endings(jobIds);
    const heads = await producer.resultHeads(jobIds);
    const open = jobIds.filter((_, at) => endings[at]!.state === 'open');
    const states = new Map((await producer.states(open)).map(({ jobId, state }) => [jobId, state]));
    return endings.map(({ jobId, state, failedReason }, at): PartState => {
      if (state === 'failed') return failedWith(jobId, failedReason ?? '');
      if (state === 'open') return { state: states.get(jobId) === 'active' ? 'running' : 'waiting' };
      const header = decodeResultHeader(heads[at]!);
      const isThere = header?.isTaken === false && header.fingerprint === parts[at]!.fingerprint;
      return { state: isThere ? 'completed' : 'expired' };
    });
  }

  private async fetched(line: SubmittedLine, record: RequestRecord, signal: AbortSignal | undefined): Promise<Result> {
    const { parts, dtype } = record;
    const read: ReturnType<typeof openResult>[] = [];
    const returned: (string | undefined)[] = [];
    for (let at = 0; at < parts.length; at += FETCHED_AT_ONCE) {
      const some = parts.slice(at, at + FETCHED_AT_ONCE);
      const jobIds = some.map(({ jobId }) => jobId);
      const bodies = await patiently(line, signal, () => line.reader.peek(jobIds));
      for (const [i, part] of some.entries()) read.push(this.opened(part, bodies[i]));
      if (this.kind.what === 'scores')
        returned.push(...(await patiently(line, signal, () => line.returnValues(jobIds))));
    }
    const rows = joinedRows(
      read.map(({ header, body }) => storedRows(header, body)),
      dtype,
    );
    line.reader.release(read.map(({ body }) => body));
    return this.kind.toResult({
      record,
      rows,
      truncated: read.some(({ header }) => header.isTruncated),
      isSimulated: read.some(({ header }) => header.isSimulated),
      returned,
    });
  }

  private opened({ jobId, fingerprint }: RequestPart, bytes: Peeked): ReturnType<typeof openResult> {
    if (bytes === undefined) throw this.expired();
    if (isShoalError(bytes)) throw bytes;
    const header = decodeResultHeader(bytes);
    if (header !== undefined && header.fingerprint !== fingerprint)
      throw conflict({ jobId, fingerprint }, header.fingerprint);
    return openResult(bytes);
  }

  private unknown(): ShoalError<'INPUT_LOST'> {
    return new ShoalError(
      'INPUT_LOST',
      `there is no request "${this.id}" of tenant ${this.tenant}: it was never submitted to this queue, was released, or ` +
        'the server lost it; submit it again with the same id',
      { id: this.id },
    );
  }

  private expired(): ShoalError<'RESULT_EXPIRED'> {
    return new ShoalError(
      'RESULT_EXPIRED',
      `the result of "${this.id}" is not kept any more; submit it again with the same id, and fetch it within its time ` +
        'to live (resultTtlMs, a day by default)',
      { id: this.id },
    );
  }
}

function failedWith(jobId: string, reason: string): PartState {
  const { code, message } = parseFailedReason(reason);
  return { state: code === 'CANCELLED' ? 'cancelled' : 'failed', error: new ShoalError(code, message, { jobId }) };
}

/** What all of them together are. */
function worstOf(states: readonly PartState[]): { readonly state: JobState; readonly error: ShoalError | undefined } {
  for (const state of ['failed', 'cancelled'] as const) {
    const found = states.find((one) => one.state === state);
    if (found !== undefined) return { state, error: found.error };
  }
  const has = (state: JobState): boolean => states.some((one) => one.state === state);
  const isBegun = has('running') || (has('waiting') && has('completed'));
  const state = isBegun ? 'running' : has('waiting') ? 'waiting' : has('expired') ? 'expired' : 'completed';
  return { state, error: undefined };
}

function isDone({ state }: PartState): boolean {
  return state === 'completed' || state === 'expired';
}

/** Tries again what the server cannot do for the moment, for as long as it is waited for. */
async function patiently<Value>(
  line: Pick<SubmittedLine, 'isClosed' | 'terms'>,
  signal: AbortSignal | undefined,
  work: () => Promise<Value>,
): Promise<Value> {
  const sinceMs = performance.now();
  for (;;) {
    if (signal?.aborted === true) throw abortError(signal.reason);
    if (line.isClosed) throw closedError();
    try {
      return await work();
    } catch (error) {
      const isPassing = isShoalError(error) && PASSING.has(error.code);
      if (!isPassing || performance.now() - sinceMs > line.terms.giveUpAfterMs) throw error;
      await pause(RETRY_MS, signal);
    }
  }
}

/** Ends early when `early` does; throws what an aborted call ends with. */
async function pause(ms: number, signal: AbortSignal | undefined, early?: Promise<unknown>): Promise<void> {
  const end = new AbortController();
  const either = signal === undefined ? end.signal : AbortSignal.any([signal, end.signal]);
  try {
    await Promise.race([sleep(ms, undefined, { signal: either }), early ?? new Promise<never>(() => undefined)]);
  } catch (error) {
    throw signal?.aborted === true ? abortError(signal.reason) : error;
  } finally {
    end.abort();
  }
}
