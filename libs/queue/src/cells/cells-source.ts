// Claims for a worker that has a home among several cells: its own jobs first, and bulk jobs of other cells while it has
// none. Every claim keeps its cell, and its ending goes there. Whom to help is helping.ts.
//
// The question at home waits all the time and is answered before all else: what it brings while nobody claims is handed
// out with the next claim, of whatever class. Only when it has waited for `idleMs` are other cells looked at. Nothing
// waits for another cell: what it brings late is handed out, or given back, when it is there.
//
// A home whose claims are wedged must be seen to be (core's ClaimWatch), so other cells are left alone while jobs wait at
// home and its question brings none.

import { invariant } from '@shoal/contract';
import type { Announcement, JobSource, RawClaim, SettleResult, Settlement } from '@shoal/core';
import type { Helping } from './helping.ts';

export interface CellsSourceOptions {
  readonly home: JobSource;
  readonly helping: Helping;
  /** How long home has to have nothing before others are looked at. Milliseconds, default 1,000. */
  readonly idleMs?: number | undefined;
  /** How long the question at home may wait before it is asked in another way whether jobs wait. Default 30,000. */
  readonly wedgedAfterMs?: number | undefined;
  /** For what takes minutes: others are helped with one claim, while there is none of home and this says so. */
  readonly oneWhile?: (() => boolean) | undefined;
}

/** Between two turns at the other cells that brought nothing. */
const LOOK_MS = 500;

export class CellsSource implements JobSource {
  private readonly options: CellsSourceOptions & { readonly idleMs: number; readonly wedgedAfterMs: number };
  /** Claimed, and handed out with the next claim. */
  private arrived: RawClaim[] = [];
  /** Since when the question at home waits; undefined while there is none. */
  private askedMs: number | undefined;
  private fault: { readonly error: unknown } | undefined;
  /** Home said that it has nothing, without waiting: somebody else stopped it. */
  private isHomeEmpty = false;
  private helpedMs = Number.NEGATIVE_INFINITY;
  private isHelping = false;
  private checkedMs = 0;
  /** Jobs wait at home, and its question does not bring them. */
  private isHomeStuck = false;
  private isEnding = false;
  private readonly handingBack = new Set<Promise<unknown>>();
  /** Tokens of claims that were handed out and have not ended. */
  private readonly held = new Set<string>();
  private wake: () => void = () => undefined;

  constructor({ home, helping, idleMs = 1_000, wedgedAfterMs = 30_000, oneWhile }: CellsSourceOptions) {
    this.options = { home, helping, idleMs, wedgedAfterMs, oneWhile };
  }

  /** Home has had nothing for as long as others may be helped. */
  get isIdle(): boolean {
    return this.waitedMs() >= this.options.idleMs;
  }

  start(): Promise<void> {
    return this.options.home.start();
  }

  async claim(limit: number): Promise<readonly RawClaim[]> {
    invariant(limit >= 1, 'a claim asks for at least one job');
    while (!this.isEnding) {
      if (this.arrived.length > 0) return this.handedOut(this.arrived.splice(0));
      if (this.fault !== undefined) throw this.takeFault();
      if (this.isHomeEmpty) break;
      this.ask(limit);
      this.help(limit);
      await this.untilChange();
    }
    this.isHomeEmpty = false;
    return [];
  }

  /** The question that waits at home brings its interactive jobs as well. */
  async claimUrgent(limit: number): Promise<readonly RawClaim[]> {
    if (this.arrived.length > 0) return this.handedOut(this.arrived.splice(0, limit));
    return this.askedMs === undefined && !this.isEnding ? this.options.home.claimUrgent(limit) : [];
  }

  settle(claim: RawClaim, settlement: Settlement, announcement?: Announcement): Promise<SettleResult> {
    const { home, helping } = this.options;
    this.held.delete(claim.token);
    return (claim.cell === undefined ? home : helping).settle(claim, settlement, announcement);
  }

  onLeaseLost(listener: (jobId: string) => void): void {
    const { home, helping } = this.options;
    home.onLeaseLost((jobId) => (helping.has(jobId) ? undefined : listener(jobId)));
    helping.onLeaseLost(listener);
  }

