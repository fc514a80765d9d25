// Waits until what was written before lies in the append-only file on the queue server's disk: for producers that leave
// their jobs behind and end. Under `appendfsync everysec` that takes up to a second; whoever asks meanwhile waits for
// the next time together. Where the server keeps no such file, or is too old to be asked (Redis 7.2 and Valkey can be),
// there is nothing to wait for.

import { isShoalError, keySpace } from '@shoal/contract';
import { Batcher } from '@shoal/core/base';
import { closeConnection, connected, isPassingFault, type Redis } from '../redis/connection.ts';
import { translate } from '../redis/translated.ts';
import type { ProducerOptions } from './open-queue.ts';

type DurabilityOptions = Pick<ProducerOptions, 'redisUrl' | 'prefix' | 'log'>;

/** A disk that is slower than this is left alone. */
const LONGEST_WAIT_MS = 5_000;

export class Durability {
  private readonly options: DurabilityOptions;
  private connection: Promise<Redis> | undefined;
  private readonly asked = new Batcher<PromiseWithResolvers<void>>({
    gathers: 'idle',
    send: (waiting) => this.answer(waiting),
  });

  constructor(options: DurabilityOptions) {
    this.options = options;
  }

  /** Resolves when all that the server has acknowledged so far is on its disk. Throws QUEUE_UNREACHABLE. */
  settled(): Promise<void> {
    const waiting = Promise.withResolvers<void>();
    this.asked.add([waiting]);
    return waiting.promise;
  }

  /** Safe to call early or twice. */
  async close(): Promise<void> {
    const connection = await this.connection?.catch(() => undefined);
    if (connection !== undefined) await closeConnection(connection);
  }

  private async answer(waiting: readonly PromiseWithResolvers<void>[]): Promise<void> {
    try {
      await this.wait();
      for (const { resolve } of waiting) resolve();
    } catch (error) {
      for (const { resolve, reject } of waiting) {
        if (isShoalError(error) || isPassingFault(error)) reject(translate(error));
        else resolve(); // it keeps no append-only file, or cannot be asked
      }
    }
  }

  /** The server waits for what this connection wrote last, and for all that was written before. */
  private async wait(): Promise<void> {
    const { redisUrl, prefix, log } = this.options;
    this.connection ??= connected({ url: redisUrl, prefix, name: 'shoal-durability', log });
    this.connection.catch(() => (this.connection = undefined)); // the next call tries again
    const connection = await this.connection;
    await connection.set(keySpace(prefix).writeProbe(), '', 'PX', 1_000);
    await connection.call('WAITAOF', 1, 0, LONGEST_WAIT_MS);
  }
}
