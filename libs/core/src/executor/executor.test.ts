// What the executor promises about rows: each runs exactly once, wherever its micro-batch ends up; a job's result is
// what it would have been alone; and whatever is dropped, fails or ends in between, nothing stays behind.

import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  encodeBody,
  fingerprintOf,
  encodeTexts,
  encodeTokens,
  decodeResultHeader,
  encodeResult,
  openResult,
} from '@shoal/contract';
import { fixedBudget } from '../budget/fixed-budget.ts';
import type { JobOrder } from '../protocol.ts';
import { DIMS, MODEL, NOTHING, expectedVectors, orderOf, setup, textOf } from '../testing/executor-bench.ts';
import { Gate, fakeVector, settled } from '../testing/index.ts';

const jobSizes = fc.array(fc.array(fc.integer({ min: 2, max: 64 }), { minLength: 1, maxLength: 20 }), {
  minLength: 1,
  maxLength: 12,
});

describe('rows', () => {
  test('every row runs exactly once, and every job gets its vectors in its own order, whatever the sizes', async () => {
    await fc.assert(
      fc.asyncProperty(
        jobSizes,
        fc.integer({ min: 8, max: 1024 }),
        fc.integer({ min: 1, max: 64 }),
        fc.boolean(),
        async (sizes, maxPaddedTokens, maxRows, isDrained) => {
          const bench = setup({ budget: { maxPaddedTokens, maxRows } });
          const jobs = sizes.map((rows, job) =>
            orderOf(
              `job-${job}`,
              rows.map((tokens, row) => textOf(tokens, `${job}r${row}`)),
            ),
          );
          bench.run(jobs, isDrained);
          await bench.untilOutcomes(jobs.length);
          for (const job of jobs) {
            const texts = job.input.form === 'inline' ? job.input.texts : [];
            expect(bench.vectorsOf(job.jobId)).toEqual(expectedVectors(bench.tokenizer, texts));
            expect(bench.outcomesOf(job.jobId)).toMatchObject([
              { kind: 'committed', token: job.token, value: { rows: texts.length, splits: 0 } },
            ]);
          }
          const ran = bench.backend.runs.flatMap((run) => run.ids.map(String));
          expect(ran.length + bench.said('ran').reduce((sum, { duplicates }) => sum + duplicates, 0)).toBe(
            sizes.flat().length,
          );
          expect(new Set(ran).size).toBe(
            new Set(sizes.flatMap((rows, job) => rows.map((tokens, row) => (tokens === 2 ? 2 : `${job}r${row}`)))).size,
          );
          expect(
            Math.max(0, ...bench.backend.runs.filter((run) => run.rows > 1).map((run) => run.rows * run.width)),
          ).toBeLessThanOrEqual(maxPaddedTokens);
          expect(await bench.leftovers()).toEqual(NOTHING);
        },
      ),
      { numRuns: 60 },
    );
  });

  test('a job runs in company exactly as it would alone', async () => {
    const alone = setup();
    alone.run([orderOf('a', ['one', 'two words', textOf(40, 'x')])]);
    await alone.untilOutcomes(1);
    const together = setup();
    together.run([
      orderOf('b', [textOf(64, 1), textOf(9, 2)]),
      orderOf('a', ['one', 'two words', textOf(40, 'x')]),
      orderOf('c', [textOf(30, 3)]),
    ]);
    await together.untilOutcomes(3);
    expect(together.store.results.get('a')).toEqual(alone.store.results.get('a'));
  });

  test('rows of one job are shared out over micro-batches with rows of others', async () => {
    const bench = setup({ budget: { maxRows: 4 } });
    bench.run([orderOf('a', [textOf(8, 1), textOf(32, 2)]), orderOf('b', [textOf(8, 3), textOf(32, 4)])]);
    await bench.untilOutcomes(2);
    expect(bench.backend.runs.map((run) => run.ids.map((ids) => ids.length))).toEqual([
      [32, 32],
      [8, 8],
    ]);
  });

  test('the return value has the vectors as they are stored where the job wants them, when it is repeated too', async () => {
    const bench = setup();
    const job = { output: { dtype: 'i8', dimensions: 4 }, returnsVectors: true } as const;
    bench.run([orderOf('a', ['one', 'two words'], job)]);
    await bench.untilOutcomes(1);
    const stored = openResult(bench.store.results.get('a')!).body.toString('base64');
    bench.run([orderOf('a', ['one', 'two words'], { ...job, token: 'second' })]);
    await bench.untilOutcomes(2);
    expect(bench.outcomes()).toMatchObject([
      { kind: 'committed', value: { vectors: stored } },
      { kind: 'already', value: { vectors: stored } },
    ]);
  });

  test('vectors that are too large for the return value are refused before they run', async () => {
    const bench = setup({ dims: 1_025 });
    bench.run([orderOf('a', Array<string>(8).fill('one'), { returnsVectors: true })]);
    await bench.untilOutcomes(1);
    expect(bench.outcomes()).toMatchObject([{ kind: 'failed', failure: { code: 'RESULT_TOO_LARGE' } }]);
    expect(bench.backend.runs).toEqual([]);
  });

  test('the return value tells what ran', async () => {
    const bench = setup();
    bench.run([orderOf('a', ['one two', textOf(90, 'long')], { output: { dtype: 'i8', dimensions: 4 } })]);
    await bench.untilOutcomes(1);
    expect(bench.outcomes()).toMatchObject([
      {
        kind: 'committed',
        value: {
          v: 1,
          key: 'out:a',
          model: MODEL,
          rows: 2,
          dims: 4,
          dtype: 'i8',
          device: 'fake',
          precision: 'fp32',
          tokens: 4 + 64,
          truncated: 1,
          splits: 0,
          ms: { queued: 3 },
        },
      },
    ]);
    const { header } = openResult(bench.store.results.get('a')!);
    expect(header).toMatchObject({ dtype: 'i8', rows: 2, dims: 4, isTruncated: true });
  });

  test('the size of a filled job is told before its outcome', async () => {
    const bench = setup();
    bench.run([orderOf('a', ['one two'])]);
    await bench.untilOutcomes(1);
    expect(bench.sent.map((message) => message.kind)).toEqual(['budget', 'filled', 'began', 'ran', 'outcomes']);
    expect(bench.sent[1]).toEqual({ kind: 'filled', jobs: [{ jobId: 'a', tokens: 4 }], poolTokens: 4 });
  });

  test('a prompt goes before each text', async () => {
    const bench = setup();
    bench.run([orderOf('a', ['one'], { prompt: 'query' })]);
    await bench.untilOutcomes(1);
    expect(bench.vectorsOf('a')).toEqual(expectedVectors(bench.tokenizer, ['query : one']));
  });

  test('the default prompt goes before texts that ask for none, and "none" leaves it out', async () => {
    const prompts = { 's2p.query': 'query : ', document: 'doc : ' };
    const bench = setup({ prompts, defaultPrompt: 'document' });
    const asked = [undefined, 'none', 's2p.query', 'passage'];
    bench.run(asked.map((prompt, at) => orderOf(`job-${at}`, ['one'], { prompt })));
    await bench.untilOutcomes(asked.length);
    for (const [at, text] of ['doc : one', 'one', 'query : one', 'doc : one'].entries())
      expect(bench.vectorsOf(`job-${at}`)).toEqual(expectedVectors(bench.tokenizer, [text]));
    bench.run([orderOf('other', ['one'], { prompt: 'clustering' })]);
    await bench.untilOutcomes(asked.length + 1);
    const message = expect.stringMatching(/the prompt "clustering".* has "s2p\.query", "document"/) as unknown;
    expect(bench.outcomesOf('other')).toMatchObject([{ kind: 'failed', failure: { code: 'JOB_INVALID', message } }]);
  });

  test('a prompt asked of a model that has none fails its job, and its texts get no other vectors', async () => {
    const bench = setup({ prompts: { query: '', passage: '' } });
    bench.run([orderOf('a', ['one'], { prompt: 'query' }), orderOf('b', ['one'])]);
    await bench.untilOutcomes(2);
    const message = expect.stringMatching(/asks for the prompt "query".*has no prompts/) as unknown;
    expect(bench.outcomesOf('a')).toMatchObject([{ kind: 'failed', failure: { code: 'JOB_INVALID', message } }]);
    expect(bench.vectorsOf('b')).toEqual(expectedVectors(bench.tokenizer, ['one']));
  });

  test('input keys of texts and of token ids give what the same texts give inline', async () => {
    const bench = setup();
    const texts = ['one two', textOf(20, 'x')];
    const ids = texts.map((text) => bench.tokenizer.encode(text).ids);
    bench.store.inputs.set('texts', encodeTexts(texts));
    bench.store.inputs.set('tokens', encodeTokens(ids));
    bench.run([
      orderOf('inline', texts),
      orderOf('texts', [], { input: { form: 'texts', rows: 2 } }),
      orderOf('tokens', [], { input: { form: 'tokens', rows: 2, tokens: 24, tokenizer: bench.tokenizer.hash } }),
    ]);
    await bench.untilOutcomes(3);
    expect(bench.vectorsOf('texts')).toEqual(bench.vectorsOf('inline'));
    expect(bench.vectorsOf('tokens')).toEqual(bench.vectorsOf('inline'));
    expect(decodeResultHeader(bench.store.results.get('texts')!)?.fingerprint).toBe(
      decodeResultHeader(bench.store.results.get('inline')!)?.fingerprint,
    );
  });
});

