// What becomes of rows that do not fit the device or come back as nonsense: every row ends once, only the culprit's job
// ends badly, and the vectors are bit for bit those of an undisturbed run.

import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { createBudget } from '../budget/budget.ts';
import { fixedBudget } from '../budget/fixed-budget.ts';
import type { BatchBudget, RunShape } from '../ports/device.ts';
import type { JobOrder } from '../protocol.ts';
import { NOTHING, expectedVectors, orderOf, setup, textOf } from '../testing/executor-bench.ts';
import { settled, type FakeBackend, type VramRule } from '../testing/index.ts';

/** A budget that shrinks by a quarter with each OOM, never below one row of 64 tokens. */
function shrinkingBudget(maxPaddedTokens: number, maxRows: number): BatchBudget {
  let now = maxPaddedTokens;
  return {
    ...fixedBudget({ maxPaddedTokens, maxRows }),
    rowsAt: (width) => fixedBudget({ maxPaddedTokens: now, maxRows }).rowsAt(width),
    current: () => ({ maxPaddedTokens: now, limitedBy: 'memory', source: 'learned' }),
    ranOutOfMemory: () => void (now = Math.max(64, now * 0.75)),
    peakBytes: ({ rows, width }) => rows * width * 1_000,
  };
}

/** Fails the test when a run of two or more rows is above what the budget allows at that moment. */
function watchLaunches(backend: FakeBackend, budget: BatchBudget): void {
  const run = backend.run.bind(backend);
  backend.run = (slot, shape, options) => {
    if (shape.rows > 1 && shape.rows > budget.rowsAt(shape.width))
      throw new Error(`${shape.rows} rows of width ${shape.width} are above the budget`);
    return run(slot, shape, options);
  };
}

function textsOf({ input }: JobOrder): readonly string[] {
  return input.form === 'inline' ? input.texts : [];
}

function equals(a: readonly Float32Array[], b: readonly Float32Array[]): boolean {
  return a.length === b.length && a.every((vector, i) => Buffer.from(vector.buffer).equals(Buffer.from(b[i]!.buffer)));
}

/** Rows that a narrow precision makes nonsense of, in some tests. */
function isOverflowing(ids: readonly number[]): boolean {
  return ids.length === 12;
}

function said({ rows, width }: RunShape): string {
  return `${rows}×${width}`;
}

function recordingBudget(): { readonly budget: BatchBudget; readonly heard: string[] } {
  const heard: string[] = [];
  return {
    heard,
    budget: {
      ...fixedBudget({ maxPaddedTokens: 256, maxRows: 16 }),
      ran: (run) => void heard.push(`ran ${said(run)} ${run.memory?.liveBytes}`),
      ranOutOfMemory: (shape) => void heard.push(`out ${said(shape)}`),
      peakBytes: () => 77,
    },
  };
}

/** Numbers from 0 to 1 that follow from the seed. */
function randomFrom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b_79f5) | 0;
    const mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const MARKS = ['', 'nan', 'stays-nan', 'poison'] as const;

const anyRow = fc.record({
  tokens: fc.integer({ min: 3, max: 64 }),
  /** Rows with equal tokens and seed are equal. */
  seed: fc.integer({ min: 0, max: 5 }),
  mark: fc.oneof({ weight: 60, arbitrary: fc.constant(MARKS[0]) }, { weight: 1, arbitrary: fc.constantFrom(...MARKS) }),
});
const anyJob = fc.record({
  rows: fc.array(anyRow, { minLength: 1, maxLength: 14 }),
  isInteractive: fc.boolean(),
  afterMs: fc.integer({ min: 0, max: 12 }),
});
const anyMemory = fc.oneof(
  fc.constant({ kind: 'enough' as const }),
  fc.record({ kind: fc.constant('limited' as const), paddedTokens: fc.integer({ min: 8, max: 1024 }) }),
  fc.record({
    kind: fc.constant('random' as const),
    seed: fc.integer(),
    share: fc.double({ min: 0, max: 0.3, noNaN: true }),
    recycleShare: fc.double({ min: 0, max: 0.3, noNaN: true }),
  }),
);

