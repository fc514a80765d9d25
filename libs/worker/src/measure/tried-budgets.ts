// Budgets that were tried on a device, and the choice among them. Pure.

import { median } from '@shoal/core/base';

export interface TriedBudget {
  readonly maxPaddedTokens: number;
  /** Runs side by side, where that was tried as well. */
  readonly lanes?: number;
  readonly textsPerSecond: number;
  /** How far its rounds lay apart, as a share of their median. Undefined: too few rounds to know. */
  readonly spread?: number;
}

/** Fewer rounds do not show how far they lie apart. */
const LEAST_ROUNDS = 3;

/** A budget by the texts per second of each of its rounds. */
export function ofRounds(
  budget: Omit<TriedBudget, 'textsPerSecond' | 'spread'>,
  rates: readonly number[],
): TriedBudget {
  const textsPerSecond = median(rates);
  if (rates.length < LEAST_ROUNDS) return { ...budget, textsPerSecond };
  return { ...budget, textsPerSecond, spread: (Math.max(...rates) - Math.min(...rates)) / textsPerSecond };
}

export interface Choice {
  readonly chosen: TriedBudget;
  /** False: what was found lies within what the rounds differ by anyhow, and nothing of it is to be kept. */
  readonly isCertain: boolean;
}

/**
 * What to keep. It has to beat the preset by more than the rounds of either lay apart: on a busy machine the first
 * budget of equal ones would be kept for every later worker. Without a preset there is nothing better than the best.
 */
export function choose(tried: readonly TriedBudget[], presetTokens: number | undefined): Choice {
  const best = pick(tried);
  const presets = tried.filter(({ maxPaddedTokens }) => maxPaddedTokens === presetTokens);
  if (presets.length === 0) return { chosen: best, isCertain: true };
  const preset = bestOf(presets);
  return beats(best, preset) ? { chosen: best, isCertain: true } : { chosen: preset, isCertain: false };
}

/** By more than the rounds of either lay apart; the preset itself beats itself. */
export function beats(best: TriedBudget, preset: TriedBudget): boolean {
  const noise = Math.max(best.spread ?? Infinity, preset.spread ?? 0);
  return best === preset || best.textsPerSecond > preset.textsPerSecond * (1 + noise);
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
