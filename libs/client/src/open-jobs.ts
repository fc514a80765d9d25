// Every job that this client has asked for and has not delivered yet, and whatever it takes to get its result exactly
// once: adding, listening, looking it up when nobody speaks of it, adding it again when the server lost it. It does not
// know what the rows of a job are for, keeps no order between jobs, and never looks into the vectors.
//
// The life of a job here:
//   *to add*     to be put on the queue (again), at once or after a pause when the server was full or away, or the
//                queue took no more. A queue that is full holds back every first add of this client, so that none
//                passes an earlier one; nor does one pass a call that may be refused: results are read in order, and
//                later jobs that had all the room would wait for ever to be read behind an earlier one that has none
//   *adding*     the transaction is under way
//   *waiting*    the queue has it. A reply on our channel, or a lookup after `askAfterMs` of silence, moves it on. A
//                job that somebody else had added will not be announced to us: it is looked up sooner, and less often
//                with time
//   *asking*     its state is being looked up
//   *to fetch*, *fetching*   it ended and its result is to be read
//   *gone*       delivered, failed or abandoned; nothing of it is kept
// From *fetching* a job goes back to *to add* when its result is missing (RESULT_EXPIRED), was taken by somebody else
// (RESULT_TAKEN), is damaged (RESULT_CORRUPT), was lost by a payload server (PAYLOAD_LOST) or lies on one that we do not
// read (PAYLOAD_ELSEWHERE), at most MAX_ASKED_AGAIN times; so does a job that failed for want of its input (INPUT_LOST),
// because the input is still here. When a connection comes back after an outage, every *waiting* job is added again: the
// server may have lost what it acknowledged last, and what it kept is only reported.
//
// What comes after a step is decided in steps.ts; which jobs are due is kept in step-lists.ts; what is done to leave
// nothing behind is in taking-off.ts.

import { ShoalError, type ErrorCode } from '@shoal/contract';
import type { AddResult, Again, JobEnding, JobProducer, NewJob, Peeked, ResultReader } from '@shoal/queue';
import type { ClientCounts } from './embedding.ts';
import { HeldBack, type HeldBackParts } from './held-back.ts';
import { Delivery, closedError, conflict, noAnswer, type Asked, type JobRequest } from './job-request.ts';
import { Outage } from './outage.ts';
import { StepLists } from './step-lists.ts';
import {
  afterAdd,
  afterFault,
  afterFetch,
  afterLookUp,
  afterReply,
  askedTooOften,
  countOf,
  newJob,
  type Move,
  type MoveTerms,
  type OpenJob,
} from './steps.ts';
import { TakingOff, type TakingOffParts } from './taking-off.ts';
import { Tasks } from './tasks.ts';

export interface OpenJobsParts extends HeldBackParts, TakingOffParts {
  readonly producer: Pick<JobProducer, 'add' | 'endings' | 'remove' | 'onConnection'> &
    Partial<Pick<JobProducer, 'hadToAsk'>>;
  readonly reader: Pick<
    ResultReader,
    'asksAnew' | 'peek' | 'damaged' | 'markTaken' | 'release' | 'onReply' | 'onConnection'
  >;
  readonly askAfterMs: number;
  readonly giveUpAfterMs: number;
  /** Whether inputs and results may lie on payload servers now. Left out: never. */
  readonly mayLieBeside?: (() => boolean) | undefined;
  /** Somebody waits for one more. */
  readonly onOpened?: () => void;
}

/** Jobs that ask for room together while the queue is full. */
const ENTER_AT_ONCE = 16;
/**
 * Results read in one go, which come to their callers together: 32, or 8 of 64 rows, which are 0.8 MB of 384 dimensions
 * in f32.
 */
const FETCHED_AT_ONCE = { jobs: 32, rows: 512 };
/** A result with so many times the rows of another is not read with it. */
const LARGER = 8;
/** As soon as so many are to be added the first time they are: the server has work while more of them are made. */
const ADDED_AT_ONCE = 64;

