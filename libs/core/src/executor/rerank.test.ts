// Jobs of a reranker in the executor: each row is a pair and gets a score. What is told here is what differs from
// embedding; the rest is executor.test.ts and its siblings, which know no kinds.

import { describe, expect, test } from 'vitest';
import { encodePairs, encodeQueryTexts, encodeTokens, rerankFingerprint, type TokenPair } from '@shoal/contract';
import { MODEL, NOTHING, orderOf, setup, type SetupOptions } from '../testing/executor-bench.ts';
import { fakeVector } from '../sim/fake-vector.ts';
import type { JobOrder } from '../protocol.ts';

const TEXTS = ['iron atoms align', 'buy shoes', '', 'a field of force around wires'];
const QUERY = 'how do magnets work';

const bench = (options: SetupOptions = {}) => setup({ ...options, kind: 'reranker', isNormalized: false, dims: 1 });
const rerank = (jobId: string, texts: readonly string[], more: Partial<JobOrder> = {}): JobOrder =>
  orderOf(jobId, [], { input: { form: 'inline', query: QUERY, texts }, ...more });
const scoreOf = (ids: ArrayLike<number>): number => fakeVector(ids, 1)[0]!;

/** An order whose input lies under its key. */
const keyed = (jobId: string, pairs: readonly TokenPair[], more: object = {}): JobOrder => {
  const tokens = pairs.reduce((sum, { ids }) => sum + ids.length, 0);
  const input = { form: 'tokens', rows: pairs.length, tokens, tokenizer: '0123456789abcdef', ...more } as const;
  return orderOf(jobId, [], { input });
};

