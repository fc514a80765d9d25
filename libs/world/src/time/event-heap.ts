// What is still to happen, the earliest first; of what is due at the same time, what was put there first.

export interface Due {
  dueMs: number;
  order: number;
}

export class EventHeap<Event extends Due> {
  private readonly events: Event[] = [];

  get size(): number {
    return this.events.length;
  }

  peek(): Event | undefined {
    return this.events[0];
  }

  push(event: Event): void {
    const { events } = this;
    let at = events.length;
    events.push(event);
    while (at > 0) {
      const above = (at - 1) >> 1;
      if (!isBefore(event, events[above]!)) break;
      events[at] = events[above]!;
      at = above;
    }
    events[at] = event;
  }

  pop(): Event | undefined {
    const { events } = this;
    const first = events[0];
    const last = events.pop();
    if (events.length > 0 && last !== undefined) this.sink(last);
    return first;
  }

  private sink(event: Event): void {
    const { events } = this;
    const { length } = events;
    let at = 0;
    for (;;) {
      let below = 2 * at + 1;
      if (below >= length) break;
      if (below + 1 < length && isBefore(events[below + 1]!, events[below]!)) below++;
      if (!isBefore(events[below]!, event)) break;
      events[at] = events[below]!;
      at = below;
    }
    events[at] = event;
  }
}

function isBefore(one: Due, other: Due): boolean {
  return one.dueMs < other.dueMs || (one.dueMs === other.dueMs && one.order < other.order);
}
