// What the makers of a device's budget share: what they are given, what they give back, and readings of memory.

import type {
  Budget,
  BudgetOptions,
  Clock,
  FromExecutor,
  InferenceBackend,
  LearnedBudget,
  Logger,
  MemoryPlan,
  MemoryPlanOf,
} from '@shoal/core';
import type { StoredModel } from '@shoal/models';
import type { ExecutorSettings } from '../executor/executor-settings.ts';

export interface DeviceBudgetOptions {
  readonly backend: InferenceBackend;
  readonly model: StoredModel;
  /** Longest row, tokens. */
  readonly maxTokens: number;
  readonly settings: Pick<ExecutorSettings, 'limits' | 'threads' | 'cacheDir'> & {
    readonly learned?: LearnedBudget | undefined;
  };
  readonly clock: Clock;
  readonly log: Logger;
}

export interface DeviceBudget {
  readonly budget: Budget;
  /** Everything the executor says, so that nothing is measured before its first batch. */
  hear(message: FromExecutor): void;
  stop(): void;
}

/** Makes the budget of a backend whose memory is known in one way; `common` holds in every one. */
export type MakeBudget<Kind extends MemoryPlan['kind']> = (
  options: DeviceBudgetOptions,
  plan: MemoryPlanOf<Kind>,
  common: BudgetOptions,
) => Promise<DeviceBudget>;

/** A budget that nobody tells anything: it grows by trial, and shrinks when the device runs out of memory. */
export function untold(budget: Budget): DeviceBudget {
  return { budget, hear: () => undefined, stop: () => undefined };
}

const READ_MEMORY_EVERY_MS = 5_000;

/** Reads now and then until it is cancelled; what a budget is told of its device is told here. */
export function readMemoryOften(clock: Clock, read: () => Promise<void>): () => void {
  let cancel = clock.after(READ_MEMORY_EVERY_MS, again);
  function again(): void {
    void read();
    cancel = clock.after(READ_MEMORY_EVERY_MS, again);
  }
  return () => cancel();
}
