// How much of all batches and jobs is on the queue at a time: so many times 64 rows, first come, first served.

/** Rows of one piece of the room. */
const ROOM_ROWS = 64;

interface Waiting {
  readonly jobs: number;
  readonly enter: () => void;
}

export class InFlight {
  /** Rows that one job of the queue may have. */
  readonly jobRows: number;
  private readonly most: number;
  private used = 0;
  private readonly waiting: Waiting[] = [];

  constructor(most: number, jobRows = ROOM_ROWS) {
    this.jobRows = jobRows;
    this.most = most;
  }

  /** Room for so many rows, or for all there is where that is less. The returned function gives it back, once. */
  async enter(rows: number, signal: AbortSignal): Promise<() => void> {
    const jobs = Math.min(this.most, Math.max(1, Math.ceil(rows / ROOM_ROWS)));
    if (this.waiting.length > 0 || this.used + jobs > this.most) await this.turn(jobs, signal);
    else this.used += jobs;
    let isBack = false;
    return () => {
      if (isBack) return;
      isBack = true;
      this.used -= jobs;
      this.callNext();
    };
  }

  private async turn(jobs: number, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    await new Promise<void>((resolve, reject) => {
      const one: Waiting = {
        jobs,
        enter: () => {
          signal.removeEventListener('abort', onAbort);
          resolve();
        },
      };
      const onAbort = (): void => {
        this.waiting.splice(this.waiting.indexOf(one), 1);
        reject(signal.reason as Error);
        this.callNext();
      };
      signal.addEventListener('abort', onAbort, { once: true });
      this.waiting.push(one);
    });
  }

  private callNext(): void {
    for (let next = this.waiting[0]; next !== undefined; next = this.waiting[0]) {
      if (this.used + next.jobs > this.most) return;
      this.used += next.jobs;
      this.waiting.shift();
      next.enter();
    }
  }
}
