// What is kept of a request that somebody comes back for, under its id: of which jobs it consists and what they ask for.
// The text is its owner's business; here it is written once, read and forgotten.

import type { KeySpace } from '@shoal/contract';
import type { Redis } from '../redis/connection.ts';
import { translated } from '../redis/translated.ts';

export class RequestRecords {
  private readonly connection: Redis;
  private readonly keyOf: (requestId: string) => string;

  constructor(connection: Redis, keys: KeySpace, queue: string) {
    this.connection = connection;
    this.keyOf = (requestId) => keys.request(queue, requestId);
  }

  /** Returns the record that is there afterwards: this one, or an earlier one, which stays as it is. */
  async keep(requestId: string, record: string, ttlMs: number): Promise<string> {
    return translated(async () => {
      const key = this.keyOf(requestId);
      const kept = await this.connection.set(key, record, 'PX', ttlMs, 'NX');
      return kept === 'OK' ? record : ((await this.connection.get(key)) ?? record);
    });
  }

  async read(requestId: string): Promise<string | undefined> {
    return translated(async () => (await this.connection.get(this.keyOf(requestId))) ?? undefined);
  }

  async forget(requestId: string): Promise<void> {
    await translated(() => this.connection.del(this.keyOf(requestId)));
  }
}