  onCancelled(listener: (jobIds: readonly string[]) => void): void {
    const { home, helping } = this.options;
    home.onCancelled((jobIds) => listener(jobIds.filter((jobId) => !helping.has(jobId))));
    helping.onCancelled(listener);
  }

  claimable(): Promise<number> {
    return this.options.home.claimable();
  }

  async stopClaiming(): Promise<void> {
    const { home, helping } = this.options;
    this.isEnding = true;
    this.wake();
    await Promise.all([home.stopClaiming(), helping.stopClaiming()]);
    this.handBack(this.arrived.splice(0));
    await Promise.all(this.handingBack);
  }

  async stop(): Promise<void> {
    const { home, helping } = this.options;
    this.isEnding = true;
    this.wake();
    await Promise.all([home.stop(), helping.stop()]);
  }

  // ---- at home --------------------------------------------------------------------------------------------------

  private ask(limit: number): void {
    if (this.askedMs !== undefined) return;
    this.askedMs = performance.now();
    this.options.home
      .claim(limit)
      .then((claims) => {
        this.isHomeEmpty = claims.length === 0;
        this.came(claims);
      })
      .catch((error: unknown) => (this.fault = { error }))
      .finally(() => {
        this.askedMs = undefined;
        this.isHomeStuck = false;
        this.wake();
      });
  }

  private came(claims: readonly RawClaim[]): void {
    if (this.isEnding) this.handBack(claims);
    else this.arrived.push(...claims);
    this.wake();
  }

  // ---- elsewhere ------------------------------------------------------------------------------------------------

  private help(limit: number): void {
    const { helping, oneWhile } = this.options;
    if (this.isHelping || !this.isIdle || performance.now() - this.helpedMs < LOOK_MS) return;
    if (oneWhile !== undefined && (this.held.size > 0 || !oneWhile())) return;
    this.isHelping = true;
    void this.checked()
      .then((isFree) => (isFree ? helping.claim(limit) : []))
      .then((claims) => {
        // one that brought something may be asked again at once
        this.helpedMs = claims.length > 0 ? Number.NEGATIVE_INFINITY : performance.now();
        this.came(claims);
      })
      .finally(() => {
        this.isHelping = false;
        this.wake();
      });
  }

  private handedOut(claims: readonly RawClaim[]): readonly RawClaim[] {
    if (this.options.oneWhile !== undefined) for (const { token } of claims) this.held.add(token);
    return claims;
  }

  private waitedMs(): number {
    return this.askedMs === undefined ? 0 : performance.now() - this.askedMs;
  }

  /** Whether nothing waits at home that its question should have brought. */
  private async checked(): Promise<boolean> {
    const { home, wedgedAfterMs } = this.options;
    const nowMs = performance.now();
    if (this.waitedMs() < wedgedAfterMs || nowMs - this.checkedMs < wedgedAfterMs) return !this.isHomeStuck;
    this.checkedMs = nowMs;
    const asked = this.askedMs;
    const waiting = await home.claimable().catch(() => 0);
    this.isHomeStuck = waiting > 0 && this.askedMs === asked;
    return !this.isHomeStuck;
  }

  /** Until something came, or it is time to look at other cells. */
  private async untilChange(): Promise<void> {
    if (this.arrived.length > 0 || this.isEnding || this.isHomeEmpty || this.fault !== undefined) return;
    const idleInMs = this.options.idleMs - this.waitedMs();
    const lookInMs = LOOK_MS - (performance.now() - this.helpedMs);
    const { promise, resolve } = Promise.withResolvers<void>();
    const timer = this.isHelping ? undefined : setTimeout(resolve, Math.max(1, idleInMs, lookInMs));
    this.wake = resolve;
    await promise;
    clearTimeout(timer);
    this.wake = () => undefined;
  }

  private handBack(claims: readonly RawClaim[]): void {
    for (const claim of claims) {
      const returned = this.settle(claim, { kind: 'return', delayMs: 0, reason: 'nobody claims here now' })
        .catch(() => undefined) // its lease brings it back
        .finally(() => this.handingBack.delete(returned));
      this.handingBack.add(returned);
    }
  }

  private takeFault(): unknown {
    const error = this.fault?.error;
    this.fault = undefined;
    return error;
  }
}
