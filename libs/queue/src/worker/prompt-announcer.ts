// Announces jobs right behind their endings: on the same connection and in the same write, so that a producer hears of
// its job half a round trip after the server took the ending, and not one and a half. What the server says decides: a
// job that has not ended when the script looks is left alone, and announced by RedisAnnouncer once its ending was
// taken.

import { keySpace } from '@shoal/contract';
import type { Announcement, Logger } from '@shoal/core';
import type { Redis } from '../redis/connection.ts';
import { Gathering } from './gathering.ts';
import { keysAfter, releaseEnded, ttlAfter } from '../payload/announcer.ts';
import { runScript, script } from '../redis/script.ts';

export interface PromptAnnouncerOptions {
  /** The one that endings are sent on. */
  readonly connection: Redis;
  readonly prefix: string;
  /** The main queue of the model. */
  readonly queue: string;
  /** Sends endings that wait for the turn's end. */
  readonly sendEndings?: (() => void) | undefined;
  /** After it nothing is tried again. */
  readonly signal: AbortSignal;
  readonly log: Logger;
}

// KEYS for each job: its record, input and result. ARGV[1] the queue, then for each job: outcome, id, reply channel or
// nothing, the result's time to live in ms or 0 to leave it as it is. Cleans up after those that ended that way and
// publishes one message for each channel, in the words of reply-message.ts. Returns 1 for each job that was announced,
// else 0.
const ANNOUNCE_ENDED = script(
  0,
  'allow-oom',
  `
local field = { completed = 'returnvalue', failed = 'failedReason' }
local told, channels = {}, {}
for at = 1, #KEYS / 3 do
  local outcome, id, channel, ttl = ARGV[4 * at - 2], ARGV[4 * at - 1], ARGV[4 * at], ARGV[4 * at + 1]
  local found = redis.call('HMGET', KEYS[3 * at - 2], 'finishedOn', field[outcome])
  told[at] = found[1] and found[2] and 1 or 0
  if told[at] == 1 then
    redis.call('UNLINK', KEYS[3 * at - 1])
    if ttl ~= '0' then redis.call('PEXPIRE', KEYS[3 * at], ttl) end
    if channel ~= '' then
      channels[channel] = channels[channel] or { v = 1, queue = ARGV[1] }
      channels[channel][outcome] = channels[channel][outcome] or {}
      table.insert(channels[channel][outcome], id)
    end
  end
end
for channel, message in pairs(channels) do redis.call('PUBLISH', channel, cjson.encode(message)) end
return told
`,
);

/** The server does nothing else meanwhile: about 3 µs a job. */
const JOBS_PER_CALL = 64;

interface Waiting {
  readonly announcement: Announcement;
  readonly answer: (wasAnnounced: boolean) => void;
}

export class PromptAnnouncer {
  private readonly options: PromptAnnouncerOptions;
  private readonly gathering = new Gathering(() => this.flush());
  private waiting: Waiting[] = [];

  constructor(options: PromptAnnouncerOptions) {
    this.options = options;
  }

  /**
   * Call it just before the ending is sent: what is told in one turn of the event loop, or may wait, goes out together,
   * behind its endings. Never throws.
   */
  announceBehind(announcement: Announcement, mayWaitMs = 0): Promise<boolean> {
    this.gathering.within(mayWaitMs);
    return new Promise((answer) => this.waiting.push({ announcement, answer }));
  }

  private flush(): void {
    this.options.sendEndings?.();
    while (this.waiting.length > 0) void this.announce(this.waiting.splice(0, JOBS_PER_CALL));
  }

  private async announce(batch: readonly Waiting[]): Promise<void> {
    const { connection, prefix, queue, signal, log } = this.options;
    try {
      const [reply] = await runScript(
        connection,
        { ...ANNOUNCE_ENDED, keyCount: 3 * batch.length },
        [this.argumentsFor(batch)],
        { signal },
      );
      const told = batch.filter((_, at) => Array.isArray(reply) && reply[at] === 1);
      for (const one of batch) one.answer(told.includes(one));
      await releaseEnded(
        connection,
        { prefix, queue },
        told.map(({ announcement }) => announcement),
        signal,
      );
    } catch (error) {
      for (const { answer } of batch) answer(false);
      if (!signal.aborted) log.warn({ jobs: batch.length, err: error }, 'finished jobs could not be announced at once');
    }
  }

  private argumentsFor(batch: readonly Waiting[]): (string | number)[] {
    const { prefix, queue } = this.options;
    const keys = keySpace(prefix);
    const jobKeys = batch.flatMap(({ announcement }) => keysAfter(keys, queue, announcement));
    const facts = batch.flatMap(({ announcement }) => [
      announcement.outcome,
      announcement.jobId,
      announcement.reply ?? '',
      ttlAfter(announcement),
    ]);
    return [...jobKeys, queue, ...facts];
  }
}
