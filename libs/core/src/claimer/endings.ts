// Which ending a claim gets, and what its producer is told. Pure: what is known goes in, the ending comes out. An
// ending is settled in settler.ts, once, and only while the lease holds.
//
// A job in the CPU lane is never announced: it is the child of a job in the main lane, and that one is announced when
// it ends there.

import { ShoalError, toFailure, unreachable, type Failure, type JobReturn } from '@shoal/contract';
import type { SettledJob } from '../ports/metrics.ts';
import type { Announcement, RawClaim, SettleResult, Settlement } from '../ports/queue.ts';
import type { JobOutcome } from '../protocol.ts';
import type { ClaimedJob } from './claimed-job.ts';
import { isUrgent, resultIdFor, type QueuedJob, type ReadJob } from './queued-job.ts';
import { isConvictedByStalls } from './suspects.ts';

/** How a claim ends. */
export interface Ending {
  readonly settlement: Settlement;
  /** What its producer is told; undefined when there is nothing to tell. */
  readonly announcement: Announcement | undefined;
}

/** What becomes of a job that was just claimed. */
export type Verdict =
  | { readonly kind: 'run'; readonly job: QueuedJob }
  /** It has its ending without running. */
  | { readonly kind: 'end'; readonly ending: Ending };

/** The lease is lost, or the worker holds the job anew: nothing is changed at the queue. */
export const ABANDONED: Ending = { settlement: { kind: 'abandon' }, announcement: undefined };

/** Reads a claim and decides whether it runs. `nowMs`: by the clock of the queue server. */
export function judge(claim: RawClaim, readJob: ReadJob, nowMs: number): Verdict {
  const { stalls = 0, mustFail } = claim;
  if (isConvictedByStalls(stalls)) return end(quarantined(claim, diedWith(stalls)));
  if (mustFail !== undefined) return end(failed(claim, { code: 'JOB_INVALID', message: mustFail }));
  try {
    return judgeJob(claim, readJob(claim), nowMs);
  } catch (error) {
    if (!(error instanceof ShoalError)) throw error;
    if (error.code === 'JOB_VERSION_UNKNOWN') return end(parked(error));
    return end(failed(claim, toFailure(error)));
  }
}

function judgeJob(claim: RawClaim, job: QueuedJob, nowMs: number): Verdict {
  const { ending } = claim;
  // it was handed over, and its child in the CPU lane has ended
  if (ending?.kind === 'complete') return end({ settlement: ending, announcement: told('completed', claim, job) });
  if (ending?.kind === 'fail') return end({ settlement: ending, announcement: told('failed', claim, job) });
  if (job.deadlineMs !== undefined && job.deadlineMs <= nowMs) return end(deadlinePassed(claim, job));
  return { kind: 'run', job };
}

function end(ending: Ending): Verdict {
  return { kind: 'end', ending };
}

function diedWith(stalls: number): string {
  const who = `${stalls} workers died or were cut off while they had this job`;
  return `${who}, the last ones with nothing else at the device`;
}

/** The ending of a job by what the executor says became of it. */
export function endingOf({ claim, job }: Pick<ClaimedJob, 'claim' | 'job'>, outcome: JobOutcome): Ending {
  switch (outcome.kind) {
    case 'committed':
      return {
        settlement: { kind: 'complete', value: withMeta(outcome.value, job) },
        announcement: told('completed', claim, job),
      };
    case 'already':
      return {
        settlement: { kind: 'complete', value: withMeta(outcome.value, job) },
        announcement: told('completed', claim, job, true),
      };
    case 'failed':
      return failed(claim, outcome.failure, job);
    case 'hand-over':
      return { settlement: { kind: 'hand-over', handOver: outcome.handOver }, announcement: undefined };
    case 'lease-lost':
      return ABANDONED;
    case 'unstarted':
      return returned('worker stopped');
    default:
      return unreachable(outcome);
  }
}

/** What the producer wrote into the job for itself comes back with the result. */
function withMeta(value: JobReturn, { meta }: QueuedJob): JobReturn {
  return meta === undefined ? value : { ...value, meta };
}

/**
 * The job fails. `job` is left out when it could not even be read: nobody is known to wait for it then, but its input
 * must not stay behind.
 */
export function failed(claim: RawClaim, failure: Failure, job?: QueuedJob): Ending {
  return { settlement: { kind: 'fail', failure }, announcement: told('failed', claim, job) };
}

export function deadlinePassed(claim: RawClaim, job: QueuedJob): Ending {
  const deadline = new Date(job.deadlineMs ?? 0).toISOString();
  return failed(claim, { code: 'DEADLINE_PASSED', message: `the deadline ${deadline} passed before the job ran` }, job);
}

/** The job killed workers or executors: its input is kept where a person can look at it. */
export function quarantined(claim: RawClaim, message: string, job?: QueuedJob): Ending {
  return {
    settlement: { kind: 'quarantine', failure: { code: 'QUARANTINED', message } },
    announcement: told('failed', claim, job),
  };
}

/** The job is newer than this worker: nothing is failed for that, however long it takes until a newer worker comes. */
function parked({ message, fields }: ShoalError): Ending {
  return { settlement: { kind: 'park', version: Number(fields.version), reason: message }, announcement: undefined };
}

/** The job goes back to the queue, where any worker finds it after `delayMs`. It costs no attempt. */
export function returned(reason: string, delayMs = 0): Ending {
  return { settlement: { kind: 'return', delayMs, reason }, announcement: undefined };
}

function told(
  outcome: Announcement['outcome'],
  claim: RawClaim,
  job: QueuedJob | undefined,
  wasRepeated = false,
): Announcement | undefined {
  if (claim.lane === 'cpu') return undefined;
  const resultId = resultIdFor(claim);
  return {
    jobId: claim.jobId,
    ...(resultId === undefined ? {} : { resultId }),
    outcome,
    reply: job?.reply,
    resultTtlMs: job?.resultTtlMs ?? 0,
    isUrgent: job !== undefined && isUrgent(job),
    wasRepeated,
  };
}

/**
 * A settlement as it is counted, by what the queue said to it. What was refused because the lease was lost has changed
 * nothing, whatever was meant.
 */
export function toSettledJob(settlement: Settlement, result: SettleResult): SettledJob {
  if (result === 'lease-lost') return { outcome: 'abandon', code: 'LEASE_LOST', rows: 0 };
  return {
    outcome: settlement.kind,
    code: settlement.kind === 'fail' || settlement.kind === 'quarantine' ? settlement.failure.code : undefined,
    // its child was counted
    rows: settlement.kind === 'complete' && !wasHandedOver(settlement.value) ? settlement.value.rows : 0,
  };
}

function wasHandedOver(value: JobReturn): boolean {
  return 'handedOver' in value && value.handedOver !== undefined;
}
