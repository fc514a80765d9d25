// What happens to jobs, as the queue server tells it: BullMQ's stream of events, read all the time and written down as
// a history. It changes nothing of the product. A claim has no token there, so each gets one made of its event's id, and
// it lasts until the stream says that the job was given back, stalled or ended. An add that began a life of its id is
// told as well: HTTP and `shoal embed` write no history, and add again what was taken while the answer got lost.

import { setTimeout as sleep } from 'node:timers/promises';
import { sharedClockMs, type EventFacts, type EventOp, type Recorder } from '@shoal/world';
import { failureCode } from './failure-code.ts';
import type { Redis } from './producer-parts.ts';

const EVERY_MS = 25;
const AT_ONCE = 1_000;
/** The stream says itself when a claim is over. */
const UNTIL_TOLD_MS = 1e12;

type Entry = readonly [id: string, fields: readonly string[]];

export class QueueWitness {
  private readonly connection: Redis;
  private readonly stream: string;
  private readonly recorder: Recorder;
  private readonly claims = new Map<string, string>();
  private lastId = '0-0';
  private isStopping = false;
  private done: Promise<void> = Promise.resolve();
  /** Times at which the stream had been cut before it was read. */
  gaps = 0;

  /** `queue`: with its prefix. */
  constructor(connection: Redis, queue: string, recorder: Recorder) {
    this.connection = connection;
    this.stream = `${queue}:events`;
    this.recorder = recorder;
  }

  start(): void {
    this.done = this.watch();
  }

  /** Resolves when what the stream has now was written down, and its connection is closed. The server must be there. */
  async stop(): Promise<void> {
    this.isStopping = true;
    await this.done;
    this.connection.disconnect();
  }

  private async watch(): Promise<void> {
    let since = sharedClockMs();
    for (;;) {
      const isLast = this.isStopping;
      const askedMs = sharedClockMs();
      const entries = await this.read().catch(() => undefined); // the server is away: what it tells later is from since
      for (const entry of entries ?? []) this.tell(entry, since);
      if (entries !== undefined && entries.length < AT_ONCE) since = askedMs;
      if (isLast && (entries === undefined || entries.length < AT_ONCE)) return;
      await sleep(EVERY_MS);
    }
  }

  private async read(): Promise<readonly Entry[]> {
    const [oldest, entries] = await Promise.all([
      this.connection.xrange(this.stream, '-', '+', 'COUNT', 1),
      this.connection.xrange(this.stream, `(${this.lastId}`, '+', 'COUNT', AT_ONCE),
    ]);
    const first = oldest[0]?.[0];
    if (this.lastId !== '0-0' && first !== undefined && isLater(first, this.lastId)) this.miss();
    this.lastId = entries.at(-1)?.[0] ?? this.lastId;
    return entries;
  }

  /** Nobody knows how the claims of before ended. */
  private miss(): void {
    this.gaps++;
    for (const [id, token] of this.claims) this.recorder.observe('abandon', id, { token });
    this.claims.clear();
  }

  private tell([entryId, list]: Entry, since: number): void {
    const fields = Object.fromEntries(
      Array.from({ length: list.length / 2 }, (_, at) => [list[2 * at]!, list[2 * at + 1]!]),
    );
    const { event, jobId: id, prev, failedReason } = fields;
    if (id === undefined) return;
    if (event === 'added') return this.recorder.observe('birth', id);
    if (event === 'active') return this.claim(id, entryId, since);
    if (event === 'completed') return this.release('complete', id, { since });
    if (event === 'failed') return this.release('fail', id, { since, code: failureCode(failedReason) });
    const isBack = event === 'stalled' || event === 'waiting-children' || (event === 'waiting' && prev === 'active');
    if (isBack && this.claims.has(id)) this.release('return', id, { since });
  }

  private claim(id: string, token: string, since: number): void {
    this.claims.set(id, token);
    this.recorder.observe('claim', id, { token, leaseMs: UNTIL_TOLD_MS, since });
  }

  private release(op: EventOp, id: string, facts: EventFacts): void {
    const token = this.claims.get(id);
    this.claims.delete(id);
    this.recorder.observe(op, id, { ...facts, ...(token === undefined ? {} : { token }) });
  }
}

/** Ids of a stream: ms, and a number within it. */
function isLater(a: string, b: string): boolean {
  const [aMs = 0, aAt = 0] = a.split('-').map(Number);
  const [bMs = 0, bAt = 0] = b.split('-').map(Number);
  return aMs > bMs || (aMs === bMs && aAt > bAt);
}
