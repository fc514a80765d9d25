// The executor's last verb: a job that is done gets its result written, if its lease still holds. Large results are
// written as they come. Small ones are written one call at a time; whatever is done meanwhile goes with the next, and
// interactive jobs do not wait for the results of others. Knows nothing of pools and devices, nor of what is in a
// result.

import { toFailure, type JobReturn } from '@shoal/contract';
import { already, failed } from './endings.ts';
import { conflict } from './fill.ts';
import type { CommitRequest, CommitResult, PayloadStore } from '../ports/payload.ts';
import type { FaultPoints } from '../base/fault-points.ts';
import type { JobOutcome, OrderTerms } from '../protocol.ts';
import { UrgencyBatcher } from '../base/batcher.ts';

/**
 * Results are written in pieces of about so many bytes, and a job is told of when its piece is there: one of 64 rows
 * (98 KB) is a piece by itself, and waits for no other. Small results share a piece, because each costs the server and
 * the claimer a call.
 */
const PIECE_BYTES = 65_536;

/** An interactive job's result of up to so many bytes goes by the queue server: another question would be a round trip. */
const INTERACTIVE_BYTES = 65_536;

export interface CommittedJob {
  readonly order: OrderTerms;
  readonly fingerprint: string;
  readonly isDropped: boolean;
}

export interface CommitterParts<Job extends CommittedJob> {
  readonly store: Pick<PayloadStore, 'commit'>;
  readonly faults: FaultPoints;
  /** Header and body (SHL1). */
  readonly resultOf: (job: Job) => Buffer;
  readonly valueOf: (job: Job) => JobReturn;
  /** Called once for each commit that was answered, with what was written with it. */
  readonly onCommitted: (answers: readonly { readonly job: Job; readonly outcome: JobOutcome }[]) => void;
}

interface Commit<Job> {
  readonly job: Job;
  readonly request: CommitRequest;
}

export class Committer<Job extends CommittedJob> {
  private readonly parts: CommitterParts<Job>;
  private readonly small: UrgencyBatcher<Commit<Job>>;
  /** Large results that are being written. */
  private readonly writing = new Set<Promise<void>>();

  constructor(parts: CommitterParts<Job>) {
    this.parts = parts;
    this.small = new UrgencyBatcher((commits, isUrgent) => this.commit(commits, isUrgent));
  }

  /** The commits that are under way, or undefined when there are none. */
  get busy(): Promise<unknown> | undefined {
    const {
      small: { busy },
      writing,
    } = this;
    return busy === undefined && writing.size === 0 ? undefined : Promise.all([busy, ...writing]);
  }

  add(jobs: readonly Job[]): void {
    const commits = jobs.map((job): Commit<Job> => ({ job, request: this.commitRequest(job) }));
    const isLarge = ({ request }: Commit<Job>): boolean => request.result.length >= PIECE_BYTES;
    this.small.add(
      commits.filter((commit) => !isLarge(commit)),
      isInteractive,
    ); // before what takes long to send
    for (const commit of commits) if (isLarge(commit)) this.writeNow(commit);
  }

  private writeNow(commit: Commit<Job>): void {
    const written = this.write([commit], isInteractive(commit)).finally(() => this.writing.delete(written));
    this.writing.add(written);
  }

  private async commit(done: readonly Commit<Job>[], isUrgent: boolean): Promise<void> {
    const commits = done.filter(({ job }) => !job.isDropped);
    await Promise.all(piecesOf(commits).map((piece) => this.write(piece, isUrgent)));
  }

  private async write(piece: readonly Commit<Job>[], isUrgent: boolean): Promise<void> {
    this.parts.faults.reach('before-commit');
    const results = await this.parts.store.commit(
      piece.map(({ request }) => request),
      { isUrgent },
    );
    this.parts.faults.reach('after-commit');
    this.parts.onCommitted(piece.map(({ job }, i) => ({ job, outcome: this.outcomeOf(job, results[i]!) })));
  }

  private commitRequest(job: Job): CommitRequest {
    const { order, fingerprint } = job;
    const result = this.parts.resultOf(job);
    const mayLieBeside = order.class === 'bulk' || result.length > INTERACTIVE_BYTES;
    return {
      jobId: order.jobId,
      ...(order.resultId === undefined ? {} : { resultId: order.resultId }),
      lane: order.lane,
      token: order.token,
      fingerprint,
      result,
      ttlMs: order.resultTtlMs,
      ...(mayLieBeside && order.payloads !== undefined && { payloads: order.payloads }),
    };
  }

  private outcomeOf(job: Job, result: CommitResult): JobOutcome {
    const { jobId, token } = job.order;
    switch (result) {
      case 'committed':
        return { kind: 'committed', jobId, token, value: this.parts.valueOf(job) };
      case 'already':
        return already(job.order, this.parts.valueOf(job));
      case 'lease-lost':
        return { kind: 'lease-lost', jobId, token };
      case 'conflict':
        return failed(job.order, toFailure(conflict(jobId, 'something else', job.fingerprint)));
    }
  }
}

function isInteractive({ job: { order } }: Commit<CommittedJob>): boolean {
  return order.class === 'interactive';
}

function piecesOf<Job>(commits: readonly Commit<Job>[]): Commit<Job>[][] {
  const pieces: Commit<Job>[][] = [];
  let room = 0;
  for (const commit of commits) {
    if (room <= 0) {
      pieces.push([]);
      room = PIECE_BYTES;
    }
    pieces.at(-1)!.push(commit);
    room -= commit.request.result.length;
  }
  return pieces;
}
