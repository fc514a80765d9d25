// What a client does to leave nothing behind: takes jobs off the queue that nobody waits for any more, takes running
// ones back from their workers, and acknowledges results whose vectors are safe. All of it is best effort: what cannot
// be done now is left to the times to live on the server.

import type { Clock, Logger } from '@shoal/core';
import type { FaultPoints } from '@shoal/core/base';
import type { JobProducer, ResultReader } from '@shoal/queue';

export interface TakingOffParts {
  readonly producer: Pick<JobProducer, 'remove'>;
  readonly reader: Pick<ResultReader, 'markTaken'>;
  /**
   * Takes running jobs back from their workers. Left out: they run to their end, and their results wait for whoever
   * asks again.
   */
  readonly cancel?: ((jobIds: readonly string[]) => Promise<unknown>) | undefined;
  readonly clock: Clock;
  readonly log: Logger | undefined;
  readonly faults: FaultPoints;
}

/** How long an abandoned run waits for its waiting jobs to be taken off the queue. */
const REMOVAL_PATIENCE_MS = 2_000;

export class TakingOff {
  private readonly parts: TakingOffParts;
  private readonly isServerAway: () => boolean;
  private toAcknowledge: string[] = [];

  constructor(parts: TakingOffParts, isServerAway: () => boolean) {
    this.parts = parts;
    this.isServerAway = isServerAway;
  }

  /** Takes waiting jobs off the queue; `running: 'cancel'` takes those that run already back from their workers. */
  async takeOff(jobIds: readonly string[], running: 'cancel' | 'leave'): Promise<void> {
    if (jobIds.length > 0) await this.patiently(this.remove(jobIds, running));
  }

  /** The results of these jobs are to be acknowledged. */
  delivered(jobIds: readonly string[]): void {
    this.toAcknowledge.push(...jobIds);
  }

  /** Whether there are results to be acknowledged. */
  get hasToAcknowledge(): boolean {
    return this.toAcknowledge.length > 0;
  }

  async acknowledge(): Promise<void> {
    const { reader, faults, log } = this.parts;
    const jobIds = this.toAcknowledge;
    this.toAcknowledge = [];
    if (jobIds.length === 0) return;
    faults.reach('before-acknowledge');
    try {
      await reader.markTaken(jobIds);
    } catch (error) {
      // The vectors are with the caller already; an unmarked result only lies there until its time to live ends.
      log?.debug({ jobs: jobIds.length, err: error }, 'results could not be acknowledged');
    }
    faults.reach('after-acknowledge');
  }

  /** Acknowledges what there is, and does not wait for long. */
  async acknowledgeLast(): Promise<void> {
    await this.patiently(this.acknowledge());
  }

  private async remove(jobIds: readonly string[], running: 'cancel' | 'leave'): Promise<void> {
    const removed = new Set(await this.parts.producer.remove(jobIds));
    const others = jobIds.filter((jobId) => !removed.has(jobId));
    if (others.length > 0 && running === 'cancel') await this.parts.cancel?.(others);
  }

  /** Best effort: waits for a while, not at all when the server is away, and takes no for an answer. */
  private async patiently(work: Promise<unknown>): Promise<void> {
    const { clock, log } = this.parts;
    if (this.isServerAway()) return void work.catch(() => undefined);
    const patience = Promise.withResolvers<void>();
    const cancel = clock.after(REMOVAL_PATIENCE_MS, () => patience.resolve());
    await Promise.race([work, patience.promise]).catch((error: unknown) =>
      log?.debug({ err: error }, 'cleaning up after abandoned jobs failed'),
    );
    cancel();
  }
}