export class OpenJobs {
  private readonly parts: OpenJobsParts;
  private readonly jobs = new Map<string, OpenJob>();
  private readonly lists = new StepLists();
  private readonly heldBack: HeldBack;
  private readonly outage: Outage;
  private readonly takingOff: TakingOff;
  private readonly tasks: Tasks;
  private readonly tally = noCounts();
  private opened = 0;
  /** How many jobs were opened since the pump ran. */
  private fresh = 0;
  private cancelTimer: (() => void) | undefined;
  private isPumpDue = false;
  /** A call that may be refused is under way. */
  private isAtDoor = false;
  private isClosed = false;

  constructor(parts: OpenJobsParts) {
    this.parts = parts;
    const { clock, giveUpAfterMs } = parts;
    this.tasks = new Tasks(parts.log, () => this.schedule());
    this.heldBack = new HeldBack(parts);
    this.outage = new Outage({ clock, giveUpAfterMs, onGiveUp: () => this.giveUp() });
    this.takingOff = new TakingOff(parts, () => this.outage.isGoingOn);
    parts.reader.onReply(({ completed, failed }) => {
      for (const jobId of completed) this.hear(jobId, 'completed');
      for (const jobId of failed) this.hear(jobId, 'failed');
    });
    parts.reader.onConnection((event) => this.connection(event));
    parts.producer.onConnection((event) => this.connection(event));
  }

