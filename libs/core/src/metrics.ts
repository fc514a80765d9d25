// Where nobody counts: tests and tools. The worker's real counters are in libs/ops.

import type { Metrics } from './ports.ts';

export const noMetrics: Metrics = {
  jobClaimed: () => undefined,
  inFlight: () => undefined,
  jobSettled: () => undefined,
  microBatchRan: () => undefined,
  microBatchSplit: () => undefined,
  rowsRerun: () => undefined,
  budgetChanged: () => undefined,
  memoryMeasured: () => undefined,
  similarityTold: () => undefined,
  executorRecycled: () => undefined,
  leaseLost: () => undefined,
  claimingBraked: () => undefined,
  handedOverWaiting: () => undefined,
  laneChosen: () => undefined,
  janitorSwept: () => undefined,
  executorReady: () => undefined,
  executorLost: () => undefined,
};
