// Items that go together: one call at a time, and whatever comes while it is under way goes with the next. Urgent items
// take turns of their own, so that they never wait for a call that others fill. Knows nothing of what is done with
// them.

/** May not throw: there is nobody who could be told. */
export type TakeTurn<Item> = (items: readonly Item[], isUrgent: boolean) => Promise<void>;

export class Turns<Item> {
  private readonly urgent: Line<Item>;
  private readonly rest: Line<Item>;

  constructor(take: TakeTurn<Item>) {
    this.urgent = new Line((items) => take(items, true));
    this.rest = new Line((items) => take(items, false));
  }

  add(items: readonly Item[], isUrgent: (item: Item) => boolean): void {
    this.urgent.add(items.filter((item) => isUrgent(item)));
    this.rest.add(items.filter((item) => !isUrgent(item)));
  }

  /** The calls that are under way, or undefined when there are none. */
  get busy(): Promise<unknown> | undefined {
    const { urgent, rest } = this;
    return urgent.loop === undefined && rest.loop === undefined ? undefined : Promise.all([urgent.loop, rest.loop]);
  }
}

class Line<Item> {
  loop: Promise<void> | undefined;
  private waiting: Item[] = [];
  private readonly take: (items: readonly Item[]) => Promise<void>;

  constructor(take: (items: readonly Item[]) => Promise<void>) {
    this.take = take;
  }

  add(items: readonly Item[]): void {
    this.waiting.push(...items);
    this.go();
  }

  /** One loop at a time; looks again when one ends, because an item may come between its last look and its end. */
  private go(): void {
    if (this.waiting.length === 0) return;
    this.loop ??= this.takeAll().finally(() => {
      this.loop = undefined;
      this.go();
    });
  }

  private async takeAll(): Promise<void> {
    while (this.waiting.length > 0) await this.take(this.waiting.splice(0));
  }
}
