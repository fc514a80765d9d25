// So that what is computed in the caller's thread, one thing after the other, does not hold up everybody else.

/** What may be used in one turn of the event loop. */
export class TurnBudget {
  readonly #most: number;
  #left: number;
  #isTurnAwaited = false;

  constructor(most: number) {
    this.#most = most;
    this.#left = most;
  }

  /** False: no more in this turn. */
  take(amount: number): boolean {
    if (!this.#isTurnAwaited) {
      this.#isTurnAwaited = true;
      setImmediate(() => {
        this.#isTurnAwaited = false;
        this.#left = this.#most;
      });
    }
    if (amount > this.#left) return false;
    this.#left -= amount;
    return true;
  }
}