/** Micro-batches have up to 48 rows, and the device has room for about half of them at a time. */
const tight = () =>
  setup({
    budget: { maxPaddedTokens: 1_024, maxRows: 48 },
    prepare: (backend) => backend.runsOutOfVramWhen((run) => (run.rows * run.width > 500 ? 'too-large' : 'fits')),
  });

describe('a job of 1,024 rows', () => {
  const texts = Array.from({ length: 1_024 }, (_, at) => textOf(3 + ((7 * at) % 40), at));
  test.each(['f32', 'f16', 'i8', 'binary'] as const)(
    'as %s, split for lack of memory, has the rows of four jobs of 256, in order, each with what belongs to it',
    async (dtype) => {
      const output = { dtype, dimensions: undefined };
      const whole = tight();
      whole.run([orderOf('whole', texts, { output })]);
      await whole.untilOutcomes(1);
      expect(whole.outcomes()).toMatchObject([{ kind: 'committed', value: { rows: 1_024 } }]);
      expect(whole.backend.runs.some((run) => run.rows * run.width > 500)).toBe(true);
      const parts = tight();
      const quarters = [0, 1, 2, 3].map((at) => texts.slice(256 * at, 256 * at + 256));
      parts.run(quarters.map((some, at) => orderOf(`part-${at}`, some, { output })));
      await parts.untilOutcomes(4);
      const bodies = quarters.map((_, at) => openResult(parts.store.results.get(`part-${at}`)!).body);
      const rowBytes = { f32: 4 * DIMS, f16: 2 * DIMS, i8: DIMS, binary: DIMS / 8 }[dtype];
      // of i8, the scales lie behind all rows
      const expected = [
        ...bodies.map((body) => body.subarray(0, 256 * rowBytes)),
        ...bodies.map((body) => body.subarray(256 * rowBytes)),
      ];
      expect(openResult(whole.store.results.get('whole')!).body.equals(Buffer.concat(expected))).toBe(true);
      expect(await whole.leftovers()).toEqual(NOTHING);
    },
  );

  test('from an input key of token ids gives what its texts give', async () => {
    const bench = tight();
    const ids = texts.map((text) => bench.tokenizer.encode(text).ids);
    bench.store.inputs.set('tokens', encodeTokens(ids));
    const tokens = ids.reduce((sum, { length }) => sum + length, 0);
    bench.run([
      orderOf('tokens', [], { input: { form: 'tokens', rows: 1_024, tokens, tokenizer: bench.tokenizer.hash } }),
      orderOf('one', ['beside it'], { class: 'interactive' }),
    ]);
    await bench.untilOutcomes(2);
    expect(bench.vectorsOf('tokens')).toEqual(expectedVectors(bench.tokenizer, texts));
    expect(bench.outcomes().map(({ jobId }) => jobId)).toEqual(['one', 'tokens']);
  });
});

