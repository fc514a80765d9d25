// Plans that failed once and must not again, each a line of kept-plans.jsonl with its cause. A plan and not a seed is
// kept: what a seed means changes with every change of plan.ts.

import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Plan } from './plan.ts';

/** The file; `npm run simulate -- --seed X --keep CAUSE` adds to it. */
export const KEPT_PLANS = fileURLToPath(new URL('./kept-plans.jsonl', import.meta.url));

export interface KeptPlan {
  /** What was wrong. */
  readonly cause: string;
  /** Where it was found. */
  readonly commit: string;
  readonly plan: Plan;
}

export function keptPlans(): KeptPlan[] {
  return readFileSync(KEPT_PLANS, 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as KeptPlan);
}
