// Gives claims their endings at the queue, counts them, and has their producers told. Which ending a claim gets is
// decided elsewhere (endings.ts). A queue server that fails is the source's business; an error that comes through is
// fatal.

import { requestIdIn } from '@shoal/contract';
import { Announcements } from './announcements.ts';
import { toSettledJob, type Ending } from './endings.ts';
import { endSpan } from './job-spans.ts';
import type { FaultPoints } from '../base/fault-points.ts';
import type { Clock } from '../ports/clock.ts';
import type { Logger } from '../ports/logger.ts';
import type { Metrics } from '../ports/metrics.ts';
import type { Announcer, JobSource, RawClaim } from '../ports/queue.ts';
import type { Span } from '../ports/tracer.ts';

export interface SettlerParts {
  readonly source: Pick<JobSource, 'settle'>;
  readonly announcer: Announcer;
  readonly clock: Clock;
  readonly log: Logger;
  readonly faults: FaultPoints;
  readonly metrics: Metrics;
  /** Called after each settlement, whatever came of it. */
  readonly onSettled: () => void;
  readonly onFatal: (error: unknown) => void;
}

export class Settler {
  private readonly parts: SettlerParts;
  private readonly announcements: Announcements;
  private readonly settling = new Set<Promise<void>>();

  constructor(parts: SettlerParts) {
    this.parts = parts;
    this.announcements = new Announcements(parts);
  }

  /** How many settlements are under way. */
  get underWay(): number {
    return this.settling.size;
  }

  /** `span`: of the job; it ends with the settlement. */
  settle(claim: RawClaim, ending: Ending, span: Span): void {
    const settled = this.settleNow(claim, ending, span)
      .catch((error: unknown) => this.parts.onFatal(error))
      .finally(() => {
        this.settling.delete(settled);
        this.parts.onSettled();
      });
    this.settling.add(settled);
  }

  /** Resolves when every claim has its ending. */
  async settled(): Promise<void> {
    while (this.settling.size > 0) await Promise.all(this.settling);
  }

  /** Resolves when all producers have been told. */
  announced(): Promise<void> {
    return this.announcements.settled();
  }

  private async settleNow(claim: RawClaim, { settlement, announcement }: Ending, span: Span): Promise<void> {
    const { source, clock, log, faults, metrics } = this.parts;
    this.logFailure(claim, settlement);
    faults.reach('before-complete');
    const sinceMs = clock.nowMs();
    const result = await source.settle(claim, settlement, announcement);
    metrics.stageTook('settle', clock.nowMs() - sinceMs);
    faults.reach('after-complete');
    const settled = toSettledJob(settlement, result);
    metrics.jobSettled(settled);
    endSpan(span, settled);
    if (result === 'lease-lost')
      log.warn({ ...namesOf(claim), code: 'LEASE_LOST' }, 'job belongs to another worker by now');
    else if (result === 'announced') faults.reach('after-announce');
    else if (announcement !== undefined) this.announcements.add(announcement);
  }

  private logFailure(claim: RawClaim, settlement: Ending['settlement']): void {
    if (settlement.kind !== 'fail' && settlement.kind !== 'quarantine') return;
    const { code, message: reason } = settlement.failure;
    const facts = { ...namesOf(claim), code, reason };
    if (settlement.kind === 'quarantine') this.parts.log.error(facts, 'job quarantined');
    else if (code !== 'CANCELLED') this.parts.log.warn(facts, 'job failed');
  }
}

/** By which a job is found in logs: its own id, and that of the request that it is a part of. */
export function namesOf({ jobId, data }: Pick<RawClaim, 'jobId' | 'data'>): {
  readonly jobId: string;
  readonly requestId?: string;
} {
  const requestId = requestIdIn(data);
  return { jobId, ...(requestId !== undefined && { requestId }) };
}
