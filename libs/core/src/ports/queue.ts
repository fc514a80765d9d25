// Where jobs are claimed from and who hears of their endings. Every JobSource, fakes included, passes the conformance
// suite in testing/.

import type { Failure, HandOver, JobReturn, Lane } from '@shoal/contract';

/** Another queue server whose jobs this worker runs while it has none of its own. */
export interface OtherCell {
  readonly name: string;
  /** As the setting `redisUrl`. */
  readonly address: string;
  /** As the setting `prefix`, where it is not that of this worker's own cell. */
  readonly prefix?: string | undefined;
}

/** A job under a lock, as it was found: nothing in it has been checked. */
export interface RawClaim {
  readonly jobId: string;
  /** Where it was claimed, and so where its lock is. Left out: the main lane. */
  readonly lane?: Lane | undefined;
  /** In which cell. Left out: at home. */
  readonly cell?: OtherCell | undefined;
  /** A part of a run of files, claimed in the lane of parts. Left out: any other job. */
  readonly isPart?: true | undefined;
  /** This claim's lock token; a result is committed only while the lock still has it. */
  readonly token: string;
  readonly name: string;
  readonly data: unknown;
  /** How often the job was tried before, verdicts about its input only. */
  readonly attempt: number;
  /** Milliseconds the job waited in the queue. */
  readonly queuedMs: number;
  /** When the job was made, epoch ms, as its record says. Left out: nobody knows, and its id tells it from all others. */
  readonly madeMs?: number | undefined;
  /** How often a worker that had it died or was cut off. */
  readonly stalls?: number | undefined;
  /** Set when the queue already decided that this job must fail. */
  readonly mustFail: string | undefined;
  /**
   * There is nothing left to run: how the child of a job ended that was handed over, or that it was cancelled while
   * another claim held it.
   */
  readonly ending?: KnownEnding | undefined;
}

/** With what a job fails that was cancelled while a claim held it. */
export const CANCELLED_WHILE_CLAIMED: Failure = {
  code: 'CANCELLED',
  message: 'the job was cancelled after a worker had claimed it',
};

export type KnownEnding = Extract<Settlement, { kind: 'complete' | 'fail' }>;

/** The one ending of a claim. */
export type Settlement =
  | { readonly kind: 'complete'; readonly value: JobReturn }
  | { readonly kind: 'fail'; readonly failure: Failure }
  /** To the CPU lane in one transaction. The job itself stays the public handle and completes when its child has. */
  | { readonly kind: 'hand-over'; readonly handOver: HandOver }
  /** Failed with QUARANTINED, and a copy with its input kept where a person can look at it. */
  | { readonly kind: 'quarantine'; readonly failure: Failure }
  /** Back to the queue after `delayMs`, without using up an attempt: nothing was wrong with the job. */
  | { readonly kind: 'return'; readonly delayMs: number; readonly reason: string }
  /** Kept, unread and without using up an attempt, until a worker comes that knows this version of its data. */
  | { readonly kind: 'park'; readonly version: number; readonly reason: string }
  /** Another worker may own it by now: leave it alone. */
  | { readonly kind: 'abandon' };

/**
 * `settled`: the queue took the ending. `announced`: it did, and what follows is done. `lease-lost`: the job belongs to
 * somebody else by now and nothing was changed.
 */
export type SettleResult = 'settled' | 'announced' | 'lease-lost';

/** Where jobs are claimed from: one lane of one model. */
export interface JobSource {
  /** Connects, checks the server and begins to renew leases. Throws QUEUE_UNREACHABLE or QUEUE_UNSAFE. */
  start(): Promise<void>;
  /**
   * Up to `limit` jobs in as few round trips as possible; waits until there is at least one. Empty only while stopping.
   */
  claim(limit: number): Promise<readonly RawClaim[]>;
  /** Of the jobs that are next in line, up to `limit` interactive ones; none when another is next. Does not wait. */
  claimUrgent(limit: number): Promise<readonly RawClaim[]>;
  /** Waits for a part of a run of files; empty only while stopping. Left out by sources that know of none. */
  claimPart?(): Promise<readonly RawClaim[]>;
  /**
   * Gives a claim its ending. Faults of the server are retried inside until the lease is lost. A source that can
   * announces the job as part of it; else whoever asked does, afterwards.
   */
  settle(claim: RawClaim, settlement: Settlement, announcement?: Announcement): Promise<SettleResult>;
  /** Called for each claim whose lease could not be renewed. */
  onLeaseLost(listener: (jobId: string) => void): void;
  /** Called with jobs that somebody cancelled; not all of them need be held here. */
  onCancelled(listener: (jobIds: readonly string[]) => void): void;
  /**
   * Jobs that wait and that this source may claim now, asked in another way than claims are. Throws QUEUE_UNREACHABLE
   * while nobody can tell.
   */
  claimable(): Promise<number>;
  /**
   * Stops claiming at once: a waiting `claim` resolves empty. Leases are still renewed, claims can still be settled.
   */
  stopClaiming(): Promise<void>;
  /** Closes everything. Claims not settled by now are left to their leases. Safe to call early or twice. */
  stop(): Promise<void>;
}

/** What follows a completed or failed job: clean up after it and tell the producer that waits. */
export interface Announcement {
  readonly jobId: string;
  /** Under which its result is kept. Left out: its id. */
  readonly resultId?: string | undefined;
  readonly outcome: 'completed' | 'failed';
  readonly reply: string | undefined;
  readonly resultTtlMs: number;
  /** An interactive job: told without waiting for what is being told of others. */
  readonly isUrgent: boolean;
  /** Whether somebody else's commit made the result: then it may have been announced and taken already. */
  readonly wasRepeated: boolean;
}

export interface Announcer {
  /** Deletes inputs, starts the results' time to live and publishes on the reply channels, in one pipeline. */
  announce(announcements: readonly Announcement[]): Promise<void>;
}
