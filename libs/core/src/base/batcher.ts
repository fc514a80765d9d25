// One way to gather calls that come close together and to send them as one, because a call for many costs its
// receiver far less than one for each. Knows nothing of what is sent. What was gathered goes out
//
//   `turn`       at the end of the turn of the event loop, or, when all of it may wait, once the first of it has waited
//                as long as it may;
//   `microtask`  at the end of the microtask in which the first came: before anything else is read from a socket;
//   `idle`       at once when no call is under way, else as soon as that call ends: one call at a time.

import { processClock, type Clock } from '../ports/clock.ts';

export interface BatcherOptions<Item> {
  /** Sends what was gathered, in the order in which it came. May neither throw nor reject: nobody could be told. */
  readonly send: (items: readonly Item[]) => void | Promise<void>;
  /** Default `turn`. */
  readonly gathers?: 'turn' | 'microtask' | 'idle' | undefined;
  /** What one call takes at most; the rest goes in further calls. Default: everything. */
  readonly most?: number | undefined;
  /** Tells how long items have waited. */
  readonly clock?: Clock | undefined;
}

export class Batcher<Item> {
  private readonly options: BatcherOptions<Item>;
  private readonly clock: Clock;
  private waiting: Item[] = [];
  /** When the next flush is due; 0 at the end of the turn. */
  private dueMs = Infinity;
  private cancel: () => void = () => undefined;
  private calls: Promise<void> | undefined;

  constructor(options: BatcherOptions<Item>) {
    this.options = options;
    this.clock = options.clock ?? processClock; // what was gathered is still to be sent
  }

  /** The calls that are under way (`idle` only), or undefined when there are none. */
  get busy(): Promise<void> | undefined {
    return this.calls;
  }

  /** The items may wait for so long (`turn` only); less than a timer can tell is no time at all. */
  add(items: readonly Item[], mayWaitMs = 0): void {
    if (items.length === 0) return;
    const wasEmpty = this.waiting.length === 0;
    this.waiting.push(...items);
    switch (this.options.gathers ?? 'turn') {
      case 'turn':
        return this.flushWithin(mayWaitMs);
      case 'microtask':
        if (wasEmpty) queueMicrotask(() => this.flush());
        return;
      case 'idle':
        return this.callWhenIdle();
    }
  }

  /** Sends at once what waits, for who has to come behind it. */
  flush(): void {
    this.cancel();
    this.dueMs = Infinity;
    while (this.waiting.length > 0) void this.options.send(this.take());
  }

  private take(): Item[] {
    return this.waiting.splice(0, this.options.most ?? this.waiting.length);
  }

  private flushWithin(ms: number): void {
    const dueMs = ms < 1 ? 0 : this.clock.nowMs() + ms;
    if (dueMs >= this.dueMs) return;
    this.cancel();
    this.dueMs = dueMs;
    if (dueMs === 0) {
      const immediate = setImmediate(() => this.flush());
      this.cancel = () => clearImmediate(immediate);
    } else {
      this.cancel = this.clock.after(ms, () => this.flush());
    }
  }

  /** Looks again when the calls end, because an item may come between their last look and their end. */
  private callWhenIdle(): void {
    if (this.waiting.length === 0) return;
    this.calls ??= this.callUntilEmpty().finally(() => {
      this.calls = undefined;
      this.callWhenIdle();
    });
  }

  private async callUntilEmpty(): Promise<void> {
    while (this.waiting.length > 0) await this.options.send(this.take());
  }
}

/** Two batchers of one call at a time each: urgent items never wait for a call that others fill. */
export class UrgencyBatcher<Item> {
  private readonly urgent: Batcher<Item>;
  private readonly rest: Batcher<Item>;

  constructor(send: (items: readonly Item[], isUrgent: boolean) => Promise<void>) {
    this.urgent = new Batcher({ gathers: 'idle', send: (items) => send(items, true) });
    this.rest = new Batcher({ gathers: 'idle', send: (items) => send(items, false) });
  }

  add(items: readonly Item[], isUrgent: (item: Item) => boolean): void {
    this.urgent.add(items.filter((item) => isUrgent(item)));
    this.rest.add(items.filter((item) => !isUrgent(item)));
  }

  /** The calls that are under way, or undefined when there are none. */
  get busy(): Promise<unknown> | undefined {
    const busy = [this.urgent.busy, this.rest.busy].filter((calls) => calls !== undefined);
    return busy.length === 0 ? undefined : Promise.all(busy);
  }
}
