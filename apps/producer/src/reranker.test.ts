// Which rerankers there are, as the queue server tells it, and what becomes of requests while it does not.

import { describe, expect, test } from 'vitest';
import { ShoalError } from '@shoal/contract';
import type { RerankOptions, RerankResult, ShoalClient } from '@shoal/client';
import { ManualClock } from '@shoal/core/testing';
import { Reranker, type ServedReranker } from './reranker.ts';
import type { RerankRequest } from './rerank-request.ts';

const asked: RerankRequest = {
  model: 'one',
  query: 'a',
  documents: ['b', 'c'],
  topN: 1,
  returnDocuments: false,
  truncate: 'error',
};
const answering = { gone: new AbortController().signal, leftMs: () => 60_000, tenant: 'default' };

function setup(served: readonly string[], rerank?: Partial<Pick<ShoalClient, 'rerank'>>) {
  const clock = new ManualClock();
  const state = { served, looks: 0, isAway: false };
  const calls: RerankOptions[] = [];
  const reranker = new Reranker({
    client: {
      rerank: async (options) => {
        calls.push(options);
        return { ranked: [0] } as unknown as RerankResult;
      },
      whyWaiting: () => Promise.reject(new Error('nobody asks')),
      ...rerank,
    },
    served: async () => {
      state.looks += 1;
      if (state.isAway) throw new ShoalError('QUEUE_UNREACHABLE', 'the connection to the queue server is lost');
      return state.served;
    },
    isEmbedder: (name) => name === 'minilm' || name.startsWith('minilm@'),
    refusedWrites: { whileWaiting: () => () => undefined },
    clock,
  });
  return { reranker, clock, state, calls };
}

test('those that are served are asked for every two seconds, however many ask', async () => {
  const { reranker, clock, state } = setup(['one@r1', 'org--two@r2']);
  const both = [
    { name: 'one', revision: 'r1' },
    { name: 'org--two', revision: 'r2' },
  ];
  expect(await Promise.all([reranker.served(), reranker.served()])).toEqual([both, both]);
  await reranker.served();
  expect(state.looks).toBe(1);
  state.served = ['one@r9'];
  await clock.advance(2_000);
  expect(await reranker.served()).toEqual([{ name: 'one', revision: 'r9' }]);
});

test('a name that nobody serves is 404 and told who is; one that was served waits for its workers', async () => {
  const { reranker, clock, state } = setup(['one@r1']);
  expect(await reranker.named('one@r1')).toEqual({ name: 'one', revision: 'r1' });
  for (const [name, message] of [
    ['two', 'there is no reranker "two" here; rerankers that are served: "one" (also as "one@r1")'],
    ['one@r7', 'there is no reranker "one@r7" here; rerankers that are served: "one" (also as "one@r1")'],
    ['minilm', '"minilm" gives vectors and no scores; rerankers that are served: "one" (also as "one@r1")'],
  ])
    await expect(reranker.named(name)).rejects.toMatchObject({
      message,
      facts: { status: 404, code: 'model_not_found', param: 'model' },
    });
  state.served = [];
  await clock.advance(2_000);
  expect(await reranker.served()).toEqual([]);
  expect(await reranker.named('one')).toEqual({ name: 'one', revision: 'r1' });
  state.isAway = true;
  await clock.advance(2_000);
  expect(await reranker.named('one')).toEqual({ name: 'one', revision: 'r1' });
  await expect(reranker.named('two')).rejects.toMatchObject({ code: 'QUEUE_UNREACHABLE' });
});

test('a name of the hub is that of the store; of another one both are told', async () => {
  const { reranker } = setup(['baai--bge-m3@r1']);
  expect(await reranker.named('BAAI/bge-m3')).toEqual({ name: 'baai--bge-m3', revision: 'r1' });
  const there = 'rerankers that are served: "baai--bge-m3" (also as "baai--bge-m3@r1")';
  for (const [name, message] of [
    ['BAAI/other', `there is no reranker "BAAI/other" ("baai--other" in the store) here; ${there}`],
    ['BAAI/bge-m3@r1', `there is no reranker "BAAI/bge-m3@r1" here; ${there}`],
  ])
    await expect(reranker.named(name)).rejects.toMatchObject({ message, facts: { status: 404 } });
});

