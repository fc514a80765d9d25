// The slots of a backend as the executor lends them: some are kept back, so that an interactive row never waits for a
// slot behind queued bulk work, nor behind the interactive rows that came just before it.

import type { BatchBudget, InferenceBackend, Slot } from '../ports/device.ts';

/**
 * One micro-batch runs and one waits behind it: fewer, and the device would idle while the next is packed. A device
 * that runs more side by side has as many.
 */
const BUSY_SLOTS = 2;
/**
 * So many slots are kept for urgent micro-batches. With one, rows that came while another urgent run was queued got a
 * slot when the running bulk one ended: the device was through with the urgent run before they were packed, and went on
 * with bulk work. With an interactive job every three batch times 8 to 24 of 110 waited for a bulk run that began after
 * they had come; with two slots 2 or 3, each of them the third within one batch time (bench/queue/interactive-wait.ts
 * on a busy machine, 2026-11-22).
 */
export const KEPT_SLOTS = 3;

export class Slots {
  private readonly backend: Pick<InferenceBackend, 'lend' | 'giveBack' | 'sessions'>;
  private readonly kept: Slot[] = [];
  private lent = 0;

  constructor(backend: Pick<InferenceBackend, 'lend' | 'giveBack' | 'sessions'>) {
    this.backend = backend;
  }

  /** Whether the device has one micro-batch running and another to go on with, or beside it. */
  get areBusy(): boolean {
    return this.lent >= Math.max(BUSY_SLOTS, this.backend.sessions ?? 1);
  }

  /** Lends a slot. What is kept goes to urgent work, or to anybody as long as the device would idle. */
  lend(isUrgent: boolean): Slot | undefined {
    this.keep();
    const slot = this.backend.lend() ?? (isUrgent || !this.areBusy ? this.kept.pop() : undefined);
    if (slot !== undefined) this.lent++;
    return slot;
  }

  giveBack(slot: Slot): void {
    this.lent--;
    this.backend.giveBack(slot);
  }

  /** Gives what is kept back as well. */
  stop(): void {
    for (const slot of this.kept.splice(0)) this.backend.giveBack(slot);
  }

  private keep(): void {
    while (this.kept.length < KEPT_SLOTS) {
      const slot = this.backend.lend();
      if (slot === undefined) return;
      this.kept.push(slot);
    }
  }
}

/** Most rows of this width that the budget allows and a slot's buffers hold; at least 1. */
export function rowsWithin(
  { slotRows, slotTokens }: Pick<InferenceBackend, 'slotRows' | 'slotTokens'>,
  budget: Pick<BatchBudget, 'rowsAt'>,
  width: number,
): number {
  return Math.max(1, Math.min(budget.rowsAt(width), slotRows, Math.floor(slotTokens / width)));
}
