// Every job that this client has asked for and has not delivered yet, and whatever it takes to get its result exactly
// once: adding, listening, looking it up when nobody speaks of it, adding it again when the server lost it. It does not
// know what the rows of a job are for, keeps no order between jobs, and never looks into the vectors.
//
// The life of a job here:
//   *to add*     to be put on the queue (again), at once or after a pause when the server was full or away, or the
//                queue took no more. A queue that is full holds back every first add of this client, so that none
//                passes an earlier one
//   *adding*     the transaction is under way
//   *waiting*    the queue has it. A reply on our channel, or a lookup after `askAfterMs` of silence, moves it on. A job
//                that somebody else had added will not be announced to us: it is looked up sooner, and less often with
//                time
//   *asking*     its state is being looked up
//   *to fetch*, *fetching*   it ended and its result is to be read
//   *gone*       delivered, failed or abandoned; nothing of it is kept
// From *fetching* a job goes back to *to add* when its result is missing (RESULT_EXPIRED), was taken by somebody else
// (RESULT_TAKEN) or is damaged (RESULT_CORRUPT), at most MAX_ASKED_AGAIN times; so does a job that failed for want of its
// input (INPUT_LOST), because the input is still here. When a connection comes back after an outage, every *waiting* job
// is added again: the server may have lost what it acknowledged last, and what it kept is only reported.

import {
  BodyRooms,
  SMALLEST_KEPT_BYTES,
  ShoalError,
  decodeResultHeader,
  isShoalError,
  openResult,
  parseFailedReason,
  type ErrorCode,
  type ResultHeader,
} from '@shoal/contract';
import type { Clock, FaultPoints, Logger } from '@shoal/core';
import type { AddResult, Again, JobProducer, NewJob, ResultReader } from '@shoal/queue';
import type { ClientCounts } from './embedding.ts';

/** One job to be put on the queue, whatever it asks for. */
export interface JobRequest {
  readonly jobId: string;
  /** The call that it is a part of, as `idsOf` finds it. Left out: nobody looks for it. */
  readonly requestId?: string | undefined;
  readonly fingerprint: string;
  readonly job: NewJob;
}

