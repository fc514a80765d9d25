// Whether there is so much room on the queue that a producer need not wait for an answer before it adds: its
// reservation is made all the same, in the same write, and tells how full it is by then. Asking first costs each job a
// round trip.
//
// It never takes long to notice: room is ample while less than half is used, nobody stands in line, and what this
// producer has added without an answer is at most a hundredth of the whole. So fifty producers that all start in the
// same moment on what they heard a while ago fill the other half, and each of them knows it with its next answer.
//
// Why: docs/decisions/claiming-and-order.md#while-room-is-ample-nobody-asks-for-it-first

/** Of whatever is fullest. */
const AMPLE_SHARE = 0.5;
const MOST_UNANSWERED_SHARE = 0.01;
/** How long an answer is believed. */
const BELIEVED_MS = 5_000;
const MOST_TENANTS = 1_000;

export interface AskedRoom {
  readonly tenants: readonly string[];
  /** Of the whole, 0 to 1: of rows or of bytes, whichever is more. */
  readonly share: number;
}

export class AmpleRoom {
  private readonly nowMs: () => number;
  /** Tenants for whom there was ample room, and until when that is believed. */
  private readonly untilMs = new Map<string, number>();
  private unansweredShare = 0;

  constructor(nowMs: () => number) {
    this.nowMs = nowMs;
  }

  /** What an answer said: how much of what is fullest is used, 0 to 1, for any of these tenants. */
  learn(tenants: readonly string[], usedShare: number): void {
    if (!(usedShare < AMPLE_SHARE)) return this.untilMs.clear();
    if (this.untilMs.size > MOST_TENANTS) this.untilMs.clear();
    for (const tenant of tenants) this.untilMs.set(tenant, this.nowMs() + BELIEVED_MS);
  }

  /** What `reserve` gives, or undefined where there may be too little room: then it was not called. */
  whileAmple<T>({ tenants, share }: AskedRoom, reserve: () => Promise<T>): Promise<T> | undefined {
    const nowMs = this.nowMs();
    if (
      this.unansweredShare + share > MOST_UNANSWERED_SHARE ||
      !tenants.every((tenant) => (this.untilMs.get(tenant) ?? 0) > nowMs)
    )
      return undefined;
    this.unansweredShare += share;
    return reserve().finally(() => (this.unansweredShare -= share));
  }
}