describe('running out of device memory', () => {
  test('at every size it splits until each row has run, and the vectors are those of an undisturbed run', async () => {
    await fc.assert(
      fc.asyncProperty(jobSizes, fc.integer({ min: 64, max: 1024 }), async (sizes, vramPaddedTokens) => {
        const bench = setup({ budget: { maxPaddedTokens: 1024, maxRows: 64 } });
        bench.backend.runsOutOfVramAbove({ paddedTokens: vramPaddedTokens });
        const jobs = sizes.map((rows, job) =>
          orderOf(
            `job-${job}`,
            rows.map((tokens, row) => textOf(tokens, `${job}r${row}`)),
          ),
        );
        bench.run(jobs);
        await bench.untilOutcomes(jobs.length);
        expect(bench.outcomes().map((outcome) => outcome.kind)).toEqual(jobs.map(() => 'committed'));
        for (const job of jobs)
          expect(bench.vectorsOf(job.jobId)).toEqual(
            expectedVectors(bench.tokenizer, job.input.form === 'inline' ? job.input.texts : []),
          );
        expect(await bench.leftovers()).toEqual(NOTHING);
      }),
      { numRuns: 40 },
    );
  });

  test(
    'token ids lie in inputs whose memory is used again: not while a row of the job, or its duplicate elsewhere, ' +
      'can still run',
    async () => {
      await fc.assert(
        fc.asyncProperty(
          jobSizes,
          fc.integer({ min: 64, max: 1024 }),
          fc.option(fc.nat(20)),
          async (sizes, vramPaddedTokens, dropped) => {
            const bench = setup({ budget: { maxPaddedTokens: 1024, maxRows: 64 } });
            bench.backend.runsOutOfVramAbove({ paddedTokens: vramPaddedTokens });
            const texts = sizes.map((rows, job) => rows.map((tokens, row) => textOf(tokens, `${job % 2}r${row}`)));
            const jobs = texts.map((ofJob, job) => {
              const ids = ofJob.map((text) => bench.tokenizer.encode(text).ids);
              bench.store.inputs.set(`job-${job}`, encodeTokens(ids));
              return orderOf(`job-${job}`, [], {
                input: { form: 'tokens', rows: ids.length, tokens: ids.flat().length, tokenizer: bench.tokenizer.hash },
              });
            });
            bench.run(jobs);
            if (dropped !== null) {
              await bench.clock.advance(dropped);
              bench.executor.handle({ kind: 'drop', jobIds: ['job-0'] });
            }
            const kept = jobs.slice(dropped === null ? 0 : 1);
            await bench.clock.advanceUntil(() => kept.every(({ jobId }) => bench.outcomesOf(jobId).length > 0));
            for (const { jobId } of kept) expect(bench.outcomesOf(jobId)).toMatchObject([{ kind: 'committed' }]);
            // the dropped one may have been before that
            const delivered = [...texts.entries()].filter(([job]) => bench.store.results.has(`job-${job}`));
            for (const [job, ofJob] of delivered)
              expect(bench.vectorsOf(`job-${job}`)).toEqual(expectedVectors(bench.tokenizer, ofJob));
            expect(await bench.leftovers()).toEqual(NOTHING);
          },
        ),
        { numRuns: 60 },
      );
    },
  );

  test(
    'on the last lane a row that does not fit alone fails its own job with OUT_OF_VRAM, and its neighbours ' +
      'complete',
    async () => {
      const bench = setup({ isLastLane: true });
      bench.backend.runsOutOfVramAbove({ paddedTokens: 40 });
      bench.run([orderOf('huge', [textOf(8, 1), textOf(64, 2)]), orderOf('small', [textOf(8, 3), textOf(30, 4)])]);
      await bench.untilOutcomes(2);
      expect(bench.outcomesOf('huge')).toMatchObject([{ kind: 'failed', failure: { code: 'OUT_OF_VRAM' } }]);
      expect(bench.outcomesOf('small')).toMatchObject([{ kind: 'committed' }]);
      expect(await bench.leftovers()).toEqual(NOTHING);
    },
  );

  test('splits are counted once per split micro-batch, not once per row', async () => {
    const bench = setup();
    bench.backend.runsOutOfVramAbove({ paddedTokens: 128 });
    bench.run([
      orderOf(
        'a',
        Array.from({ length: 16 }, (_, i) => textOf(16, i)),
      ),
    ]);
    await bench.untilOutcomes(1);
    expect(bench.backend.runs.map((run) => run.rows)).toEqual([16, 8, 8]);
    expect(bench.outcomes()).toMatchObject([{ value: { splits: 1 } }]);
  });

  test('halves run before anything new', async () => {
    const bench = setup({ backend: { slots: 1 } });
    bench.backend.runsOutOfVramAbove({ paddedTokens: 64 });
    bench.run([
      orderOf(
        'a',
        Array.from({ length: 4 }, (_, i) => textOf(32, i)),
      ),
    ]);
    await settled();
    bench.run([orderOf('b', [textOf(8, 'new')])]);
    await bench.untilOutcomes(2);
    expect(bench.backend.runs.map((run) => run.rows * run.width)).toEqual([128, 64, 64, 8]);
  });
});

describe('rows that cannot run', () => {
  test.each(['failsAtRows', 'givesNanAtRows'] as const)(
    '%s: only the job with the culprit fails, with INFERENCE_FAILED',
    async (fault) => {
      const bench = setup();
      const culprit = bench.tokenizer.encode(textOf(12, 'culprit')).ids;
      bench.backend[fault]((ids) => String(ids) === String([...culprit]));
      const jobs = Array.from({ length: 6 }, (_, job) =>
        orderOf(
          `job-${job}`,
          Array.from({ length: 5 }, (__, row) => textOf(10 + row, `${job}r${row}`)),
        ),
      );
      bench.run([...jobs, orderOf('poisoned', [textOf(10, 'x'), textOf(12, 'culprit'), textOf(14, 'y')])]);
      await bench.untilOutcomes(7);
      expect(bench.outcomesOf('poisoned')).toMatchObject([{ kind: 'failed', failure: { code: 'INFERENCE_FAILED' } }]);
      for (const job of jobs) expect(bench.outcomesOf(job.jobId)).toMatchObject([{ kind: 'committed' }]);
      expect(bench.store.results.has('poisoned')).toBe(false);
      expect(await bench.leftovers()).toEqual(NOTHING);
    },
  );

  test('two culprits in one job give it one outcome', async () => {
    const bench = setup();
    bench.backend.givesNanAtRows(() => true);
    bench.run([orderOf('a', ['one', 'two', 'three'])]);
    await bench.untilOutcomes(1);
    await bench.clock.advance(1_000);
    expect(bench.outcomes()).toHaveLength(1);
    expect(await bench.leftovers()).toEqual(NOTHING);
  });
});

