// Gives the arena of a device back while nobody asks for anything: what a burst took stays with the runtime otherwise,
// and others on the device find it missing. Looks when it is told to; the next run takes its memory again, which costs
// it some milliseconds.

import type { Clock, FromExecutor } from '@shoal/core';

/** Between two bursts of a busy queue there is less. */
const IDLE_MS = 20_000;

interface IdleBackend {
  runningMs(): number;
  shrink(): Promise<boolean>;
}

export class IdleShrink {
  private readonly backend: IdleBackend;
  private readonly clock: Clock;
  private lastMs: number;
  private isGivenBack = true; // what the open graph holds

  constructor(backend: IdleBackend, clock: Clock) {
    this.backend = backend;
    this.clock = clock;
    this.lastMs = clock.nowMs();
  }

  /** What the executor says to its claimer, to know what the device does. */
  hear({ kind }: FromExecutor): void {
    if (kind !== 'began') return;
    this.lastMs = this.clock.nowMs();
    this.isGivenBack = false;
  }

  async look(): Promise<void> {
    if (this.isGivenBack || this.backend.runningMs() > 0 || this.clock.nowMs() - this.lastMs < IDLE_MS) return;
    this.isGivenBack = true;
    await this.backend.shrink();
  }
}
