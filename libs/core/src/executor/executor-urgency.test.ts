// In which order and how soon things run: interactive rows before bulk ones, a window that follows the run time,
// deadlines, and equal rows that share a run.

import { describe, expect, test } from 'vitest';
import { fixedBudget } from '../budget/fixed-budget.ts';
import type { JobOrder } from '../protocol.ts';
import type { BatchBudget } from '../ports/device.ts';
import { NOTHING, expectedVectors, orderOf, setup, textOf } from '../testing/executor-bench.ts';
import { settled } from '../testing/index.ts';

/** A bulk job that is a full micro-batch of 16 rows, 256 padded tokens. */
function fullBatch(jobId: string) {
  return orderOf(
    jobId,
    Array.from({ length: 16 }, (_, i) => textOf(16, `${jobId}r${i}`)),
  );
}

function urgent(jobId: string, tenant: string): JobOrder {
  return { ...fullBatch(jobId), class: 'interactive', tenant };
}

function question(jobId: string, tokens = 8) {
  return orderOf(jobId, [textOf(tokens, jobId)], { class: 'interactive' });
}

/** A budget that has learned that a run takes 2 ms and 0.1 ms a token. */
function learnedBudget(): BatchBudget {
  return {
    ...fixedBudget({ maxPaddedTokens: 256, maxRows: 16 }),
    predictMs: ({ rows, width }) => 2 + rows * width * 0.1,
  };
}

function slowBudget(): BatchBudget {
  return { ...fixedCostBudget(), predictMs: () => 100 };
}

/** Of a device whose runs take 10 ms, whatever is in them. */
function fixedCostBudget(): BatchBudget {
  return { ...fixedBudget({ maxPaddedTokens: 256, maxRows: 16 }), predictMs: () => 10 };
}

/**
 * When micro-batches began on three sessions of 10 ms while a job of one row came every so often, without those before
 * the rate was known.
 */
async function beginnings(everyMs: number): Promise<number[]> {
  const bench = setup({ newBudget: fixedCostBudget, backend: { sessions: 3, slots: 6, runMs: () => 10 } });
  const beganMs: number[] = [];
  const count = Math.ceil(600 / everyMs);
  for (let made = 0; made < count; made++) {
    bench.run([orderOf(`j${made}`, [textOf(8, made)])]);
    for (let step = 0; step < 10; step++) {
      await settled();
      while (beganMs.length < bench.said('began').length) beganMs.push(bench.clock.nowMs());
      await bench.clock.advance(everyMs / 10);
    }
  }
  await bench.untilOutcomes(count);
  expect(await bench.leftovers()).toEqual(NOTHING);
  return beganMs.filter((ms) => ms > 300);
}

