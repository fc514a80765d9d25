// /openapi.json against the code: what a client is told fits is never refused for its shape, what does not fit is
// refused, and every operation and schema has the name that generated clients take.

import * as fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startApp, type AppUnderTest } from './testing/app-under-test.ts';
import { requests } from './testing/requests.ts';
import { Schemas, partOf, type Schema } from './testing/schema.ts';

const isNight = process.env['SHOAL_TEST_NIGHTLY'] === '1';
const RUNS = isNight ? 3_000 : 150;
/** The same requests each day: a red gate must be red again. New ones at night, whose seed a failure tells. */
const SEED = isNight ? {} : { seed: 1 };

let app: AppUnderTest;
let document: unknown;
let schemas: Schemas;

beforeAll(async () => {
  app = await startApp();
  document = await (await fetch(`${app.url}/openapi.json`)).json();
  schemas = new Schemas(document);
});
afterAll(() => app.stop());

/** What no schema can say, by the words of its refusal. */
const BEYOND_SCHEMAS = [
  /"input.*is no row of|ids from 0 to|end tokens/,
  /ask for different prompts|cannot be put before token ids/,
  /dimensions, the first has/,
  /half of a surrogate pair/,
  /lists of candidates; each query has one/,
  /^"k" must be 1 to \d+, found \d+$/,
];

