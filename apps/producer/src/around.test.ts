// What lies around all routes: names of requests, pages of other origins, the page of the document, and which of several
// models a request is for.

import { afterEach, describe, expect, test } from 'vitest';
import { servedModels } from '@shoal/core';
import { Catalogue, type Served } from './catalogue.ts';
import { MINILM, embedderOf, startApp, type AppUnderTest, type AppUnderTestOptions } from './testing/app-under-test.ts';
import { partOf } from './testing/schema.ts';

const apps: AppUnderTest[] = [];
afterEach(() => Promise.all(apps.splice(0).map((app) => app.stop())));

async function start(options: AppUnderTestOptions = {}): Promise<AppUnderTest> {
  const app = await startApp(options);
  apps.push(app);
  return app;
}

test('a request keeps the name that it came with, and gets one where it has none or a bad one', async () => {
  const app = await start();
  const idFor = async (given?: string): Promise<string | null> =>
    (await app.post({ input: [] }, given === undefined ? {} : { 'x-request-id': given })).headers.get('x-request-id');
  expect(await idFor('job-17/a')).toBe('job-17/a');
  for (const other of [undefined, 'with blanks', 'x'.repeat(129)])
    expect(await idFor(other)).toMatch(/^[0-9a-f-]{36}$/);
});

const preflight = (app: AppUnderTest, origin: string): Promise<Response> =>
  fetch(`${app.url}/v1/embeddings`, {
    method: 'OPTIONS',
    headers: {
      origin,
      'access-control-request-method': 'POST',
      'access-control-request-headers': 'authorization,content-type',
    },
  });

describe('a page of another origin', () => {
  test('may ask where the setting names it, with its key and whatever else its browser asks for', async () => {
    const app = await start({ parts: { corsOrigins: 'https://a.example.com, http://localhost:3000' } });
    const { status, headers } = await preflight(app, 'http://localhost:3000');
    expect([status, headers.get('access-control-allow-origin'), headers.get('access-control-allow-headers')]).toEqual([
      204,
      'http://localhost:3000',
      'authorization,content-type',
    ]);
    const answer = await app.post({ model: 'minilm', input: 'a' }, { origin: 'https://a.example.com' });
    expect([answer.status, answer.headers.get('access-control-allow-origin')]).toEqual([200, 'https://a.example.com']);
    expect(answer.headers.get('access-control-expose-headers')).toContain('x-request-id');
    expect((await preflight(app, 'https://b.example.com')).headers.get('access-control-allow-origin')).toBeNull();
  });

  test('is told which setting it would take where there is none', async () => {
    const answer = await preflight(await start(), 'https://a.example.com');
    expect([answer.status, partOf(await answer.json(), 'error', 'message')]).toEqual([
      405,
      expect.stringContaining('SHOAL_HTTP_CORS'),
    ]);
  });
});

test('the page of the document asks this server alone, and every file that it names is there', async () => {
  const app = await start();
  const page = await fetch(`${app.url}/docs`);
  const html = await page.text();
  expect(page.headers.get('content-security-policy')).toMatch(/^default-src 'self'; (?!.*https?:)(?!.*upgrade)/);
  const files = [...html.matchAll(/(?:src|href)="([^"]+)"/g)].map(([, file]) => String(file));
  expect(files.length).toBeGreaterThan(3);
  const answers = await Promise.all(files.map((file) => fetch(new URL(file, `${app.url}/docs/`))));
  expect(answers.filter(({ status }) => status !== 200).map(({ url }) => url)).toEqual([]);
});

describe('of several models', () => {
  const OTHER = { ...MINILM, name: 'baai--bge-m3', revision: 'def456', dims: 16, aliases: ['text-embedding-3-small'] };
  const models = (): [Served, Served] => [
    { model: { ...MINILM, aliases: ['small'] }, embedder: embedderOf() },
    { model: OTHER, embedder: embedderOf(16) },
  ];

  test.each([
    ['minilm', 384],
    ['small', 384],
    ['baai--bge-m3', 16],
    ['BAAI/bge-m3', 16],
    ['baai--bge-m3@def456', 16],
    ['text-embedding-3-small', 16],
  ])('a request for %s is answered by the one of that name', async (model, dims) => {
    const app = await start({ parts: { models: models() } });
    const answer: unknown = await (await app.post({ model, input: 'a' })).json();
    expect(partOf(answer, 'data', '0', 'embedding')).toHaveLength(dims);
  });

  test('all are listed, each under its name and its aliases, and a name of none is refused with theirs', async () => {
    const app = await start({ parts: { models: models() } });
    const { data } = (await (await fetch(`${app.url}/v1/models`)).json()) as { data: Record<string, unknown>[] };
    expect(data.map(({ id, root, owned_by }) => [id, root, owned_by]).slice(0, 4)).toEqual([
      ['minilm', 'minilm', 'shoal'],
      ['small', 'minilm', 'shoal'],
      ['baai--bge-m3', 'baai--bge-m3', 'baai'],
      ['text-embedding-3-small', 'baai--bge-m3', 'baai'],
    ]);
    const one: unknown = await (await fetch(`${app.url}/v1/models/text-embedding-3-small`)).json();
    expect(one).toMatchObject({ id: 'text-embedding-3-small', root: 'baai--bge-m3', dimensions: 16 });
    const refused = await app.post({ model: 'ada', input: 'a' });
    const message = String(partOf(await refused.json(), 'error', 'message'));
    expect([refused.status, message]).toEqual([
      404,
      expect.stringMatching(/"minilm".*"small".*"text-embedding-3-small"/),
    ]);
    for (const [path, body] of [
      ['/embed', { inputs: 'a', model: 'ada' }],
      ['/tokenize', { input: 'a', model: 'ada' }],
      ['/decode', { ids: [1], model: 'ada' }],
      ['/v1/similarity/topk', { collection: 'notes', queries: 'a', k: 1, model: 'ada' }],
    ] as const)
      expect((await app.post(body, {}, path)).status).toBe(404);
    expect(await (await app.post({ inputs: 'a', model: 'text-embedding-3-small' }, {}, '/embed')).json()).toEqual([
      Array(16).fill(0.25),
    ]);
  });

  test('two may not have one name', () => {
    const [one, other] = models();
    const twice = { ...other, model: { ...OTHER, aliases: ['minilm'] } };
    expect(() => new Catalogue([one, twice])).toThrow(/two models are called "minilm": minilm and baai--bge-m3/);
  });

  test('the setting names each once, with all its aliases', () => {
    expect(servedModels('bge-m3=a, minilm,bge-m3=b')).toEqual([
      { model: 'bge-m3', aliases: ['a', 'b'] },
      { model: 'minilm', aliases: [] },
    ]);
  });
});
