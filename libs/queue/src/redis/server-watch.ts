// Whether the queue server answers this process, how fast, and how much memory it has: for metrics and probes, over a
// connection of its own, so that nothing else of the process makes it look slow. Asks every five seconds (a PING and an
// INFO of its memory, some 60 µs of the server's time) and once when it is opened. Never throws because the server is
// away: that is what it tells.

import type { Logger } from '@shoal/core';
import { readServerMemory } from '../admission/admission.ts';
import { closeConnection, openConnection, type Redis } from './connection.ts';
import type { ServerAddress } from './given-connection.ts';
import { processCounts } from './process-counts.ts';

export interface ServerWatchOptions {
  readonly redisUrl: ServerAddress;
  readonly prefix?: string | undefined;
  readonly log?: Logger | undefined;
  /** Default 5 s. */
  readonly everyMs?: number | undefined;
}

/** A server that has not answered by then is away. */
const ANSWER_MS = 2_000;
const EVERY_MS = 5_000;

export class ServerWatch {
  private readonly connection: Redis;
  private readonly timer: NodeJS.Timeout;
  private isAnswering = false;
  private readonly listeners: ((ms: number) => void)[] = [];
  private lastMemory: { readonly usedBytes: number; readonly maxBytes: number } | undefined;
  private looking: Promise<void> | undefined;

  private constructor(options: ServerWatchOptions) {
    const { redisUrl: url, prefix, log } = options;
    this.connection = openConnection({ url, prefix, name: 'shoal:watch', log });
    this.timer = setInterval(() => void this.look(), options.everyMs ?? EVERY_MS).unref();
    this.connection.on('close', () => (this.isAnswering = false));
    this.connection.on('ready', () => void this.look());
  }

  /** Begins to connect and returns at once. Throws CONFIG_INVALID for a URL it cannot understand. */
  static open(options: ServerWatchOptions): ServerWatch {
    return new ServerWatch(options);
  }

  /** Whether it answered the last question in time, and the connection has not broken since. */
  get isUp(): boolean {
    return this.isAnswering;
  }

  /** As it was told last while the server answered; `maxBytes` 0: no limit. Undefined: unknown, or the server is away. */
  get memory(): { readonly usedBytes: number; readonly maxBytes: number } | undefined {
    return this.isAnswering ? this.lastMemory : undefined;
  }

  /** Told how long each answer took, ms. */
  onRoundTrip(listener: (ms: number) => void): void {
    this.listeners.push(listener);
  }

  /** Of all connections of this process. */
  get reconnects(): number {
    return processCounts().reconnects;
  }

  /** Resolves when the server has answered or is known to be away, within two seconds. One look at a time. */
  look(): Promise<void> {
    this.looking ??= this.ask().finally(() => (this.looking = undefined));
    return this.looking;
  }

  /** Safe to call twice. */
  async stop(): Promise<void> {
    clearInterval(this.timer);
    await closeConnection(this.connection);
    await this.looking;
  }

  private async ask(): Promise<void> {
    if (this.connection.status !== 'ready') {
      this.isAnswering = false; // a question would wait in line until the server is back
      return;
    }
    const askedMs = performance.now();
    const answered = await inTime(this.connection.ping());
    this.isAnswering = answered && this.connection.status === 'ready';
    if (!this.isAnswering) return;
    const tookMs = performance.now() - askedMs;
    for (const listener of this.listeners) listener(tookMs);
    await inTime(
      readServerMemory(this.connection).then((memory) => {
        this.lastMemory = memory;
      }),
    );
  }
}

/** Whether it came out well within the time. */
async function inTime(answer: Promise<unknown>): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => (timer = setTimeout(resolve, ANSWER_MS, false)));
  const well = answer.then(
    () => true,
    () => false,
  );
  return Promise.race([well, late]).finally(() => clearTimeout(timer));
}