/** Its result is written at once, not in turn with others. */
function large(jobId: string): JobOrder {
  return orderOf(
    jobId,
    Array.from({ length: 2_100 }, (_, row) => `${jobId} ${row}`),
  );
}

test('the memory of a result serves another job once it was written, and not before', async () => {
  const bench = setup();
  const written: { readonly jobId: string; readonly buffer: ArrayBufferLike }[] = [];
  const held = Promise.withResolvers<void>();
  const commit = bench.store.commit.bind(bench.store);
  bench.store.commit = async (requests) => {
    for (const { jobId, result } of requests) written.push({ jobId, buffer: result.buffer });
    const answers = await commit(requests);
    if (requests.some(({ jobId }) => jobId === 'a')) await held.promise;
    return answers;
  };
  bench.run([large('a')]);
  for (let i = 0; written.length === 0 && i < 1_000; i++) await bench.clock.advance(10);
  bench.run([large('b')]);
  await bench.untilOutcomes(1);
  held.resolve();
  await bench.untilOutcomes(2);
  bench.run([large('c')]);
  await bench.untilOutcomes(3);
  expect(written.map(({ jobId }) => jobId)).toEqual(['a', 'b', 'c']);
  const [a, b, c] = written.map(({ buffer }) => buffer);
  expect(b).not.toBe(a);
  expect([a, b]).toContain(c);
  for (const { jobId } of written) expect(bench.outcomesOf(jobId)).toMatchObject([{ kind: 'committed' }]);
});

const bodyOf = (bench: ReturnType<typeof setup>, jobId: string): readonly number[] =>
  bench.vectorsOf(jobId).flatMap((row) => [...row]);
const bench7 = (): ReturnType<typeof setup> => setup({ isNormalized: false, backend: { length: 7 } });

test('zeros are delivered of a model that may give them, and of no other', async () => {
  const texts = ['one two', textOf(9, 'x')];
  const static0 = setup({ mayBeZero: true, backend: { length: 0 } });
  static0.run([orderOf('a', texts)]);
  await static0.untilOutcomes(1);
  expect(static0.outcomesOf('a')).toMatchObject([{ kind: 'committed' }]);
  expect(new Set(bodyOf(static0, 'a'))).toEqual(new Set([0]));
  const other = setup({ backend: { length: 0 } });
  other.run([orderOf('a', texts)]);
  await other.untilOutcomes(1);
  expect(other.outcomesOf('a')).toMatchObject([{ kind: 'failed', failure: { code: 'INFERENCE_FAILED' } }]);
});

describe('vectors of a model that does not normalize', () => {
  const texts = ['one two', textOf(9, 'x')];
  const raw = (length: number): readonly (readonly number[])[] =>
    texts.map((text) =>
      [...fakeVector([...setup().tokenizer.encode(text).ids], DIMS)].map((value) => Math.fround(value * length)),
    );

  test('keep their lengths, whole and cut, and the return value says so', async () => {
    const bench = bench7();
    bench.run([orderOf('a', texts), orderOf('b', texts, { output: { dtype: 'f32', dimensions: 3 } })]);
    await bench.untilOutcomes(2);
    expect(bodyOf(bench, 'a')).toEqual(raw(7).flat());
    expect(bodyOf(bench, 'b')).toEqual(raw(7).flatMap((row) => row.slice(0, 3)));
    for (const jobId of ['a', 'b'])
      expect(bench.outcomesOf(jobId)).toMatchObject([{ kind: 'committed', value: { normalized: false } }]);
  });

  test('have length 1 for a job that asks for it, also after a cut, and nothing is said', async () => {
    const bench = bench7();
    bench.run([
      orderOf('a', texts, { output: { dtype: 'f32', dimensions: undefined, normalize: true } }),
      orderOf('b', texts, { output: { dtype: 'f32', dimensions: 3, normalize: true } }),
    ]);
    await bench.untilOutcomes(2);
    const unit = expectedVectors(bench.tokenizer, texts).flatMap((row) => [...row]);
    for (const [at, value] of bodyOf(bench, 'a').entries()) expect(value).toBeCloseTo(unit[at]!, 6);
    for (const row of [0, 1]) expect(Math.hypot(...bodyOf(bench, 'b').slice(3 * row, 3 * row + 3))).toBeCloseTo(1, 6);
    for (const jobId of ['a', 'b']) {
      const [outcome] = bench.outcomesOf(jobId);
      expect(outcome).toMatchObject({ kind: 'committed' });
      expect(JSON.stringify(outcome)).not.toContain('normalized');
    }
  });

  test('are asked for by "normalize": false, which a model refuses whose vectors have no others', async () => {
    const output = { dtype: 'f32', dimensions: undefined, normalize: false } as const;
    const bench = bench7();
    bench.run([orderOf('a', texts, { output })]);
    await bench.untilOutcomes(1);
    expect(bodyOf(bench, 'a')).toEqual(raw(7).flat());
    const unit = setup();
    unit.run([orderOf('b', texts, { output })]);
    await unit.untilOutcomes(1);
    expect(unit.outcomesOf('b')).toMatchObject([
      {
        kind: 'failed',
        failure: { code: 'JOB_INVALID', message: expect.stringContaining('have length 1') as unknown },
      },
    ]);
  });

  test('of one model that normalizes are the same whether length 1 is asked for or not, by either fingerprint', async () => {
    const facts = { model: MODEL, prompt: undefined, truncate: 'end' } as const;
    const output = { dtype: 'f32', dimensions: undefined, normalize: true } as const;
    const asked = fingerprintOf({ ...facts, output }, encodeTexts(texts));
    const plain = fingerprintOf({ ...facts, output: { ...output, normalize: undefined } }, encodeTexts(texts));
    const bench = setup();
    for (const fingerprint of [asked, plain]) bench.run([orderOf(fingerprint, texts, { output, fingerprint })]);
    await bench.untilOutcomes(2);
    for (const fingerprint of [asked, plain]) {
      expect(bench.vectorsOf(fingerprint)).toEqual(expectedVectors(bench.tokenizer, texts));
      expect(decodeResultHeader(bench.store.results.get(fingerprint)!)).toMatchObject({ fingerprint });
    }
    const other = bench7();
    other.run([orderOf('a', texts, { output, fingerprint: plain })]);
    await other.untilOutcomes(1);
    expect(other.outcomes()).toMatchObject([{ kind: 'failed', failure: { code: 'FINGERPRINT_MISMATCH' } }]);
  });

  test('that f16 cannot say fail their job and nobody beside it', async () => {
    const bench = setup({ isNormalized: false, backend: { length: 200_000 } });
    bench.run([orderOf('a', texts, { output: { dtype: 'f16', dimensions: undefined } }), orderOf('b', texts)]);
    await bench.untilOutcomes(2);
    expect(bench.outcomesOf('a')).toMatchObject([
      { kind: 'failed', failure: { code: 'INFERENCE_FAILED', message: expect.stringMatching(/65,504/) as unknown } },
    ]);
    expect(bodyOf(bench, 'b')).toEqual(raw(200_000).flat());
    expect(await bench.leftovers()).toEqual(NOTHING);
  });

  test('that are no numbers are never delivered', async () => {
    const bench = setup({
      isNormalized: false,
      backend: { length: 7 },
      prepare: (backend) => backend.givesNanAtRows((ids) => ids.length > 8),
    });
    bench.run([orderOf('a', texts), orderOf('b', texts.slice(0, 1))]);
    await bench.untilOutcomes(2);
    expect(bench.outcomesOf('a')).toMatchObject([
      { kind: 'failed', failure: { message: expect.stringMatching(/with values that are no numbers/) as unknown } },
    ]);
    expect(bench.outcomesOf('b')).toMatchObject([{ kind: 'committed' }]);
  });
});

