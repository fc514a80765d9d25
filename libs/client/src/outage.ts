// Whether the queue server is away, by connections that were lost and came back, and for how long it is waited for.

import type { Clock } from '@shoal/core';

export interface OutageParts {
  readonly clock: Clock;
  readonly giveUpAfterMs: number;
  /** The server has been away for that long. */
  readonly onGiveUp: () => void;
}

export class Outage {
  private readonly parts: OutageParts;
  private lostConnections = 0;
  private cancelGiveUp: (() => void) | undefined;

  constructor(parts: OutageParts) {
    this.parts = parts;
  }

  get isGoingOn(): boolean {
    return this.lostConnections > 0;
  }

  /** Patience begins anew with each change, and ends when every connection is back. */
  connection(event: 'lost' | 'back'): void {
    this.lostConnections += event === 'lost' ? 1 : -1;
    this.stop();
    this.opened();
  }

  /** A job was opened: during an outage that has been given up on, somebody waits again. */
  opened(): void {
    if (!this.isGoingOn) return;
    const { clock, giveUpAfterMs, onGiveUp } = this.parts;
    this.cancelGiveUp ??= clock.after(giveUpAfterMs, () => {
      this.cancelGiveUp = undefined;
      onGiveUp();
    });
  }

  stop(): void {
    this.cancelGiveUp?.();
    this.cancelGiveUp = undefined;
  }
}