export interface OpenJobsParts {
  readonly producer: Pick<JobProducer, 'add' | 'endings' | 'remove' | 'onConnection'>;
  readonly reader: Pick<ResultReader, 'peek' | 'markTaken' | 'release' | 'onReply' | 'onConnection'>;
  /**
   * Takes running jobs back from their workers. Left out: they run to their end, and their results wait for whoever
   * asks again.
   */
  readonly cancel?: ((jobIds: readonly string[]) => Promise<unknown>) | undefined;
  readonly clock: Clock;
  readonly log: Logger | undefined;
  readonly faults: FaultPoints;
  readonly askAfterMs: number;
  readonly giveUpAfterMs: number;
  readonly whenFull: 'wait' | 'fail';
  /**
   * Told when the queue takes no more, with the time until it is asked again, and with undefined once it takes jobs
   * again.
   */
  readonly onHeldBack: ((retryAfterMs: number | undefined) => void) | undefined;
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

type Step =
  | { readonly name: 'to-add'; readonly again: Again; readonly notBeforeMs: number }
  | { readonly name: 'adding'; readonly again: Again }
  | { readonly name: 'waiting'; readonly askAtMs: number; readonly patienceMs: number }
  | { readonly name: 'asking'; readonly patienceMs: number }
  | { readonly name: 'to-fetch' | 'fetching' | 'gone' };

interface OpenJob {
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
  /** How often it was sent to be added. */
  adds: number;
  /** Since when the server refuses or does not answer for this job. */
  faultSinceMs: number | undefined;
}

const MAX_ASKED_AGAIN = 3;
/** First lookup of a job that somebody else added. */
const FOREIGN_PATIENCE_MS = 250;
const RETRY_MS = 250;
/** Jobs that ask for room together while the queue is full. */
const ENTER_AT_ONCE = 16;
/** Results read in one go: 32 jobs of 64 × 384 f32 are 3 MB. */
const FETCHED_AT_ONCE = 32;
/** Of its patience: times at which jobs are looked up lie so far apart, that those of one time go together. */
const LOOK_STEP = 1 / 8;
/** As soon as so many are to be added the first time they are: the server has work while more of them are made. */
const ADDED_AT_ONCE = 64;
/** How long an abandoned run waits for its waiting jobs to be taken off the queue. */
const REMOVAL_PATIENCE_MS = 2_000;

export class OpenJobs {
  private readonly parts: OpenJobsParts;
  private readonly jobs = new Map<string, OpenJob>();
  /**
   * Those of them that the pump has to look at, by their step; it runs with every few jobs that end, and thousands may
   * be open.
   */
  private readonly toAdd = new Set<OpenJob>();
  private readonly toFetch = new Set<OpenJob>();
  private readonly waiting = new Set<OpenJob>();
  /** No *waiting* job is to be looked up before. */
  private nextLookMs = Infinity;
  private opened = 0;
  /** Since the pump ran. */
  private fresh = 0;
  /**
   * Of inputs: 300 of 12 KB a second made V8 collect the whole heap every 1.2 s, which throws away compiled code as
   * well (2026-11).
   */
  private readonly rooms = new BodyRooms();
  private readonly work = new Set<Promise<void>>();
  private toAcknowledge: string[] = [];
  private cancelTimer: (() => void) | undefined;
  private cancelGiveUp: (() => void) | undefined;
  private lostConnections = 0;
  /** Nothing is added for the first time before: the queue took no more. Undefined while it does. */
  private heldBackUntilMs: number | undefined;
  private isPumpDue = false;
  private isClosed = false;
  private readonly tally = {
    added: 0,
    known: 0,
    ready: 0,
    delivered: 0,
    failed: 0,
    askedAgain: 0,
    addedAgain: 0,
    lookedUp: 0,
  };

  constructor(parts: OpenJobsParts) {
    this.parts = parts;
    parts.reader.onReply(({ completed, failed }) => {
      for (const jobId of completed) this.hear(jobId, 'completed');
      for (const jobId of failed) this.hear(jobId, 'failed');
    });
    parts.reader.onConnection((event) => this.connection(event));
    parts.producer.onConnection((event) => this.connection(event));
  }

  counts(): ClientCounts {
    return { ...this.tally };
  }

  /**
   * Ids of the open jobs that are parts of a request. What a job is called does not tell: "order-7" may be the seventh
   * row of "order", or a request of its own.
   */
  idsOf(requestId: string): string[] {
    return [...this.jobs].flatMap(([jobId, { holders }]) =>
      [...holders].some(({ request }) => request.requestId === requestId) ? [jobId] : [],
    );
  }

  /** Room for the input of a request that is to be asked for; used for another's once its result is there. */
  roomFor(bytes: number): Uint8Array<ArrayBuffer> {
    return bytes < SMALLEST_KEPT_BYTES ? Buffer.allocUnsafeSlow(bytes) : this.rooms.take(bytes);
  }

  /** `delivery` resolves with the request's result, whoever computes it. Call `release` once the vectors are safe. */
  ask<Request extends JobRequest>(request: Request): Asked<Request> {
    const job = this.jobs.get(request.jobId) ?? this.open(request);
    const isOther = job.request.fingerprint !== request.fingerprint;
    const asked: Asked<Request> = {
      request,
      delivery: isOther ? Promise.reject(conflict(request, job.request.fingerprint)) : job.delivery.promise,
    };
    if (!isOther) job.holders.add(asked);
    return asked;
  }

  /** Delivered jobs whose vectors the caller has put where it wants them: their results are acknowledged. */
  release(jobIds: readonly string[]): void {
    this.toAcknowledge.push(...jobIds);
    this.schedule();
  }

