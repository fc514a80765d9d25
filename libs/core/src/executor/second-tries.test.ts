// What runs once more, in which order, and when it is not the rows any more.

import { describe, expect, test } from 'vitest';
import { openJob, rowsOf, type OpenJob, type Row } from './open-job.ts';
import { batchOf } from './pool.ts';
import { SecondTries, type Attempt } from './second-tries.ts';
import { orderOf } from '../testing/executor-bench.ts';

const state = { maxPaddedTokens: 1_000, limitedBy: 'setting', source: 'none', isTesting: true } as const;

function setup({ isTesting = true, most = 100 } = {}) {
  const failures: { readonly siblingWaits: boolean }[] = [];
  const limits = { most };
  const tries = new SecondTries(
    { current: () => ({ ...state, isTesting }), ranOutOfMemory: (_, half) => void failures.push(half!) },
    () => limits.most,
  );
  return { tries, failures, limits };
}

/** A job of rows that are each so long, all of them at the device. */
function jobOf(lengths: readonly number[], isInteractive = false): { job: OpenJob; rows: Row[] } {
  const ids = lengths.map((length) => new Uint16Array(length));
  const filled = { kind: 'rows', fingerprint: 'f', ids, truncated: 0, input: undefined } as const;
  const job = openJob(orderOf('job', []), filled, 0, new Float32Array(0));
  job.waiting = 0;
  return { job, rows: rowsOf(job, filled, { enteredMs: 0, isInteractive }) };
}

const attemptOf = (rows: readonly Row[], more: Partial<Attempt> = {}): Attempt => ({
  batch: batchOf(rows),
  isExact: false,
  ...more,
});
const lengthsOf = (attempt: Attempt | undefined): number[] | undefined =>
  attempt?.batch.rows.map(({ tokens }) => tokens);

describe('a batch that was too much', () => {
  test('is halved by its tokens, and its halves go one right after the other, the wide one first', () => {
    const { tries } = setup();
    const { job, rows } = jobOf([80, 40, 40, 8]);
    expect(tries.split(attemptOf(rows), 1)).toBe(true);
    expect([tries.size, job.splits, job.waiting]).toEqual([2, 1, 4]);
    const wide = tries.take(false)!;
    expect(lengthsOf(wide)).toEqual([80]);
    expect(tries.split(wide, 2)).toBe(false);
    expect(lengthsOf(tries.take(false))).toEqual([40, 40, 8]);
    expect(tries.take(false)).toBeUndefined();
  });

  test('is put behind its sibling when it is halved again', () => {
    const { tries } = setup();
    tries.split(attemptOf(jobOf([80, 80, 80, 80]).rows), 1);
    tries.split(tries.take(false)!, 2);
    expect([tries.take(false), tries.take(false), tries.take(false)].map((attempt) => attempt?.halfOf)).toEqual([
      1, 2, 2,
    ]);
  });

  test('is halved before it runs when the budget has shrunk below it, and sooner in fp32', () => {
    const { tries, limits } = setup({ most: 4 });
    tries.add(attemptOf(jobOf([8, 8, 8, 8]).rows));
    limits.most = 2;
    expect(lengthsOf(tries.take(false))).toEqual([8, 8]);
    limits.most = 4;
    tries.take(false);
    tries.addExact(jobOf([8, 8, 8, 8]).rows);
    expect(tries.take(false)).toMatchObject({ isExact: true, batch: { rows: { length: 2 } } });
  });
});

test('interactive rows are taken first where they are asked for', () => {
  const { tries } = setup();
  tries.add(attemptOf(jobOf([16], true).rows));
  tries.add(attemptOf(jobOf([8]).rows));
  expect(tries.hasInteractive).toBe(true);
  expect(lengthsOf(tries.take(true))).toEqual([16]);
  expect(tries.take(true)).toBeUndefined();
  expect(lengthsOf(tries.take(false))).toEqual([8]);
});

test('rows that nobody waits for are forgotten', () => {
  const { tries } = setup();
  const [kept, dropped] = [jobOf([8]), jobOf([16])];
  tries.add(attemptOf([...kept.rows, ...dropped.rows]));
  dropped.job.isDropped = true;
  tries.forgetUnwanted();
  expect(lengthsOf(tries.take(false))).toEqual([8]);
  tries.add(attemptOf(dropped.rows));
  expect(tries.size).toBe(0);
});

describe('running out of memory', () => {
  const lone = { rows: 1, width: 8 };
  const message = 'no memory';
  const [row] = jobOf([8]).rows;

  test.for<[string, { isTesting?: boolean }, readonly ('fails' | 'ran')[], string | undefined]>([
    ['one row that fails alone is the row', {}, ['fails'], undefined],
    ['two in a row are not', {}, ['fails', 'fails'], '2 rows in a row did not fit alone: no memory'],
    ['unless something ran between them', {}, ['fails', 'ran', 'fails'], undefined],
    ['or the rows are known to be to blame', { isTesting: false }, ['fails', 'fails'], undefined],
  ])('%s', ([, given, events, reason]) => {
    const { tries } = setup(given);
    let said: string | undefined;
    for (const event of events)
      if (event === 'ran') tries.ranWell();
      else said = tries.ranOut(attemptOf([row!]), lone, { message });
    expect(said).toBe(reason);
  });

  test('is the process at once where a library cannot allocate', () => {
    expect(setup().tries.ranOut(attemptOf([row!]), { rows: 4, width: 8 }, { message, needsRecycle: true })).toBe(
      message,
    );
  });

  test('is told to the budget with whether the other half waits; runs in fp32 say nothing about it', () => {
    const { tries, failures } = setup();
    tries.split(attemptOf(jobOf([8, 8]).rows), 1);
    tries.ranOut(tries.take(false)!, lone, { message });
    tries.ranOut(tries.take(false)!, lone, { message });
    tries.ranOut(attemptOf([row!], { isExact: true }), lone, { message });
    expect(failures).toEqual([{ siblingWaits: true }, { siblingWaits: false }]);
  });
});
