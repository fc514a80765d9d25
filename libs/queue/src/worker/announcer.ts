// What follows a job that ended: its input is deleted, its result begins its time to live, the room that was reserved
// for it is given back, and whoever waits hears of it. All of it may happen twice. Nothing here may come before the
// queue server took the ending: a job that lost its input before it completed could not run again.
//
// A worker announces jobs right behind their endings, on the same connection and in the same write, so that a producer
// hears of its job half a round trip after the server took the ending, and not one and a half. What the server says
// decides then: a job that has not ended when the script looks is left alone, and announced once its ending was taken.

import { keySpace, type KeySpace } from '@shoal/contract';
import type { Announcement, Announcer, Logger } from '@shoal/core';
import { Batcher } from '@shoal/core/base';
import { releaseAdmission, tellDims } from '../admission/admission.ts';
import type { ServerAddress } from '../redis/given-connection.ts';
import { closeConnection, connected, type Redis } from '../redis/connection.ts';
import { inParts } from '../redis/in-parts.ts';
import { runScript } from '../redis/script.ts';
import { ANNOUNCE_JOBS } from './lua/scripts.generated.ts';

export interface AnnouncerOptions {
  readonly redisUrl: ServerAddress;
  readonly prefix: string;
  /** The main queue of the model. */
  readonly queue: string;
  readonly log: Logger;
}

export interface AnnouncerParts extends Omit<AnnouncerOptions, 'redisUrl'> {
  /** To announce behind endings, the one that these are sent on. */
  readonly connection: Redis;
  /** Sends endings that wait for the turn's end. */
  readonly sendEndings?: (() => void) | undefined;
  /** After it nothing is tried again. */
  readonly signal: AbortSignal;
}

/** The server does nothing else meanwhile: about 3 µs a job. */
const JOBS_PER_CALL = 64;

interface Waiting {
  readonly announcement: Announcement;
  readonly answer: (wasAnnounced: boolean) => void;
}

export class RedisAnnouncer implements Announcer {
  private readonly parts: AnnouncerParts;
  private readonly keys: KeySpace;
  private readonly behind = new Batcher<Waiting>({ send: (batch) => this.sendBehind(batch), most: JOBS_PER_CALL });
  private closeOwn: () => Promise<void> = async () => undefined;

  constructor(parts: AnnouncerParts) {
    this.parts = parts;
    this.keys = keySpace(parts.prefix);
  }

  /** Has a connection of its own, which `stop` closes. Throws QUEUE_UNREACHABLE. */
  static async connect({ redisUrl, prefix, queue, log }: AnnouncerOptions): Promise<RedisAnnouncer> {
    const connection = await connected({ url: redisUrl, prefix, name: `shoal:announcer:${queue}`, log });
    const end = new AbortController();
    const announcer = new RedisAnnouncer({ connection, prefix, queue, signal: end.signal, log });
    announcer.closeOwn = () => {
      end.abort();
      return closeConnection(connection);
    };
    return announcer;
  }

  /** Says how many dimensions this queue's results have, so that room for them is reserved rightly. */
  async tellDims(dims: number): Promise<void> {
    await tellDims(this.parts.connection, this.parts, dims, this.parts.signal);
  }

  /**
   * Announces jobs whose ending the server has taken. Never throws: what could not be announced is found by the
   * producer's own asking, and its input by the janitor.
   */
  async announce(announcements: readonly Announcement[]): Promise<void> {
    await Promise.all(inParts(announcements, JOBS_PER_CALL).map((batch) => this.send(batch, true)));
  }

  /**
   * Resolves to whether the job was announced. Call it just before the ending is sent: what is told in one turn of the
   * event loop, or may wait, goes out together, behind its endings. Never throws.
   */
  announceBehind(announcement: Announcement, mayWaitMs = 0): Promise<boolean> {
    return new Promise((answer) => this.behind.add([{ announcement, answer }], mayWaitMs));
  }

  async stop(): Promise<void> {
    await this.closeOwn();
  }

  private async sendBehind(batch: readonly Waiting[]): Promise<void> {
    this.parts.sendEndings?.();
    const announcements = batch.map(({ announcement }) => announcement);
    await this.send(announcements, false, (told) => {
      for (const [at, { answer }] of batch.entries()) answer(told[at] === true);
    });
  }

  /** Tells, as soon as it is known, which of them were announced; all are where their ending is certain. */
  private async send(
    batch: readonly Announcement[],
    isCertain: boolean,
    onTold: (told: readonly boolean[]) => void = () => undefined,
  ): Promise<void> {
    const { connection, signal, log } = this.parts;
    try {
      const call = { ...ANNOUNCE_JOBS, keyCount: 3 * batch.length };
      const [reply] = await runScript(connection, call, [this.argumentsFor(batch, isCertain)], { signal });
      const told = batch.map((_, at) => Array.isArray(reply) && reply[at] === 1);
      onTold(told);
      await this.giveRoomBack(batch.filter((_, at) => told[at]));
    } catch (error) {
      onTold([]);
      if (!signal.aborted) log.warn({ jobs: batch.length, err: error }, 'finished jobs could not be announced');
    }
  }

  private argumentsFor(batch: readonly Announcement[], isCertain: boolean): (string | number)[] {
    const { queue } = this.parts;
    const jobKeys = batch.flatMap(({ jobId, resultId = jobId }) => [
      this.keys.job(queue, jobId),
      this.keys.input(queue, jobId),
      this.keys.output(queue, resultId),
    ]);
    const facts = batch.flatMap((one) => [one.outcome, one.jobId, one.reply ?? '', ttlAfter(one)]);
    return [...jobKeys, queue, isCertain ? 1 : 0, ...facts];
  }

  /** The results of those that completed are still owed. */
  private async giveRoomBack(ended: readonly Announcement[]): Promise<void> {
    const { connection, signal } = this.parts;
    const idsOf = (wanted: Announcement['outcome']): string[] =>
      ended.flatMap(({ jobId, outcome }) => (outcome === wanted ? [jobId] : []));
    await Promise.all([
      releaseAdmission(connection, this.parts, idsOf('completed'), 'queued', signal),
      releaseAdmission(connection, this.parts, idsOf('failed'), 'all', signal),
    ]);
  }
}

/** ms, 0 to leave it as it is: a repeated result keeps the time it has left, it may have been taken long ago. */
function ttlAfter({ outcome, wasRepeated, resultTtlMs }: Announcement): number {
  return outcome === 'completed' && !wasRepeated ? resultTtlMs : 0;
}