describe('interactive rows', () => {
  test('run next, whatever is queued at the device: slots are kept back for them', async () => {
    const bench = setup({ backend: { slots: 6 } });
    bench.run(['a', 'b', 'c', 'd', 'e'].map(fullBatch), false);
    await bench.clock.advance(1); // a runs, b and c are queued
    bench.run([question('q')], false);
    await bench.untilOutcomes(6);
    expect(bench.backend.runs.map(({ rows, isUrgent }) => [rows, isUrgent])).toEqual([
      [16, false],
      [1, true],
      [16, false],
      [16, false],
      [16, false],
      [16, false],
    ]);
    expect(await bench.leftovers()).toEqual(NOTHING);
  });

  test('that come while others are queued at the device run behind those, before every bulk row', async () => {
    const bench = setup({ backend: { slots: 6 } });
    bench.run(['a', 'b', 'c', 'd'].map(fullBatch), false);
    await bench.clock.advance(1); // a runs, b and c are queued
    bench.run([question('q')], false);
    await settled();
    bench.run([question('r')], false);
    await settled();
    expect(bench.said('began').map(({ jobIds }) => jobIds)).toEqual([['a'], ['b'], ['c'], ['q'], ['r']]);
    await bench.untilOutcomes(6);
    expect(bench.backend.runs.map(({ rows, isUrgent }) => [rows, isUrgent])).toEqual([
      [16, false],
      [1, true],
      [1, true],
      [16, false],
      [16, false],
      [16, false],
    ]);
    expect(await bench.leftovers()).toEqual(NOTHING);
  });

  test(
    'gather, where a run takes the same whatever its size, until the one that goes on is nearly over, and while ' +
      'others are queued',
    async () => {
      const bench = setup({ newBudget: fixedCostBudget, backend: { slots: 6, runMs: () => 10 } });
      bench.run(['a', 'b', 'c', 'd'].map(fullBatch), false);
      await bench.clock.advance(1); // a runs, b and c are queued
      for (const jobId of ['q', 'r', 's']) {
        bench.run([question(jobId)], false);
        await bench.clock.advance(1);
      }
      expect(bench.said('began').map(({ jobIds }) => jobIds)).toEqual([['a'], ['b'], ['c']]);
      await bench.clock.advance(2); // six of ten milliseconds of a are over
      expect(bench.said('began').at(-1)?.jobIds).toEqual(expect.arrayContaining(['q', 'r', 's']));
      bench.run([question('t')], false);
      await bench.clock.advance(2);
      bench.run([question('u')], false);
      await bench.clock.advance(7); // q runs since two milliseconds after u came
      expect(bench.said('began')).toHaveLength(4);
      await bench.clock.advance(1);
      expect(bench.said('began').at(-1)?.jobIds).toEqual(expect.arrayContaining(['t', 'u']));
      await bench.untilOutcomes(9);
      expect(bench.backend.runs.map(({ isUrgent }) => isUrgent).slice(0, 3)).toEqual([false, true, true]);
      expect(await bench.leftovers()).toEqual(NOTHING);
    },
  );

  test('gather no longer than the run that goes on, when that ends sooner than was foreseen', async () => {
    const bench = setup({
      newBudget: () => ({ ...fixedCostBudget(), predictMs: () => 25 }),
      backend: { slots: 6, runMs: () => 10 },
    });
    bench.run(['a', 'b', 'c', 'd'].map(fullBatch), false);
    await bench.clock.advance(3); // a runs, b is queued
    bench.run([question('q')], false);
    await bench.untilOutcomes(5);
    expect(bench.backend.runs.map(({ isUrgent }) => isUrgent)).toEqual([false, false, true, false, false]);
  });

  test('run at once, without a window, and without bulk rows beside them', async () => {
    const bench = setup();
    bench.run([orderOf('bulk', [textOf(8, 1)])], false);
    bench.run([question('q')], false);
    await bench.clock.advance(5);
    expect(bench.backend.runs.map(({ rows, isUrgent }) => [rows, isUrgent])).toEqual([[1, true]]);
  });

  test('while one is at the device only one bulk micro-batch is queued behind it', async () => {
    const bench = setup({ backend: { slots: 6 }, limits: { minRows: 1 } });
    bench.run([question('q')], false);
    await settled();
    bench.run(['a', 'b', 'c', 'd'].map(fullBatch), false);
    await settled();
    expect(bench.said('began').map(({ jobIds }) => jobIds)).toEqual([['q'], ['a']]);
    await bench.clock.advance(2); // q has run
    expect(bench.said('began').map(({ jobIds }) => jobIds)).toEqual([['q'], ['a'], ['b'], ['c']]);
  });

  test('the budget hears that somebody waits, once, and that nobody does any more', async () => {
    const heard: boolean[] = [];
    const bench = setup({
      newBudget: () => ({
        ...fixedBudget({ maxPaddedTokens: 256, maxRows: 16 }),
        interactiveWaits: (isWaiting) => void heard.push(isWaiting),
      }),
    });
    bench.run([fullBatch('a')], false);
    bench.run([question('q'), question('r', 40)], false);
    await bench.untilOutcomes(3);
    expect(heard).toEqual([true, false]);
  });

  test('stay urgent when their micro-batch is split', async () => {
    const bench = setup({
      backend: { slots: 2 },
      prepare: (backend) =>
        backend.runsOutOfVramWhen(({ rows, isUrgent }) => (isUrgent && rows > 1 ? 'too-large' : 'fits')),
    });
    bench.run([orderOf('q', [textOf(8, 1), textOf(8, 2)], { class: 'interactive' })], false);
    await settled();
    bench.run([fullBatch('a'), fullBatch('b')], false);
    await bench.untilOutcomes(3);
    expect(bench.backend.runs.map(({ rows, isUrgent }) => [rows, isUrgent])).toEqual([
      [2, true],
      [16, false],
      [1, true],
      [1, true],
      [16, false],
    ]);
  });
});

