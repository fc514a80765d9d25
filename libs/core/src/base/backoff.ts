// How long to wait before something that failed is tried again: twice as long after each failure, up to a limit. Knows
// neither clocks nor what is tried.

export interface Backoff {
  /** The wait after the first failure. */
  readonly firstMs: number;
  /** No wait is longer. */
  readonly mostMs: number;
}

/** More doublings than any limit here needs; without an end to them, long outages would overflow. */
const MOST_DOUBLINGS = 30;

/** The wait in ms before the next attempt, after `failures` failed ones before the one that failed just now. */
export function backoffMs(failures: number, { firstMs, mostMs }: Backoff): number {
  return Math.min(firstMs * 2 ** Math.min(failures, MOST_DOUBLINGS), mostMs);
}
