// A worker's answer to a key of the wrong type: it has the queue put right at once, because until then nobody can work,
// and says what was found. Once at a time, and not more often than every few seconds; whatever fails is tried again when
// somebody meets such a key the next time.

import type { Logger } from '@shoal/core';
import type { Redis } from '../redis/connection.ts';
import { isWrongType, moveWrongKeys, type QueuePlace } from './queue-keys.ts';
import { repairQueue } from './repair.ts';

export interface KeyMenderOptions extends QueuePlace {
  readonly connection: Redis;
  readonly signal: AbortSignal;
  readonly log: Logger;
}

const REST_MS = 2_000;

export class KeyMender {
  private readonly options: KeyMenderOptions;
  private notBeforeMs = -Infinity;
  private mending: Promise<void> | undefined;

  constructor(options: KeyMenderOptions) {
    this.options = options;
  }

  /** Of any error that work at the queue has met; does nothing for those that say nothing of a key. Never throws. */
  met(error: unknown): void {
    if (!isWrongType(error) || this.mending !== undefined || performance.now() < this.notBeforeMs) return;
    this.notBeforeMs = performance.now() + REST_MS;
    this.mending = this.mend().finally(() => (this.mending = undefined));
  }

  /** Resolves when nothing is being mended. */
  async settled(): Promise<void> {
    await this.mending;
  }

  private async mend(): Promise<void> {
    const { connection, prefix, queue, signal, log } = this.options;
    try {
      const moved = await moveWrongKeys(connection, { prefix, queue });
      if (moved.length > 0)
        log.error(
          { queue, keys: moved, code: 'QUEUE_DAMAGED' },
          'keys of the queue were of another type and were moved aside; see shoal queue repair',
        );
      // what was lost from a list by the way
      await repairQueue({ connection, prefix, queue, signal });
    } catch (error) {
      if (!signal.aborted) log.warn({ queue, err: error }, 'a damaged queue could not be put right, trying again');
    }
  }
}