describe('bulk rows', () => {
  test(
    'are cut when the device has 20 ms and a tenth of the run left, so that who comes meanwhile is not behind ' +
      'what is queued',
    async () => {
      const bench = setup({ newBudget: slowBudget, backend: { slots: 6, runMs: () => 100 } });
      bench.run(['a', 'b', 'c'].map(fullBatch), false);
      await bench.clock.advance(69);
      expect(bench.said('began').map(({ jobIds }) => jobIds)).toEqual([['a']]);
      await bench.clock.advance(1);
      expect(bench.said('began').map(({ jobIds }) => jobIds)).toEqual([['a'], ['b']]);
      expect(await bench.leftovers()).toEqual(NOTHING);
    },
  );

  test('are cut sooner after the device stood still, because a run was over before it was foreseen', async () => {
    const bench = setup({ newBudget: slowBudget, backend: { slots: 6, runMs: () => 60 } });
    bench.run(['a', 'b', 'c', 'd'].map(fullBatch), false);
    await bench.clock.advance(60); // a is over, and nothing was queued: b begins
    expect(bench.said('began')).toHaveLength(2);
    await bench.clock.advance(51); // 100 ms less a tenth less 40 ms
    expect(bench.said('began').map(({ jobIds }) => jobIds)).toEqual([['a'], ['b'], ['c']]);
    expect(await bench.leftovers()).toEqual(NOTHING);
  });

  test('of a tenant that asked for little run before those of another that were claimed earlier', async () => {
    const bench = setup({
      newBudget: slowBudget,
      limits: { maxRowAgeMs: 1e9 },
      backend: { slots: 6, runMs: () => 100 },
    });
    // 512 use up its own lead
    const much = Array.from({ length: 540 }, (_, i) => ({ ...fullBatch(`much-${i}`), tenant: 'A' }));
    bench.run(much, false);
    await bench.untilOutcomes(520);
    bench.run([{ ...fullBatch('little'), tenant: 'B' }], false);
    await bench.untilOutcomes(522);
    expect(bench.outcomes().at(-1)?.jobId).toBe('little');
    await bench.untilOutcomes(541);
    expect(await bench.leftovers()).toEqual(NOTHING);
  });
});

test('interactive rows of a tenant that asked for little run before those of another that were claimed earlier', async () => {
  const bench = setup({
    newBudget: slowBudget,
    limits: { maxRowAgeMs: 1e9 },
    backend: { slots: 6, runMs: () => 100 },
  });
  bench.run(
    Array.from({ length: 540 }, (_, i) => urgent(`much-${i}`, 'A')),
    false,
  );
  await bench.untilOutcomes(520);
  bench.run([urgent('little', 'B')], false);
  await bench.untilOutcomes(541);
  // what is at the device goes first
  expect(bench.outcomes().findIndex(({ jobId }) => jobId === 'little')).toBeLessThan(528);
  expect(await bench.leftovers()).toEqual(NOTHING);
});

describe('sessions side by side, where a run takes 10 ms whatever its size,', () => {
  test('begin evenly, so that nobody waits for three that end at once', async () => {
    const beganMs = await beginnings(0.5);
    const gaps = beganMs.slice(1).map((ms, i) => ms - beganMs[i]!);
    expect(gaps.length).toBeGreaterThan(80);
    // a third of a run and a little; 9 where each begins as soon as it can
    expect(Math.max(...gaps)).toBeLessThanOrEqual(4.5);
  });

  test('begin at once as long as no more rows are expected than there are sessions for', async () => {
    const beganMs = await beginnings(8);
    expect(beganMs.map((ms) => Math.round(ms) % 8)).toEqual(beganMs.map(() => 0));
  });
});

