// A batch or a job that this process works on: its record, changed under a lease that is renewed while it is held. A
// change by somebody else (a cancellation) is seen at the next one of ours; whoever has lost the lease writes no more.

import type { Logger } from '@shoal/core';
import type { BatchStore, Records, Versioned } from './batch-store.ts';

export interface LeaseTerms {
  /** Names this process among all. */
  readonly owner: string;
  readonly leaseMs: number;
  readonly log: Logger;
}

/** Somebody else holds it now, or it is gone. */
export class LeaseLost extends Error {
  constructor() {
    super('another process works on it');
    this.name = 'LeaseLost';
  }
}

export class Held<K extends 'batch' | 'job'> {
  /** Aborted once the record is being cancelled, or the lease was lost. */
  readonly interrupted = new AbortController();
  private readonly store: BatchStore;
  private readonly kind: K;
  private readonly terms: LeaseTerms;
  private now: Versioned<Records[K]>;
  private untilMs: number;
  private saving: Promise<void> = Promise.resolve();
  private readonly timer: NodeJS.Timeout;

  private constructor(store: BatchStore, kind: K, now: Versioned<Records[K]>, terms: LeaseTerms) {
    this.store = store;
    this.kind = kind;
    this.terms = terms;
    this.now = now;
    this.untilMs = Date.now() + terms.leaseMs;
    this.timer = setInterval(() => void this.renew(), terms.leaseMs / 5).unref();
    this.look();
  }

  /** Undefined where another process holds it, or was faster. */
  static async claim<K extends 'batch' | 'job'>(
    store: BatchStore,
    kind: K,
    { record, version }: Versioned<Records[K]>,
    terms: LeaseTerms,
  ): Promise<Held<K> | undefined> {
    const { lease: held } = record;
    if (held !== undefined && held.owner !== terms.owner && held.untilMs > Date.now()) return undefined;
    const lease = { owner: terms.owner, untilMs: Date.now() + terms.leaseMs };
    const claimed: Records[K] = Object.assign({}, record, { lease });
    const next = await store.save(kind, claimed, version);
    return next === undefined ? undefined : new Held(store, kind, { record: claimed, version: next }, terms);
  }

  get record(): Records[K] {
    return this.now.record;
  }

  /** Writes what `change` makes of the record as it is now. Rejects with LeaseLost and StorageFailure. */
  save(change: (record: Records[K]) => Records[K]): Promise<void> {
    const saved = this.saving.then(() => this.saveNow(change, true));
    this.saving = saved.catch(() => undefined);
    return saved;
  }

  /** The last change: the record is free afterwards. Rejects as `save` does. */
  async end(change: (record: Records[K]) => Records[K] = (record) => record): Promise<void> {
    clearInterval(this.timer);
    await this.saving;
    await this.saveNow(change, false);
  }

  /** Writes nothing more. */
  drop(): void {
    clearInterval(this.timer);
  }

  private async saveNow(change: (record: Records[K]) => Records[K], isHeld: boolean): Promise<void> {
    for (;;) {
      const untilMs = Date.now() + this.terms.leaseMs;
      const lease = isHeld ? { owner: this.terms.owner, untilMs } : undefined;
      const record: Records[K] = Object.assign({}, change(this.now.record), { lease });
      const version = await this.store.save(this.kind, record, this.now.version);
      if (version !== undefined) {
        this.now = { record, version };
        this.untilMs = untilMs;
        return;
      }
      await this.reread();
    }
  }

  private async reread(): Promise<void> {
    const { tenant, id } = this.now.record;
    const found = await this.store.find(this.kind, tenant, id);
    if (found === undefined || found.record.lease?.owner !== this.terms.owner) throw this.lose();
    this.now = found;
    this.look();
  }

  private look(): void {
    if (['cancelling', 'cancelled'].includes(this.now.record.status)) this.interrupted.abort('cancelled');
  }

  private lose(): LeaseLost {
    const lost = new LeaseLost();
    this.interrupted.abort(lost);
    clearInterval(this.timer);
    return lost;
  }

  private async renew(): Promise<void> {
    try {
      await this.save((record) => record);
    } catch (error) {
      if (error instanceof LeaseLost) return;
      this.terms.log.warn({ err: error, id: this.now.record.id }, 'the lease of a batch could not be renewed');
      if (Date.now() > this.untilMs) this.lose();
    }
  }
}
