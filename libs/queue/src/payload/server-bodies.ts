// Bodies on a Valkey or Redis server. What cannot be sent at once fails, and so does what is open when the connection
// breaks: nothing is sent again, because whoever asks has another way.

import type { BufferPool } from '@shoal/core/base';
import { askOnce, valueOf, type Command } from '../redis/command-pipeline.ts';
import { closeConnection, openConnection, untilReady, type Redis } from '../redis/connection.ts';
import type { Bodies, Looked } from './bodies.ts';

export interface ServerBodiesOptions {
  readonly url: string;
  /** Shown by CLIENT LIST. */
  readonly clientName: string;
  readonly pool?: BufferPool | undefined;
}

/** How long a connection that broke is waited for by who wants to read. */
const READY_MS = 2_000;

export class ServerBodies implements Bodies {
  private readonly connection: Redis;
  private readonly url: string;
  /** Why there is no connection. */
  private lastError: Error | undefined;

  constructor({ url, clientName: name, pool }: ServerBodiesOptions) {
    this.url = url;
    this.connection = openConnection({ url, name, pool });
    this.connection.on('error', (error: Error) => (this.lastError = error)); // whoever asks is told
    this.connection.on('ready', () => (this.lastError = undefined));
    this.connection.options.enableOfflineQueue = false;
    this.connection.options.autoResendUnfulfilledCommands = false;
    this.connection.options.maxRetriesPerRequest = 0;
  }

  async ready(): Promise<void> {
    if (this.connection.status !== 'ready') await untilReady(this.connection, this.url, { waitMs: READY_MS });
  }

  async put(key: string, value: Buffer, ttlMs: number): Promise<void> {
    await this.ask(['SET', key, value, 'PX', ttlMs]);
  }

  async get(key: string): Promise<Buffer | undefined> {
    const value = await this.ask(['GET', key]);
    return Buffer.isBuffer(value) ? value : undefined;
  }

  async drop(keys: readonly string[]): Promise<void> {
    await this.ask(['UNLINK', ...keys]);
  }

  /** A user who may not run INFO learns nothing of its memory. */
  async look(): Promise<Looked> {
    try {
      const told = String(await this.ask(['INFO', 'memory']));
      const field = (name: string): number => Number(new RegExp(`^${name}:(\\d+)`, 'm').exec(told)?.[1] ?? 0);
      const usedBytes = field('used_memory') - field('mem_not_counted_for_evict');
      return { memory: { usedBytes, maxBytes: field('maxmemory') } };
    } catch (error) {
      if (error instanceof Error && error.message.startsWith('NOPERM')) return {};
      throw error;
    }
  }

  giveUp(): void {
    this.connection.disconnect(true);
  }

  async close(): Promise<void> {
    await closeConnection(this.connection);
  }

  private async ask(command: Command): Promise<unknown> {
    try {
      const [reply] = await askOnce(this.connection, [command]);
      return valueOf(reply!);
    } catch (error) {
      if (error instanceof Error && error.name === 'ReplyError') throw error;
      throw this.lastError ?? new Error('the connection is closed'); // of its end ioredis says what it could not do
    }
  }
}
