// Settings of files, batches and jobs that tests have in common.

import type { BatchSettings } from '../batches/batches.ts';

/** Small limits, looked through often, in a folder. */
export function batchSettings(place: string, change: Partial<BatchSettings> = {}): BatchSettings {
  return {
    place,
    maxFileBytes: 1 << 20,
    maxLines: 5_000,
    maxOpenBatches: 4,
    maxOpenJobs: 4,
    retentionDays: 30,
    jobsInFlight: 16,
    partLines: 0,
    webhooks: { secret: undefined, allowsPrivate: true },
    lookMs: 100,
    ...change,
  };
}
