// The collections that live workers tell of, as of two seconds ago at most.

import type { CollectionFacts } from '@shoal/core/similarity';
import type { Clock } from '@shoal/core';

const KNOWN_MS = 2_000;

export class KnownCollections {
  private readonly ask: () => Promise<readonly CollectionFacts[]>;
  private readonly clock: Pick<Clock, 'nowMs'>;
  private asking: Promise<readonly CollectionFacts[]> | undefined;
  private askedMs = Number.NEGATIVE_INFINITY;

  constructor(ask: () => Promise<readonly CollectionFacts[]>, clock: Pick<Clock, 'nowMs'>) {
    this.ask = ask;
    this.clock = clock;
  }

  /** By name. Rejects with QUEUE_UNREACHABLE. */
  all(): Promise<readonly CollectionFacts[]> {
    const nowMs = this.clock.nowMs();
    if (this.asking === undefined || nowMs - this.askedMs >= KNOWN_MS) {
      this.askedMs = nowMs;
      const asking = this.ask();
      asking.catch(() => (this.askedMs = Number.NEGATIVE_INFINITY)); // whoever comes next asks anew
      this.asking = asking;
    }
    return this.asking;
  }
}
