// A JobSource whose claiming somebody else may pause: `shoal fleet drain`. A drained worker stays up, renews its leases
// and finishes what it has; it claims nothing until it is resumed. What the inner source brings after that goes back
// unspent.

import type { Announcement, JobSource, RawClaim, SettleResult, Settlement } from '@shoal/core';

export class DrainableSource implements JobSource {
  private readonly inner: JobSource;
  private isEnding = false;
  private isPaused = false;
  private wake: () => void = () => undefined;

  constructor(inner: JobSource) {
    this.inner = inner;
  }

  get isDrained(): boolean {
    return this.isPaused;
  }

  drain(): void {
    this.isPaused = true;
  }

  resume(): void {
    this.isPaused = false;
    this.wake();
  }

  start(): Promise<void> {
    return this.inner.start();
  }

  async claim(limit: number): Promise<readonly RawClaim[]> {
    for (;;) {
      await this.untilResumed();
      const claims = await this.inner.claim(limit); // empty at once when claiming has ended
      if (!this.isPaused || claims.length === 0) return claims;
      await Promise.all(
        claims.map((claim) =>
          this.inner.settle(claim, { kind: 'return', delayMs: 0, reason: 'the worker is drained' }),
        ),
      );
    }
  }

  async claimUrgent(limit: number): Promise<readonly RawClaim[]> {
    return this.isPaused ? [] : this.inner.claimUrgent(limit);
  }

  settle(claim: RawClaim, settlement: Settlement, announcement?: Announcement): Promise<SettleResult> {
    return this.inner.settle(claim, settlement, announcement);
  }

  onLeaseLost(listener: (jobId: string) => void): void {
    this.inner.onLeaseLost(listener);
  }

  onCancelled(listener: (jobIds: readonly string[]) => void): void {
    this.inner.onCancelled(listener);
  }

  async claimable(): Promise<number> {
    return this.isPaused ? 0 : this.inner.claimable();
  }

  stopClaiming(): Promise<void> {
    this.end();
    return this.inner.stopClaiming();
  }

  stop(): Promise<void> {
    this.end();
    return this.inner.stop();
  }

  private end(): void {
    this.isEnding = true;
    this.wake();
  }

  private async untilResumed(): Promise<void> {
    while (this.isPaused && !this.isEnding) await new Promise<void>((resolve) => (this.wake = resolve));
  }
}
