// What a similarity worker tells of the collections that it answers from: looked at every five seconds.

import type { Logger, WorkerFacts } from '@shoal/core';
import type { CollectionFacts } from '@shoal/core/similarity';
import { CollectionsSeen } from '@shoal/similarity';

const LOOK_EVERY_MS = 5_000;
/** What is told of them goes to the queue server every two seconds: some 30 KB. */
const MOST_TOLD = 200;

export class CollectionsTold {
  private readonly seen: CollectionsSeen;
  private readonly log: Logger;
  private told: readonly CollectionFacts[] = [];
  private looking: Promise<void> | undefined;
  private readonly timer: NodeJS.Timeout;

  constructor(folder: string, log: Logger) {
    this.seen = new CollectionsSeen(folder);
    this.log = log;
    this.timer = setInterval(() => void this.look(), LOOK_EVERY_MS).unref();
    void this.look();
  }

  facts(): Pick<WorkerFacts, 'collections'> {
    return { collections: this.told };
  }

  async stop(): Promise<void> {
    clearInterval(this.timer);
    await this.looking;
  }

  private look(): Promise<void> {
    return (this.looking ??= this.seen
      .look()
      .then(
        (found) => void (this.told = found.slice(0, MOST_TOLD)),
        (error: unknown) => this.log.debug({ err: error }, 'collections could not be listed'),
      )
      .finally(() => (this.looking = undefined)));
  }
}
