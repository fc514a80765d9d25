// What goes on behind the routes, in each HTTP process: looks through the marks of what is to be done, takes what nobody
// else works on, and works on it. A batch or a job whose process was killed is free when its lease has run out. Notices
// that are due are sent here as well, and what has expired is removed.

import { hostname } from 'node:os';
import { randomUUID } from 'node:crypto';
import type { Logger } from '@shoal/core';
import type { Allowances } from '../access/allowances.ts';
import { BatchRun, type BatchRunParts } from './batch-run.ts';
import type { BatchCounts } from './batch-counts.ts';
import type { BatchStore, ToDo } from './batch-store.ts';
import type { Calls } from './calls.ts';
import { Held, LeaseLost, type LeaseTerms } from './held.ts';
import { InFlight } from './in-flight.ts';
import { runJob } from './job-run.ts';
import { hasEnded } from './records.ts';
import { PAUSES, deliver, type WebhookOptions } from './webhook.ts';

export interface RunnerOptions {
  readonly store: BatchStore;
  readonly calls: Calls;
  readonly allowances: Pick<Allowances, 'wait' | 'spentBy'>;
  readonly counts: BatchCounts;
  readonly webhooks: WebhookOptions;
  /** Times 64 rows that all batches and jobs of this process may have there. */
  readonly jobsInFlight: number;
  /** Rows of a job. Default 64. */
  readonly jobTexts?: number | undefined;
  readonly maxLines: number;
  readonly partsOf?: BatchRunParts['partsOf'];
  /** How long batches, jobs and their outputs are kept after their end; undefined: for good. */
  readonly keptSeconds: number | undefined;
  readonly log: Logger;
  /** For tests. */
  readonly leaseMs?: number | undefined;
  readonly lookMs?: number | undefined;
}

/** What one process works on at a time: each batch holds shards of its output in memory. */
const MOST = { batch: 4, job: 64 };
const LEASE_MS = 15_000;
const LOOK_MS = 2_000;
const SWEEP_MS = 3_600_000;
/** After a failure of the storage, or whatever else is not the batch's own. */
const AGAIN_MS = 5_000;

export class Runner {
  private readonly options: RunnerOptions;
  private readonly lease: LeaseTerms;
  private readonly inFlight: InFlight;
  private readonly stopping = new AbortController();
  private readonly running = new Map<string, Promise<void>>();
  private readonly counts = { batch: 0, job: 0 };
  private readonly heldBatches = new Set<Held<'batch'>>();
  /** Whose batch or job each of the running ones is. */
  private readonly owners = new Map<string, string>();
  /** When what is somebody else's, or failed, or has its next notice later, is looked at again (epoch ms). */
  private readonly later = new Map<string, number>();
  private timer: NodeJS.Timeout | undefined;
  private looking: Promise<void> | undefined;
  private isLookDue = false;
  private sweptMs = 0;
  private sweeping: Promise<void> = Promise.resolve();

  constructor(options: RunnerOptions) {
    this.options = options;
    const { jobsInFlight, jobTexts, leaseMs = LEASE_MS, log } = options;
    this.inFlight = new InFlight(jobsInFlight, jobTexts);
    options.counts.watch(() => [...this.heldBatches].map(({ record }) => record.status));
    this.lease = { owner: `${hostname()}-${process.pid}-${randomUUID().slice(0, 8)}`, leaseMs, log };
  }

  start(): void {
    const { lookMs = LOOK_MS } = this.options;
    this.timer = setInterval(() => this.kick(), lookMs).unref();
    this.kick();
  }

  /** Looks at once: something new is to be done, or `id` has changed. */
  kick(id?: string): void {
    if (id !== undefined) this.later.delete(id);
    if (this.stopping.signal.aborted) return;
    if (this.looking !== undefined) return void (this.isLookDue = true);
    this.looking = this.look()
      .catch((error: unknown) => this.options.log.warn({ err: error }, 'batches and jobs could not be looked through'))
      .finally(() => {
        this.looking = undefined;
        if (!this.isLookDue) return;
        this.isLookDue = false;
        this.kick();
      });
  }

  /** Lets go of everything, for another process to go on with. */
  async stop(): Promise<void> {
    clearInterval(this.timer);
    this.stopping.abort(new Error('the server stops'));
    await this.looking;
    await Promise.all([...this.running.values(), this.sweeping]);
  }

  private async look(): Promise<void> {
    this.sweepLater();
    const nowMs = Date.now();
    const seen = new Set<string>();
    const free: ToDo[] = [];
    for await (const one of this.options.store.toDo()) {
      seen.add(one.id);
      if (!this.running.has(one.id) && (this.later.get(one.id) ?? 0) <= nowMs) free.push(one);
    }
    if (this.stopping.signal.aborted) return;
    for (const kind of ['batch', 'job'] as const) {
      const room = MOST[kind] - this.counts[kind];
      const ofKind = free.filter((one) => one.kind === kind);
      for (const one of inTurns(ofKind, [...this.owners.values()]).slice(0, room)) this.take(one);
    }
    for (const id of this.later.keys()) if (!seen.has(id)) this.later.delete(id);
  }

