// A sorted set: members by score, then by their bytes. A list in order with a map beside it, which is quick for the few
// thousand members that a simulated queue has.

export interface Scored {
  readonly member: string;
  readonly score: number;
}

export class SortedSet {
  readonly #scores = new Map<string, number>();
  readonly #order: Scored[] = [];

  get size(): number {
    return this.#order.length;
  }

  /** In order; not to be changed. */
  get entries(): readonly Scored[] {
    return this.#order;
  }

  scoreOf(member: string): number | undefined {
    return this.#scores.get(member);
  }

  set(member: string, score: number): void {
    const had = this.#scores.get(member);
    if (had === score) return;
    if (had !== undefined) this.#order.splice(this.#place(member, had), 1);
    this.#scores.set(member, score);
    this.#order.splice(this.#place(member, score), 0, { member, score });
  }

  delete(member: string): boolean {
    const had = this.#scores.get(member);
    if (had === undefined) return false;
    this.#scores.delete(member);
    this.#order.splice(this.#place(member, had), 1);
    return true;
  }

  rankOf(member: string): number | undefined {
    const score = this.#scores.get(member);
    return score === undefined ? undefined : this.#place(member, score);
  }

  clone(): SortedSet {
    const copy = new SortedSet();
    for (const { member, score } of this.#order) {
      copy.#scores.set(member, score);
      copy.#order.push({ member, score });
    }
    return copy;
  }

  /** The place of a member, or where it would be. */
  #place(member: string, score: number): number {
    let [low, high] = [0, this.#order.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      const there = this.#order[middle]!;
      if (there.score < score || (there.score === score && there.member < member)) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
