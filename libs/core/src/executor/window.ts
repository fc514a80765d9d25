// When a short pool stops gathering and runs. A batch costs a fixed part and a part for its tokens, so company is worth
// waiting for, but never longer than the run itself would take: then waiting would cost more than it could save.
// Interactive rows go at once and never come here. Pure; no clock.

import type { BatchBudget } from '../ports/device.ts';

export interface WindowLimits {
  /** So many rows close the window, whatever the budget would still take. */
  readonly windowRows: number;
  readonly maxWaitMs: number;
  /** With fewer rows the wait is twice as long. */
  readonly minRows: number;
}

export interface Waiting {
  readonly rows: number;
  /** Real tokens. */
  readonly tokens: number;
  /** Whether one run could take no more than this. */
  readonly isFull: boolean;
  /** Nothing else is queued, so nothing is worth waiting for. */
  readonly isQueueDrained: boolean;
}

/** How long the oldest row may wait for company; 0: run now. */
export function windowMs(
  { rows, tokens, isFull, isQueueDrained }: Waiting,
  limits: WindowLimits,
  budget: Pick<BatchBudget, 'predictMs'>,
): number {
  if (isFull || isQueueDrained || rows >= limits.windowRows) return 0;
  const waitMs = Math.min(limits.maxWaitMs, budget.predictMs({ rows, width: tokens / rows }) ?? limits.maxWaitMs);
  return rows >= limits.minRows ? waitMs : 2 * waitMs;
}
