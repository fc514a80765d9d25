// When what gathers goes out: at the end of the turn of the event loop for whatever may not wait, and with it all that
// may; else when the first of it has waited as long as it may. Calls for many items cost the server far less than one
// for each.

export class Gathering {
  private readonly flush: () => void;
  private dueMs = Infinity;
  private cancel: () => void = () => undefined;

  constructor(flush: () => void) {
    this.flush = flush;
  }

  /** Something was gathered that may wait for so long, ms. Less than a timer can tell is nothing. */
  within(ms: number): void {
    const dueMs = ms < 1 ? 0 : performance.now() + ms;
    if (dueMs >= this.dueMs) return;
    this.cancel();
    this.dueMs = dueMs;
    const go = (): void => {
      this.dueMs = Infinity;
      this.flush();
    };
    if (dueMs === 0) {
      const immediate = setImmediate(go);
      this.cancel = () => clearImmediate(immediate);
    } else {
      const timer = setTimeout(go, ms);
      this.cancel = () => clearTimeout(timer);
    }
  }
}
