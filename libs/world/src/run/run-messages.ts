// What a process that runs seeds is asked, and what it answers: one answer to each question, in order.

import type { Plan } from './plan.ts';
import type { Shrunk } from './shrink.ts';
import type { RunReport } from './simulate.ts';

/** Names the planted fault of a run process; empty or left out: none. */
export const PLANT_VARIABLE = 'SHOAL_SIMULATE_PLANT';

export type ToRunProcess =
  | { readonly kind: 'seeds'; readonly seeds: readonly string[] }
  | { readonly kind: 'plan'; readonly plan: Plan; readonly isTraced: boolean }
  /** Of a plan that fails. */
  | { readonly kind: 'shrink'; readonly plan: Plan };

export type FromRunProcess =
  | { readonly kind: 'ready' }
  | {
      readonly kind: 'ran';
      readonly runs: number;
      readonly steps: number;
      readonly virtualMs: number;
      /** Of all traces, 16 hex digits; see digest.ts. */
      readonly digest: string;
      readonly failed: readonly RunReport[];
    }
  /** `lines`: the trace, where it was asked for. */
  | { readonly kind: 'report'; readonly report: RunReport; readonly lines: readonly string[] }
  | { readonly kind: 'shrunk'; readonly shrunk: Shrunk };
