// Waiting that somebody can end early: all who wait are woken together.

import type { Clock } from '../ports/clock.ts';

export class Sleeps {
  private readonly clock: Clock;
  private readonly sleepers = new Set<() => void>();

  constructor(clock: Clock) {
    this.clock = clock;
  }

  /** Resolves at the next `wake`, or after `ms` when they are given. */
  sleep(ms?: number): Promise<void> {
    return new Promise((resolve) => {
      const end = (): void => {
        this.sleepers.delete(end);
        cancel?.();
        resolve();
      };
      const cancel = ms === undefined ? undefined : this.clock.after(ms, end);
      this.sleepers.add(end);
    });
  }

  /** Ends every sleep that has begun. */
  wake(): void {
    for (const end of this.sleepers) end();
  }
}
