// For how long at least one, two, … micro-batches were at a device: adds up time between changes of how many there are.

export class BusyLanes {
  private readonly busyMs: number[];
  private readonly nowMs: () => number;
  private running = 0;
  private sinceMs: number;

  /** `lanes`: more than so many count as so many. `nowMs`: of a clock that never goes back. */
  constructor(lanes: number, nowMs: () => number) {
    this.busyMs = Array.from({ length: lanes }, () => 0);
    this.nowMs = nowMs;
    this.sinceMs = nowMs();
  }

  /** From now on so many run. */
  are(running: number): void {
    this.settle();
    this.running = running;
  }

  /** Milliseconds in which at least one ran, at least two, … up to now. */
  sums(): readonly number[] {
    this.settle();
    return this.busyMs;
  }

  private settle(): void {
    const nowMs = this.nowMs();
    const passedMs = nowMs - this.sinceMs;
    this.sinceMs = nowMs;
    for (let lane = 0; lane < Math.min(this.running, this.busyMs.length); lane++) this.busyMs[lane]! += passedMs;
  }
}
