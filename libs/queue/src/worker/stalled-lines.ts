// One log line for all jobs that a check for lost leases found: a worker that dies may have held thousands.

import type { Logger } from '@shoal/core';

/** The count is whole; `shoal queue why ID` tells of any job. */
const MOST_NAMED = 5;

export class StalledLines {
  private readonly log: Logger;
  private jobIds: string[] = [];

  constructor(log: Logger) {
    this.log = log;
  }

  /** Jobs of one turn of the event loop are one line. */
  add(jobId: string): void {
    this.jobIds.push(jobId);
    if (this.jobIds.length === 1) setImmediate(() => this.write());
  }

  private write(): void {
    const { jobIds } = this;
    this.jobIds = [];
    this.log.warn(
      { jobs: jobIds.length, jobIds: jobIds.slice(0, MOST_NAMED) },
      'jobs stalled, their worker is gone; they wait again',
    );
  }
}