  /**
   * The caller has read a delivery and keeps nothing of it: when all have to whom it went, its memory is used again.
   * Once for each `ask`.
   */
  letGo(delivery: Delivery): void {
    if (--delivery.readers === 0) this.parts.reader.release([delivery.body]);
  }

  /** A job that nobody waits for any more is taken off the queue, or back from its worker, if we added it. */
  async abandon(asked: readonly Asked[], error: ShoalError): Promise<void> {
    const left = asked.flatMap((one) => {
      const job = this.jobs.get(one.request.jobId);
      return job?.holders.delete(one) === true && job.holders.size === 0 ? [job] : [];
    });
    await this.abandonJobs(left, error, this.parts.cancel);
  }

  /** Abandons everything open and acknowledges what is still to be acknowledged. Safe to call twice. */
  async close(): Promise<void> {
    this.isClosed = true;
    this.cancelTimer?.();
    this.cancelGiveUp?.();
    await this.abandonJobs([...this.jobs.values()], closedError());
    await this.patiently(this.acknowledge());
  }

  /** Resolves when nothing is under way any more; the connections must be closed by then. */
  async idle(): Promise<void> {
    while (this.work.size > 0) await Promise.all(this.work);
  }

  private open(request: JobRequest): OpenJob {
    const job: OpenJob = {
      number: this.opened++,
      request,
      delivery: Promise.withResolvers(),
      step: { name: 'to-add', again: 'when-used-up', notBeforeMs: 0 },
      holders: new Set(),
      isOurs: false,
      announced: undefined,
      wasLetIn: false,
      isLost: false,
      askedAgain: 0,
      adds: 0,
      faultSinceMs: undefined,
    };
    if (this.isClosed) this.reject(job, closedError());
    else {
      this.jobs.set(request.jobId, job);
      this.move(job, job.step);
      this.fresh++;
    }
    if (this.lostConnections > 0)
      this.cancelGiveUp ??= this.parts.clock.after(this.parts.giveUpAfterMs, () => this.giveUp());
    this.schedule();
    return job;
  }

  private async abandonJobs(
    jobs: readonly OpenJob[],
    error: ShoalError,
    cancelRunning?: OpenJobsParts['cancel'],
  ): Promise<void> {
    for (const job of jobs) {
      this.forget(job);
      job.delivery.reject(error);
    }
    await this.takeOff(
      jobs.filter(({ isOurs }) => isOurs).map(({ request }) => request.jobId),
      cancelRunning,
    );
  }

  // ---- the pump -------------------------------------------------------------------------------------------------

  /** Runs the pump once after this turn of the event loop, so that jobs asked for together travel together. */
  private schedule(): void {
    if (this.fresh >= ADDED_AT_ONCE) return this.pump();
    if (this.isPumpDue || this.isClosed) return;
    this.isPumpDue = true;
    setImmediate(() => {
      this.isPumpDue = false;
      this.pump();
    });
  }

  /** Starts whatever is due, and sets the timer for what is due next. */
  private pump(): void {
    this.fresh = 0;
    if (this.isClosed) return;
    const nowMs = this.parts.clock.nowMs();
    const toAdd: Record<Again, OpenJob[]> = { 'when-used-up': [], always: [], never: [] };
    const toEnter: OpenJob[] = [];
    let nextMs = Infinity;
    for (const job of this.toAdd) {
      const step = job.step as Extract<Step, { name: 'to-add' }>;
      const dueMs = Math.max(step.notBeforeMs, job.wasLetIn ? 0 : (this.heldBackUntilMs ?? 0));
      if (dueMs > nowMs) nextMs = Math.min(nextMs, dueMs);
      else if (!job.wasLetIn && step.again === 'when-used-up') toEnter.push(job);
      else toAdd[step.again].push(job);
    }
    const toAsk = this.toAsk(nowMs);
    const toFetch = [...this.toFetch];
    if (toEnter.length > 0) this.track(this.enter(toEnter.sort((a, b) => a.number - b.number)));
    for (const again of ['when-used-up', 'always', 'never'] as const)
      if (toAdd[again].length > 0) this.track(this.add(toAdd[again], again));
    if (toAsk.length > 0) this.track(this.lookUp(toAsk));
    for (let at = 0; at < toFetch.length; at += FETCHED_AT_ONCE)
      this.track(this.fetch(toFetch.slice(at, at + FETCHED_AT_ONCE)));
    if (this.toAcknowledge.length > 0) this.track(this.acknowledge());
    this.setTimer(Math.min(nextMs, this.nextLookMs) - nowMs);
  }

