// How fast something comes, by what came lately. Pure; whoever asks tells the time.

/** After so long a time what came counts a third. */
const MEMORY_MS = 200;

export class ArrivalRate {
  private sum = 0;
  private atMs = 0;

  add(count: number, nowMs: number): void {
    this.sum = this.remembered(nowMs) + count;
    this.atMs = nowMs;
  }

  /** How many a millisecond; 0 before anything came. */
  perMs(nowMs: number): number {
    return this.remembered(nowMs) / MEMORY_MS;
  }

  private remembered(nowMs: number): number {
    return this.sum * Math.exp((this.atMs - nowMs) / MEMORY_MS);
  }
}