function resultOf(fingerprint: string, flags: 'taken' | undefined = undefined): Buffer {
  const bytes = encodeResult(
    { dtype: 'f32', rows: 1, dims: DIMS, fingerprint, isTruncated: false },
    new Uint8Array(DIMS * 4),
  );
  if (flags === 'taken') bytes.writeUInt16LE(1, 6);
  return bytes;
}

describe('results that exist already', () => {
  const texts = ['one two'];
  const fingerprint = fingerprintOf(
    { model: MODEL, prompt: undefined, truncate: 'end', output: { dtype: 'f32', dimensions: undefined } },
    encodeTexts(texts),
  );

  test.each([
    ['whole', undefined],
    ['taken', 'taken'],
  ] as const)('a %s one of the same request completes the job without a run', async (_, flags) => {
    const bench = setup();
    bench.store.results.set('a', resultOf(fingerprint, flags));
    bench.run([orderOf('a', texts)]);
    await bench.untilOutcomes(1);
    expect(bench.outcomes()).toMatchObject([{ kind: 'already', value: { rows: 1, dims: DIMS, key: 'out:a' } }]);
    expect(bench.backend.runs).toHaveLength(0);
  });

  test('one of another request fails the job with JOB_ID_CONFLICT', async () => {
    const bench = setup();
    bench.store.results.set('a', resultOf('ffffffffffffffff'));
    bench.run([orderOf('a', texts)]);
    await bench.untilOutcomes(1);
    expect(bench.outcomes()).toMatchObject([{ kind: 'failed', failure: { code: 'JOB_ID_CONFLICT' } }]);
  });

  test('the input may be gone by then', async () => {
    const bench = setup();
    const input = { form: 'texts', rows: 1 } as const;
    for (const jobId of ['same', 'unsaid', 'other']) bench.store.results.set(jobId, resultOf(fingerprint));
    bench.run([
      orderOf('same', [], { input, fingerprint }),
      orderOf('unsaid', [], { input }),
      orderOf('other', [], { input, fingerprint: 'ffffffffffffffff' }),
    ]);
    await bench.untilOutcomes(3);
    expect(bench.outcomesOf('same')).toMatchObject([{ kind: 'already' }]);
    expect(bench.outcomesOf('unsaid')).toMatchObject([{ kind: 'already' }]);
    expect(bench.outcomesOf('other')).toMatchObject([{ kind: 'failed', failure: { code: 'JOB_ID_CONFLICT' } }]);
  });

  test('one that appears while the job runs is found at the commit', async () => {
    const bench = setup();
    bench.run([orderOf('same', texts), orderOf('other', texts)]);
    await settled();
    bench.store.results.set('same', resultOf(fingerprint));
    bench.store.results.set('other', resultOf('ffffffffffffffff'));
    await bench.untilOutcomes(2);
    expect(bench.outcomesOf('same')).toMatchObject([{ kind: 'already' }]);
    expect(bench.outcomesOf('other')).toMatchObject([{ kind: 'failed', failure: { code: 'JOB_ID_CONFLICT' } }]);
  });
});

