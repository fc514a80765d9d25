// Calls with made-up clients: what is asked together, what is asked alone, and whose fault a failure is.

import { ShoalError } from '@shoal/contract';
import type { Tokenizer } from '@shoal/core';
import type { EmbedOptions, EmbedResult, RerankOptions, ShoalClient } from '@shoal/client';
import { describe, expect, test } from 'vitest';
import { Catalogue, type Served } from '../catalogue.ts';
import { invalid } from '../problem.ts';
import { BulkClients } from './bulk-clients.ts';
import { Calls, isPassing, type Call, type CallAnswer } from './calls.ts';

const DIMS = 2;
const TERMS = { id: 'batch_1.5.2', tenant: 'acme', signal: new AbortController().signal };
const served = {
  name: 'minilm',
  revision: 'abcdef0123456789',
  dims: DIMS,
  maxTokens: 8,
  vocabularySize: 100,
  rowEnds: { first: 1, last: 2 },
  tokenRows: 'whole',
  truncate: 'error',
  isNormalized: true,
  prompts: { query: '', passage: '' },
} as const;
const tokenizer = { maxTokens: 8, vocabularySize: 100, hash: 'x', encode: () => ({ ids: [1, 2], isTruncated: false }) };

interface Asked {
  readonly texts: readonly string[];
  readonly options: EmbedOptions;
}

/** Vectors are [length of the text, 0]; `fails` says which texts are refused, and how. */
function callsWith(fails: (asked: Asked) => unknown = () => undefined) {
  const asked: Asked[] = [];
  const reranked: RerankOptions[] = [];
  const client = {
    embed: async (texts: readonly string[], options: EmbedOptions = {}): Promise<EmbedResult> => {
      asked.push({ texts, options });
      const error = fails({ texts, options });
      if (error !== undefined) throw error;
      const vectors = Float32Array.from(texts.flatMap((text) => [text.length, 0]));
      const tokens = texts.map((text) => text.length);
      return { rows: texts.length, dims: DIMS, dtype: 'f32', vectors, tokens, truncated: [] } as unknown as EmbedResult;
    },
    rerank: async (options: RerankOptions) => {
      reranked.push(options);
      return {
        scores: Float32Array.from(options.documents, (_, at) => 1 / (1 + at)),
        ranked: options.documents.map((_, at) => at),
        model: 'scorer@r1',
        tokens: 7,
        truncated: 0,
        isTruncated: false,
        isSimulated: false,
      };
    },
  } as unknown as ShoalClient;
  const calls = new Calls({
    catalogue: new Catalogue([{ model: served, embedder: {} as unknown as Served['embedder'] }]),
    bulk: new BulkClients([{ model: served, tokenizer: tokenizer as unknown as Tokenizer }], async () => client),
    reranker: {
      named: async (name) => {
        if (name === 'scorer') return { name: 'scorer', revision: 'r1' };
        throw invalid('model_not_found', 'model', `there is no reranker ${name}`, 404);
      },
    },
  });
  return { calls, asked, reranked };
}

const embedding = (calls: Calls, input: unknown, more: object = {}): Promise<Call> =>
  calls.check('/v1/embeddings', { model: 'minilm', input, ...more });

const firstOf = (answer: CallAnswer | undefined): unknown =>
  answer !== undefined && 'body' in answer ? Reflect.get(answer.body, 'data') : answer?.problem.facts.code;