function vramRule(memory: Parameters<Parameters<typeof anyMemory.map>[0]>[0]): VramRule {
  if (memory.kind === 'enough') return () => 'fits';
  if (memory.kind === 'limited')
    return ({ rows, width }) => (rows * width > memory.paddedTokens ? 'too-large' : 'fits');
  const random = randomFrom(memory.seed);
  return () => (random() >= memory.share ? 'fits' : random() < memory.recycleShare ? 'needs-recycle' : 'too-large');
}

test(
  'whatever the sizes, classes and faults: every row ends once, vectors are those of a quiet run, and no run of ' +
    'two or more rows is above the budget',
  async () => {
    const seen = { handedOver: 0, recycled: 0, rerun: 0, split: 0, failed: 0, duplicates: 0, committed: 0 };
    await fc.assert(
      fc.asyncProperty(
        fc.array(anyJob, { minLength: 1, maxLength: 8 }),
        fc.integer({ min: 64, max: 1024 }),
        fc.integer({ min: 1, max: 64 }),
        anyMemory,
        fc.boolean(),
        fc.integer({ min: 1, max: 6 }),
        async (jobs, maxPaddedTokens, maxRows, memory, isNarrow, slots) => {
          const rule = vramRule(memory);
          const marked = new Map<string, (typeof MARKS)[number]>(); // by ids
          const isMarked =
            (mark: (typeof MARKS)[number]) =>
            (ids: readonly number[]): boolean =>
              marked.get(String(ids)) === mark;
          const bench = setup({
            backend: { slots, precision: isNarrow ? 'fp16' : 'fp32' },
            newBudget: () => shrinkingBudget(maxPaddedTokens, maxRows),
            isReplaced: true,
            prepare: (backend, budget) => {
              backend.runsOutOfVramWhen(rule);
              backend.givesNanAtRows(isMarked('nan'));
              backend.givesNanExactlyAtRows(isMarked('stays-nan'));
              backend.failsAtRows(isMarked('poison'));
              watchLaunches(backend, budget);
            },
          });
          const orders = jobs.map(({ rows, isInteractive }, job) =>
            orderOf(
              `job-${job}`,
              rows.map(({ tokens, seed, mark }) => textOf(tokens, `${mark}${seed}`)),
              { class: isInteractive ? 'interactive' : 'bulk' },
            ),
          );
          for (const [job, { rows }] of jobs.entries()) {
            for (const [row, { mark }] of rows.entries())
              if (mark !== '') marked.set(String([...bench.tokenizer.encode(textsOf(orders[job]!)[row]!).ids]), mark);
          }
          for (const [job, order] of orders.entries()) {
            bench.run([order], job % 2 === 0);
            await bench.clock.advance(jobs[job]!.afterMs);
          }
          await bench.untilOutcomes(orders.length);
          const kinds = orders.map((order) =>
            bench
              .outcomesOf(order.jobId)
              .map(({ kind }) => kind)
              .join(),
          );
          const faults = orders.flatMap((order, job) => {
            const texts = textsOf(order);
            const tokens = texts.map((text) => [...bench.tokenizer.encode(text).ids]);
            const marks = new Set(tokens.map((ids) => marked.get(String(ids)) ?? ''));
            const mustFail = marks.has('poison') || marks.has('stays-nan') || (marks.has('nan') && !isNarrow);
            const isTooWide =
              memory.kind === 'limited' && tokens.some((ids) => Math.ceil(ids.length / 8) * 8 > memory.paddedTokens);
            const mayMove = memory.kind === 'random' || isTooWide;
            const hasResult = bench.store.results.has(order.jobId);
            const isRight = hasResult && equals(bench.vectorsOf(order.jobId), expectedVectors(bench.tokenizer, texts));
            switch (kinds[job]) {
              case 'committed':
                return isRight && !mustFail && !isTooWide
                  ? []
                  : [`${order.jobId} has wrong vectors, or should not have any`];
              case 'failed':
                return mustFail && !hasResult ? [] : [`${order.jobId} failed`];
              case 'hand-over':
                return mayMove && !hasResult ? [] : [`${order.jobId} was handed over`];
              default:
                return [`${order.jobId} ended as "${kinds[job]}"`];
            }
          });
          expect(faults).toEqual([]);
          for (const kind of kinds)
            seen[kind === 'hand-over' ? 'handedOver' : kind === 'failed' ? 'failed' : 'committed']++;
          seen.recycled += bench.said('recycle').length;
          seen.rerun += bench.said('rerun').length;
          seen.split += bench.said('split').length;
          seen.duplicates += bench.said('ran').reduce((sum, { duplicates }) => sum + duplicates, 0);
          expect(bench.outcomes()).toHaveLength(orders.length);
          // executors that were replaced may leave a timer
          expect({ ...(await bench.leftovers()), timers: 0 }).toEqual(NOTHING);
        },
      ),
      { numRuns: 1_000 },
    );
    // each of these was tried often enough to mean something
    expect(Object.entries(seen).filter(([, count]) => count < 50)).toEqual([]);
  },
);