  /** Jobs to be looked up now. */
  private toAsk(nowMs: number): OpenJob[] {
    if (nowMs < this.nextLookMs) return [];
    this.nextLookMs = Infinity;
    const due: OpenJob[] = [];
    for (const job of this.waiting) {
      const { askAtMs } = job.step as Extract<Step, { name: 'waiting' }>;
      if (askAtMs <= nowMs) due.push(job);
      else this.nextLookMs = Math.min(this.nextLookMs, askAtMs);
    }
    return due;
  }

  /** Every change of a job's step. */
  private move(job: OpenJob, step: Step): void {
    for (const list of [this.toAdd, this.toFetch, this.waiting]) list.delete(job);
    job.step = step;
    if (step.name === 'to-add') this.toAdd.add(job);
    else if (step.name === 'to-fetch') this.toFetch.add(job);
    else if (step.name === 'waiting') {
      this.waiting.add(job);
      this.nextLookMs = Math.min(this.nextLookMs, step.askAtMs);
    }
  }

  private setTimer(delayMs: number): void {
    this.cancelTimer?.();
    this.cancelTimer =
      delayMs === Infinity ? undefined : this.parts.clock.after(Math.max(1, delayMs), () => this.pump());
  }

  private track(work: Promise<void>): void {
    const ended = work
      .catch((error: unknown) => this.parts.log?.error({ err: error }, 'a step of the client failed unexpectedly'))
      .finally(() => {
        this.work.delete(ended);
        this.schedule();
      });
    this.work.add(ended);
  }

  // ---- adding ---------------------------------------------------------------------------------------------------

  /**
   * One call at a time while the queue takes no more: only the oldest jobs ask, so that room is not asked for by
   * thousands.
   */
  private async enter(jobs: readonly OpenJob[]): Promise<void> {
    await this.add(this.heldBackUntilMs === undefined ? jobs : jobs.slice(0, ENTER_AT_ONCE), 'when-used-up');
  }

  private async add(jobs: readonly OpenJob[], again: Again): Promise<void> {
    const isKnown = jobs.every(({ wasLetIn }) => wasLetIn);
    for (const job of jobs) {
      this.move(job, { name: 'adding', again });
      job.adds++;
      job.announced = undefined;
    }
    const results = await this.attempt(jobs, () =>
      this.parts.producer.add(
        jobs.map(({ request }) => request.job),
        { again, isKnown },
      ),
    );
    if (results === undefined) return;
    this.holdBack(results);
    for (const [i, job] of jobs.entries()) if (job.step.name === 'adding') this.added(job, results[i]!);
    // Abandoned while the transaction was under way: abandoning could not take off what was not there yet.
    await this.takeOff(
      jobs
        .filter((job, i) => job.step.name === 'gone' && results[i]!.outcome === 'added')
        .map(({ request }) => request.jobId),
    );
  }

