// How fast something comes, by what came lately. Pure; whoever asks tells the time.

const MEMORY_MS = 200;

export class ArrivalRate {
  private readonly memoryMs: number;
  private sum = 0;
  private atMs = 0;

  /** `memoryMs`: after so long a time what came counts a third. */
  constructor(memoryMs: number = MEMORY_MS) {
    this.memoryMs = memoryMs;
  }

  add(count: number, nowMs: number): void {
    this.sum = this.remembered(nowMs) + count;
    this.atMs = nowMs;
  }

  /** How many a millisecond; 0 before anything came. */
  perMs(nowMs: number): number {
    return this.remembered(nowMs) / this.memoryMs;
  }

  private remembered(nowMs: number): number {
    return this.sum * Math.exp((this.atMs - nowMs) / this.memoryMs);
  }
}
