// The reading half of a producer: hears on a reply channel that jobs ended, and fetches their results. A result can be
// taken at once (`acknowledge`: its body comes once) or read first and marked afterwards (`peek`, `markTaken`), for
// readers that make vectors durable in between. It keeps no list of open jobs and checks no checksum; @shoal/client
// does both.

import {
  decodePointer,
  decodeResultHeader,
  isShoalError,
  keySpace,
  pointedResult,
  type KeySpace,
  type ShoalError,
} from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { BufferPool } from '@shoal/core/base';
import { releaseAdmission } from '../admission/admission.ts';
import type { ServerAddress } from '../redis/given-connection.ts';
import { closeConnection, openConnection, untilReady, type Redis } from '../redis/connection.ts';
import { watchConnection } from '../redis/watch-connection.ts';
import { acknowledge, type Acknowledged } from '../payload/acknowledge.ts';
import { countPayload } from '../redis/process-counts.ts';
import { askOnce, valueOf } from '../redis/command-pipeline.ts';
import type { PayloadServers } from '../payload/payload-servers.ts';
import { parseReply, type ReplyMessage } from '../payload/reply-message.ts';
import { TakenMarks, takenHeader } from './taken-marks.ts';
import { translated } from '../redis/translated.ts';

export interface ReaderOptions {
  readonly redisUrl: ServerAddress;
  /** Default {shoal}. */
  readonly prefix?: string | undefined;
  /** The main lane of a model; results of its CPU lane lie there too. */
  readonly queue: string;
  /** 1 to 64 of A-Z a-z 0-9 _ -; jobs carry `replyChannel` so that their ends are heard here. */
  readonly replyName: string;
  /** Where bodies may lie. Left out: results that are pointers are handed out as they are. */
  readonly payloads?: PayloadServers | undefined;
  readonly log?: Logger | undefined;
}

/**
 * Header and body as stored (SHL1), or undefined where there is nothing. Of a pointer what it leads to, PAYLOAD_LOST where
 * that is not there any more, or PAYLOAD_ELSEWHERE.
 */
export type Peeked = Buffer | ShoalError | undefined;

export class ResultReader {
  /** What goes into a job as `reply`. */
  readonly replyChannel: string;
  private readonly keys: KeySpace;
  private readonly prefix: string | undefined;
  private readonly queue: string;
  private readonly payloads: PayloadServers | undefined;
  private readonly connection: Redis;
  private readonly subscriber: Redis;
  private readonly pool: BufferPool;
  /** Bodies that payload servers gave. */
  private readonly fromBeside = new WeakSet<Buffer>();
  private readonly connectionListeners: ((event: 'lost' | 'back') => void)[] = [];
  private readonly marks = new TakenMarks(() => performance.now());

  private constructor(options: ReaderOptions, connection: Redis, subscriber: Redis, pool: BufferPool) {
    this.keys = keySpace(options.prefix);
    this.prefix = options.prefix;
    this.queue = options.queue;
    this.payloads = options.payloads;
    this.replyChannel = this.keys.reply(options.replyName);
    this.connection = connection;
    this.subscriber = subscriber;
    this.pool = pool;
    // ioredis would subscribe again by itself, but without anybody to catch it when the connection closes meanwhile: an
    // unhandled rejection ends the process (6.0.0, event_handler.js). So it is done here.
    subscriber.options.autoResubscribe = false;
    watchConnection(connection, (event) => {
      if (event === 'back')
        return void this.marks
          .repeat(connection)
          .catch(() => undefined)
          .then(() => this.tell(event)); // a failure: it is lost again
      this.marks.lost();
      this.tell(event);
    });
    watchConnection(subscriber, (event) => {
      if (event === 'lost') this.tell(event);
      else
        void this.subscribe().then(
          () => this.tell(event),
          (error: unknown) =>
            options.log?.warn({ channel: this.replyChannel, err: error }, 'replies are not heard any more'),
        );
    });
  }

  /** Subscribed when it resolves. Throws CONFIG_INVALID or QUEUE_UNREACHABLE. */
  static async connect(options: ReaderOptions): Promise<ResultReader> {
    const pool = options.payloads?.pool ?? new BufferPool(); // one, so that `release` knows where memory came from
    const connection = openConnection({
      url: options.redisUrl,
      prefix: options.prefix,
      name: 'shoal-reader',
      pool,
      log: options.log,
    });
    const subscriber = openConnection({
      url: options.redisUrl,
      prefix: options.prefix,
      name: 'shoal-replies',
      log: options.log,
    });
    const reader = new ResultReader(options, connection, subscriber, pool);
    try {
      await Promise.all([untilReady(connection, options.redisUrl), untilReady(subscriber, options.redisUrl)]);
      await reader.subscribe();
      return reader;
    } catch (error) {
      await reader.close();
      throw error;
    }
  }

