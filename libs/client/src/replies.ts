// Who waits to hear that one of several jobs has ended. What is heard is looked at once more by who waits: a reply can be
// lost, and come twice.

import type { ResultReader } from '@shoal/queue';

interface Wait {
  /** Resolves when one of the jobs was spoken of; never, where nobody does. */
  readonly promise: Promise<void>;
  /** Nobody waits any more. */
  readonly end: () => void;
}

export class Replies {
  private readonly waiting = new Map<string, Set<() => void>>();

  constructor(reader: Pick<ResultReader, 'onReply'>) {
    reader.onReply(({ completed, failed }) => {
      for (const jobId of [...completed, ...failed]) for (const wake of this.waiting.get(jobId) ?? []) wake();
    });
  }

  /** Whether somebody waits. */
  get isWaitedFor(): boolean {
    return this.waiting.size > 0;
  }

  wait(jobIds: readonly string[]): Wait {
    const { promise, resolve } = Promise.withResolvers<void>();
    for (const jobId of jobIds) this.waiting.set(jobId, (this.waiting.get(jobId) ?? new Set()).add(resolve));
    const end = (): void => {
      for (const jobId of jobIds) {
        const waiting = this.waiting.get(jobId);
        waiting?.delete(resolve);
        if (waiting?.size === 0) this.waiting.delete(jobId);
      }
    };
    return { promise, end };
  }
}