  /** Jobs that are open now, and how many have ended since the client connected. */
  standing(): { readonly open: number; readonly ended: number } {
    return { open: this.jobs.size, ended: this.tally.delivered + this.tally.failed };
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

  /** Whether the queue is known to have, or to have had, an open job; undefined where none of this id is open. */
  isLetIn(jobId: string): boolean | undefined {
    return this.jobs.get(jobId)?.wasLetIn;
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
    this.takingOff.delivered(jobIds);
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
    await this.abandonJobs(left, error, 'cancel');
  }

  /** Every open job fails with `error`; what of them is on the queue is taken off it. */
  giveUpAll(error: ShoalError): void {
    this.tasks.add(this.abandonJobs([...this.jobs.values()], error, 'cancel'));
  }

  /** Abandons everything open and acknowledges what is still to be acknowledged. Safe to call twice. */
  async close(): Promise<void> {
    this.isClosed = true;
    this.cancelTimer?.();
    this.outage.stop();
    await this.abandonJobs([...this.jobs.values()], closedError(), 'leave');
    await this.takingOff.acknowledgeLast();
  }

  /** Resolves when nothing is under way any more; the connections must be closed by then. */
  async idle(): Promise<void> {
    await this.tasks.ended();
  }

  private open(request: JobRequest): OpenJob {
    const job = newJob(this.opened++, request);
    if (this.isClosed) {
      this.reject(job, closedError());
      return job;
    }
    this.jobs.set(request.jobId, job);
    this.lists.move(job, job.step);
    this.fresh++;
    this.outage.opened();
    this.parts.onOpened?.();
    this.schedule();
    return job;
  }

  private async abandonJobs(jobs: readonly OpenJob[], error: ShoalError, running: 'cancel' | 'leave'): Promise<void> {
    for (const job of jobs) {
      this.forget(job);
      job.delivery.reject(error);
    }
    await this.takingOff.takeOff(idsOf(jobs.filter(({ isOurs }) => isOurs)), running);
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
    const { toEnter, toAdd, nextMs } = this.lists.dueToAdd(nowMs, this.heldBack.untilMs);
    const toAsk = this.lists.dueToAsk(nowMs);
    const toFetch = this.lists.dueToFetch();
    if (toEnter.length > 0 && !this.isAtDoor) this.tasks.add(this.enter(toEnter));
    for (const again of ['when-used-up', 'always', 'never'] as const)
      if (toAdd[again].length > 0) this.tasks.add(this.add(toAdd[again], again));
    if (toAsk.length > 0) this.tasks.add(this.lookUp(toAsk));
    for (const together of fetchedTogether(toFetch)) this.tasks.add(this.fetch(together));
    if (this.takingOff.hasToAcknowledge) this.tasks.add(this.takingOff.acknowledge());
    this.setTimer(Math.min(nextMs, this.lists.nextLookMs) - nowMs);
  }

  private setTimer(delayMs: number): void {
    this.cancelTimer?.();
    this.cancelTimer =
      delayMs === Infinity ? undefined : this.parts.clock.after(Math.max(1, delayMs), () => this.pump());
  }

  // ---- adding ---------------------------------------------------------------------------------------------------

  /**
   * One call at a time where the queue may refuse it, and while it takes no more only of the oldest jobs, so that room
   * is not asked for by thousands.
   */
  private async enter(jobs: readonly OpenJob[]): Promise<void> {
    const oldest = this.heldBack.untilMs === undefined ? jobs : jobs.slice(0, ENTER_AT_ONCE);
    const added = this.add(oldest, 'when-used-up');
    const { whenFull, producer } = this.parts;
    if (whenFull === 'fail' || producer.hadToAsk !== true) return added;
    this.isAtDoor = true;
    return added.finally(() => (this.isAtDoor = false));
  }

  private async add(jobs: readonly OpenJob[], again: Again): Promise<void> {
    const isKnown = jobs.every(({ wasLetIn }) => wasLetIn);
    for (const job of jobs) {
      this.lists.move(job, { name: 'adding', again });
    }
    this.parts.reader.asksAnew(idsOf(jobs));
    const results = await this.attempt(jobs, () =>
      this.parts.producer.add(
        jobs.map((job) => this.addedAs(job)),
        { again, isKnown },
      ),
    );
    if (results === undefined) return;
    this.heldBack.learn(results);
    const terms = this.terms();
    for (const [i, job] of jobs.entries()) if (job.step.name === 'adding') this.added(job, results[i]!, terms);
    // Abandoned while the transaction was under way: abandoning could not take off what was not there yet.
    const late = jobs.filter((job, i) => job.step.name === 'gone' && results[i]!.outcome === 'added');
    await this.takingOff.takeOff(idsOf(late), 'leave');
  }

  /** What had to be asked for again goes by the queue server, so that no payload server can lose it twice. */
  private addedAs({ request: { job }, askedAgain }: OpenJob): NewJob {
    return askedAgain === 0 && this.parts.mayLieBeside?.() === true ? { ...job, mayLieBeside: true } : job;
  }

  private added(job: OpenJob, result: AddResult, terms: MoveTerms): void {
    const counted = countOf(job, result);
    if (counted !== undefined) this.tally[counted]++;
    if (result.outcome === 'added') job.isOurs = true;
    if (result.outcome !== 'refused') {
      job.wasLetIn = true;
      job.isLost = false;
    }
    this.make(job, afterAdd(job, result, terms));
  }

  // ---- hearing and looking up -----------------------------------------------------------------------------------

  private hear(jobId: string, outcome: 'completed' | 'failed'): void {
    const job = this.jobs.get(jobId);
    if (job === undefined) return;
    const { step } = job;
    if (step.name === 'adding' || step.name === 'asking') job.announced = outcome;
    else if (step.name === 'waiting') this.lists.move(job, afterReply(step, outcome));
    this.schedule();
  }

  private async lookUp(jobs: readonly OpenJob[]): Promise<void> {
    this.tally.lookedUp += jobs.length;
    for (const job of jobs)
      if (job.step.name === 'waiting') this.lists.move(job, { name: 'asking', patienceMs: job.step.patienceMs });
    const endings = await this.attempt(jobs, () => this.parts.producer.endings(idsOf(jobs)));
    if (endings === undefined) return;
    const terms = this.terms();
    for (const [i, job] of jobs.entries())
      if (job.step.name === 'asking') this.lookedUp(job, job.step.patienceMs, endings[i]!, terms);
  }

  private lookedUp(job: OpenJob, patienceMs: number, ending: JobEnding, terms: MoveTerms): void {
    if (ending.state === 'unknown') {
      this.parts.log?.warn({ jobId: job.request.jobId }, 'the queue lost a job, adding it again');
      job.isLost = true;
    }
    this.make(job, afterLookUp(job, patienceMs, ending, terms));
  }

  // ---- fetching -------------------------------------------------------------------------------------------------

  private async fetch(jobs: readonly OpenJob[]): Promise<void> {
    for (const job of jobs) this.lists.move(job, { name: 'fetching' });
    const results = await this.attempt(jobs, () => this.parts.reader.peek(idsOf(jobs)));
    for (const [i, job] of jobs.entries())
      if (results !== undefined && job.step.name === 'fetching') this.makeOf(job, results[i]);
  }

  private makeOf(job: OpenJob, result: Peeked): void {
    const move = afterFetch(job, result);
    const isDamaged = move.kind === 'ask-again' && move.code === 'RESULT_CORRUPT';
    if (isDamaged && Buffer.isBuffer(result)) this.parts.reader.damaged(result);
    this.make(job, move);
  }

  // ---- moves and endings ----------------------------------------------------------------------------------------

  private terms(): MoveTerms {
    const { clock, askAfterMs, giveUpAfterMs, whenFull } = this.parts;
    return { nowMs: clock.nowMs(), askAfterMs, giveUpAfterMs, whenFull };
  }

  private make(job: OpenJob, move: Move): void {
    switch (move.kind) {
      case 'step':
        return this.lists.move(job, move.step);
      case 'ask-again':
        return this.askAgain(job, move.code, move.again);
      case 'reject':
        return this.reject(job, move.error);
      case 'deliver':
        return this.deliver(job, new Delivery(move.result, job.holders.size));
    }
  }

  private deliver(job: OpenJob, delivery: Delivery): void {
    this.forget(job);
    this.tally.delivered++;
    job.delivery.resolve(delivery);
  }

  private askAgain(job: OpenJob, code: ErrorCode, again: Again): void {
    const error = askedTooOften(job, code);
    if (error !== undefined) return this.reject(job, error);
    const times = ++job.askedAgain;
    this.tally.askedAgain++;
    this.parts.log?.warn({ jobId: job.request.jobId, code, times }, 'result cannot be had, asking for the job again');
    this.lists.move(job, { name: 'to-add', again, notBeforeMs: 0 });
  }

  private reject(job: OpenJob, error: ShoalError): void {
    this.forget(job);
    this.tally.failed++;
    job.delivery.reject(error);
  }

  private forget(job: OpenJob): void {
    this.lists.move(job, { name: 'gone' });
    this.jobs.delete(job.request.jobId);
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
      const terms = this.terms();
      for (const job of jobs) {
        if (job.step.name === 'gone') continue;
        job.faultSinceMs ??= terms.nowMs;
        this.make(job, afterFault(job, error, job.faultSinceMs, terms));
      }
      return undefined;
    }
  }

