// Timers and immediates as Node has them, of the process whose step it is. To be used by patch.ts alone.

import type { Process, World, WorldEvent } from './world.ts';

const LONGEST_MS = 2 ** 31 - 1;

/** What setTimeout and setInterval give. */
export class SimulatedTimer {
  private readonly world: World;
  private readonly owner: Process;
  private readonly ring: () => void;
  private readonly delayMs: number;
  private readonly repeats: boolean;
  private event: WorldEvent | undefined;

  constructor(world: World, ring: () => void, delayMs: number, repeats: boolean) {
    this.world = world;
    this.owner = world.current;
    this.ring = ring;
    this.delayMs = delayMs >= 1 && delayMs <= LONGEST_MS ? Math.trunc(delayMs) : 1;
    this.repeats = repeats;
    this.refresh();
  }

  refresh(): this {
    if (this.event !== undefined) this.event.isCancelled = true;
    this.event = this.world.after(this.owner, this.delayMs, 'timer', () => {
      if (this.repeats) this.refresh();
      else this.event = undefined;
      this.ring();
    });
    return this;
  }

  close(): this {
    if (this.event !== undefined) this.event.isCancelled = true;
    this.event = undefined;
    return this;
  }

  ref(): this {
    return this;
  }

  unref(): this {
    return this;
  }

  hasRef(): boolean {
    return this.event !== undefined;
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

/** What setImmediate gives. */
export class SimulatedImmediate {
  private readonly event: WorldEvent;

  constructor(world: World, ring: () => void) {
    this.event = world.after(world.current, 0, 'immediate', ring);
  }

  close(): void {
    this.event.isCancelled = true;
  }

  ref(): this {
    return this;
  }

  unref(): this {
    return this;
  }

  hasRef(): boolean {
    return !this.event.isCancelled;
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
