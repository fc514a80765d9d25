// One payload server: another Valkey or Redis than the queue's, which holds bodies until they are taken. Unlike the
// queue server it may be away, full, read-only or slow without anybody waiting for it: a question is answered soon or has
// failed, nothing is sent again, and after a failure it is left alone for a while. What it loses is computed again. Reads
// and writes fail apart: a full server still gives what it has.

import { redactUrl, type Logger } from '@shoal/core';
import { backoffMs, type Backoff, type BufferPool } from '@shoal/core/base';
import { askOnce, valueOf, type Command } from '../redis/command-pipeline.ts';
import { closeConnection, openConnection, untilReady, type Redis } from '../redis/connection.ts';

export interface PayloadServerOptions {
  readonly url: string;
  /** As pointers have it. */
  readonly name: string;
  /** Shown by CLIENT LIST. */
  readonly clientName: string;
  readonly pool?: BufferPool | undefined;
  readonly log?: Logger | undefined;
}

/** Whoever is slower than this is slower than computing a job of 256 rows once more. */
const ANSWER_MS = 3_000;
/** How long a connection that broke is waited for by who wants to read. */
const READY_MS = 2_000;
/** How long it is left alone after failures in a row. */
const PAUSE: Backoff = { firstMs: 500, mostMs: 30_000 };

export class PayloadServer {
  readonly name: string;
  private readonly connection: Redis;
  private readonly options: PayloadServerOptions;
  private becomingReady: Promise<void> | undefined;
  private readonly trouble = { read: new Trouble(), write: new Trouble() };

  constructor(options: PayloadServerOptions) {
    const { url, clientName: name, pool } = options;
    this.name = options.name;
    this.options = options;
    this.connection = openConnection({ url, name, pool });
    this.connection.on('error', () => undefined); // whoever asks is told
    // What cannot be sent at once fails, and so does what is open when the connection breaks: the caller has another way.
    this.connection.options.enableOfflineQueue = false;
    this.connection.options.autoResendUnfulfilledCommands = false;
    this.connection.options.maxRetriesPerRequest = 0;
  }

  /** It did not take something a moment ago: whoever has another way takes that one. */
  get isPaused(): boolean {
    return this.trouble.write.isFresh;
  }

  /** Resolves when it answers, after two seconds at the latest, and at once while it is known to be away. */
  async ready(): Promise<void> {
    const { isFresh, failures } = this.trouble.read;
    if (this.connection.status === 'ready' || (isFresh && failures > 1)) return;
    this.becomingReady ??= untilReady(this.connection, this.options.url, READY_MS)
      .catch(() => undefined) // the next question finds out
      .finally(() => (this.becomingReady = undefined));
    await this.becomingReady;
  }

  /** The value of each reply. Throws what the server said, or that it did not answer in time. */
  async ask(kind: 'read' | 'write', commands: readonly Command[]): Promise<unknown[]> {
    try {
      const values = (await this.inTime(askOnce(this.connection, commands))).map(valueOf);
      this.succeeded(kind);
      return values;
    } catch (error) {
      this.failed(kind, error);
      throw error;
    }
  }

  /** Best effort: nobody waits for it, and what is not deleted ends with its time to live. */
  unlink(keys: readonly string[]): void {
    if (this.connection.status === 'ready' && !this.isPaused) void askOnce(this.connection, [['UNLINK', ...keys]]);
  }

  async close(): Promise<void> {
    await closeConnection(this.connection);
  }

  private async inTime<Value>(answer: Promise<Value>): Promise<Value> {
    let timer: NodeJS.Timeout | undefined;
    const tooLate = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        reject(new Error(`no answer within ${ANSWER_MS / 1_000} s`));
        this.connection.disconnect(true); // what is open on it would wait behind
      }, ANSWER_MS);
    });
    return Promise.race([answer, tooLate]).finally(() => clearTimeout(timer));
  }

  private succeeded(kind: 'read' | 'write'): void {
    if (this.trouble[kind].failures === 0) return;
    this.trouble[kind].end();
    if (!this.isInTrouble) this.options.log?.info({ store: this.name }, 'the payload server answers again');
  }

  private failed(kind: 'read' | 'write', error: unknown): void {
    if (this.trouble[kind].isFresh) return; // asked together with the one that failed first
    const isNews = !this.isInTrouble;
    this.trouble[kind].grow();
    const reason = redactUrl(error instanceof Error ? error.message : String(error));
    if (isNews)
      this.options.log?.warn(
        { store: this.name, reason },
        'a payload server failed; until it answers again, payloads go to others or by the queue server',
      );
  }

  private get isInTrouble(): boolean {
    return this.trouble.read.failures + this.trouble.write.failures > 0;
  }
}

/** Failures of one kind of questions. */
class Trouble {
  /** In a row. */
  failures = 0;
  private freshUntilMs = 0;

  get isFresh(): boolean {
    return performance.now() < this.freshUntilMs;
  }

  grow(): void {
    this.freshUntilMs = performance.now() + backoffMs(this.failures++, PAUSE);
  }

  end(): void {
    this.failures = 0;
    this.freshUntilMs = 0;
  }
}
