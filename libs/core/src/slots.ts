// The slots of a backend as the executor lends them: one is kept back, so that an interactive row never waits for a slot behind
// queued bulk work.

import type { BatchBudget, InferenceBackend, Slot } from './ports.ts';

/** One micro-batch runs and one waits behind it: fewer, and the device would idle while the next is packed. */
const BUSY_SLOTS = 2;

export class Slots {
  private readonly backend: Pick<InferenceBackend, 'lend' | 'giveBack'>;
  private reserve: Slot | undefined;
  private lent = 0;

  constructor(backend: Pick<InferenceBackend, 'lend' | 'giveBack'>) {
    this.backend = backend;
  }

  /** Whether the device has one micro-batch running and another to go on with. */
  get areBusy(): boolean {
    return this.lent >= BUSY_SLOTS;
  }

  /** The reserve goes to urgent work, or to anybody as long as the device would idle. */
  lend(isUrgent: boolean): Slot | undefined {
    this.reserve ??= this.backend.lend();
    const slot = this.backend.lend() ?? (isUrgent || !this.areBusy ? this.takeReserve() : undefined);
    if (slot !== undefined) this.lent++;
    return slot;
  }

  giveBack(slot: Slot): void {
    this.lent--;
    if (this.reserve === undefined) this.reserve = slot;
    else this.backend.giveBack(slot);
  }

  /** Gives the reserve back as well. */
  stop(): void {
    const slot = this.takeReserve();
    if (slot !== undefined) this.backend.giveBack(slot);
  }

  private takeReserve(): Slot | undefined {
    const { reserve } = this;
    this.reserve = undefined;
    return reserve;
  }
}

/** Most rows of this width that the budget allows and a slot's buffers hold; at least 1. */
export function rowsWithin({ slotRows, slotTokens }: Pick<InferenceBackend, 'slotRows' | 'slotTokens'>, budget: Pick<BatchBudget, 'rowsAt'>, width: number): number {
  return Math.max(1, Math.min(budget.rowsAt(width), slotRows, Math.floor(slotTokens / width)));
}