describe('input that is refused', () => {
  const tokens = { form: 'tokens', rows: 1, tokens: 3, tokenizer: '0123456789abcdef' } as const;
  const cases: readonly (readonly [code: string, why: string, order: JobOrder, input: Buffer | undefined])[] = [
    ['INPUT_LOST', 'neither input nor result', orderOf('a', [], { input: { form: 'texts', rows: 1 } }), undefined],
    [
      'INPUT_LOST',
      'a payload server that has other bytes than were put there',
      orderOf('a', [], { input: { form: 'texts', rows: 1, store: 'a:1' }, fingerprint: '0000000000000001' }),
      encodeTexts(['one']),
    ],
    ['INPUT_CORRUPT', 'not SHI1', orderOf('a', [], { input: { form: 'texts', rows: 1 } }), Buffer.from('nonsense')],
    [
      'INPUT_CORRUPT',
      'another form than the job says',
      orderOf('a', [], { input: { form: 'texts', rows: 1 } }),
      encodeTokens([[101, 7, 102]]),
    ],
    [
      'INPUT_CORRUPT',
      'another number of rows than the job says',
      orderOf('a', [], { input: { form: 'texts', rows: 2 } }),
      encodeTexts(['one']),
    ],
    [
      'INPUT_CORRUPT',
      'ids outside the vocabulary',
      orderOf('a', [], { input: tokens }),
      encodeTokens([[101, 30_522, 102]]),
    ],
    ...[65_535, 65_536, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1].map(
      (id) =>
        [
          'INPUT_CORRUPT',
          `id ${id}`,
          orderOf('a', [], { input: tokens }),
          encodeTokens([[1, 2, 3, 4, 5, 6, 7, id]]),
        ] as const,
    ),
    ...Array.from(
      { length: 9 },
      (_, at) =>
        [
          'INPUT_CORRUPT',
          `a strange id at ${at}`,
          orderOf('a', [], { input: tokens }),
          encodeTokens([Array.from({ length: 9 }, (_unused, i) => (i === at ? 30_522 : i))]),
        ] as const,
    ),
    ['INPUT_CORRUPT', 'a row without ids', orderOf('a', [], { input: tokens }), encodeTokens([[]])],
    [
      'TOKENIZER_MISMATCH',
      'ids of another tokenizer',
      orderOf('a', [], { input: { ...tokens, tokenizer: 'ffffffffffffffff' } }),
      encodeTokens([[101, 7, 102]]),
    ],
    [
      'INPUT_TOO_LONG',
      'more ids than the model takes',
      orderOf('a', [], { input: tokens }),
      encodeTokens([Array.from({ length: 65 }, () => 7)]),
    ],
    [
      'INPUT_TOO_LONG',
      'a long text with truncate "error"',
      orderOf('a', [textOf(65, 1)], { truncate: 'error' }),
      undefined,
    ],
    [
      'JOB_INVALID',
      'more dimensions than the model has',
      orderOf('a', ['one'], { output: { dtype: 'f32', dimensions: 1_000 } }),
      undefined,
    ],
    [
      'FINGERPRINT_MISMATCH',
      'a fingerprint of something else',
      orderOf('a', ['one'], { fingerprint: 'ffffffffffffffff' }),
      undefined,
    ],
  ];

  test.each(cases)('%s: %s, and its neighbour completes', async (code, _, refused, input) => {
    const bench = setup();
    if (input !== undefined) bench.store.inputs.set('a', input);
    bench.run([refused, orderOf('neighbour', ['one'])]);
    await bench.untilOutcomes(2);
    expect(bench.outcomesOf('a')).toMatchObject([{ kind: 'failed', token: 'a-token', failure: { code } }]);
    expect(bench.outcomesOf('neighbour')).toMatchObject([{ kind: 'committed' }]);
    expect(bench.backend.runs).toHaveLength(1);
    expect(await bench.leftovers()).toEqual(NOTHING);
  });
});

describe('the window', () => {
  test('a short pool runs at once when nothing else is queued', async () => {
    const bench = setup();
    bench.run([orderOf('a', ['one'])], true);
    await settled();
    expect(bench.backend.runs).toHaveLength(1);
  });

  test('with minRows rows it runs after maxWaitMs', async () => {
    const bench = setup();
    bench.run([orderOf('a', ['one', 'two', 'three', 'four'])], false);
    await bench.clock.advance(9);
    expect(bench.backend.runs).toHaveLength(0);
    await bench.clock.advance(1);
    expect(bench.backend.runs).toHaveLength(1);
  });

  test('with fewer it runs after twice maxWaitMs, counted from its oldest row', async () => {
    const bench = setup();
    bench.run([orderOf('a', ['one'])], false);
    await bench.clock.advance(15);
    bench.run([orderOf('b', ['two'])], false);
    await bench.clock.advance(4);
    expect(bench.backend.runs).toHaveLength(0);
    await bench.clock.advance(1);
    expect(bench.backend.runs.map((run) => run.rows)).toEqual([2]);
  });

  test('rows that arrive late can make it due at once', async () => {
    const bench = setup();
    bench.run([orderOf('a', ['one'])], false);
    await bench.clock.advance(12);
    bench.run([orderOf('b', ['two', 'three', 'four'])], false);
    await settled();
    expect(bench.backend.runs.map((run) => run.rows)).toEqual([4]);
  });

  test('a full budget or a full count of rows runs at once', async () => {
    const tokens = setup();
    tokens.run(
      [
        orderOf(
          'a',
          Array.from({ length: 4 }, (_, i) => textOf(64, i)),
        ),
      ],
      false,
    );
    await settled();
    expect(tokens.backend.runs).toHaveLength(1);
    const rows = setup();
    rows.run(
      [
        orderOf(
          'a',
          Array.from({ length: 16 }, () => 'one'),
        ),
      ],
      false,
    );
    await settled();
    expect(rows.backend.runs).toHaveLength(1);
  });

  test('the news that the queue is drained ends the waiting of rows that came before', async () => {
    const bench = setup();
    bench.run([orderOf('a', ['one'])], false);
    await bench.clock.advance(1);
    bench.run([orderOf('b', ['two'])], true);
    await settled();
    expect(bench.backend.runs).toHaveLength(1);
  });

  test('what would run behind another gathers until that is nearly over, or is full', async () => {
    const twentyMs = {
      newBudget: () => ({ ...fixedBudget({ maxPaddedTokens: 1024, maxRows: 8 }), predictMs: () => 20 }),
      backend: { runMs: () => 20 },
    };
    const bench = setup(twentyMs);
    bench.run([orderOf('a', ['one'])], true);
    await bench.clock.advance(3);
    bench.run([orderOf('b', ['two'])], true);
    await bench.clock.advance(10);
    bench.run([orderOf('c', ['three'])], true);
    await bench.clock.advance(3);
    expect(bench.said('began')).toHaveLength(1);
    await bench.clock.advance(1); // 1 ms and a tenth of its time before the first is over
    expect(bench.said('began')).toMatchObject([{ jobIds: ['a'] }, { jobIds: ['b', 'c'] }]);
    const full = setup(twentyMs);
    full.run([orderOf('a', ['one'])], true);
    await full.clock.advance(1);
    full.run(
      [
        orderOf(
          'b',
          Array.from({ length: 8 }, (_, i) => textOf(8, i)),
        ),
      ],
      true,
    );
    await settled();
    expect(full.said('began')).toHaveLength(2);
  });

  test('no more micro-batches are cut than there are slots', async () => {
    const bench = setup({ budget: { maxRows: 1 } });
    bench.run([orderOf('a', ['one', 'two', 'three', 'four', 'five'])]);
    await settled();
    expect(bench.backend.lend()).toBeUndefined();
    await bench.untilOutcomes(1);
    expect(await bench.leftovers()).toEqual(NOTHING);
  });
});