async function post(path: string, body: unknown): Promise<{ readonly status: number; readonly message: string }> {
  const answer = await fetch(app.url + path, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  return { status: answer.status, message: String(partOf(await answer.json(), 'error', 'message')) };
}

describe('a request', () => {
  test.each([
    '/v1/embeddings',
    '/embed',
    '/tokenize',
    '/decode',
    '/v1/rerank',
    '/rerank',
    '/v1/similarity/topk',
    '/v1/similarity/rescore',
    '/v1/similarity/cosine',
    '/v1/similarity/spread',
  ])(
    'to %s that fits is never refused for its shape, and one that does not fit is',
    async (path) => {
      const schema = partOf(document, 'paths', path, 'post', 'requestBody', 'content', 'application/json', 'schema');
      const seen = { taken: 0, beyond: 0, refused: 0 };
      const agrees = async (made: unknown): Promise<boolean> => {
        const body: unknown = JSON.parse(JSON.stringify(made));
        const { status, message } = await post(path, body);
        if (!schemas.fits(schema as Schema, body)) {
          seen.refused += 1;
          return status >= 400 && status < 500;
        }
        const isTaken = status === 200 || /there are no collections here|there is no reranker/.test(message);
        seen[isTaken ? 'taken' : 'beyond'] += 1;
        return isTaken || (status === 400 && BEYOND_SCHEMAS.some((known) => known.test(message)));
      };
      await fc.assert(fc.asyncProperty(requests(schemas, schema as Schema), agrees), { numRuns: RUNS, ...SEED });
      expect(Math.min(seen.taken, seen.refused)).toBeGreaterThan(RUNS / 20);
    },
    600_000,
  );

  test.each([
    ['collection: null beside against', 'cosine', { queries: 'a', collection: null, against: 'b' }, true],
    ['neither', 'cosine', { queries: 'a' }, false],
    ['both', 'cosine', { queries: 'a', collection: 'docs@3', against: 'b' }, false],
    ['a collection with half a version', 'topk', { queries: 'a', collection: 'docs@', k: 1 }, false],
    ['the largest id', 'spread', { graph: 'g', seeds: [[2 ** 53 - 1]], k: 1 }, true],
    ['an id above it', 'spread', { graph: 'g', seeds: [[2 ** 53]], k: 1 }, false],
    ['a seed of three numbers', 'spread', { graph: 'g', seeds: [[[1, 1, 1]]], k: 1 }, false],
    [
      'a number that as float32 is too large',
      'topk',
      { collection: 'docs@3', queries: [[9_999_999_999_999_998]], k: 1 },
      false,
    ],
    ['the largest number', 'topk', { collection: 'docs@3', queries: [[9_999_999_198_822_400]], k: 1 }, true],
    [
      'a vector of too many dimensions',
      'topk',
      { collection: 'docs@3', queries: [Array(65_537).fill(1)], k: 1 },
      false,
    ],
  ])('%s: both say the same', async (_, route, body, isFitting) => {
    const path = `/v1/similarity/${route}`;
    const schema = partOf(document, 'paths', path, 'post', 'requestBody', 'content', 'application/json', 'schema');
    expect(schemas.fits(schema as Schema, body)).toBe(isFitting);
    expect((await post(path, body)).status).toBe(isFitting ? 404 : 400); // the app under test has no collections
  });
});

test.each(['QUERY', 'PROPFIND', 'PUT'])(
  'a method that no path has is 405, whatever body it comes with: %s',
  async (method) => {
    for (const init of [{}, { headers: { 'content-type': 'text/plain' }, body: 'a' }]) {
      const answer = await fetch(`${app.url}/v1/models`, { method, ...init });
      expect([answer.status, answer.headers.get('allow')]).toEqual([405, 'GET, HEAD']);
    }
  },
);

describe('an answer', () => {
  test('fits what the document says of its status, refusals included', async () => {
    const asked: readonly (readonly [string, string, unknown?])[] = [
      ['/v1/embeddings', 'post', { model: 'minilm', input: ['a', 'b'] }],
      ['/v1/embeddings', 'post', { model: 'minilm', input: 'a', encoding_format: 'base64' }],
      ['/v1/embeddings', 'post', {}],
      [
        '/v1/rerank',
        'post',
        { model: 'my-reranker', query: 'a', documents: ['b', { text: 'c' }], return_documents: true },
      ],
      ['/v1/rerank', 'post', { model: 'strange', query: 'a', documents: ['b'] }],
      ['/rerank', 'post', { query: 'a', texts: ['b'], return_text: true }],
      ['/embed', 'post', { inputs: ['a', 'b'], truncate: true }],
      ['/embed', 'post', { inputs: [] }],
      ['/tokenize', 'post', { input: 'a' }],
      ['/info', 'get'],
      ['/v1/collections', 'get'],
      ['/v1/collections/{id}', 'get'],
      ['/v1/models', 'get'],
      ['/v1/models/{id}', 'get'],
      ['/healthz', 'get'],
      ['/readyz', 'get'],
    ];
    for (const [path, method, body] of asked) {
      const answer = await fetch(app.url + path.replace('{id}', path.includes('collections') ? 'notes' : 'minilm'), {
        method: method.toUpperCase(),
        ...(body === undefined ? {} : { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }),
      });
      const said = partOf(document, 'paths', path, method, 'responses', String(answer.status));
      const schema = partOf(said, 'content', 'application/json', 'schema');
      expect(schemas.fits(schema as Schema, await answer.json()), `${method} ${path}`).toBe(true);
    }
  });
});

test('every operation has a name, every body and every answer a named schema', () => {
  const operations = Object.values(partOf(document, 'paths') as object).flatMap((path) =>
    Object.values(path as object),
  );
  const names = operations.map((operation) => partOf(operation, 'operationId'));
  expect(names.sort().join(' ')).toBe(
    'cosine createEmbeddings decode embedTexts health listCollections listModels metrics readiness rerank rerankTexts ' +
      'rescore retrieveCollection retrieveModel serverInfo spread tokenize topK',
  );
  for (const operation of operations) {
    const bodies = [partOf(operation, 'requestBody'), ...Object.values(partOf(operation, 'responses') as object)];
    for (const body of bodies.filter((one) => partOf(one, 'content', 'application/json') !== undefined))
      expect(partOf(body, 'content', 'application/json', 'schema')).toEqual({
        $ref: expect.stringMatching(/^#\/components\/schemas\/[A-Z]/),
      });
  }
});