describe('a job of a reranker', () => {
  test('gets one score for each text, in their order, and its run knows where the texts begin', async () => {
    const b = bench();
    b.run([rerank('job', TEXTS)]);
    await b.untilOutcomes(1);
    const pairs = TEXTS.map((text) => b.tokenizer.encodePair(QUERY, text));
    expect(b.vectorsOf('job').map(([score]) => score)).toEqual(pairs.map(({ ids }) => scoreOf(ids)));
    const [outcome] = b.outcomesOf('job');
    expect(outcome).toMatchObject({ kind: 'committed', value: { rows: 4, dims: 1, dtype: 'f32', truncated: 0 } });
    expect(outcome).not.toHaveProperty('value.normalized');
    const seconds = b.backend.runs.flatMap((run) => run.seconds);
    expect(new Set(seconds)).toEqual(new Set([pairs[0]!.second]));
    expect(await b.leftovers()).toEqual(NOTHING);
  });

  test('has its scores in the return value where it asks for them, exact as they are stored', async () => {
    const b = bench();
    b.run([rerank('job', TEXTS, { returnsVectors: true })]);
    await b.untilOutcomes(1);
    const [outcome] = b.outcomesOf('job');
    const scores = outcome?.kind === 'committed' && 'scores' in outcome.value ? outcome.value.scores : undefined;
    expect([...Float32Array.from(scores ?? [])]).toEqual(b.vectorsOf('job').map(([score]) => score));
    expect(outcome).not.toHaveProperty('value.vectors');
  });

  test('has the fingerprint of its query and texts, whether they lie in the job or under its key', async () => {
    const b = bench();
    const bytes = encodeQueryTexts(QUERY, TEXTS);
    const fingerprint = rerankFingerprint({ model: MODEL, truncate: 'end' }, bytes);
    b.store.inputs.set('keyed', bytes);
    b.run([
      rerank('inline', TEXTS, { fingerprint }),
      orderOf('keyed', [], { input: { form: 'texts', rows: TEXTS.length }, fingerprint }),
      rerank('other', TEXTS, { fingerprint, truncate: 'error' }),
    ]);
    await b.untilOutcomes(3);
    expect(b.outcomesOf('inline')).toMatchObject([{ kind: 'committed' }]);
    expect(b.outcomesOf('keyed')).toMatchObject([{ kind: 'committed' }]);
    expect(b.outcomesOf('other')).toMatchObject([{ kind: 'failed', failure: { code: 'FINGERPRINT_MISMATCH' } }]);
    b.run([rerank('inline', TEXTS, { fingerprint, token: 'again' })]);
    await b.untilOutcomes(4);
    expect(b.outcomesOf('inline').at(-1)).toMatchObject({ kind: 'already', value: { rows: 4, dims: 1 } });
  });

  test('that brought token ids keeps the places of its second texts, and equal ids are one row only where they agree', async () => {
    const b = bench();
    const ids = [101, 2000, 102, 3000, 4000, 102];
    const pairs = [3, 4, 3].map((second) => ({ ids, second }));
    b.store.inputs.set('job', encodePairs(pairs));
    b.run([keyed('job', pairs)]);
    await b.untilOutcomes(1);
    expect(b.backend.runs.flatMap((run) => run.seconds).toSorted()).toEqual([3, 4]);
    expect(b.vectorsOf('job')).toHaveLength(3);
    expect(b.said('ran').reduce((sum, { duplicates }) => sum + duplicates, 0)).toBe(1);
  });

  test('with a pair that is too long is cut and says so, or fails where it asked for that', async () => {
    const b = bench();
    const long = 'word '.repeat(b.tokenizer.maxTokens);
    b.run([rerank('cut', ['short', long]), rerank('whole', ['short', long], { truncate: 'error' })]);
    await b.untilOutcomes(2);
    expect(b.outcomesOf('cut')).toMatchObject([{ kind: 'committed', value: { truncated: 1 } }]);
    expect(b.outcomesOf('whole')).toMatchObject([
      { kind: 'failed', failure: { code: 'INPUT_TOO_LONG', message: expect.stringContaining('row 1 has more') } },
    ]);
  });

  const row = { ids: [101, 2000, 102, 3000, 102], second: 3 };
  test.each<[string, Buffer, object, string, RegExp]>([
    ['one row less than it says', encodePairs([row]), { rows: 2 }, 'INPUT_CORRUPT', /says 2 rows, .* holds 1/],
    ['texts for ids', encodeQueryTexts('a', ['b']), {}, 'INPUT_CORRUPT', /says tokens, .* holds texts/],
    ['rows without a second text', encodeTokens([row.ids]), {}, 'INPUT_CORRUPT', /which has no pairs/],
    ['ids of another tokenizer', encodePairs([row]), { tokenizer: 'ffffffffffffffff' }, 'TOKENIZER_MISMATCH', /ffff/],
    ['an id that is no token', encodePairs([{ ids: [30_522], second: 0 }]), {}, 'INPUT_CORRUPT', /id 30522 is outside/],
    [
      'a row that is too long',
      encodePairs([{ ids: Array.from({ length: 65 }, () => 7), second: 9 }]),
      {},
      'INPUT_TOO_LONG',
      /more than the 64 tokens/,
    ],
    ['no bytes at all', Buffer.alloc(0), {}, 'INPUT_CORRUPT', /./],
  ])('with %s fails by name', async (_, bytes, more, code, message) => {
    const b = bench();
    b.store.inputs.set('job', bytes);
    b.run([keyed('job', [row], more)]);
    await b.untilOutcomes(1);
    expect(b.outcomesOf('job')).toMatchObject([
      { kind: 'failed', failure: { code, message: expect.stringMatching(message) as unknown } },
    ]);
  });

  test('whose batch is too much for the device is split, and the pair that fits nowhere is handed over', async () => {
    const b = bench({ prepare: (backend) => backend.runsOutOfVramAbove({ paddedTokens: 30 }) });
    const long = 'one two three four five six seven eight nine ten '.repeat(5);
    b.run([rerank('short', TEXTS), rerank('long', [long])]);
    await b.untilOutcomes(2);
    expect(b.outcomesOf('short')).toMatchObject([{ kind: 'committed', value: { splits: expect.any(Number) } }]);
    expect(b.said('split').length).toBeGreaterThan(0);
    const pairs = TEXTS.map((text) => b.tokenizer.encodePair(QUERY, text));
    expect(b.vectorsOf('short').map(([score]) => score)).toEqual(pairs.map(({ ids }) => scoreOf(ids)));
    expect(b.outcomesOf('long')).toMatchObject([{ kind: 'hand-over', handOver: { reason: { code: 'OUT_OF_VRAM' } } }]);
  });

  test('with a score that is no number fails alone, after a second run in fp32', async () => {
    const poison = 'poison';
    const b = bench({ backend: { precision: 'fp16' } });
    const { length } = b.tokenizer.encodePair(QUERY, poison).ids; // no pair of TEXTS has as many
    b.backend.givesNanExactlyAtRows((ids) => ids.length === length);
    b.run([rerank('bad', [poison, 'buy shoes']), rerank('good', TEXTS)]);
    await b.untilOutcomes(2);
    expect(b.outcomesOf('good')).toMatchObject([{ kind: 'committed' }]);
    expect(b.outcomesOf('bad')).toMatchObject([
      {
        kind: 'failed',
        failure: { code: 'INFERENCE_FAILED', message: `row 0 gave a score that is no number (8 tokens)` },
      },
    ]);
    expect(b.said('rerun')).toMatchObject([{ rows: 1 }]);
  });
});