  private added(job: OpenJob, result: AddResult): void {
    if (result.outcome === 'refused') return this.refused(job, result.error);
    const wasLost = job.isLost;
    job.wasLetIn = true;
    job.isLost = false;
    switch (result.outcome) {
      case 'added':
        this.tally[wasLost ? 'addedAgain' : 'added']++;
        job.isOurs = true;
        return this.wait(job, this.parts.askAfterMs);
      case 'known':
        if (!job.isOurs) this.tally.known++;
        return this.wait(
          job,
          job.isOurs ? this.parts.askAfterMs : Math.min(FOREIGN_PATIENCE_MS, this.parts.askAfterMs),
        );
      case 'ready':
        this.tally.ready++;
        return this.move(job, { name: 'to-fetch' });
      case 'finished':
        return result.failedReason === undefined
          ? this.askAgain(job, 'RESULT_EXPIRED', 'when-used-up')
          : this.failed(job, result.failedReason);
      case 'conflict':
        return this.reject(job, result.error);
    }
  }

  private holdBack(results: readonly AddResult[]): void {
    const refused = results.find((result) => result.outcome === 'refused');
    const retryAfterMs = refused === undefined ? undefined : Number(refused.error.fields['retryAfterMs']);
    const wasHeldBack = this.heldBackUntilMs !== undefined;
    // it was on its way before
    if (refused === undefined && (this.heldBackUntilMs ?? 0) > this.parts.clock.nowMs()) return;
    this.heldBackUntilMs =
      retryAfterMs === undefined || this.parts.whenFull === 'fail'
        ? undefined
        : this.parts.clock.nowMs() + retryAfterMs;
    if (retryAfterMs !== undefined || wasHeldBack) this.parts.onHeldBack?.(retryAfterMs);
    if (retryAfterMs !== undefined && !wasHeldBack)
      this.parts.log?.info(
        { retryAfterMs, reason: refused?.error.fields['reason'] },
        'the queue takes no more for now, going on at the speed of the workers',
      );
  }

  /** Waiting is no fault: however long it takes, it ends. */
  private refused(job: OpenJob, error: ShoalError<'ADMISSION_REFUSED'>): void {
    if (this.parts.whenFull === 'fail') this.reject(job, error);
    else this.move(job, { name: 'to-add', again: 'when-used-up', notBeforeMs: 0 });
  }

  private wait(job: OpenJob, patienceMs: number): void {
    const { announced } = job;
    job.announced = undefined;
    if (announced === 'completed') this.move(job, { name: 'to-fetch' });
    else
      this.move(job, {
        name: 'waiting',
        askAtMs: announced === 'failed' ? 0 : roundedUp(this.parts.clock.nowMs() + patienceMs, patienceMs * LOOK_STEP),
        patienceMs,
      });
  }

  // ---- hearing and looking up -----------------------------------------------------------------------------------

  private hear(jobId: string, outcome: 'completed' | 'failed'): void {
    const job = this.jobs.get(jobId);
    if (job === undefined) return;
    const { step } = job;
    if (step.name === 'adding' || step.name === 'asking') job.announced = outcome;
    else if (step.name === 'waiting')
      this.move(job, outcome === 'completed' ? { name: 'to-fetch' } : { ...step, askAtMs: 0 });
    this.schedule();
  }

  private async lookUp(jobs: readonly OpenJob[]): Promise<void> {
    this.tally.lookedUp += jobs.length;
    for (const job of jobs)
      if (job.step.name === 'waiting') this.move(job, { name: 'asking', patienceMs: job.step.patienceMs });
    const endings = await this.attempt(jobs, () =>
      this.parts.producer.endings(jobs.map(({ request }) => request.jobId)),
    );
    for (const [i, job] of jobs.entries()) {
      if (endings === undefined || job.step.name !== 'asking') continue;
      const { state, failedReason } = endings[i]!;
      switch (state) {
        case 'open':
          this.wait(job, Math.min(2 * job.step.patienceMs, this.parts.askAfterMs));
          break;
        case 'completed':
          this.move(job, { name: 'to-fetch' });
          break;
        case 'failed':
          this.failed(job, failedReason ?? '');
          break;
        case 'unknown':
          this.lost(job);
          break;
      }
    }
  }

