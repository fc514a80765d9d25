// Claims for a CPU worker, which serves two lanes: its own first, and the main lane as far as a gate lets it. Every
// claim keeps its lane, and its ending goes there. Decides nothing about when the main lane is open: see
// hybrid-gate.ts.
//
// Jobs are looked for without waiting, lane after lane. Where there is nothing, a question for a single job waits: in
// the CPU lane from then on, in the main lane when there is nothing anywhere. A lane whose question still waits is
// known to be empty. What such a question brings when nobody claims any more, or after the gate has closed, goes back
// unspent: another worker may take it at once.

import { invariant, type Lane } from '@shoal/contract';
import type { Announcement, JobSource, RawClaim, SettleResult, Settlement } from '@shoal/core';
import { Serial } from '@shoal/core/base';

/** A source that can also be asked without waiting. */
export interface LaneSource extends JobSource {
  /** At most `limit` jobs that can be had at once, or none. */
  claimNow(limit: number): Promise<readonly RawClaim[]>;
}

/** How much a CPU worker may take from the main lane. */
export interface MainLaneGate {
  /** Of `limit` jobs, how many may be claimed there now; 0: none. */
  allows(limit: number): number;
  /** So many were claimed there. */
  took(jobs: number): void;
  onChange(listener: () => void): void;
}

export const openGate: MainLaneGate = { allows: (limit) => limit, took: () => undefined, onChange: () => undefined };

export interface LanesSourceOptions {
  readonly cpu: LaneSource;
  readonly main: LaneSource;
  readonly gate: MainLaneGate;
}

interface ServedLane {
  readonly name: Lane;
  readonly source: LaneSource;
  isAsking: boolean;
}

export class LanesSource implements JobSource {
  private readonly cpu: ServedLane;
  private readonly main: ServedLane;
  private readonly gate: MainLaneGate;
  private isEnding = false;
  private isClaiming = false;
  /** What questions brought while somebody claims. */
  private arrived: RawClaim[] = [];
  private fault: { readonly error: unknown } | undefined;
  private readonly handingBack = new Set<Promise<unknown>>();
  private readonly claims = new Serial();
  private wake: () => void = () => undefined;

  constructor({ cpu, main, gate }: LanesSourceOptions) {
    this.cpu = { name: 'cpu', source: cpu, isAsking: false };
    this.main = { name: 'main', source: main, isAsking: false };
    this.gate = gate;
    gate.onChange(() => this.wake());
  }

  async start(): Promise<void> {
    try {
      await Promise.all(this.lanes().map(({ source }) => source.start()));
    } catch (error) {
      await this.stop();
      throw error;
    }
  }

  claim(limit: number): Promise<readonly RawClaim[]> {
    invariant(limit >= 1, 'a claim asks for at least one job');
    return this.claims.run(() => this.claimFrom(limit));
  }

  claimUrgent(limit: number): Promise<readonly RawClaim[]> {
    return this.claims.run(() => this.lookForUrgent(limit));
  }

  async settle(claim: RawClaim, settlement: Settlement, announcement?: Announcement): Promise<SettleResult> {
    return this.laneOf(claim).source.settle(claim, settlement, announcement);
  }

  onLeaseLost(listener: (jobId: string) => void): void {
    for (const { source } of this.lanes()) source.onLeaseLost(listener);
  }

  onCancelled(listener: (jobIds: readonly string[]) => void): void {
    for (const { source } of this.lanes()) source.onCancelled(listener);
  }

  async claimable(): Promise<number> {
    const counts = await Promise.all(this.openLanes().map(({ source }) => source.claimable()));
    return counts.reduce((sum, count) => sum + count, 0);
  }

  async stopClaiming(): Promise<void> {
    this.isEnding = true;
    this.wake();
    await Promise.all(this.lanes().map(({ source }) => source.stopClaiming()));
    await this.claims.settled();
    await Promise.all(this.handingBack);
  }

