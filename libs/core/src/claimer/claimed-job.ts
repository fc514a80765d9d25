// A job under a lock that this worker holds, and what each part of the claimer notes about it.

import type { RawClaim } from '../ports/queue.ts';
import type { Span } from '../ports/tracer.ts';
import type { ClaimSize } from './claim-room.ts';
import type { QueuedJob } from './queued-job.ts';

export interface ClaimedJob {
  readonly claim: RawClaim;
  readonly job: QueuedJob;
  /** What it takes of the room; changed by the room alone. */
  readonly size: ClaimSize;
  /** From the claim to the ending; whoever settles the claim ends it. */
  readonly span: Span;
  /** Whether the executor that is up has it; it is held otherwise. Changed by the executor's keeper alone. */
  isDispatched: boolean;
  /**
   * Executors that died without having run anything while they read the inputs of this job and others. Of a part: all
   * that died while they had it.
   */
  unexplainedDeaths: number;
}