test('out of memory above every size from one row to all: the vectors are those of a quiet run', async () => {
  const sizes = Array.from({ length: 40 }, (_, i) => 3 + ((i * 29) % 62));
  for (let paddedTokens = 8; paddedTokens <= 1024; paddedTokens += 8) {
    const bench = setup({
      newBudget: () => shrinkingBudget(1024, 64),
      isReplaced: true,
      prepare: (backend) => backend.runsOutOfVramAbove({ paddedTokens }),
    });
    const jobs = sizes.map((tokens, i) => orderOf(`job-${i}`, [textOf(tokens, i)]));
    bench.run(jobs);
    await bench.untilOutcomes(jobs.length);
    const fits = (i: number): boolean => Math.ceil(sizes[i]! / 8) * 8 <= paddedTokens;
    expect(jobs.map((job) => bench.outcomesOf(job.jobId).map(({ kind }) => kind))).toEqual(
      jobs.map((_, i) => [fits(i) ? 'committed' : 'hand-over']),
    );
    for (const job of jobs.filter((_, i) => fits(i)))
      expect(bench.vectorsOf(job.jobId)).toEqual(expectedVectors(bench.tokenizer, textsOf(job)));
  }
});

describe('a row that does not fit alone', () => {
  const handOver = { reason: { code: 'OUT_OF_VRAM' }, peakBytes: 64_000 };

  test(
    'moves its whole job to the CPU lane, with the reason and the memory it was predicted to need; its ' +
      'neighbours complete',
    async () => {
      const bench = setup({
        newBudget: () => shrinkingBudget(256, 16),
        prepare: (backend) => backend.runsOutOfVramAbove({ paddedTokens: 40 }),
      });
      bench.run([
        orderOf('huge', [textOf(8, 1), textOf(64, 2), textOf(9, 5)]),
        orderOf('small', [textOf(8, 3), textOf(30, 4)]),
      ]);
      await bench.untilOutcomes(2);
      expect(bench.outcomesOf('huge')).toMatchObject([{ kind: 'hand-over', token: 'huge-token', handOver }]);
      expect(bench.outcomesOf('small')).toMatchObject([{ kind: 'committed' }]);
      expect(bench.store.results.has('huge')).toBe(false);
      expect(await bench.leftovers()).toEqual(NOTHING);
    },
  );

  test("its job's other rows run no more", async () => {
    const bench = setup({
      backend: { slots: 1 },
      budget: { maxRows: 1 },
      prepare: (backend) => backend.runsOutOfVramAbove({ paddedTokens: 40 }),
    });
    bench.run([orderOf('huge', [textOf(64, 1), ...Array.from({ length: 5 }, (_, i) => textOf(8, i))])]);
    await bench.untilOutcomes(1);
    await bench.clock.advance(1_000);
    expect(bench.backend.runs).toHaveLength(1);
  });

  test.each([
    ['a CPU executor', { isLastLane: true }, {}],
    ['a job of the CPU lane', {}, { lane: 'cpu' as const }],
  ])('%s: there is nobody to hand it to, its job fails', async (_, options, more) => {
    const bench = setup({ ...options, prepare: (backend) => backend.runsOutOfVramAbove({ paddedTokens: 40 }) });
    bench.run([orderOf('huge', [textOf(64, 2)], more)]);
    await bench.untilOutcomes(1);
    expect(bench.outcomesOf('huge')).toMatchObject([{ kind: 'failed', failure: { code: 'OUT_OF_VRAM' } }]);
  });

  test('a run ends for those who look for culprits, whether or not it had rows to split', async () => {
    const bench = setup({ prepare: (backend) => backend.runsOutOfVramAbove({ paddedTokens: 40 }) });
    bench.run([orderOf('huge', [textOf(64, 2), textOf(8, 1)])]);
    await bench.untilOutcomes(1);
    await bench.leftovers();
    const ended = [...bench.said('ran'), ...bench.said('split'), ...bench.said('refused')].map(({ batch }) => batch);
    expect(ended.toSorted((a, b) => a - b)).toEqual(bench.said('began').map(({ batch }) => batch));
  });
});

