// Tells producers of jobs that ended: whatever ends while one call is under way goes together in the next. A call that fails
// is reported and not repeated; the producers ask for themselves after a while.

import type { FaultPoints } from './fault-points.ts';
import type { Announcement, Announcer, Logger } from './ports.ts';

export interface AnnouncementsParts {
  readonly announcer: Announcer;
  readonly log: Logger;
  readonly faults: FaultPoints;
}

export class Announcements {
  private readonly parts: AnnouncementsParts;
  private waiting: Announcement[] = [];
  private loop: Promise<void> | undefined;

  constructor(parts: AnnouncementsParts) {
    this.parts = parts;
  }

  add(announcement: Announcement): void {
    this.waiting.push(announcement);
    this.announceRest();
  }

  /** Resolves when all is said. */
  async settled(): Promise<void> {
    while (this.loop !== undefined) await this.loop;
  }

  /** One loop at a time; looks again when one ends, because an announcement may come between its last look and its end. */
  private announceRest(): void {
    if (this.waiting.length === 0) return;
    this.loop ??= this.announceAll().finally(() => {
      this.loop = undefined;
      this.announceRest();
    });
  }

  private async announceAll(): Promise<void> {
    const { announcer, log, faults } = this.parts;
    while (this.waiting.length > 0) {
      const batch = this.waiting;
      this.waiting = [];
      try {
        await announcer.announce(batch);
      } catch (error) {
        log.warn({ err: error, jobs: batch.length }, 'announcement lost, producers will ask for their results themselves');
      }
      faults.reach('after-announce');
    }
  }
}
