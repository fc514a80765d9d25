// Whoever kills executors is found, by any fate of theirs: exactly the culprits are convicted, in few deaths, and a
// device that dies of itself convicts nobody for it.

import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { Suspects, isConvictedByStalls } from './suspects.ts';

/**
 * An executor with up to two runs of `size` jobs at the device, the first of which goes on; it dies of the deadly.
 * Returns who was convicted and how many died for it.
 */
function runAll(
  jobIds: readonly string[],
  deadly: ReadonlySet<string>,
  size: number,
): { convicted: string[]; ended: string[]; deaths: number } {
  const suspects = new Suspects();
  const open = new Set(jobIds);
  const convicted: string[] = [];
  const ended: string[] = [];
  let deaths = 0;
  let runs = 0;
  const forget = (jobId: string): void => {
    open.delete(jobId);
    suspects.forget(jobId);
  };
  while (open.size > 0) {
    const allowed = suspects.isIsolating ? [...suspects.group] : [...open];
    const first = allowed.slice(0, size);
    const second = allowed.slice(size, 2 * size);
    suspects.began(++runs, first);
    if (second.length > 0) suspects.began(runs + 1, second);
    if (first.some((jobId) => deadly.has(jobId))) {
      deaths++;
      for (const jobId of suspects.executorDied()) {
        convicted.push(jobId);
        forget(jobId);
      }
    } else {
      suspects.ended(runs);
      first.forEach(forget);
      ended.push(...first);
      if (second.length > 0) suspects.ended(runs + 1);
    }
    if (second.length > 0) runs++;
    expect(runs, 'it ends').toBeLessThan(20_000);
  }
  return { convicted, ended, deaths };
}

const named = (count: number): string[] => Array.from({ length: count }, (_, i) => `job-${i}`);

describe('suspects', () => {
  test('exactly the culprits are convicted, whatever their number, the sizes of runs and the order', () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 1, max: 120 }),
        fc.integer({ min: 1, max: 64 }),
        fc.array(fc.nat(119), { maxLength: 6 }),
        (count, size, culprits) => {
          const jobIds = named(count);
          const deadly = new Set(culprits.filter((at) => at < count).map((at) => `job-${at}`));
          const { convicted, ended, deaths } = runAll(jobIds, deadly, size);
          expect(convicted.toSorted()).toEqual([...deadly].toSorted());
          expect(ended.toSorted()).toEqual(jobIds.filter((jobId) => !deadly.has(jobId)).toSorted());
          expect(deaths).toBeLessThanOrEqual(deadly.size * (3 + Math.ceil(Math.log2(Math.max(2, size)))));
        },
      ),
      { numRuns: 1_000 },
    );
  });

  test('two culprits among 200 in runs of 64 cost no more than 18 deaths', () => {
    const { convicted, deaths } = runAll(named(200), new Set(['job-10', 'job-150']), 64);
    expect(convicted.toSorted()).toEqual(['job-10', 'job-150']);
    expect(deaths).toBeLessThanOrEqual(18);
  });

  test('one death alone convicts nobody: the device may have had its own reasons', () => {
    const suspects = new Suspects();
    suspects.began(1, ['a']);
    expect(suspects.executorDied()).toEqual([]);
    expect(suspects.group).toEqual(['a']);
    suspects.forget('a');
    expect(suspects.isIsolating).toBe(false);
    suspects.began(2, ['a']);
    expect(suspects.executorDied()).toEqual([]); // what it did under an earlier claim that ended well is forgotten
    suspects.began(3, ['a']);
    expect(suspects.executorDied()).toEqual(['a']);
  });

  test('a death while nothing is at the device makes no suspects, and leaves those there are as they were', () => {
    const suspects = new Suspects();
    expect(suspects.executorDied()).toEqual([]);
    expect(suspects.isIsolating).toBe(false);
    suspects.began(1, ['a', 'b']);
    suspects.executorDied();
    suspects.executorDied();
    expect(suspects.all()).toEqual(['a', 'b']);
    expect(suspects.group).toEqual(['a']);
  });

  test('groups of jobs that stalled shrink with the number of stalls', () => {
    const suspects = new Suspects();
    const jobs = [0, 1, 2, 3, 4, 5, 6].flatMap((stalls) =>
      Array.from({ length: 70 }, (_, i) => ({ jobId: `${stalls}-${i}`, stalls })),
    );
    expect(suspects.claimed(jobs.slice(0, 140))).toBe(false);
    expect(suspects.claimed(jobs)).toBe(true);
    const sizes = new Map<string, number[]>();
    while (suspects.isIsolating) {
      const { group } = suspects;
      const stalls = group[0]!.slice(0, 1);
      sizes.set(stalls, [...(sizes.get(stalls) ?? []), group.length]);
      for (const jobId of group) suspects.forget(jobId);
    }
    expect([...sizes.keys()]).toEqual(['2', '3', '4', '5', '6']);
    expect(sizes.get('2')).toEqual([64, 6]);
    expect(sizes.get('3')).toEqual([16, 16, 16, 16, 6]);
    expect(Math.max(...sizes.get('4')!)).toBe(4);
    expect([...sizes.get('5')!, ...sizes.get('6')!].every((size) => size === 1)).toBe(true);
    expect(isConvictedByStalls(7)).toBe(false);
    expect(isConvictedByStalls(8)).toBe(true);
  });
});
