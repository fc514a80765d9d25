// Budgets that were tried on a device, and the choice among them. Pure.

import { median } from '@shoal/core/base';

export interface TriedBudget {
  readonly maxPaddedTokens: number;
  /** Runs side by side, where that was tried as well. */
  readonly lanes?: number;
  readonly textsPerSecond: number;
}

/** The first within this share of the best: fewer lanes hold less, a smaller budget waits less and holds less. */
const GOOD_ENOUGH = 0.98;

/** The first of budgets in order that is nearly as good as the best. */
export function pick(tried: readonly TriedBudget[]): TriedBudget {
  const best = bestOf(tried);
  return tried.find(({ textsPerSecond }) => textsPerSecond >= GOOD_ENOUGH * best.textsPerSecond)!;
}

export function bestOf(tried: readonly TriedBudget[]): TriedBudget {
  return tried.reduce((most, other) => (other.textsPerSecond > most.textsPerSecond ? other : most));
}

/**
 * All that was tried, in order. The machine may have been faster or slower in the first pass: its rates are told on the
 * scale of the later rounds.
 */
export function together(coarse: readonly TriedBudget[], fine: readonly TriedBudget[]): readonly TriedBudget[] {
  const again = new Map(fine.map((budget) => [nameOf(budget), budget.textsPerSecond]));
  const ratios = coarse.flatMap((budget) =>
    again.has(nameOf(budget)) ? [again.get(nameOf(budget))! / budget.textsPerSecond] : [],
  );
  const scale = ratios.length === 0 ? 1 : median(ratios);
  const once = coarse
    .filter((budget) => !again.has(nameOf(budget)))
    .map((budget) => ({ ...budget, textsPerSecond: budget.textsPerSecond * scale }));
  return inOrder([...once, ...fine]);
}

/** Few lanes first, then small budgets. */
export function inOrder<Budget extends Pick<TriedBudget, 'lanes' | 'maxPaddedTokens'>>(
  budgets: readonly Budget[],
): readonly Budget[] {
  return budgets.toSorted((a, b) => (a.lanes ?? 1) - (b.lanes ?? 1) || a.maxPaddedTokens - b.maxPaddedTokens);
}

function nameOf({ lanes = 1, maxPaddedTokens }: TriedBudget): string {
  return `${lanes}:${maxPaddedTokens}`;
}