describe('dropping', () => {
  test('rows that wait are forgotten, rows at the device finish, nothing is written', async () => {
    const bench = setup({ budget: { maxRows: 2 }, backend: { slots: 1 } });
    bench.run([orderOf('a', ['one', 'two', 'three', 'four'])]);
    await settled();
    bench.executor.handle({ kind: 'drop', jobIds: ['a'] });
    await bench.clock.advance(1_000);
    expect(bench.backend.runs).toHaveLength(1);
    expect(bench.outcomes()).toEqual([]);
    expect(bench.store.commits).toEqual([]);
  });

  test('a job dropped while its input is read never runs', async () => {
    const bench = setup();
    bench.store.readGate.hold();
    bench.run([orderOf('a', ['one']), orderOf('b', ['two'])]);
    bench.executor.handle({ kind: 'drop', jobIds: ['a'] });
    bench.store.readGate.release();
    await bench.untilOutcomes(1);
    expect(bench.outcomes()).toMatchObject([{ kind: 'committed', jobId: 'b' }]);
    expect(bench.backend.runs.map((run) => run.rows)).toEqual([1]);
  });

  test('halves of a split micro-batch lose the rows of a dropped job', async () => {
    const bench = setup({ backend: { slots: 1 } });
    bench.backend.runsOutOfVramAbove({ paddedTokens: 32 });
    bench.run([
      orderOf('a', [textOf(8, 1), textOf(8, 2), textOf(8, 3)]),
      orderOf('b', [textOf(8, 4), textOf(8, 5), textOf(8, 6)]),
    ]);
    await settled();
    bench.executor.handle({ kind: 'drop', jobIds: ['a'] });
    await bench.untilOutcomes(1);
    expect(bench.backend.runs.slice(1).reduce((sum, run) => sum + run.rows, 0)).toBe(3);
    expect(await bench.leftovers()).toEqual(NOTHING);
  });

  test('dropped after its last row came back: the result that is being written stands, and is no trouble', async () => {
    const bench = setup();
    bench.store.commitGate.hold();
    bench.run([orderOf('a', ['one'])]);
    await bench.clock.advance(100);
    bench.executor.handle({ kind: 'drop', jobIds: ['a'] });
    bench.store.commitGate.release();
    expect(await bench.leftovers()).toEqual(NOTHING);
    expect(bench.store.results.has('a')).toBe(true);
  });

  test('dropping what is not there does nothing', async () => {
    const bench = setup();
    bench.executor.handle({ kind: 'drop', jobIds: ['nobody'] });
    expect(await bench.leftovers()).toEqual(NOTHING);
    expect(bench.sent).toEqual([]);
  });
});

describe('a job that is claimed again', () => {
  test('runs under its new token alone, whichever input is read first', async () => {
    for (const first of [0, 1]) {
      const bench = setup();
      bench.store.readGate.hold();
      bench.run([orderOf('a', ['one'], { token: 'old' })]);
      bench.run([orderOf('a', ['one'], { token: 'new' })]);
      bench.store.readGate.releaseOne(first);
      await settled();
      bench.store.readGate.release();
      await bench.untilOutcomes(1);
      expect(await bench.leftovers()).toEqual(NOTHING);
      expect(bench.outcomes()).toMatchObject([{ kind: 'committed', token: 'new' }]);
    }
  });

  test('while its older claim is being committed, both claims get an answer and one result stands', async () => {
    const bench = setup();
    bench.store.commitGate.hold();
    bench.run([orderOf('a', ['one'], { token: 'old' })]);
    await bench.clock.advance(100);
    bench.run([orderOf('a', ['one'], { token: 'new' })]);
    await bench.clock.advance(100);
    bench.store.commitGate.release();
    expect(await bench.leftovers()).toEqual(NOTHING);
    expect(bench.outcomes()).toMatchObject([
      { kind: 'already', token: 'new' },
      { kind: 'committed', token: 'old' },
    ]);
  });

  test('the same order sent twice runs once', async () => {
    const bench = setup();
    bench.run([orderOf('a', ['one'])]);
    bench.run([orderOf('a', ['one'])]);
    await settled();
    bench.run([orderOf('a', ['one'])]);
    expect(await bench.leftovers()).toEqual(NOTHING);
    expect(bench.outcomes()).toMatchObject([{ kind: 'committed' }]);
    expect(bench.backend.runs).toHaveLength(1);
  });

  test('a lease lost before the commit writes nothing', async () => {
    const bench = setup();
    bench.run([orderOf('a', ['one'])]);
    await settled();
    bench.store.locks.set('a', 'somebody else');
    await bench.untilOutcomes(1);
    expect(bench.outcomes()).toMatchObject([{ kind: 'lease-lost', jobId: 'a', token: 'a-token' }]);
    expect(bench.store.results.size).toBe(0);
  });
});

describe('stopping', () => {
  test('jobs without a row at the device go back, the others finish', async () => {
    const bench = setup({ budget: { maxRows: 2 }, backend: { slots: 1 } });
    bench.run([orderOf('begun', [textOf(40, 1), textOf(40, 2), textOf(40, 3)]), orderOf('waiting', [textOf(8, 4)])]);
    await settled();
    const stopped = bench.executor.stop();
    await bench.clock.advanceUntilSettled(stopped);
    expect(bench.outcomes()).toMatchObject([
      { kind: 'unstarted', jobId: 'waiting', token: 'waiting-token' },
      { kind: 'committed', jobId: 'begun' },
    ]);
    expect(await bench.leftovers()).toEqual(NOTHING);
  });

  test('jobs whose input is still being read go back as well', async () => {
    const bench = setup();
    bench.store.readGate.hold();
    bench.run([orderOf('a', ['one'])], false);
    const stopped = bench.executor.stop();
    bench.store.readGate.release();
    await bench.clock.advanceUntilSettled(stopped);
    expect(bench.outcomes()).toMatchObject([{ kind: 'unstarted' }]);
    expect(bench.clock.pending).toBe(0);
  });

  test('it waits for runs in flight even when all their jobs were dropped', async () => {
    const bench = setup();
    bench.run([orderOf('a', ['one', 'two'])]);
    await settled();
    bench.executor.handle({ kind: 'drop', jobIds: ['a'] });
    await bench.clock.advanceUntilSettled(bench.executor.stop());
    expect(bench.backend.runningMs()).toBe(0);
    await bench.backend.stop();
  });

  test('it waits for commits in flight, and may be asked twice', async () => {
    const bench = setup();
    bench.store.commitGate.hold();
    bench.run([orderOf('a', ['one'])]);
    await bench.clock.advance(100);
    let stops = 0;
    const stopped = Promise.all([bench.executor.stop(), bench.executor.stop()].map((stop) => stop.then(() => stops++)));
    await bench.clock.advance(100);
    expect(stops).toBe(0);
    bench.store.commitGate.release();
    await stopped;
    expect(bench.outcomes()).toMatchObject([{ kind: 'committed' }]);
    await bench.executor.stop();
  });

  test('with nothing to do it stops at once and says nothing', async () => {
    const bench = setup();
    await bench.executor.stop();
    expect(bench.sent).toEqual([]);
  });
});

