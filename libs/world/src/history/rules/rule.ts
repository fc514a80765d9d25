// What a rule is, and what it says of a history that breaks it.

import type { Call } from '../calls.ts';
import type { HistoryEvent } from '../event.ts';
import type { IdHistory } from '../id-history.ts';

export interface Rule {
  readonly name: string;
  /** What the product promises, in a sentence for docs/simulation.md. */
  readonly promise: string;
  /** Each breach as the calls that show it, with what is wrong in words. */
  check(history: IdHistory): readonly Breach[];
}

export interface Breach {
  readonly what: string;
  readonly calls: readonly Call[];
}

export interface Violation {
  readonly rule: string;
  /** Empty where it is about no job. */
  readonly id: string;
  readonly what: string;
  readonly events: readonly HistoryEvent[];
}

/** All pairs of which the first certainly ended before the second began. */
export function successions(earlier: readonly Call[], later: readonly Call[]): [Call, Call][] {
  return earlier.flatMap((a) => later.filter((b) => a !== b && a.to < b.from).map((b): [Call, Call] => [a, b]));
}
