// Tells producers of jobs that ended: whatever ends while one call is under way goes together in the next, interactive
// jobs by themselves. A call that fails is reported and not repeated; the producers ask for themselves after a while.

import type { FaultPoints } from '../base/fault-points.ts';
import type { Clock } from '../ports/clock.ts';
import type { Metrics } from '../ports/metrics.ts';
import type { Announcement, Announcer } from '../ports/queue.ts';
import type { Logger } from '../ports/logger.ts';
import { UrgencyBatcher } from '../base/batcher.ts';

export interface AnnouncementsParts {
  readonly announcer: Announcer;
  readonly clock: Clock;
  readonly metrics: Pick<Metrics, 'stageTook'>;
  readonly log: Logger;
  readonly faults: FaultPoints;
}

export class Announcements {
  private readonly parts: AnnouncementsParts;
  private readonly batcher: UrgencyBatcher<Announcement>;

  constructor(parts: AnnouncementsParts) {
    this.parts = parts;
    this.batcher = new UrgencyBatcher((batch) => this.announce(batch));
  }

  add(announcement: Announcement): void {
    this.batcher.add([announcement], ({ isUrgent }) => isUrgent);
  }

  /** Resolves when all is said. */
  async settled(): Promise<void> {
    while (this.batcher.busy !== undefined) await this.batcher.busy;
  }

  private async announce(batch: readonly Announcement[]): Promise<void> {
    const { announcer, clock, log, faults, metrics } = this.parts;
    const sinceMs = clock.nowMs();
    try {
      await announcer.announce(batch);
      metrics.stageTook('announce', clock.nowMs() - sinceMs);
    } catch (error) {
      log.warn(
        { err: error, jobs: batch.length },
        'announcement lost, producers will ask for their results themselves',
      );
    }
    faults.reach('after-announce');
  }
}
