// A sorted set: members by score, then by their bytes. A list in order with a map beside it, which is quick for the few
// thousand members that a simulated queue has.

export interface Scored {
  readonly member: string;
  readonly score: number;
}

/** A real server keeps a set in one piece of memory until it has more members than this, or a longer one; then for good. */
const COMPACT = { members: 128, bytes: 64 };

export class SortedSet {
  readonly #scores = new Map<string, number>();
  readonly #order: Scored[] = [];
  #isCompact = true;

  get size(): number {
    return this.#order.length;
  }

  /** In order; not to be changed. */
  get entries(): readonly Scored[] {
    return this.#order;
  }

  /** As a real server would still keep it: its order is then that of a list, whatever is looked for in it. */
  get isCompact(): boolean {
    return this.#isCompact;
  }

  scoreOf(member: string): number | undefined {
    return this.#scores.get(member);
  }

  set(member: string, given: number): void {
    const had = this.#scores.get(member);
    if (had === given) return;
    if (this.#order.length >= COMPACT.members || member.length > COMPACT.bytes) this.#isCompact = false;
    // a compact one keeps whole scores as integers, which have no -0
    const score = this.#isCompact ? given + 0 : given;
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
    copy.#isCompact = this.#isCompact;
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
