// What the executor says about its budget and its memory, and to whom: only where it is news, because each message
// costs the claimer's process a wake-up.

import type { BatchBudget, BudgetState, MemoryReading, RunShape } from '../ports/device.ts';
import type { Clock } from '../ports/clock.ts';
import type { FromExecutor } from '../protocol.ts';

const MEMORY_NEWS_MS = 1_000;
/** A budget that changed by less than this share is no news. */
const BUDGET_NEWS = 0.03;

export interface NewsParts {
  readonly budget: Pick<BatchBudget, 'current' | 'interactiveWaits' | 'peakBytes'>;
  readonly clock: Clock;
  readonly send: (message: FromExecutor) => void;
}

export class News {
  private readonly parts: NewsParts;
  private toldWaiting = false;
  private toldBudget: BudgetState | undefined;
  private toldMemoryMs = Number.NEGATIVE_INFINITY;

  constructor(parts: NewsParts) {
    this.parts = parts;
  }

  /** Tells the claimer what the budget is now. */
  tellBudget(): void {
    const budget = this.parts.budget.current();
    if (!isNews(budget, this.toldBudget)) return;
    this.toldBudget = budget;
    this.parts.send({ kind: 'budget', budget });
  }

  /** Tells the claimer what a run took; called before the budget learns from it. */
  tellMemory(shape: RunShape, memory: MemoryReading | undefined): void {
    const { budget, clock, send } = this.parts;
    const measuredBytes = memory?.footprintBytes ?? memory?.liveBytes;
    if (memory === undefined || measuredBytes === undefined) return;
    if (clock.nowMs() - this.toldMemoryMs < MEMORY_NEWS_MS) return;
    this.toldMemoryMs = clock.nowMs();
    send({ kind: 'memory', predictedBytes: budget.peakBytes(shape), measuredBytes, source: memory.source });
  }

  /** Tells the budget whether an interactive row waits or runs. */
  tellInteractive(isWaiting: boolean): void {
    if (isWaiting === this.toldWaiting) return;
    this.toldWaiting = isWaiting;
    this.parts.budget.interactiveWaits(isWaiting);
  }
}

function isNews(now: BudgetState, told: BudgetState | undefined): boolean {
  if (told === undefined || now.limitedBy !== told.limitedBy || now.source !== told.source) return true;
  const { totalBytes = 0, othersBytes = 0 } = now.device ?? {};
  if (Math.abs(othersBytes - (told.device?.othersBytes ?? 0)) > BUDGET_NEWS * totalBytes) return true;
  return Math.abs(now.maxPaddedTokens - told.maxPaddedTokens) > BUDGET_NEWS * told.maxPaddedTokens;
}
