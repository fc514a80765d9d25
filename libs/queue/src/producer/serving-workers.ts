// What live workers of a queue tell of themselves, for those who ask before they add jobs, and for who looks at a fleet.

import { MAX_ROWS_PER_JOB, ROWS_EVERY_WORKER_TAKES, isWithin } from '@shoal/contract';
import type { ServingWorker } from './job-producer.ts';

/** Those that claim: one that is drained takes nothing. */
export function claimingOf<Worker extends ServingWorker>(workers: readonly Worker[] | undefined): readonly Worker[] {
  return (workers ?? []).filter(({ facts }) => facts?.isDrained !== true);
}

/** Rows of a job that each of those that claim takes; where nobody claims, what every worker does. */
export function mostJobRows(workers: readonly ServingWorker[] | undefined): number {
  const taken = claimingOf(workers).map(({ facts }) => Number(facts?.maxJobRows) || ROWS_EVERY_WORKER_TAKES);
  return taken.length === 0 ? ROWS_EVERY_WORKER_TAKES : Math.min(MAX_ROWS_PER_JOB, ...taken);
}

/** Ids of those that claim and do not have this set of payload servers; undefined where nobody claims. */
export function notSharing(workers: readonly ServingWorker[] | undefined, payloads: string): string[] | undefined {
  const claiming = claimingOf(workers);
  if (claiming.length === 0) return undefined;
  return claiming.filter(({ facts }) => facts?.payloads !== payloads).map(({ workerId }) => workerId);
}

export interface LackingWorker {
  readonly workerId: string;
  readonly folders: readonly string[];
  /** Places that lie in none of its folders, each by its first name. */
  readonly lacks: readonly string[];
}

/**
 * Those that claim and have told folders of parts (`partFolders`) in which one of these places is not. A place has
 * several names where links lead to it. One that tells no folders may have all of them.
 */
export function lackingPlaces(
  workers: readonly ServingWorker[] | undefined,
  places: readonly (readonly string[])[],
): readonly LackingWorker[] {
  return claimingOf(workers).flatMap(({ workerId, facts }) => {
    const told: unknown = facts?.partFolders;
    if (!Array.isArray(told)) return [];
    const folders = told.map(String);
    const lacks = places.flatMap((names) => (names.some((name) => isWithin(name, folders)) ? [] : [names[0]!]));
    return lacks.length === 0 ? [] : [{ workerId, folders, lacks }];
  });
}