describe('the window', () => {
  test('is no longer than the run would take', async () => {
    const bench = setup({ newBudget: learnedBudget });
    bench.run(
      [
        orderOf(
          'a',
          Array.from({ length: 4 }, (_, i) => textOf(5, i)),
        ),
      ],
      false,
    ); // 20 tokens: 4 ms
    await bench.clock.advance(3.9);
    expect(bench.backend.runs).toHaveLength(0);
    await bench.clock.advance(0.1);
    expect(bench.backend.runs).toHaveLength(1);
  });

  test('is twice as long with fewer than minRows, and never longer than the settings say', async () => {
    const few = setup({ newBudget: learnedBudget });
    few.run([orderOf('a', [textOf(20, 1)])], false);
    await few.clock.advance(7.9);
    expect(few.backend.runs).toHaveLength(0);
    await few.clock.advance(0.1);
    expect(few.backend.runs).toHaveLength(1);
    const slow = setup({ newBudget: learnedBudget });
    slow.run(
      [
        orderOf(
          'a',
          Array.from({ length: 4 }, (_, i) => textOf(40, i)),
        ),
      ],
      false,
    ); // 18 ms
    await slow.clock.advance(10);
    expect(slow.backend.runs).toHaveLength(1);
  });

  test('closes with windowRows rows, however much the budget would still take', async () => {
    const bench = setup({ budget: { maxPaddedTokens: 1024, maxRows: 64 }, limits: { windowRows: 10 } });
    bench.run(
      [
        orderOf(
          'a',
          Array.from({ length: 9 }, (_, i) => textOf(5, i)),
        ),
      ],
      false,
    );
    await settled();
    expect(bench.backend.runs).toHaveLength(0);
    bench.run([orderOf('b', [textOf(5, 'b')])], false);
    await settled();
    expect(bench.backend.runs.map(({ rows }) => rows)).toEqual([10]);
  });

  test('a short pool gathers on while the device has a run and another to go on with', async () => {
    const bench = setup({ backend: { slots: 6 }, limits: { windowRows: 4 } });
    for (const job of ['a', 'b', 'c']) {
      bench.run(
        [
          orderOf(
            job,
            Array.from({ length: 4 }, (_, i) => textOf(8, `${job}${i}`)),
          ),
        ],
        true,
      );
      await settled();
    }
    expect(bench.said('began')).toHaveLength(2);
    bench.run([orderOf('d', [textOf(8, 'd')])], true);
    await bench.untilOutcomes(4);
    expect(bench.backend.runs.map(({ rows }) => rows)).toEqual([4, 4, 5]);
  });
});

