// What a client has open towards one queue: who adds its jobs, who reads their results, the jobs between the two, and
// who takes jobs back, which is opened when the first one is.

import { randomUUID } from 'node:crypto';
import { DEFAULT_PREFIX, ROWS_EVERY_WORKER_TAKES, type Trace } from '@shoal/contract';
import { noLog, systemClock } from '@shoal/core';
import { noFaults } from '@shoal/core/base';
import {
  Canceller,
  JobProducer,
  PayloadServers,
  ResultReader,
  claimingOf,
  mostJobRows,
  notSharing,
  type CancelResult,
  type ServingWorker,
  type Waiting,
} from '@shoal/queue';
import type { ClientOptions } from './embedding.ts';
import { closedError } from './job-request.ts';
import { OpenJobs } from './open-jobs.ts';
import { Replies } from './replies.ts';
import { recordedIds, type NewRequest } from './request-record.ts';
import { serverOf } from './server-of.ts';
import { submit } from './submitted.ts';
import { allReadSecond } from './unserved.ts';
import { WaitingWatch } from './waiting-watch.ts';

/** Jobs that a call has under way at a time. */
export const IN_FLIGHT_JOBS = 64;
/** So long it is taken as known what all workers take. */
const KNOWN_MS = 5_000;

/** What all workers that claim take. */
interface Taken {
  readonly isSecondRead: boolean;
  /** Undefined: nobody claims. */
  readonly rows: number | undefined;
}

export interface LineTerms {
  readonly queue: string;
  /** Begins the name of the channel that answers come by. */
  readonly name: string;
  /** Inputs and results of its jobs may lie on the payload servers of the options. Default false. */
  readonly mayLieBeside?: boolean;
  /** Of the channel, where several lines are to have the same. Left out: `name` and what is random. */
  readonly replyName?: string;
}

/** What holds for all calls over a line. */
export interface LineLimits {
  readonly giveUpAfterMs: number;
  readonly whenFull: 'wait' | 'fail';
  readonly onHeldBack: ClientOptions['onHeldBack'];
}

export class QueueLine {
  readonly jobs: OpenJobs;
  readonly replies: Replies;
  readonly terms: LineLimits;
  private readonly options: ClientOptions;
  private readonly queue: string;
  readonly producer: JobProducer;
  readonly reader: ResultReader;
  private readonly payloads: PayloadServers | undefined;
  private readonly watch: WaitingWatch;
  private canceller: Promise<Canceller> | undefined;
  /** Whether all workers that claim have the same payload servers, since when that is known, and those that have not. */
  private beside: { isKnownMs: number; isShared: boolean; others: readonly string[] } = {
    isKnownMs: 0,
    isShared: false,
    others: [],
  };
  private told: { readonly sinceMs: number; readonly taken: Promise<Taken> } | undefined;
  readonly usualInFlightJobs = IN_FLIGHT_JOBS;
  /** Or closing: nothing is asked over it any more. */
  isClosed = false;

  private constructor(
    options: ClientOptions,
    queue: string,
    producer: JobProducer,
    reader: ResultReader,
    payloads: PayloadServers | undefined,
  ) {
    const {
      log,
      faults = noFaults,
      askAfterMs = 2_000,
      giveUpAfterMs = 60_000,
      whenFull = 'wait',
      onHeldBack,
      notServedAfterMs = 30_000,
      onWaiting = (waiting) => waiting !== undefined && log?.info({ ...waiting }, 'nothing has come for a while'),
    } = options;
    this.options = options;
    this.queue = queue;
    this.producer = producer;
    this.reader = reader;
    this.payloads = payloads;
    this.replies = new Replies(reader);
    this.terms = { giveUpAfterMs, whenFull, onHeldBack };
    this.jobs = new OpenJobs({
      producer,
      reader,
      cancel: (jobIds) => this.cancel(jobIds),
      clock: systemClock,
      log,
      faults,
      askAfterMs,
      giveUpAfterMs,
      whenFull,
      onHeldBack,
      mayLieBeside: () => this.mayLieBeside(),
      onOpened: () => this.watch.opened(),
    });
    this.watch = new WaitingWatch({
      clock: systemClock,
      ask: () => producer.whyWaiting(),
      standing: () => this.jobs.standing(),
      onWaiting,
      notServedAfterMs,
      onNotServed: (error) => this.jobs.giveUpAll(error),
    });
  }

  /** Connects and checks that the server answers. Throws QUEUE_UNREACHABLE or CONFIG_INVALID. */
  static async open(
    options: ClientOptions,
    { queue, name, mayLieBeside = false, replyName = `${name}-${randomUUID()}` }: LineTerms,
  ): Promise<QueueLine> {
    const { prefix, limits, log, tracer, payloadServers } = options;
    const redisUrl = serverOf(options);
    const payloads =
      payloadServers === undefined || !mayLieBeside
        ? undefined
        : await PayloadServers.connect({ payloadServers, clientName: `shoal-${name}-payloads`, log });
    let producer: JobProducer | undefined;
    try {
      producer = await JobProducer.connect({ redisUrl, prefix, queue, limits, log, tracer, payloads });
      const reader = await ResultReader.connect({ redisUrl, prefix, queue, log, replyName, payloads });
      const line = new QueueLine(options, queue, producer, reader, payloads);
      if (payloads !== undefined) await line.lookForShared(payloads);
      return line;
    } catch (error) {
      await Promise.all([producer?.close(), payloads?.close()]);
      throw error;
    }
  }