  async stop(): Promise<void> {
    this.isEnding = true;
    this.wake();
    await Promise.all(this.lanes().map(({ source }) => source.stop()));
    await this.claims.settled();
  }

  private lanes(): readonly ServedLane[] {
    return [this.cpu, this.main];
  }

  private openLanes(): readonly ServedLane[] {
    return this.gate.allows(1) > 0 ? this.lanes() : [this.cpu];
  }

  private laneOf({ lane }: RawClaim): ServedLane {
    return lane === 'cpu' ? this.cpu : this.main;
  }

  private async claimFrom(limit: number): Promise<readonly RawClaim[]> {
    this.isClaiming = true;
    try {
      while (!this.isEnding) {
        const claims = await this.look(limit);
        if (claims.length > 0) return claims;
        await this.untilChange();
        if (this.fault !== undefined) throw this.takeFault();
      }
      return [];
    } finally {
      this.isClaiming = false;
      this.handBack(this.arrived.splice(0), 'more than was asked for');
    }
  }

  /** Of `most` jobs, how many this lane may be asked for now. */
  private roomIn(lane: ServedLane, most: number): number {
    if (lane.isAsking || this.isEnding) return 0;
    return lane === this.main ? this.gate.allows(most) : most;
  }

  private async lookForUrgent(limit: number): Promise<RawClaim[]> {
    const claims: RawClaim[] = [];
    for (const lane of this.lanes()) {
      const room = this.roomIn(lane, limit - claims.length);
      if (room >= 1) claims.push(...this.received(lane, await lane.source.claimUrgent(room)));
    }
    return claims;
  }

  private async look(limit: number): Promise<RawClaim[]> {
    const claims = this.isEnding ? [] : this.arrived.splice(0, limit);
    for (const lane of this.lanes()) {
      const room = this.roomIn(lane, limit - claims.length);
      if (room < 1) continue;
      const got = await lane.source.claimNow(room);
      claims.push(...this.received(lane, got));
      // mostly empty: not to be looked into with every claim
      if (lane === this.cpu && got.length < room) this.ask(lane);
    }
    return claims;
  }

  /**
   * Until a question is answered, the gate moves or claiming ends; at once when something arrived while nobody looked.
   */
  private async untilChange(): Promise<void> {
    for (const lane of this.openLanes()) this.ask(lane);
    if (this.arrived.length > 0 || this.isEnding) return;
    await new Promise<void>((resolve) => (this.wake = resolve));
    this.wake = () => undefined;
  }

  private ask(lane: ServedLane): void {
    if (lane.isAsking || this.isEnding) return;
    lane.isAsking = true;
    lane.source.claim(1).then(
      (claims) => this.answer(lane, claims),
      (error: unknown) => {
        lane.isAsking = false;
        this.fault = { error };
        this.wake();
      },
    );
  }

  private answer(lane: ServedLane, claims: readonly RawClaim[]): void {
    lane.isAsking = false;
    const isWanted = this.isClaiming && !this.isEnding && this.openLanes().includes(lane);
    const marked = this.received(lane, claims);
    if (isWanted) this.arrived.push(...marked);
    else this.handBack(marked, 'nobody claims here now');
    this.wake();
  }

  private handBack(claims: readonly RawClaim[], reason: string): void {
    for (const claim of claims) {
      const returned = this.settle(claim, { kind: 'return', delayMs: 0, reason })
        .catch(() => undefined) // its lease brings it back
        .finally(() => this.handingBack.delete(returned));
      this.handingBack.add(returned);
    }
  }

  private received(lane: ServedLane, claims: readonly RawClaim[]): RawClaim[] {
    if (lane === this.main) this.gate.took(claims.length);
    return claims.map((claim) => ({ ...claim, lane: lane.name }));
  }

  private takeFault(): unknown {
    const error = this.fault?.error;
    this.fault = undefined;
    return error;
  }
}
