// One connection to the queue server for whatever concerns the keys of HTTP callers. While the server is away questions
// are answered with QUEUE_UNREACHABLE at once, since a request waits for each.

import { ShoalError } from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { ServerApiKeys } from './api-key-store.ts';
import { useAllowance, type Allowance, type LimitedKey, type Use } from './key-allowance.ts';
import { closeConnection, connected, type Redis } from '../redis/connection.ts';

export interface AccessLinkOptions {
  readonly redisUrl: string;
  /** Default {shoal}. */
  readonly prefix?: string | undefined;
  readonly log?: Logger | undefined;
}

export class AccessLink {
  /** Keys that are kept on this server. */
  readonly keys: ServerApiKeys;
  private readonly connection: Redis;
  private readonly prefix: string | undefined;

  private constructor(connection: Redis, prefix: string | undefined) {
    this.connection = connection;
    this.prefix = prefix;
    this.keys = new ServerApiKeys(connection, prefix);
  }

  /** Throws CONFIG_INVALID or QUEUE_UNREACHABLE. */
  static async connect({ redisUrl, prefix, log }: AccessLinkOptions): Promise<AccessLink> {
    return new AccessLink(await connected({ url: redisUrl, prefix, name: 'shoal:access', log }), prefix);
  }

  /** As `useAllowance`. Throws QUEUE_UNREACHABLE at once while the connection is lost. */
  async use(key: LimitedKey, use: Use, isAsked: boolean): Promise<Allowance> {
    if (this.connection.status !== 'ready')
      throw new ShoalError('QUEUE_UNREACHABLE', 'the connection to the queue server is lost');
    return useAllowance(this.connection, this.prefix, key, use, isAsked);
  }

  /** Safe to call twice. */
  close(): Promise<void> {
    return closeConnection(this.connection);
  }
}
