// A budget that learns nothing: so many padded tokens and so many rows, whatever happens. For tests, and for devices
// without memory of their own to run out of. The one that learns is in budget.ts.

import type { BatchBudget } from '../ports/device.ts';

export interface FixedLimits {
  readonly maxPaddedTokens: number;
  readonly maxRows: number;
}

export function fixedBudget({ maxPaddedTokens, maxRows }: FixedLimits): BatchBudget {
  return {
    rowsAt: (width) => Math.max(1, Math.min(maxRows, Math.floor(maxPaddedTokens / width))),
    current: () => ({ maxPaddedTokens, limitedBy: 'setting', source: 'none' }),
    ran: () => undefined,
    ranOutOfMemory: () => undefined,
    interactiveWaits: () => undefined,
    peakBytes: () => undefined,
    predictMs: () => undefined,
  };
}
