// A queue of one: pieces of work that must not overlap run one after the other, in the order in which they were asked
// for. A piece that fails is its caller's business and does not stop the next.

export class Serial {
  private last: Promise<unknown> = Promise.resolve();

  /** Runs `work` after everything that was asked for before, and gives what it gives. */
  run<T>(work: () => Promise<T>): Promise<T> {
    const result = this.last.then(work);
    this.last = result.catch(() => undefined); // whoever asked for it awaits `result`
    return result;
  }

  /** Resolves when everything that was asked for before this call has ended, whatever came of it. */
  async settled(): Promise<void> {
    await this.last;
  }
}
