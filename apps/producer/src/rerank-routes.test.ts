// POST /v1/rerank, /v2/rerank and /rerank as their callers see them, over made-up scores: answers in the shapes that
// Cohere's, Jina's and TEI's clients read, large ones in pieces, refusals that all of them show.

import { afterAll, beforeAll, expect, test } from 'vitest';
import { RERANKER, startApp, type AppUnderTest } from './testing/app-under-test.ts';

let app: AppUnderTest;
beforeAll(async () => {
  app = await startApp();
});
afterAll(() => app.stop());

const asked = { model: RERANKER.name, query: 'how do magnets work', documents: ['iron atoms align', 'buy shoes'] };

async function post(path: string, body: unknown): Promise<{ readonly status: number; readonly body: unknown }> {
  const headers = { 'content-type': 'application/json' };
  const answer = await fetch(app.url + path, { method: 'POST', headers, body: JSON.stringify(body) });
  return { status: answer.status, body: await answer.json() };
}

test.each(['/v1/rerank', '/v2/rerank'])('%s answers in the shape of Cohere and Jina', async (path) => {
  expect(await post(path, { ...asked, return_documents: true })).toEqual({
    status: 200,
    body: {
      object: 'list',
      id: expect.any(String),
      model: RERANKER.name,
      results: [
        { index: 0, relevance_score: 1, document: { text: 'iron atoms align' } },
        { index: 1, relevance_score: 0.5, document: { text: 'buy shoes' } },
      ],
      usage: { prompt_tokens: 6, total_tokens: 6, truncated_documents: 0 },
      meta: { api_version: { version: '2' }, tokens: { input_tokens: 6, output_tokens: 0 } },
    },
  });
  expect(await post(path, { ...asked, top_n: 1 })).toMatchObject({
    body: { results: [{ index: 0, relevance_score: 1 }] },
  });
});

test('/rerank answers in the shape of TEI, also where no model is named', async () => {
  expect(await post('/rerank', { query: 'a', texts: ['b', 'c'], return_text: true })).toEqual({
    status: 200,
    body: [
      { index: 0, score: 1, text: 'b' },
      { index: 1, score: 0.5, text: 'c' },
    ],
  });
});

test('a large body whose documents are objects is read, and a long answer comes in pieces', async () => {
  const documents = Array.from({ length: 2_000 }, (_, at) => ({ text: `${at} ${'x'.repeat(200)}` }));
  const { status, body } = await post('/v1/rerank', { ...asked, documents, return_documents: true });
  expect(status).toBe(200);
  const { results, usage } = body as { readonly results: readonly unknown[]; readonly usage: unknown };
  expect(results).toHaveLength(2_000);
  expect(results[1_999]).toEqual({ index: 1_999, relevance_score: Math.fround(1 / 2_000), document: documents[1_999] });
  expect(usage).toMatchObject({ total_tokens: 6_000 });
  const texts = documents.map(({ text }) => text);
  expect((await post('/rerank', { query: 'a', texts })).body).toHaveLength(2_000);
});

test('a refusal has what Jina’s clients show of it', async () => {
  const { status, body } = await post('/v1/rerank', { ...asked, model: 'strange' });
  expect([status, body]).toEqual([
    404,
    {
      error: {
        message: 'there is no reranker "strange" here',
        type: 'invalid_request_error',
        param: 'model',
        code: 'model_not_found',
      },
      detail: 'there is no reranker "strange" here',
    },
  ]);
});

test('/v1/models has rerankers beside the model that gives vectors, each with its kind', async () => {
  const list: unknown = await (await fetch(`${app.url}/v1/models`)).json();
  const shown = { id: RERANKER.name, kind: 'reranker', revision: RERANKER.revision, object: 'model' };
  expect(list).toMatchObject({ data: [{ id: 'minilm', kind: 'embedder', dimensions: 384 }, shown] });
  expect(await (await fetch(`${app.url}/v1/models/${RERANKER.name}`)).json()).toMatchObject(shown);
  expect((await fetch(`${app.url}/v1/models/strange`)).status).toBe(404);
});