  /**
   * Jobs that ended. A message may be lost or come twice: whoever waits asks for a job that it has not heard of for
   * long.
   */
  onReply(listener: (message: ReplyMessage) => void): void {
    this.subscriber.on('message', (_channel: string, text: string) => {
      const message = parseReply(text);
      if (message !== undefined) listener(message);
    });
  }

  /** A connection broke, and replies are missed; or it is back, and they are heard again. */
  onConnection(listener: (event: 'lost' | 'back') => void): void {
    this.connectionListeners.push(listener);
  }

  private tell(event: 'lost' | 'back'): void {
    for (const listener of this.connectionListeners) listener(event);
  }

  private async subscribe(): Promise<void> {
    await this.subscriber.subscribe(this.replyChannel);
  }

  /** Results stay as they are. In order. */
  async peek(jobIds: readonly string[]): Promise<Peeked[]> {
    // Single commands, not a pipeline: after a reconnect these are sent again, a broken pipeline is not.
    return translated(async () => {
      const keys = this.keysOf(jobIds);
      const replies = await askOnce(
        this.connection,
        keys.map((key) => ['GET', key]),
      );
      const bodies = replies.map((reply) => (valueOf(reply) as Buffer | null) ?? undefined);
      this.marks.saw(keys, bodies);
      const { payloads } = this;
      if (payloads === undefined) return bodies;
      return Promise.all(bodies.map((bytes, at) => this.followed(jobIds[at]!, bytes, payloads)));
    });
  }

  /** The whole result that a pointer leads to; whether its body is sound is for whoever opens it. */
  private async followed(jobId: string, bytes: Buffer | undefined, payloads: PayloadServers): Promise<Peeked> {
    const header = bytes === undefined ? undefined : decodeResultHeader(bytes);
    if (bytes === undefined || header?.isPointer !== true || header.isTaken) return bytes;
    try {
      const pointer = decodePointer(bytes);
      const body = pointedResult(bytes, pointer, await payloads.get(pointer));
      payloads.note(jobId, pointer);
      this.fromBeside.add(body);
      return body;
    } catch (error) {
      if (!isShoalError(error)) throw error;
      if (error.code === 'PAYLOAD_LOST') countPayload('lost');
      return error;
    }
  }

  /** What `peek` gave could not be opened; counted where a payload server gave it. */
  damaged(result: Buffer): void {
    if (this.fromBeside.has(result)) countPayload('damaged');
  }

  /**
   * Results that `peek` or `acknowledge` gave and that nobody looks at any more: later ones come in their memory. Who
   * does not say so leaves it to the collector.
   */
  release(results: readonly Buffer[]): void {
    for (const { buffer } of results) this.pool.giveBack(buffer);
  }

  /** Each body once, a pointer as it is; its header stays, marked TAKEN. In order. */
  async acknowledge(jobIds: readonly string[]): Promise<Acknowledged[]> {
    return translated(async () => {
      const [results] = await Promise.all([
        acknowledge(this.connection, this.keys, this.queue, jobIds),
        this.releaseRoom(jobIds),
      ]);
      this.marks.add(
        this.keysOf(jobIds),
        results.map((result) => (result.kind === 'body' ? takenHeader(result.bytes) : undefined)),
      );
      this.payloads?.forget(jobIds);
      return results;
    });
  }

  /**
   * Acknowledges results whose bodies were peeked at; taken ones are left as they are, as are missing ones that this
   * reader has not seen.
   */
  async markTaken(jobIds: readonly string[]): Promise<void> {
    await translated(async () => {
      await Promise.all([this.marks.mark(this.connection, this.keysOf(jobIds)), this.releaseRoom(jobIds)]);
    });
    this.payloads?.forget(jobIds);
  }

  /**
   * To be called before ids are added that this reader may have had results of: their results are new ones from now on,
   * and a server that comes back is not told that they were taken.
   */
  asksAnew(jobIds: readonly string[]): void {
    this.marks.forget(this.keysOf(jobIds));
  }

  private keysOf(jobIds: readonly string[]): string[] {
    return jobIds.map((jobId) => this.keys.output(this.queue, jobId));
  }

  /** In the same round trip. */
  private releaseRoom(jobIds: readonly string[]): Promise<void> {
    return releaseAdmission(this.connection, { prefix: this.prefix, queue: this.queue }, jobIds, 'all');
  }

  /** Calls that still wait for the server are rejected. Safe to call twice. */
  async close(): Promise<void> {
    await Promise.all([closeConnection(this.subscriber), closeConnection(this.connection)]);
  }
}