  private lost(job: OpenJob): void {
    this.parts.log?.warn({ jobId: job.request.jobId }, 'the queue lost a job, adding it again');
    job.isLost = true;
    this.move(job, { name: 'to-add', again: 'when-used-up', notBeforeMs: 0 });
  }

  // ---- fetching -------------------------------------------------------------------------------------------------

  private async fetch(jobs: readonly OpenJob[]): Promise<void> {
    for (const job of jobs) this.move(job, { name: 'fetching' });
    const results = await this.attempt(jobs, () => this.parts.reader.peek(jobs.map(({ request }) => request.jobId)));
    for (const [i, job] of jobs.entries())
      if (results !== undefined && job.step.name === 'fetching') this.fetched(job, results[i]);
  }

  private fetched(job: OpenJob, bytes: Buffer | undefined): void {
    if (bytes === undefined) return this.askAgain(job, 'RESULT_EXPIRED', 'when-used-up');
    const header = decodeResultHeader(bytes);
    if (header !== undefined && header.fingerprint !== job.request.fingerprint)
      return this.reject(job, conflict(job.request, header.fingerprint));
    try {
      this.deliver(job, new Delivery(openResult(bytes), job.holders.size));
    } catch (error) {
      if (isShoalError(error, 'RESULT_TAKEN')) this.askAgain(job, 'RESULT_TAKEN', 'when-used-up');
      else if (isShoalError(error, 'RESULT_CORRUPT')) this.askAgain(job, 'RESULT_CORRUPT', 'always');
      else throw error;
    }
  }

  private async acknowledge(): Promise<void> {
    const jobIds = this.toAcknowledge;
    this.toAcknowledge = [];
    if (jobIds.length === 0) return;
    this.parts.faults.reach('before-acknowledge');
    try {
      await this.parts.reader.markTaken(jobIds);
    } catch (error) {
      // The vectors are with the caller already; an unmarked result only lies there until its time to live ends.
      this.parts.log?.debug({ jobs: jobIds.length, err: error }, 'results could not be acknowledged');
    }
    this.parts.faults.reach('after-acknowledge');
  }

  // ---- endings --------------------------------------------------------------------------------------------------

  private deliver(job: OpenJob, delivery: Delivery): void {
    this.forget(job);
    this.tally.delivered++;
    // Where it was added again, the first command may still be on its way (the server was full, or away), and reads the
    // input when it goes.
    const { input } = job.request.job;
    if (job.adds === 1 && input !== undefined) this.rooms.giveBack(input.buffer);
    job.delivery.resolve(delivery);
  }

  private askAgain(job: OpenJob, code: ErrorCode, again: Again): void {
    const { jobId } = job.request;
    if (job.askedAgain++ >= MAX_ASKED_AGAIN) {
      return this.reject(
        job,
        new ShoalError(
          code,
          `job "${jobId}" ended ${job.askedAgain} times without a result that could be read (${code}); does ` +
            'another client take its results?',
          { jobId },
        ),
      );
    }
    this.tally.askedAgain++;
    this.parts.log?.warn({ jobId, code, times: job.askedAgain }, 'result cannot be had, asking for the job again');
    this.move(job, { name: 'to-add', again, notBeforeMs: 0 });
  }

  private failed(job: OpenJob, reason: string): void {
    const { code, message } = parseFailedReason(reason);
    if (code === 'INPUT_LOST') return this.askAgain(job, code, 'when-used-up');
    this.reject(job, new ShoalError(code, message, { jobId: job.request.jobId }));
  }

  private reject(job: OpenJob, error: ShoalError): void {
    this.forget(job);
    this.tally.failed++;
    job.delivery.reject(error);
  }

  private forget(job: OpenJob): void {
    this.move(job, { name: 'gone' });
    this.jobs.delete(job.request.jobId);
  }

