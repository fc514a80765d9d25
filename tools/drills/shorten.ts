// The rules of infra/prometheus in less time: every `for` and every window is divided by one number, and nothing else
// is changed, so that a drill raises what the real rules would raise.

import { stringify } from 'yaml';
import type { RuleGroup } from '../watch/rules-file.ts';

const MS: Readonly<Record<string, number>> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };
/** Prometheus scrapes a drill every four seconds; a rate needs two samples, and some room. */
const LEAST_WINDOW_MS = 15_000;
/** Half a minute is two scrapes in the real rules: one that went wrong is nothing, here neither. */
export const LEAST_FOR_MS = 9_000;

/** The text of a rule file with the same groups, `by` times as fast. */
export function shortenedRules(groups: readonly RuleGroup[], by: number): string {
  return stringify({
    groups: groups.map(({ name, rules }) => ({
      name,
      rules: rules.map((rule) => ({
        ...rule,
        expr: rule.expr.replaceAll(/\[(\w+)\]/g, (_, window: string) => `[${divided(window, by, LEAST_WINDOW_MS)}]`),
        ...('for' in rule && rule.for !== undefined ? { for: divided(rule.for, by, LEAST_FOR_MS) } : {}),
      })),
    })),
  });
}

/** "15m" ÷ 30 is "30000ms". */
export function divided(duration: string, by: number, leastMs: number): string {
  return `${Math.max(leastMs, Math.round(milliseconds(duration) / by))}ms`;
}

/** "1h30m" as Prometheus writes it, in ms. Throws for anything else. */
export function milliseconds(duration: string): number {
  const parts = [...duration.matchAll(/(\d+)(ms|s|m|h|d)/g)];
  if (parts.map(([part]) => part).join('') !== duration || duration === '')
    throw new Error(`${duration} is no duration of Prometheus`);
  return parts.reduce((sum, [, count, unit = '']) => sum + Number(count) * (MS[unit] ?? Number.NaN), 0);
}
