// Who goes first among jobs that a worker has claimed ahead: the rule of the queue's line once more (docs/order.md),
// because whoever comes late with little has to go before what was claimed of others meanwhile, as it did before what
// still waits. A tenant's job begins where its last one ended, or a lead before the virtual time, and has a lead when
// it begins half of that before it or more. Tenants that come evenly never do, so their rows still meet by length
// alone. Of one class; knows no rows.
//
// Why: docs/decisions/claiming-and-order.md#the-fair-order-goes-on-in-the-pool

/**
 * About 5,000 short texts: what somebody who asked for nothing lately may put before those who wait for long, here and
 * in the line.
 */
export const LEAD_TOKENS = 2 ** 18;
/**
 * Tenants are looked through for those that are long served when there are twice as many as after the last time, and so
 * many.
 */
const LEAST_FLOWS = 64;
/**
 * Most tenants that are remembered. When more came once each, and too little for the virtual time to move on, those
 * seen first are forgotten: they begin with a lead once more.
 */
const MOST_FLOWS = 4_096;

export class Flows {
  /** Where the last job of each tenant ends, in virtual time. */
  private readonly ends = new Map<string, number>();
  /** The farthest beginning of a job, or a lead beyond where everybody begins. */
  private now = 0;
  private mostFlows = LEAST_FLOWS;

  /** Tenants that are remembered. */
  get size(): number {
    return this.ends.size;
  }

  /** A job of so many tokens comes; true when it goes before jobs that have no lead. */
  enter(tenant: string, tokens: number): boolean {
    const begin = Math.max(this.now - LEAD_TOKENS, this.ends.get(tenant) ?? Number.NEGATIVE_INFINITY);
    this.now = Math.max(this.now, begin);
    this.ends.delete(tenant);
    this.ends.set(tenant, begin + tokens); // the last seen is the last in the map
    if (this.ends.size > this.mostFlows) this.forgetServed();
    return this.now - begin >= LEAD_TOKENS / 2;
  }

  private forgetServed(): void {
    for (const [tenant, end] of this.ends) if (end <= this.now - LEAD_TOKENS) this.ends.delete(tenant);
    for (const tenant of this.ends.keys()) {
      if (this.ends.size <= MOST_FLOWS / 2) break;
      this.ends.delete(tenant);
    }
    this.mostFlows = Math.max(LEAST_FLOWS, 2 * this.ends.size);
  }
}