test(
  'rows that ask for too much cost the others nothing: beside runs that go well, neither the budget nor the ' +
    'process is doubted',
  async () => {
    const budget = createBudget({
      maxPaddedTokens: 2_560,
      maxRows: 64,
      maxTokens: 64,
      kneeTokens: 2_560,
      memory: {
        law: { loadedBytes: 1e6, floorBytes: 0, slackBytes: 0, arena: 'exact', perToken: [{ width: 8, bytes: 1_000 }] },
        source: 'fitted',
      },
      totalBytes: 1e9,
    });
    const before = budget.rowsAt(40);
    const bench = setup({
      newBudget: () => budget,
      prepare: (backend) =>
        backend.runsOutOfVramWhen(({ ids }) => (ids.some((row) => row.length === 40) ? 'too-large' : 'fits')),
    });
    const jobs = Array.from({ length: 64 }, (_, i) => orderOf(`job-${i}`, [textOf(i === 3 || i === 4 ? 40 : 39, i)]));
    bench.run(jobs);
    await bench.untilOutcomes(jobs.length);
    expect(
      bench
        .outcomes()
        .filter(({ kind }) => kind === 'hand-over')
        .map(({ jobId }) => jobId)
        .toSorted(),
    ).toEqual(['job-3', 'job-4']);
    expect(bench.outcomes().filter(({ kind }) => kind === 'committed')).toHaveLength(62);
    expect(budget.rowsAt(40)).toBe(before);
    expect(bench.said('recycle')).toEqual([]);
    expect(bench.backend.runs.length).toBeLessThan(2 * 2 * Math.log2(64)); // two a level and culprit at most
  },
);

function ofRequest(id: string, row: number, requestId?: string): JobOrder {
  return { ...orderOf(id, [textOf(40, row)]), ...(requestId !== undefined && { requestId }) };
}

test('a split tells the requests whose rows it has, each once', async () => {
  const bench = setup({ prepare: (backend) => backend.runsOutOfVramAbove({ paddedTokens: 64 }) });
  bench.run([ofRequest('a', 1, 'req-1'), ofRequest('b', 2, 'req-1'), ofRequest('c', 3, 'req-2'), ofRequest('d', 4)]);
  await bench.untilOutcomes(4);
  const [first] = bench.log.lines.filter(({ message }) => message === 'micro-batch failed, splitting');
  expect(first?.fields).toMatchObject({ rows: 4, code: 'OUT_OF_VRAM', requestIds: ['req-1', 'req-2'] });
});

