// Calls that go on by themselves: none of them fails unheard, and somebody can wait until all have ended.

import type { Logger } from '@shoal/core';

export class Tasks {
  private readonly log: Logger | undefined;
  private readonly onEnd: () => void;
  private readonly underWay = new Set<Promise<void>>();

  /** `onEnd` is called after each of them. */
  constructor(log: Logger | undefined, onEnd: () => void) {
    this.log = log;
    this.onEnd = onEnd;
  }

  add(work: Promise<void>): void {
    const ended = work
      .catch((error: unknown) => this.log?.error({ err: error }, 'a step of the client failed unexpectedly'))
      .finally(() => {
        this.underWay.delete(ended);
        this.onEnd();
      });
    this.underWay.add(ended);
  }

  /** Resolves when none is under way any more. */
  async ended(): Promise<void> {
    while (this.underWay.size > 0) await Promise.all(this.underWay);
  }
}