  /** As of some seconds ago: workers of other settings get by, their results come by the queue server. */
  private mayLieBeside(): boolean {
    const { payloads, beside } = this;
    if (payloads === undefined) return false;
    if (performance.now() - beside.isKnownMs > KNOWN_MS) void this.lookForShared(payloads);
    return beside.isShared;
  }

  private async lookForShared({ id, names }: PayloadServers): Promise<void> {
    this.beside = { ...this.beside, isKnownMs: performance.now() };
    const found = notSharing(await this.workers().catch(() => undefined), id);
    const others = found ?? this.beside.others;
    if (others.length > 0 && this.beside.others.length === 0)
      this.options.log?.warn(
        { workers: others, payloadServers: names },
        'inputs and results go by the queue server: these workers have other payload servers than this process, or none',
      );
    this.beside = { ...this.beside, isShared: found?.length === 0, others };
  }

  /** The channel on which answers to this client are announced: every job's `reply`. */
  get replyChannel(): string {
    return this.reader.replyChannel;
  }

  /** There are no cells: an id is an id, whatever is in it. */
  placeOf(id: string): { readonly id: string } {
    return { id };
  }

  async submit(request: NewRequest, _: unknown, signal: AbortSignal | undefined): Promise<undefined> {
    await submit(this, request, signal);
  }

  async find(): Promise<{ readonly line: QueueLine }> {
    return { line: this };
  }

  /** Throws INTERRUPTED once the line is closed: nobody would close the connection that it opens. */
  async cancel(jobIds: readonly string[]): Promise<CancelResult[]> {
    if (this.isClosed) throw closedError();
    const { prefix = DEFAULT_PREFIX, log = noLog } = this.options;
    const redisUrl = serverOf(this.options);
    this.canceller ??= Canceller.connect({ redisUrl, prefix, queue: this.queue, log });
    this.canceller.catch(() => (this.canceller = undefined));
    return (await this.canceller).cancel(jobIds);
  }

  /** The same for all jobs of requests, however many they are of those of this client, and of submitted ones. */
  async cancelRequests(requestIds: readonly string[]): Promise<CancelResult[]> {
    if (this.isClosed) throw closedError();
    const submitted = await Promise.all(
      requestIds.map(async (id) => recordedIds(await this.producer.records.read(id))),
    );
    return this.cancel(requestIds.flatMap((id, at) => [...new Set([id, ...this.jobs.idsOf(id), ...submitted[at]!])]));
  }

  /** What jobs that were delivered returned, as it is stored; undefined where that is forgotten. */
  returnValues(jobIds: readonly string[]): Promise<(string | undefined)[]> {
    return this.producer.returnValues(jobIds);
  }

  /** Who serves the queue; undefined while the server does not tell. */
  workers(): Promise<readonly ServingWorker[] | undefined> {
    return this.producer.workers();
  }

  /**
   * `trace` where all workers that claim read it, as of five seconds ago at most; else nothing, so that nobody's job waits
   * for the sake of its logs.
   */
  async readable(trace: Trace | undefined): Promise<Trace | undefined> {
    if (trace === undefined) return undefined;
    return (await this.taken()).isSecondRead ? trace : undefined;
  }

  /** Rows that a job may have so that all workers that claim take it, as of five seconds ago at most; 256 without any. */
  async mostJobRows(): Promise<number> {
    return (await this.takenRows()) ?? ROWS_EVERY_WORKER_TAKES;
  }

  /** The same; undefined where nobody claims. */
  async takenRows(): Promise<number | undefined> {
    return (await this.taken()).rows;
  }

  private taken(): Promise<Taken> {
    const nowMs = performance.now();
    if (this.told === undefined || nowMs - this.told.sinceMs > KNOWN_MS) {
      const workers = this.workers().catch(() => undefined);
      const taken = workers.then((some) => ({
        isSecondRead: allReadSecond(some),
        rows: claimingOf(some).length === 0 ? undefined : mostJobRows(some),
      }));
      this.told = { sinceMs: nowMs, taken };
    }
    return this.told.taken;
  }

  /** Why nothing has come yet. Throws QUEUE_UNREACHABLE. */
  whyWaiting(): Promise<Waiting> {
    return this.producer.whyWaiting();
  }

  /** Gives up what is open (INTERRUPTED), acknowledges what was delivered, closes the connections. */
  async close(): Promise<void> {
    this.watch.stop();
    await this.jobs.close();
    this.isClosed = true;
    const canceller = await this.canceller?.catch(() => undefined);
    await Promise.all([this.producer.close(), this.reader.close(), canceller?.close(), this.payloads?.close()]);
    await this.jobs.idle();
  }
}