describe('deadlines', () => {
  test('rows of a job past its deadline are not cut, it fails with DEADLINE_PASSED; its neighbours run', async () => {
    const bench = setup({ backend: { slots: 1 }, budget: { maxRows: 1 } });
    bench.run([orderOf('long', [textOf(64, 1), textOf(64, 2)])]);
    bench.run([
      orderOf('late', [textOf(8, 3)], { remainingMs: 1 }),
      orderOf('timely', [textOf(8, 4)], { remainingMs: 1_000 }),
    ]);
    await bench.untilOutcomes(3);
    expect(bench.outcomesOf('late')).toMatchObject([
      { kind: 'failed', token: 'late-token', failure: { code: 'DEADLINE_PASSED' } },
    ]);
    expect(bench.outcomesOf('timely')).toMatchObject([{ kind: 'committed' }]);
    expect(bench.backend.runs.map(({ width }) => width)).toEqual([64, 64, 8]);
    expect(await bench.leftovers()).toEqual(NOTHING);
  });

  test('the time counts from arrival, reading the input included', async () => {
    const bench = setup();
    bench.store.readGate.hold();
    bench.run([orderOf('a', ['one'], { remainingMs: 5 })]);
    await bench.clock.advance(5);
    bench.store.readGate.release();
    await bench.untilOutcomes(1);
    expect(bench.outcomes()).toMatchObject([{ kind: 'failed', failure: { code: 'DEADLINE_PASSED' } }]);
    expect(bench.backend.runs).toEqual([]);
  });

  test('a job whose last row is at the device has begun in time', async () => {
    const bench = setup();
    bench.run([orderOf('a', [textOf(64, 1)], { remainingMs: 1 })]);
    await bench.untilOutcomes(1);
    expect(bench.outcomes()).toMatchObject([{ kind: 'committed' }]);
  });

  test(
    'half a job is no job: it fails when its deadline passes between two runs, and the rows at the device come ' +
      'back to nobody',
    async () => {
      const bench = setup({ backend: { slots: 2 }, budget: { maxRows: 1 } });
      bench.run([orderOf('a', [textOf(64, 1), textOf(64, 2), textOf(64, 3)], { remainingMs: 1 })]);
      await bench.clock.advance(1_000);
      expect(bench.outcomes()).toMatchObject([{ kind: 'failed', failure: { code: 'DEADLINE_PASSED' } }]);
      expect(bench.backend.runs).toHaveLength(2);
      expect(bench.store.results.size).toBe(0);
      expect(await bench.leftovers()).toEqual(NOTHING);
    },
  );
});

describe('equal rows of one cut', () => {
  test('run once, and each gets the vector in its own place', async () => {
    const bench = setup();
    const [x, y, z] = [textOf(10, 'x'), textOf(10, 'y'), textOf(30, 'z')];
    bench.run([orderOf('a', [x, y, x]), orderOf('b', [z, x])]);
    await bench.untilOutcomes(2);
    expect(bench.backend.runs.reduce((sum, { rows }) => sum + rows, 0)).toBe(3);
    expect(bench.said('ran').reduce((sum, { duplicates }) => sum + duplicates, 0)).toBe(2);
    expect(bench.vectorsOf('a')).toEqual(expectedVectors(bench.tokenizer, [x, y, x]));
    expect(bench.vectorsOf('b')).toEqual(expectedVectors(bench.tokenizer, [z, x]));
  });

  test('of which one job is dropped: the other still gets its vector', async () => {
    for (const dropped of ['a', 'b']) {
      const bench = setup({
        backend: { slots: 1 },
        prepare: (backend) => backend.runsOutOfVramWhen(({ rows }) => (rows > 1 ? 'too-large' : 'fits')),
      });
      bench.run([orderOf('a', [textOf(10, 'x'), textOf(10, 'y')]), orderOf('b', [textOf(10, 'x')])]);
      await settled();
      bench.executor.handle({ kind: 'drop', jobIds: [dropped] });
      await bench.untilOutcomes(1);
      expect(bench.outcomes()).toMatchObject([{ kind: 'committed', jobId: dropped === 'a' ? 'b' : 'a' }]);
      expect(await bench.leftovers()).toEqual(NOTHING);
    }
  });

  test('that do not fit alone move every job that wants them', async () => {
    const bench = setup({ prepare: (backend) => backend.runsOutOfVramAbove({ paddedTokens: 40 }) });
    bench.run([orderOf('a', [textOf(64, 'x')]), orderOf('b', [textOf(64, 'x')]), orderOf('c', [textOf(8, 'y')])]);
    await bench.untilOutcomes(3);
    expect(
      bench
        .outcomes()
        .map(({ jobId, kind }) => `${jobId} ${kind}`)
        .toSorted(),
    ).toEqual(['a hand-over', 'b hand-over', 'c committed']);
  });
});

test('a run says how old the pool is', async () => {
  const bench = setup({ backend: { slots: 1, runMs: () => 10 }, budget: { maxRows: 1 } });
  bench.run([orderOf('a', [textOf(8, 1), textOf(8, 2)])]);
  await bench.untilOutcomes(1);
  expect(bench.said('ran').map(({ poolAgeMs }) => poolAgeMs)).toEqual([10, 0]);
});