describe('requests for vectors', () => {
  test('on equal terms become one job of class bulk under the tenant, and each gets its own rows', async () => {
    const { calls, asked } = callsWith();
    const both = [await embedding(calls, ['a', 'bb']), await embedding(calls, 'ccc', { encoding_format: 'float' })];
    expect(calls.groupOf(both[0]!)).toBe(calls.groupOf(both[1]!));
    const [one, two] = await calls.answer(both, TERMS);
    expect(asked.map(({ texts }) => texts)).toEqual([['a', 'bb', 'ccc']]);
    expect(asked[0]!.options).toMatchObject({ jobId: 'batch_1.5.2.abcdef012345', class: 'bulk', tenant: 'acme' });
    expect(firstOf(one)).toMatchObject([{ embedding: [1, 0] }, { index: 1, embedding: [2, 0] }]);
    expect(firstOf(two)).toMatchObject([{ index: 0, embedding: [3, 0] }]);
    expect([one, two].map((answer) => answer && 'tokens' in answer && answer.tokens)).toEqual([3, 3]);
  });

  test('on other terms are not asked together', async () => {
    const { calls } = callsWith();
    const all = await Promise.all([
      embedding(calls, 'a'),
      embedding(calls, 'a', { dimensions: 1 }),
      embedding(calls, 'a', { truncate: 'end' }),
      embedding(calls, [[1, 5, 2]]),
    ]);
    expect(new Set(all.map((call) => calls.groupOf(call))).size).toBe(4);
  });

  test('of which one is at fault are asked alone, and it alone is refused', async () => {
    const tooLong = new ShoalError('INPUT_TOO_LONG', 'row 1 is too long', { jobId: 'x', row: 0 });
    const { calls, asked } = callsWith(({ texts }) => (texts.includes('long') ? tooLong : undefined));
    const three = [await embedding(calls, 'a'), await embedding(calls, 'long'), await embedding(calls, 'bb')];
    const answers = await calls.answer(three, TERMS);
    expect(answers.map(firstOf)).toMatchObject([
      [{ embedding: [1, 0] }],
      'context_length_exceeded',
      [{ embedding: [2, 0] }],
    ]);
    const ids = asked.map(({ options }) => options.jobId);
    expect(ids).toEqual([
      'batch_1.5.2.abcdef012345',
      'batch_1.5.2.0.abcdef012345',
      'batch_1.5.2.1.abcdef012345',
      'batch_1.5.2.2.abcdef012345',
    ]);
  });

  test('of a large job are asked again in pieces of 64 before the one at fault is found', async () => {
    const tooLong = new ShoalError('INPUT_TOO_LONG', 'too long', { jobId: 'acme~x-1024x1024', row: 3 });
    const { calls, asked } = callsWith(({ texts }) => (texts.includes('long') ? tooLong : undefined));
    const all = await Promise.all(Array.from({ length: 200 }, (_, at) => embedding(calls, at === 70 ? 'long' : 'a')));
    const answers = await calls.answer(all, TERMS);
    expect(answers.flatMap((answer, at) => ('problem' in answer ? [at] : []))).toEqual([70]);
    expect(asked.map(({ texts }) => texts.length).toSorted((a, b) => b - a)).toEqual([
      200,
      64,
      64,
      64,
      8,
      ...Array(64).fill(1),
    ]);
    const [whole] = await calls.answer([await embedding(calls, ['a', 'long'])], TERMS);
    expect(whole).toMatchObject({ problem: { facts: { param: 'input[1027]' } } });
  });

  test.each(['QUEUE_UNREACHABLE', 'QUEUE_REFUSES_WRITES', 'NOT_SERVED', 'RESULT_EXPIRED', 'CANCELLED'] as const)(
    'are not at fault for %s: it passes',
    async (code) => {
      const { calls } = callsWith(() => new ShoalError(code, 'away'));
      const error = await calls.answer([await embedding(calls, 'a')], TERMS).catch((found: unknown) => found);
      expect(isPassing(error)).toBe(true);
    },
  );

  test('whose id was used on other terms get another id', async () => {
    const conflict = new ShoalError('JOB_ID_CONFLICT', 'in use');
    const { calls, asked } = callsWith(() => (asked.length === 1 ? conflict : undefined));
    const [answer] = await calls.answer([await embedding(calls, 'a')], TERMS);
    expect(firstOf(answer)).toMatchObject([{ embedding: [1, 0] }]);
    expect(asked.map(({ options }) => options.jobId)).toEqual([
      'batch_1.5.2.abcdef012345',
      'batch_1.5.2.again.abcdef012345',
    ]);
  });

  test('that failed for a reason of their own have OpenAI’s error', async () => {
    const { calls } = callsWith(() => new ShoalError('QUARANTINED', 'it killed its executor'));
    const [answer] = await calls.answer([await embedding(calls, 'a')], TERMS);
    expect(answer).toMatchObject({ problem: { facts: { status: 500, code: 'quarantined' } } });
  });
});

describe('requests for scores', () => {
  const body = { model: 'scorer', query: 'q', documents: ['a', 'b'], top_n: 1, return_documents: true };

  test('are asked alone, and answered as the route does', async () => {
    const { calls, reranked } = callsWith();
    const call = await calls.check('/v1/rerank', body);
    expect(calls.groupOf(call)).toBeUndefined();
    const [answer] = await calls.answer([call], TERMS);
    expect(answer).toMatchObject({
      tokens: 7,
      body: { model: 'scorer', results: [{ index: 0, document: { text: 'a' } }, { index: 1 }] },
    });
    expect(reranked).toMatchObject([{ topN: 1, class: 'bulk', tenant: 'acme', jobId: 'batch_1.5.2.r1' }]);
  });

  test('of a reranker that nobody serves are refused by name', async () => {
    const { calls } = callsWith();
    await expect(calls.check('/v1/rerank', { ...body, model: 'none' })).rejects.toThrow('there is no reranker none');
    await expect(calls.checkModel('/v1/rerank', 'none')).rejects.toThrow('there is no reranker none');
  });
});