  private connection(event: 'lost' | 'back'): void {
    if (this.isClosed) return;
    this.outage.connection(event);
    if (event === 'back') this.addEverythingAgain();
  }

  private addEverythingAgain(): void {
    for (const job of this.jobs.values()) {
      if (job.step.name !== 'waiting' && job.step.name !== 'asking') continue;
      job.isLost = job.isOurs; // until the server says that it still knows it
      this.lists.move(job, { name: 'to-add', again: 'never', notBeforeMs: 0 });
    }
    this.schedule();
  }

  private giveUp(): void {
    for (const job of this.jobs.values()) this.reject(job, noAnswer(job.request.jobId, this.parts.giveUpAfterMs));
  }
}

/** The smallest first, and with others of about its size: one row is not read behind thousands, nor waits for them. */
function fetchedTogether(jobs: readonly OpenJob[]): OpenJob[][] {
  const groups: OpenJob[][] = [];
  let rowsLeft = 0;
  for (const job of jobs.toSorted((a, b) => rowsOf(a) - rowsOf(b))) {
    const last = groups.at(-1);
    const mostRows = last === undefined ? 0 : Math.min(rowsLeft, LARGER * rowsOf(last[0]!));
    if (last !== undefined && last.length < FETCHED_AT_ONCE.jobs && rowsOf(job) <= mostRows) last.push(job);
    else {
      groups.push([job]);
      rowsLeft = FETCHED_AT_ONCE.rows;
    }
    rowsLeft -= rowsOf(job);
  }
  return groups;
}

function rowsOf({ request }: OpenJob): number {
  return request.job.parsed?.rows ?? 1;
}

type Counts = { -readonly [Name in keyof ClientCounts]: number };

function noCounts(): Counts {
  return { added: 0, known: 0, ready: 0, delivered: 0, failed: 0, askedAgain: 0, addedAgain: 0, lookedUp: 0 };
}

function idsOf(jobs: readonly OpenJob[]): string[] {
  return jobs.map(({ request }) => request.jobId);
}
