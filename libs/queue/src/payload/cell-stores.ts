// Payload stores of other cells, for an executor that runs jobs of theirs now and then: opened when one is asked, closed
// when nobody asked it for a while. Unlike a store at home, which waits for its server, one of these always answers: a
// job that cannot be read or written in time is left to its own cell, whose lease for it runs out.

import { setTimeout as sleep } from 'node:timers/promises';
import { ShoalError } from '@shoal/contract';
import type { CommitRequest, CommitResult, InputRead, OtherCell, PayloadStore, WantedPayload } from '@shoal/core';
import { RedisPayloadStore, type PayloadStoreOptions } from './payload-store.ts';

export interface CellStoresOptions extends Omit<PayloadStoreOptions, 'redisUrl'> {
  /** For tests. Milliseconds. */
  readonly answerMs?: number | undefined;
  readonly restMs?: number | undefined;
}

/** About a lease: what is not written by then may belong to somebody else. */
const ANSWER_MS = 15_000;
const REST_MS = 60_000;

interface OpenStore {
  readonly store: Promise<RedisPayloadStore>;
  asked: number;
  usedMs: number;
}

type ReadsAndCommits = Pick<PayloadStore, 'read' | 'commit'>;

export class CellStores {
  private readonly options: CellStoresOptions;
  /** By address and prefix. */
  private readonly open = new Map<string, OpenStore>();
  private readonly tidying: NodeJS.Timeout;

  constructor(options: CellStoresOptions) {
    const { restMs = REST_MS } = options;
    this.options = options;
    this.tidying = setInterval(() => this.tidy(restMs), restMs / 4).unref();
  }

  of(cell: OtherCell): ReadsAndCommits {
    return {
      read: (jobs) => this.read(cell, jobs),
      commit: (requests, options) => this.commit(cell, requests, options),
    };
  }

  async stop(): Promise<void> {
    clearInterval(this.tidying);
    await Promise.all([...this.open.keys()].map((place) => this.leave(place)));
  }

  private async read(cell: OtherCell, jobs: readonly WantedPayload[]): Promise<readonly InputRead[]> {
    const reads = await this.asked(cell, (store) => store.read(jobs));
    if (reads !== undefined) return reads;
    throw new ShoalError('QUEUE_UNREACHABLE', `the cell ${cell.name} does not give the inputs of its jobs`);
  }

  /** What is written is a copy: an answer that is not waited for any more may still be on its way. */
  private async commit(
    cell: OtherCell,
    requests: readonly CommitRequest[],
    options: { readonly isUrgent?: boolean } | undefined,
  ): Promise<readonly CommitResult[]> {
    const copies = requests.map((request) => ({ ...request, result: Buffer.from(request.result) }));
    const results = await this.asked(cell, (store) => store.commit(copies, options));
    return results ?? requests.map(() => 'lease-lost');
  }

  /** Undefined where the cell does not answer in time; its connections are closed then, and nothing is written later. */
  private async asked<Answer>(
    cell: OtherCell,
    ask: (store: RedisPayloadStore) => Promise<Answer>,
  ): Promise<Answer | undefined> {
    const { answerMs = ANSWER_MS, log } = this.options;
    const place = placeOf(cell);
    const one = this.openAt(cell);
    one.asked++;
    const late = new AbortController();
    const silence = sleep(answerMs, undefined, { signal: late.signal }).catch(() => undefined);
    const answer = one.store.then(ask).catch((error: unknown) => {
      if (!late.signal.aborted) log.debug({ err: error }, 'another cell did not answer');
      return undefined;
    });
    const found = await Promise.race([answer, silence]);
    late.abort();
    one.asked--;
    one.usedMs = performance.now();
    if (found === undefined && this.open.get(place) === one) await this.leave(place);
    return found;
  }

  private openAt(cell: OtherCell): OpenStore {
    const known = this.open.get(placeOf(cell));
    if (known !== undefined) return known;
    const { answerMs: _, restMs: __, ...options } = this.options;
    const { address: redisUrl, prefix = options.prefix } = cell;
    const store = RedisPayloadStore.connect({ ...options, redisUrl, prefix, keepsPayloads: true });
    const opened = { store, asked: 0, usedMs: performance.now() };
    this.open.set(placeOf(cell), opened);
    return opened;
  }

  private async leave(place: string): Promise<void> {
    const one = this.open.get(place);
    this.open.delete(place);
    const stopped = one?.store.then(
      (store) => store.stop(),
      () => undefined,
    );
    await Promise.race([stopped, sleep(1_000, undefined, { ref: false })]); // one that is still being opened closes then
  }

  private tidy(restMs: number): void {
    for (const [place, { asked, usedMs }] of this.open)
      if (asked === 0 && performance.now() - usedMs > restMs) void this.leave(place);
  }
}

function placeOf({ address, prefix = '' }: OtherCell): string {
  return `${prefix} ${address}`;
}