test('without a name the only one that is served answers', async () => {
  const { reranker, clock, state } = setup(['one@r1']);
  expect(await reranker.named(undefined)).toEqual({ name: 'one', revision: 'r1' });
  for (const served of [[], ['one@r1', 'two@r2']]) {
    state.served = served;
    await clock.advance(2_000);
    await expect(reranker.named(undefined)).rejects.toMatchObject({
      facts: { status: 400, code: 'missing_required_parameter' },
      message: expect.stringContaining(served.length === 0 ? 'no worker serves a reranker' : '"one" (also as'),
    });
  }
});

const revisionOfOne = (revision: string) => ({ name: 'one', revision });

/** They have changed to these, while they were looked at as r1. */
async function changed(served: readonly string[], serving: string) {
  const found = setup(['one@r1'], {
    rerank: async ({ model }) => {
      const { name, revision } = model as ServedReranker;
      if (revision !== serving) throw new ShoalError('FINGERPRINT_MISMATCH', `${revision} is not served`);
      return { ranked: [0], model: `${name}@${revision}` } as unknown as RerankResult;
    },
  });
  await found.reranker.served();
  found.state.served = served;
  return found;
}

describe('workers that change to another revision', () => {
  test('are looked at afresh and asked once more', async () => {
    const { reranker, state } = await changed(['one@r2'], 'r2');
    expect(await reranker.rerank(asked, await reranker.named('one'), answering)).toMatchObject({ model: 'one@r2' });
    expect(state.looks).toBe(2);
    expect(await reranker.named('one')).toEqual(revisionOfOne('r2'));
  });

  test('are not asked for what the caller did not want', async () => {
    const { reranker } = await changed(['one@r2'], 'r2');
    const model = 'one@r1';
    await expect(reranker.rerank({ ...asked, model }, await reranker.named(model), answering)).rejects.toMatchObject({
      message: 'there is no reranker "one@r1" here; rerankers that are served: "one" (also as "one@r2")',
      facts: { status: 404, code: 'model_not_found' },
    });
  });

  test.each([
    ['tell of the old one still', ['one@r1']],
    ['change once more', ['one@r2']],
    ['are gone', []],
  ])('and %s leave the error as it is', async (_, served) => {
    const { reranker, state } = await changed(served, 'r3');
    await expect(reranker.rerank(asked, revisionOfOne('r1'), answering)).rejects.toMatchObject({
      code: 'FINGERPRINT_MISMATCH',
    });
    expect(state.looks).toBe(2);
  });
});

const failing = (jobId: string) => ({
  rerank: () => Promise.reject(new ShoalError('INPUT_TOO_LONG', `job "${jobId}", row 3 has more`, { jobId })),
});

test('a pair that is too long is told by its document, whichever job it was in', async () => {
  for (const [jobId, place] of [
    ['default~0f', 'documents[3]'],
    ['default~0f-64', 'documents[67]'],
  ] as const)
    await expect(
      setup(['one@r1'], failing(jobId)).reranker.rerank(asked, { name: 'one', revision: 'r1' }, answering),
    ).rejects.toMatchObject({ facts: { status: 400, code: 'context_length_exceeded', param: place } });
});

test('what was asked for goes to the client as it is', async () => {
  const { reranker, calls } = setup(['one@r1']);
  await reranker.rerank(asked, { name: 'one', revision: 'r1' }, answering);
  expect(calls).toMatchObject([
    {
      model: { name: 'one', revision: 'r1' },
      query: 'a',
      documents: ['b', 'c'],
      topN: 1,
      truncate: 'error',
      class: 'interactive',
    },
  ]);
});