describe('recycling', () => {
  test('is asked for once, by the second row in a row that does not fit alone; nothing more is launched', async () => {
    const bench = setup({ prepare: (backend) => backend.runsOutOfVramAbove({ paddedTokens: 40 }) });
    bench.run([
      orderOf('a', [textOf(64, 1)]),
      orderOf('b', [textOf(56, 2)]),
      orderOf('c', [textOf(48, 3)]),
      orderOf('d', [textOf(8, 4)]),
    ]);
    await bench.clock.advance(1_000);
    expect(bench.said('recycle')).toHaveLength(1);
    const launched = bench.backend.runs.length;
    bench.run([orderOf('late', [textOf(8, 5)])]);
    await bench.clock.advance(1_000);
    expect(bench.backend.runs).toHaveLength(launched);
    expect(bench.outcomes().filter(({ kind }) => kind === 'hand-over')).toHaveLength(1);
    expect(await bench.leftovers()).toEqual(NOTHING);
    expect(bench.outcomes()).toHaveLength(5); // what is open goes back when it stops
  });

  test('a run that goes well between two such rows says that the process is sound', async () => {
    const bench = setup({
      backend: { slots: 1 },
      budget: { maxRows: 1 },
      prepare: (backend) => backend.runsOutOfVramAbove({ paddedTokens: 40 }),
    });
    for (const [job, tokens] of [64, 8, 64, 8, 64].entries()) {
      bench.run([orderOf(`job-${job}`, [textOf(tokens, job)])]);
      await bench.clock.advance(100);
    }
    expect(bench.outcomes().map(({ kind }) => kind)).toEqual([
      'hand-over',
      'committed',
      'hand-over',
      'committed',
      'hand-over',
    ]);
    expect(bench.said('recycle')).toEqual([]);
  });

  test('a library that cannot allocate asks for it at once, and the next executor runs all that was open', async () => {
    let isWornOut = false;
    const bench = setup({
      isReplaced: true,
      prepare: (backend) =>
        backend.runsOutOfVramWhen(({ rows }) =>
          rows > 4 && !isWornOut ? ((isWornOut = true), 'needs-recycle') : 'fits',
        ),
    });
    const jobs = Array.from({ length: 12 }, (_, i) =>
      orderOf(`job-${i}`, [textOf(10 + i, i), textOf(20 + i, `${i}b`)]),
    );
    bench.run(jobs);
    await bench.untilOutcomes(jobs.length);
    expect(bench.said('recycle')).toHaveLength(1);
    for (const job of jobs) expect(bench.vectorsOf(job.jobId)).toEqual(expectedVectors(bench.tokenizer, textsOf(job)));
  });
});

describe('rows that a narrow precision turned into nonsense', () => {
  test.each([false, true])(
    'run again in fp32, are counted, and get their vector; their neighbours run once (rows of length 1 by the ' +
      'device itself: %s)',
    async (givesUnitRows) => {
      const bench = setup({
        backend: { precision: 'fp16', givesUnitRows },
        prepare: (backend) => backend.givesNanAtRows(isOverflowing),
      });
      const texts = [textOf(10, 1), textOf(12, 2), textOf(12, 3), textOf(11, 4)];
      bench.run([orderOf('a', texts)]);
      await bench.untilOutcomes(1);
      expect(bench.vectorsOf('a')).toEqual(expectedVectors(bench.tokenizer, texts));
      expect(bench.backend.runs.map(({ rows, isExact }) => [rows, isExact])).toEqual([
        [4, false],
        [2, true],
      ]);
      expect(bench.said('rerun')).toEqual([{ kind: 'rerun', rows: 2 }]);
      expect(await bench.leftovers()).toEqual(NOTHING);
    },
  );

  test('are never delivered when fp32 gives nonsense as well: their job fails, and nobody beside it', async () => {
    const bench = setup({
      backend: { precision: 'fp16' },
      prepare: (backend) => backend.givesNanExactlyAtRows(isOverflowing),
    });
    bench.run([orderOf('bad', [textOf(10, 1), textOf(12, 2)]), orderOf('good', [textOf(10, 3), textOf(11, 4)])]);
    await bench.untilOutcomes(2);
    expect(bench.outcomesOf('bad')).toMatchObject([{ kind: 'failed', failure: { code: 'INFERENCE_FAILED' } }]);
    expect(bench.outcomesOf('good')).toMatchObject([{ kind: 'committed' }]);
  });

  test('need twice the memory: no more than half a budget of them runs at a time', async () => {
    const bench = setup({
      budget: { maxPaddedTokens: 128, maxRows: 8 },
      backend: { precision: 'fp16' },
      prepare: (backend) => backend.givesNanAtRows(() => true),
    });
    bench.run([
      orderOf(
        'a',
        Array.from({ length: 8 }, (_, i) => textOf(16, i)),
      ),
    ]);
    await bench.untilOutcomes(1);
    expect(bench.backend.runs.map(({ rows, isExact }) => [rows, isExact])).toEqual([
      [8, false],
      [4, true],
      [4, true],
    ]);
  });

  test('that do not fit in fp32 climb down the same ladder', async () => {
    const bench = setup({
      backend: { precision: 'fp16' },
      prepare: (backend) => {
        backend.givesNanAtRows(isOverflowing);
        backend.runsOutOfVramWhen(({ isExact, rows }) => (isExact && rows > 1 ? 'too-large' : 'fits'));
      },
    });
    const texts = [textOf(12, 1), textOf(12, 2), textOf(12, 3)];
    bench.run([orderOf('a', texts)]);
    await bench.untilOutcomes(1);
    expect(bench.vectorsOf('a')).toEqual(expectedVectors(bench.tokenizer, texts));
  });
});

