// A place where a fake's answers can be held back, so that a test decides what happens first.

export class Gate {
  private isOpen = true;
  private waiting: (() => void)[] = [];

  /** From now on everybody waits. */
  hold(): void {
    this.isOpen = false;
  }

  /** Lets everybody through who waits, in the order of arrival, and stays open. */
  release(): void {
    this.isOpen = true;
    for (const resume of this.waiting.splice(0)) resume();
  }

  /** Lets one through, the `index`-th of those who wait. */
  releaseOne(index = 0): void {
    for (const resume of this.waiting.splice(index, 1)) resume();
  }

  get waiters(): number {
    return this.waiting.length;
  }

  pass(): Promise<void> {
    return this.isOpen ? Promise.resolve() : new Promise((resolve) => this.waiting.push(resolve));
  }
}
