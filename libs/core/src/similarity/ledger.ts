// The ledger of what a similarity executor holds in its device's memory between runs: whole collections and graphs,
// within a budget in bytes. Whoever was used least recently leaves first. Counts and chooses; what is held, and how it
// is loaded and freed, is its owner's business.

import { invariant } from '@shoal/contract';

export interface Resident {
  readonly bytes: number;
  /** It has to leave: frees what it holds. */
  leave(): void;
}

export class Residents {
  readonly budgetBytes: number;
  /** Least recently used first: a set keeps the order in which its members came. */
  private readonly residents = new Set<Resident>();
  private usedBytes = 0;
  private evicted = 0;

  constructor(budgetBytes: number) {
    this.budgetBytes = budgetBytes;
  }

  get bytes(): number {
    return this.usedBytes;
  }

  get count(): number {
    return this.residents.size;
  }

  /** How many have left to make room for others. */
  get evictions(): number {
    return this.evicted;
  }

  /** Lets residents leave until so many bytes more are within the budget; false when that cannot be. */
  makeRoom(bytes: number): boolean {
    if (bytes > this.budgetBytes) return false;
    while (this.usedBytes + bytes > this.budgetBytes) this.evictOldest();
    return true;
  }

  /** After `makeRoom`. */
  add(resident: Resident): void {
    invariant(this.usedBytes + resident.bytes <= this.budgetBytes, 'what is held fits the budget');
    this.residents.add(resident);
    this.usedBytes += resident.bytes;
  }

  /** It is the one used most recently. */
  touch(resident: Resident): void {
    if (this.residents.delete(resident)) this.residents.add(resident);
  }

  remove(resident: Resident): void {
    if (!this.residents.delete(resident)) return;
    this.usedBytes -= resident.bytes;
    resident.leave();
  }

  /** Whoever was used least recently leaves; false when nobody is here. */
  evictOldest(): boolean {
    const [oldest] = this.residents;
    if (oldest === undefined) return false;
    this.remove(oldest);
    this.evicted++;
    return true;
  }

  /** All leave, but for one; false when nobody had to. */
  clear(except?: Resident): boolean {
    const leaving = [...this.residents].filter((resident) => resident !== except);
    for (const resident of leaving) this.remove(resident);
    return leaving.length > 0;
  }
}