  private async takeOff(jobIds: readonly string[], cancelRunning?: OpenJobsParts['cancel']): Promise<void> {
    if (jobIds.length === 0) return;
    await this.patiently(
      (async () => {
        const removed = new Set(await this.parts.producer.remove(jobIds));
        const running = jobIds.filter((jobId) => !removed.has(jobId));
        if (running.length > 0) await cancelRunning?.(running);
      })(),
    );
  }

  /** Best effort: waits for a while, not at all when the server is away, and takes no for an answer. */
  private async patiently(work: Promise<unknown>): Promise<void> {
    if (this.lostConnections > 0) return void work.catch(() => undefined);
    const patience = Promise.withResolvers<void>();
    const cancel = this.parts.clock.after(REMOVAL_PATIENCE_MS, () => patience.resolve());
    await Promise.race([work, patience.promise]).catch((error: unknown) =>
      this.parts.log?.debug({ err: error }, 'cleaning up after abandoned jobs failed'),
    );
    cancel();
  }

  // ---- faults of the server -------------------------------------------------------------------------------------

  /**
   * Undefined when the server could not do it now: then the jobs are to be added again after a pause, or have failed.
   */
  private async attempt<Value>(jobs: readonly OpenJob[], work: () => Promise<Value>): Promise<Value | undefined> {
    try {
      const value = await work();
      for (const job of jobs) job.faultSinceMs = undefined;
      return value;
    } catch (error) {
      for (const job of jobs) if (job.step.name !== 'gone') this.postpone(job, error);
      return undefined;
    }
  }

  private postpone(job: OpenJob, error: unknown): void {
    const nowMs = this.parts.clock.nowMs();
    job.faultSinceMs ??= nowMs;
    const isPassing = isShoalError(error, 'QUEUE_FULL') || isShoalError(error, 'QUEUE_UNREACHABLE');
    if (!isPassing || nowMs - job.faultSinceMs > this.parts.giveUpAfterMs) return this.reject(job, toShoalError(error));
    const again = job.step.name === 'adding' ? job.step.again : 'never';
    this.move(job, { name: 'to-add', again, notBeforeMs: nowMs + RETRY_MS });
  }

  private connection(event: 'lost' | 'back'): void {
    if (this.isClosed) return;
    this.lostConnections += event === 'lost' ? 1 : -1;
    this.cancelGiveUp?.();
    this.cancelGiveUp = undefined;
    if (this.lostConnections > 0)
      this.cancelGiveUp = this.parts.clock.after(this.parts.giveUpAfterMs, () => this.giveUp());
    if (event === 'back') this.addEverythingAgain();
  }

  private addEverythingAgain(): void {
    for (const job of this.jobs.values()) {
      if (job.step.name !== 'waiting' && job.step.name !== 'asking') continue;
      job.isLost = job.isOurs; // until the server says that it still knows it
      this.move(job, { name: 'to-add', again: 'never', notBeforeMs: 0 });
    }
    this.schedule();
  }

  private giveUp(): void {
    this.cancelGiveUp = undefined;
    const seconds = Math.round(this.parts.giveUpAfterMs / 1_000);
    const message =
      `the queue server has not answered for ${seconds} s; jobs that it has go on, ask again with the same ids ` +
      'to get their results';
    for (const job of this.jobs.values())
      this.reject(job, new ShoalError('QUEUE_UNREACHABLE', message, { jobId: job.request.jobId }));
  }
}

function roundedUp(ms: number, stepMs: number): number {
  return Math.ceil(ms / stepMs) * stepMs;
}

function conflict({ jobId, fingerprint }: JobRequest, found: string): ShoalError<'JOB_ID_CONFLICT'> {
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

/** What every call hears after `close`. */
export function closedError(): ShoalError<'INTERRUPTED'> {
  return new ShoalError('INTERRUPTED', 'the client was closed before the result came');
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
