// What follows a job that ended: its input is deleted, its result begins its time to live, and whoever waits hears of
// it. All of it may happen twice. Nothing here may come before the queue server took the ending: a job that lost its
// input before it completed could not run again.

import { keySpace, type KeySpace } from '@shoal/contract';
import type { Announcement, Announcer, Logger } from '@shoal/core';
import { releaseAdmission, tellDims } from '../admission/admission.ts';
import { closeConnection, connected, type Redis } from '../redis/connection.ts';
import { askAll, type Command } from '../redis/command-pipeline.ts';
import { encodeReply } from './reply-message.ts';
import { runScript, script } from '../redis/script.ts';

export interface AnnouncerOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  /** The main queue of the model. */
  readonly queue: string;
  readonly log: Logger;
}

// KEYS[1] the job, KEYS[2] its input, KEYS[3] its result. ARGV[1] the result's time to live in ms, 0 to leave it as it
// is. A job that exists and has not finished was added again under the same id, maybe while this call waited for a
// server that was away: then the input and the result are the new job's.
const CLEAN = script(
  3,
  'allow-oom',
  `
if redis.call('EXISTS', KEYS[1]) == 1 and redis.call('HEXISTS', KEYS[1], 'finishedOn') == 0 then return 0 end
redis.call('UNLINK', KEYS[2])
if ARGV[1] ~= '0' then redis.call('PEXPIRE', KEYS[3], ARGV[1]) end
return 1
`,
);

export class RedisAnnouncer implements Announcer {
  private readonly connection: Redis;
  private readonly options: AnnouncerOptions;
  private readonly keys: KeySpace;
  private readonly end = new AbortController();

  private constructor(connection: Redis, options: AnnouncerOptions) {
    this.connection = connection;
    this.options = options;
    this.keys = keySpace(options.prefix);
  }

  /** Throws QUEUE_UNREACHABLE. */
  static async connect(options: AnnouncerOptions): Promise<RedisAnnouncer> {
    return new RedisAnnouncer(
      await connected({
        url: options.redisUrl,
        prefix: options.prefix,
        name: `shoal:announcer:${options.queue}`,
        log: options.log,
      }),
      options,
    );
  }

  /** Dimensions of this queue's results, so that room for them is reserved rightly. */
  async tellDims(dims: number): Promise<void> {
    await tellDims(this.connection, this.options, dims, this.end.signal);
  }

  /** Never throws: what could not be announced is found by the producer's own asking, and its input by the janitor. */
  async announce(announcements: readonly Announcement[]): Promise<void> {
    const { queue, log } = this.options;
    const messages = [...byChannel(announcements)].map(([channel, ended]): Command => [
      'PUBLISH',
      channel,
      encodeReply({ queue, ...ended }),
    ]);
    try {
      const options = { signal: this.end.signal };
      // Written back to back on one connection: one round trip. The messages go first, because their readers wait; a
      // reader that takes its result before the rest was done finds it whole, and what follows does not undo that.
      await Promise.all([
        askAll(this.connection, messages, options),
        runScript(
          this.connection,
          CLEAN,
          announcements.map((announcement) => [...keysAfter(this.keys, queue, announcement), ttlAfter(announcement)]),
          options,
        ),
        releaseEnded(this.connection, this.options, announcements, this.end.signal),
      ]);
    } catch (error) {
      log.warn({ jobs: announcements.length, err: error }, 'finished jobs could not be announced');
    }
  }

  async stop(): Promise<void> {
    this.end.abort();
    await closeConnection(this.connection);
  }
}

/** The record, the input and the result of a job that ended. */
export function keysAfter(
  keys: KeySpace,
  queue: string,
  { jobId }: Announcement,
): [job: string, input: string, output: string] {
  return [keys.job(queue, jobId), keys.input(queue, jobId), keys.output(queue, jobId)];
}

/** ms, 0 to leave it as it is: a repeated result keeps the time it has left, it may have been taken long ago. */
export function ttlAfter({ outcome, wasRepeated, resultTtlMs }: Announcement): number {
  return outcome === 'completed' && !wasRepeated ? resultTtlMs : 0;
}

/** Of those that completed the result is still owed. */
export async function releaseEnded(
  connection: Redis,
  place: Pick<AnnouncerOptions, 'prefix' | 'queue'>,
  announcements: readonly Announcement[],
  signal: AbortSignal,
): Promise<void> {
  const idsOf = (wanted: Announcement['outcome']): string[] =>
    announcements.flatMap(({ jobId, outcome }) => (outcome === wanted ? [jobId] : []));
  await Promise.all([
    releaseAdmission(connection, place, idsOf('completed'), 'queued', signal),
    releaseAdmission(connection, place, idsOf('failed'), 'all', signal),
  ]);
}

/** One message per channel, with all the ids that concern it. */
function byChannel(announcements: readonly Announcement[]): Map<string, { completed: string[]; failed: string[] }> {
  const channels = new Map<string, { completed: string[]; failed: string[] }>();
  for (const { jobId, outcome, reply } of announcements) {
    if (reply === undefined) continue;
    const ended = channels.get(reply) ?? { completed: [], failed: [] };
    channels.set(reply, ended);
    ended[outcome].push(jobId);
  }
  return channels;
}
