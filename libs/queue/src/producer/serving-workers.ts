// What live workers of a queue tell of themselves, for those who ask before they add jobs, and for who looks at a fleet.

import type { ServingWorker } from './job-producer.ts';

/** Those that claim: one that is drained takes nothing. */
export function claimingOf(workers: readonly ServingWorker[] | undefined): readonly ServingWorker[] {
  return (workers ?? []).filter(({ facts }) => facts?.isDrained !== true);
}

/** Ids of those that claim and do not have this set of payload servers; undefined where nobody claims. */
export function notSharing(workers: readonly ServingWorker[] | undefined, payloads: string): string[] | undefined {
  const claiming = claimingOf(workers);
  if (claiming.length === 0) return undefined;
  return claiming.filter(({ facts }) => facts?.payloads !== payloads).map(({ workerId }) => workerId);
}