test('a ping is answered with the time of the run at the device', async () => {
  const bench = setup();
  bench.backend.hang();
  bench.executor.handle({ kind: 'ping', sequence: 1 });
  bench.run([orderOf('a', ['one'])]);
  await bench.clock.advance(500);
  bench.executor.handle({ kind: 'ping', sequence: 2 });
  expect(bench.sent.filter((message) => message.kind === 'pong')).toEqual([
    { kind: 'pong', sequence: 1, runningMs: 0 },
    { kind: 'pong', sequence: 2, runningMs: 500 },
  ]);
});

test('a job that is done in the very moment in which a commit ends is committed as well', async () => {
  for (let microtasks = 0; microtasks < 12; microtasks++) {
    const bench = setup({ budget: { maxRows: 1 } });
    const runGate = new Gate();
    const run = bench.backend.run.bind(bench.backend);
    let runs = 0;
    bench.backend.run = async (slot, shape, options) => {
      const isSecond = ++runs === 2;
      const result = await run(slot, shape, options);
      if (isSecond) await runGate.pass();
      return result;
    };
    runGate.hold();
    bench.store.commitGate.hold();
    bench.run([orderOf('a', ['one']), orderOf('b', ['two'])]);
    await bench.clock.advance(100);
    bench.store.commitGate.release();
    for (let i = 0; i < microtasks; i++) await Promise.resolve();
    runGate.release();
    await bench.clock.advance(100);
    expect(bench.outcomes()).toMatchObject([
      { jobId: 'a', kind: 'committed' },
      { jobId: 'b', kind: 'committed' },
    ]);
    expect(await bench.leftovers()).toEqual(NOTHING);
  }
});

test(
  'whatever is dropped, claimed again, refused or out of memory meanwhile: one answer per claim that is still ' +
    'wanted',
  async () => {
    const step = fc.oneof(
      fc.record({
        kind: fc.constant('run' as const),
        job: fc.integer({ min: 0, max: 5 }),
        sizes: fc.array(fc.integer({ min: 2, max: 64 }), { minLength: 1, maxLength: 9 }),
        isDrained: fc.boolean(),
      }),
      fc.record({ kind: fc.constant('drop' as const), job: fc.integer({ min: 0, max: 5 }) }),
      fc.record({ kind: fc.constant('wait' as const), ms: fc.integer({ min: 0, max: 15 }) }),
      fc.record({
        kind: fc.constant('hold' as const),
        what: fc.constantFrom('readGate' as const, 'commitGate' as const),
      }),
      fc.record({
        kind: fc.constant('releaseOne' as const),
        what: fc.constantFrom('readGate' as const, 'commitGate' as const),
        index: fc.integer({ min: 0, max: 3 }),
      }),
    );
    await fc.assert(
      fc.asyncProperty(
        fc.array(step, { maxLength: 40 }),
        fc.integer({ min: 64, max: 512 }),
        async (steps, vramPaddedTokens) => {
          const bench = setup();
          bench.backend.runsOutOfVramAbove({ paddedTokens: vramPaddedTokens });
          const wanted = new Map<string, string>();
          let tokens = 0;
          for (const now of steps) {
            switch (now.kind) {
              case 'run': {
                const token = `t${++tokens}`;
                wanted.set(`job-${now.job}`, token);
                bench.run(
                  [
                    orderOf(
                      `job-${now.job}`,
                      now.sizes.map((size, i) => textOf(size, `${now.job}r${i}`)),
                      { token },
                    ),
                  ],
                  now.isDrained,
                );
                break;
              }
              case 'drop':
                wanted.delete(`job-${now.job}`);
                bench.store.locks.delete(`job-${now.job}`);
                bench.executor.handle({ kind: 'drop', jobIds: [`job-${now.job}`] });
                break;
              case 'wait':
                await bench.clock.advance(now.ms);
                break;
              case 'hold':
                bench.store[now.what].hold();
                break;
              case 'releaseOne':
                bench.store[now.what].releaseOne(now.index);
                break;
            }
          }
          bench.store.readGate.release();
          bench.store.commitGate.release();
          await bench.clock.advance(100_000);
          for (const [jobId, token] of wanted)
            expect(bench.outcomesOf(jobId).filter((outcome) => outcome.token === token)).toHaveLength(1);
          const answered = bench.outcomes().map((outcome) => `${outcome.jobId} ${outcome.token}`);
          expect(new Set(answered).size).toBe(answered.length);
          for (const result of bench.store.results.values()) expect(openResult(result).header.rows).toBeGreaterThan(0);
          expect(await bench.leftovers()).toEqual(NOTHING);
        },
      ),
      { numRuns: 300 },
    );
  },
);

test('the result has the form that was asked for', async () => {
  const bench = setup();
  const output = { dtype: 'f16', dimensions: 3 } as const;
  bench.run([orderOf('a', ['one', 'two'], { output })]);
  await bench.untilOutcomes(1);
  const vectors = Float32Array.from(expectedVectors(bench.tokenizer, ['one', 'two']).flatMap((vector) => [...vector]));
  expect(Uint8Array.from(openResult(bench.store.results.get('a')!).body)).toEqual(
    encodeBody(vectors, 2, DIMS, output).body,
  );
});