  private take(one: ToDo): void {
    this.counts[one.kind] += 1;
    this.owners.set(one.id, one.owner);
    const done = this.workOn(one)
      .catch((error: unknown) => {
        this.later.set(one.id, Date.now() + AGAIN_MS);
        if (this.stopping.signal.aborted || error instanceof LeaseLost) return;
        this.options.log.warn({ err: error, id: one.id }, 'a batch or a job cannot go on now; it is tried again');
      })
      .finally(() => {
        this.counts[one.kind] -= 1;
        this.running.delete(one.id);
        this.owners.delete(one.id);
        if (!this.later.has(one.id)) this.kick();
      });
    this.running.set(one.id, done);
  }

  private async workOn(one: ToDo): Promise<void> {
    if (one.kind === 'batch') await this.claimed('batch', one, (held) => this.runBatch(held));
    else await this.claimed('job', one, (held) => this.runJob(held));
  }

  private async claimed<K extends 'batch' | 'job'>(
    kind: K,
    one: ToDo,
    work: (held: Held<K>) => Promise<void>,
  ): Promise<void> {
    const { store } = this.options;
    const found = await store.findOf(kind, one.owner, one.id);
    if (found === undefined) return this.withoutRecord(one);
    const { webhook, lease } = found.record;
    if (hasEnded(found.record)) {
      if (webhook?.status !== 'pending') return store.unmark(one);
      const nextMs = webhook.nextMs ?? 0;
      if (nextMs > Date.now()) return void this.later.set(one.id, nextMs);
    }
    const held = await Held.claim(store, kind, found, this.lease);
    if (held === undefined) return void this.later.set(one.id, lease?.untilMs ?? 0);
    try {
      if (hasEnded(held.record)) await this.tell(kind, held);
      else await work(held);
    } catch (error) {
      if (!(error instanceof LeaseLost)) await held.end().catch(() => undefined); // free for whoever goes on
      throw error;
    } finally {
      held.drop();
    }
  }

  /** A mark is written before its record: one without is looked at again before it is taken away. */
  private async withoutRecord(one: ToDo): Promise<void> {
    if (!this.later.has(one.id)) return void this.later.set(one.id, Date.now() + AGAIN_MS);
    await this.options.store.unmark(one);
  }

  private runBatch(held: Held<'batch'>): Promise<void> {
    const { store, calls, allowances, counts, maxLines, partsOf, keptSeconds, log } = this.options;
    const parts = { store, calls, inFlight: this.inFlight, allowances, counts, maxLines, partsOf, keptSeconds, log };
    this.heldBatches.add(held);
    return new BatchRun(parts, held, this.stopping.signal).run().finally(() => this.heldBatches.delete(held));
  }

  private runJob(held: Held<'job'>): Promise<void> {
    const { store, calls, allowances, log } = this.options;
    return runJob({ store, calls, inFlight: this.inFlight, allowances, log }, held, this.stopping.signal);
  }

  /** One attempt to tell of an ending; the next one, after a pause, is anybody's. */
  private async tell<K extends 'batch' | 'job'>(kind: K, held: Held<K>): Promise<void> {
    const { log, webhooks } = this.options;
    const { id, status, webhook } = held.record;
    if (webhook === undefined) return;
    const { isDelivered, error } = await deliver(webhook, { type: `${kind}.${status}`, id }, webhooks);
    const attempts = webhook.attempts + 1;
    const pause = PAUSES[attempts - 1];
    const state = isDelivered ? 'delivered' : pause === undefined ? 'failed' : 'pending';
    const nextMs = pause === undefined ? undefined : Date.now() + pause * 1_000 * (0.9 + Math.random() / 5);
    const next = {
      ...webhook,
      status: state,
      attempts,
      last_error: error,
      nextMs: state === 'pending' ? nextMs : undefined,
    } as const;
    if (!isDelivered) log.warn({ id, attempts, error, nextMs: next.nextMs }, 'a webhook was not taken');
    await held.end((record) => Object.assign({}, record, { webhook: next }));
    this.options.counts.notice(state);
    if (next.nextMs !== undefined) this.later.set(id, next.nextMs);
  }

  private sweepLater(): void {
    if (Date.now() - this.sweptMs < SWEEP_MS) return;
    this.sweptMs = Date.now();
    this.sweeping = this.sweep().catch((error: unknown) =>
      this.options.log.warn({ err: error }, 'what has expired could not be removed'),
    );
  }

  private async sweep(): Promise<void> {
    const { store, keptSeconds, log } = this.options;
    let removed = 0;
    for await (const tenant of store.tenants()) {
      if (this.stopping.signal.aborted) return;
      removed += await store.sweep(tenant, keptSeconds ?? Number.POSITIVE_INFINITY);
    }
    if (removed > 0) log.info({ removed }, 'files, batches and jobs that had expired are removed');
  }
}

/**
 * The order in which they are taken: whoever has fewest running is next, and of one owner the oldest. `running`: the
 * owner of each that runs already.
 */
export function inTurns(free: readonly ToDo[], running: readonly string[]): readonly ToDo[] {
  const turns = new Map<string, number>();
  for (const owner of running) turns.set(owner, (turns.get(owner) ?? 0) + 1);
  const oldestFirst = free.toSorted((a, b) => (a.id < b.id ? 1 : -1)); // ids of the newest come first
  return oldestFirst
    .map((one) => {
      const turn = turns.get(one.owner) ?? 0;
      turns.set(one.owner, turn + 1);
      return { one, turn };
    })
    .toSorted((a, b) => a.turn - b.turn)
    .map(({ one }) => one);
}