describe('what the budget hears', () => {
  test('every run with its memory, every time it ran out, and nothing of runs in fp32', async () => {
    const { budget, heard } = recordingBudget();
    const bench = setup({
      newBudget: () => budget,
      backend: {
        precision: 'fp16',
        slots: 1,
        memoryAfter: ({ rows }) => ({ liveBytes: rows * 10, footprintBytes: undefined, source: 'simulated' }),
      },
      prepare: (backend) => {
        backend.runsOutOfVramAbove({ paddedTokens: 64 });
        backend.givesNanAtRows((ids) => ids.length === 16);
      },
    });
    bench.run([orderOf('a', [textOf(32, 1), textOf(31, 2), textOf(32, 3), textOf(16, 4)])]);
    await bench.untilOutcomes(1);
    expect(heard).toEqual(['out 3×32', 'ran 1×32 10', 'ran 2×32 20', 'ran 1×16 10']);
  });

  test('the claimer hears of memory once a second at most, with what was predicted', async () => {
    const { budget } = recordingBudget();
    const bench = setup({
      newBudget: () => budget,
      backend: { memoryAfter: () => ({ liveBytes: 5, footprintBytes: 9, source: 'simulated' }) },
    });
    for (const job of ['a', 'b', 'c']) {
      bench.run([orderOf(job, [textOf(8, job)])]);
      await bench.clock.advance(600);
    }
    expect(bench.said('memory')).toEqual([
      { kind: 'memory', predictedBytes: 77, measuredBytes: 9, source: 'simulated' },
      { kind: 'memory', predictedBytes: 77, measuredBytes: 9, source: 'simulated' },
    ]);
  });

  test(
    'the budget is told with the first order or ping, and again when it changed by more than 3 % or for another ' +
      'reason',
    async () => {
      let state: ReturnType<BatchBudget['current']> = { maxPaddedTokens: 1_000, limitedBy: 'knee', source: 'fitted' };
      const bench = setup({
        newBudget: () => ({ ...fixedBudget({ maxPaddedTokens: 256, maxRows: 16 }), current: () => state }),
      });
      const ping = (): void => bench.executor.handle({ kind: 'ping', sequence: 1 });
      ping();
      state = { ...state, maxPaddedTokens: 1_020 };
      ping();
      state = { ...state, maxPaddedTokens: 1_040 };
      ping();
      state = { ...state, limitedBy: 'memory' };
      ping();
      await settled();
      expect(bench.said('budget').map(({ budget }) => `${budget.maxPaddedTokens} ${budget.limitedBy}`)).toEqual([
        '1000 knee',
        '1040 knee',
        '1040 memory',
      ]);
    },
  );
});
