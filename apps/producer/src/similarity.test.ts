// POST /v1/similarity/… as its callers see it: a real queue server, the real workers (one that embeds, one that
// compares), a small collection and a graph. Answers are those of a direct computation; whatever is wrong is refused by
// place and code.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { programOf } from '@shoal/core/testing';
import { ShoalClient } from '@shoal/client';
import { openModel, openTokenizer } from '@shoal/models';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createCollection, graphFromEdges, saveGraph } from '@shoal/similarity';
import { createProducer, type Producer, type ProducerOptions } from './producer.ts';
import { producerOptions } from './testing/producer-options.ts';

const MODEL = 'tiny-random';
const TEXTS = ['a shoal of fish', 'a school of whales', 'a queue at the baker', 'rain on the roof'];
/** Corners of a square, and its middle. */
const ROWS = [
  [1, 0],
  [0, 1],
  [-1, 0],
  [0, -1],
  [0.5, 0.5],
];

let server: TestServer;
let cacheDir: string;
let options: ProducerOptions;
let producer: Producer;
const workers: ChildProcess[] = [];

beforeAll(async () => {
  server = await startTestServer();
  cacheDir = await mkdtemp(join(tmpdir(), 'shoal-http-'));
  const model = await openModel(MODEL, { cacheDir });
  options = producerOptions({ redisUrl: server.url, model, tokenizer: await openTokenizer(model) });
  const collections = join(cacheDir, 'collections');
  const vectors = Float32Array.from(ROWS.flat());
  await createCollection(collections, 'square', [
    { dims: 2, vectors, names: ['east', 'north', '', 'south', 'middle'] },
  ]);
  await createCollection(collections, 'empty', [], { dims: 2 });
  await saveGraph(
    collections,
    'links',
    graphFromEdges({ from: Uint32Array.of(0, 1, 2), to: Uint32Array.of(1, 2, 3), weight: Float32Array.of(1, 1, 0.5) }),
  );
  [producer] = await Promise.all([
    createProducer(options),
    startWorker({ SHOAL_MODEL: MODEL }),
    startWorker({ SHOAL_KIND: 'similarity' }),
  ]);
});

afterAll(async () => {
  await producer?.stop();
  await Promise.all(workers.map(stopWorker));
  await server.stop();
  await rm(cacheDir, { recursive: true, force: true });
});

async function startWorker(environment: NodeJS.ProcessEnv): Promise<void> {
  const { main, execArgv } = programOf('cpu-worker');
  const child = fork(main, [], {
    execArgv: [...execArgv],
    env: {
      ...process.env,
      SHOAL_REDIS_URL: server.url,
      SHOAL_CACHE_DIR: cacheDir,
      SHOAL_THREADS: '1',
      SHOAL_LOG_LEVEL: 'error',
      ...environment,
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  workers.push(child);
  const [report]: unknown[] = await once(child, 'message');
  expect(report).toMatchObject({ kind: 'ready' });
}

async function stopWorker(child: ChildProcess): Promise<void> {
  const gone = once(child, 'exit');
  child.kill('SIGTERM');
  await gone;
}

function post(path: string, body: unknown, { url }: Producer = producer, init: RequestInit = {}): Promise<Response> {
  return fetch(`${url}/v1/${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
    ...init,
  });
}

async function answer(
  kind: string,
  body: unknown,
): Promise<{ readonly data: readonly { readonly ids: number[]; readonly scores: number[] }[] }> {
  const response = await post(`similarity/${kind}`, body);
  const found: unknown = await response.json();
  expect([response.status, found]).toMatchObject([200, { object: 'list' }]);
  return found as Awaited<ReturnType<typeof answer>>;
}

async function waiting(prefix: string): Promise<number> {
  const [list, prioritized] = await Promise.all([
    server.command('LLEN', `${prefix}:similarity:wait`),
    server.command('ZCARD', `${prefix}:similarity:prioritized`),
  ]);
  return Number(list) + Number(prioritized);
}

async function listed(): Promise<readonly object[]> {
  const reply = await fetch(`${producer.url}/v1/collections`);
  return ((await reply.json()) as { data: object[] }).data;
}

test('the collections that workers answer from are listed, with whose they are and what made them', async () => {
  await createCollection(join(cacheDir, 'collections'), 'listed', [{ dims: 2, vectors: Float32Array.of(1, 0) }], {
    about: { model: 'x@1', owner: 'acme' },
  });
  await expect.poll(listed, { timeout: 30_000, interval: 500 }).toContainEqual({
    id: 'listed',
    object: 'collection',
    created: expect.any(Number),
    owner: 'acme',
    versions: [1],
    rows: 1,
    dimensions: 2,
    dtype: 'f32',
    model: 'x@1',
  });
  expect(await listed()).toContainEqual(expect.objectContaining({ id: 'square', owner: null, model: null, rows: 5 }));
});

describe('a question is answered', () => {
  test('names come beside the ids where they are asked for', async () => {
    const question = {
      collection: 'square@1',
      queries: [
        [1, 0.1],
        [-1, 0],
      ],
      k: 2,
    };
    expect((await answer('topk', { ...question, names: true })).data).toMatchObject([
      { ids: [0, 4], names: ['east', 'middle'] },
      { ids: [2, 1], names: [null, 'north'] },
    ]);
    expect((await answer('rescore', { ...question, names: true, candidates: [[3, 1], [2]] })).data).toMatchObject([
      { ids: [1, 3], names: ['north', 'south'] },
      { ids: [2], names: [null] },
    ]);
    expect((await answer('topk', question)).data[0]).not.toHaveProperty('names');
    for (const [body, message] of [
      [{ ...question, names: 'yes' }, '"names" must be true or false, found "yes"'],
      [{ ...question, queries: [1, 0] }, 'or an array of vectors: one vector is [[1, 0, …]], found an array'],
    ] as const) {
      const response = await post('similarity/topk', body);
      expect([response.status, await response.json()]).toMatchObject([
        400,
        { error: { message: expect.stringContaining(message) } },
      ]);
    }
  });

  test('topk: the best rows of each query, in order', async () => {
    expect(
      await answer('topk', {
        collection: 'square@1',
        queries: [
          [1, 0.1],
          [0, -2],
        ],
        k: 2,
      }),
    ).toEqual({
      object: 'list',
      collection: 'square@1',
      collection_model: null,
      data: [
        {
          object: 'ranking',
          index: 0,
          ids: [0, 4],
          scores: [expect.closeTo(1 / Math.hypot(1, 0.1), 5), expect.closeTo(1.1 / Math.hypot(1, 0.1) / Math.SQRT2, 5)],
        },
        { object: 'ranking', index: 1, ids: [3, 0], scores: [expect.closeTo(1, 5), 0] },
      ],
    });
    const {
      data: [nearest],
    } = await answer('topk', { collection: 'square@1', queries: [[0, -2]], k: 9, metric: 'l2' });
    expect(nearest).toMatchObject({ ids: [3, 0, 2, 4, 1], scores: [1, 5, 5, 6.5, 9] });
  });

  test('topk by texts, which are embedded on the way, as queries', async () => {
    const response = await post('embeddings', { model: MODEL, input: TEXTS.map((text) => `query: ${text}`) });
    const { data } = (await response.json()) as { data: { embedding: number[] }[] };
    await createCollection(join(cacheDir, 'collections'), 'texts', [
      { dims: data[0]!.embedding.length, vectors: Float32Array.from(data.flatMap(({ embedding }) => embedding)) },
    ]);
    const { data: rankings } = await answer('topk', { collection: 'texts@1', queries: TEXTS, k: 1 });
    expect(rankings.map(({ ids }) => ids)).toEqual([[0], [1], [2], [3]]);
    expect((await answer('topk', { collection: 'texts@1', queries: TEXTS[2], k: 1 })).data[0]?.ids).toEqual([2]);
  });

  test('the newest version is searched where none is named, and the answer tells which, and what made its rows', async () => {
    const folder = join(cacheDir, 'collections');
    const { name, revision, dims } = options.model;
    const vectors = Float32Array.from({ length: 2 * dims }, (_, i) => Math.cos(i));
    await createCollection(folder, 'told', [{ dims, vectors }]);
    const question = { collection: 'told', queries: TEXTS[0], k: 1 };
    expect(await answer('topk', question)).toMatchObject({ collection: 'told@1', collection_model: null });
    await createCollection(folder, 'told', [{ dims, vectors }], { about: { model: `${name}@${revision}` } });
    const known = { collection: 'told@2', collection_model: `${name}@${revision}` };
    expect(await answer('topk', question)).toMatchObject(known);
    expect(await answer('rescore', { ...question, candidates: [[1]] })).toMatchObject(known);
    expect(await answer('cosine', { collection: 'told', queries: [Array.from(vectors.slice(0, dims))] })).toMatchObject(
      known,
    );
    expect(await answer('cosine', { queries: 'a', against: 'b' })).not.toHaveProperty('collection_model');
  });

  test('texts are not compared with rows of another model, nor of another revision; vectors are', async () => {
    const folder = join(cacheDir, 'collections');
    const { name, revision, dims } = options.model;
    const rows = [{ dims, vectors: Float32Array.from({ length: 2 * dims }, (_, i) => Math.cos(i)) }];
    await createCollection(folder, 'other', rows, { about: { model: 'another@1' } });
    await createCollection(folder, 'older', rows, { about: { model: `${name}@000000000000` } });
    const client = await ShoalClient.connect({ redisUrl: server.url, model: options.model });
    for (const [collection, model] of [
      ['other', 'another@1'],
      ['older@1', `${name}@000000000000`],
    ] as const) {
      for (const [kind, body] of [
        ['topk', { k: 1 }],
        ['rescore', { k: 1, candidates: [[0]] }],
        ['cosine', {}],
      ] as const) {
        const response = await post(`similarity/${kind}`, { ...body, collection, queries: TEXTS[0] });
        expect([response.status, await response.json()]).toMatchObject([
          400,
          {
            error: {
              code: 'collection_model_mismatch',
              message: expect.stringContaining(
                `embedded by ${name}@${revision}, and the rows of ${collection.slice(0, 5)}@1 by ${model}`,
              ),
            },
          },
        ]);
      }
      await expect(client.topK(collection, TEXTS, { k: 1 })).rejects.toMatchObject({
        code: 'COLLECTION_MODEL_MISMATCH',
        fields: { collectionModel: model, model: `${name}@${revision}` },
      });
      const values = rows[0]!.vectors.slice(0, dims);
      expect(await client.topK(collection, { values, dims }, { k: 1 })).toMatchObject({ collectionModel: model });
      expect(await client.search(collection, { values, dims }, { k: 1 })).toMatchObject({
        collection: `${collection.slice(0, 5)}@1`,
        collectionModel: model,
        hits: [[{ name: expect.any(String) as unknown, score: expect.any(Number) as unknown }]],
      });
    }
    await client.close();
  });

  test('rescore: the same among candidates', async () => {
    const { data } = await answer('rescore', {
      collection: 'square@1',
      queries: [
        [1, 0],
        [1, 0],
      ],
      candidates: [[1, 2, 4], [3]],
      k: 2,
      metric: 'dot',
    });
    expect(data).toMatchObject([
      { ids: [4, 1], scores: [0.5, 0] },
      { ids: [3], scores: [0] },
    ]);
  });

  test('cosine: every score, against a collection or other vectors', async () => {
    expect((await answer('cosine', { collection: 'square@1', queries: [[2, 0]], metric: 'dot' })).data).toEqual([
      { object: 'scores', index: 0, scores: [2, 0, -2, 0, 1] },
    ]);
    expect(
      (
        await answer('cosine', {
          queries: [
            [2, 0],
            [0, 3],
          ],
          against: [
            [1, 0],
            [1, 1],
          ],
        })
      ).data,
    ).toMatchObject([
      { scores: [1, expect.closeTo(Math.SQRT1_2, 5)] },
      { scores: [0, expect.closeTo(Math.SQRT1_2, 5)] },
    ]);
    const {
      data: [same],
    } = await answer('cosine', { queries: TEXTS[0], against: TEXTS });
    expect(same?.scores).toHaveLength(4);
    expect(same?.scores[0]).toBeCloseTo(1, 5);
  });

  test('spread: the most activated nodes of each set of seeds', async () => {
    const { data } = await answer('spread', { graph: 'links', seeds: [[0], [[1, 4]]], k: 3, steps: 2, decay: 0.5 });
    expect(data).toMatchObject([
      { ids: [0, 1, 2], scores: [1, 0.5, 0.25] },
      { ids: [1, 2, 3], scores: [4, 2, 0.5] },
    ]);
  });
});

describe('a bad request is refused by place and code:', () => {
  const topk = { collection: 'square@1', queries: [[1, 0]], k: 1 };
  const spread = { graph: 'links', seeds: [[0]], k: 1 };
  test.each([
    ['no collection', 'topk', { ...topk, collection: undefined }, 'missing_required_parameter', 'collection'],
    ['a collection with no such version', 'topk', { ...topk, collection: 'square@0' }, 'invalid_value', 'collection'],
    ['a field of another kind', 'topk', { ...topk, candidates: [[1]] }, 'unknown_parameter', 'candidates'],
    ['no queries', 'topk', { ...topk, queries: [] }, 'empty_array', 'queries'],
    ['an empty text', 'topk', { ...topk, queries: ['a', ''] }, 'empty_string', 'queries[1]'],
    [
      'too many queries',
      'topk',
      { ...topk, queries: Array.from({ length: 1_025 }, () => [1, 0]) },
      'array_above_max_length',
      'queries',
    ],
    ['vectors of two lengths', 'topk', { ...topk, queries: [[1, 0], [1]] }, 'dimensions_mismatch', 'queries[1]'],
    ['a value that is no number', 'topk', { ...topk, queries: [[1, null]] }, 'invalid_type', 'queries[0][1]'],
    ['a value beyond comparing', 'topk', { ...topk, queries: [[1, 1e17]] }, 'vector_invalid', 'queries[0][1]'],
    ['k of 0', 'topk', { ...topk, k: 0 }, 'integer_below_min_value', 'k'],
    [
      'more hits than an answer holds',
      'topk',
      {
        ...topk,
        queries: [
          [1, 0],
          [0, 1],
        ],
        k: 500_001,
      },
      'integer_above_max_value',
      'k',
    ],
    ['an unknown metric', 'topk', { ...topk, metric: 'hamming' }, 'invalid_value', 'metric'],
    ['queries of another length than the rows', 'topk', { ...topk, queries: [[1, 0, 0]] }, 'dimensions_mismatch', null],
    ['an empty collection', 'topk', { ...topk, collection: 'empty@1' }, 'collection_empty', null],
    [
      'one list of candidates for two queries',
      'rescore',
      {
        ...topk,
        queries: [
          [1, 0],
          [0, 1],
        ],
        candidates: [[1]],
      },
      'invalid_value',
      'candidates',
    ],
    ['a candidate that is no row', 'rescore', { ...topk, candidates: [[99]] }, 'search_invalid', null],
    ['a candidate that is no number', 'rescore', { ...topk, candidates: [['1']] }, 'invalid_type', 'candidates[0][0]'],
    ['nothing to compare with', 'cosine', { queries: [[1, 0]] }, 'invalid_value', 'against'],
    [
      'two things to compare with',
      'cosine',
      { queries: [[1, 0]], against: [[1, 0]], collection: 'square@1' },
      'invalid_value',
      'against',
    ],
    [
      'more whole rows of scores than go into one answer',
      'cosine',
      { queries: Array.from({ length: 65 }, () => [1, 0]), collection: 'square@1' },
      'array_above_max_length',
      'queries',
    ],
    ['a seed that is no node', 'spread', { ...spread, seeds: [[7]] }, 'graph_invalid', null],
    ['a seed of three values', 'spread', { ...spread, seeds: [[[1, 2, 3]]] }, 'invalid_type', 'seeds[0][0]'],
    ['a decay above 1', 'spread', { ...spread, decay: 1.5 }, 'invalid_value', 'decay'],
    ['too many steps', 'spread', { ...spread, steps: 65 }, 'integer_above_max_value', 'steps'],
  ])('%s', async (_, kind, body, code, param) => {
    const response = await post(`similarity/${kind}`, body);
    expect([response.status, await response.json()]).toEqual([
      400,
      { error: { message: expect.any(String), type: 'invalid_request_error', code, param } },
    ]);
  });

  test.each([
    ['topk', { ...topk, collection: 'nothing@1' }],
    ['topk', { ...topk, collection: 'square@9' }],
    ['spread', { ...spread, graph: 'nothing' }],
  ])('%s of what is not there: 404', async (kind, body) => {
    const response = await post(`similarity/${kind}`, body);
    expect([response.status, await response.json()]).toEqual([
      404,
      { error: expect.objectContaining({ code: expect.stringMatching(/^collection_(unknown|gone)$/) }) },
    ]);
  });
});

describe('when no answer comes', () => {
  const question = { collection: 'square@1', queries: [[1, 0]], k: 1 };

  test('for want of a worker: 503 with the reason, and nothing stays queued; one more than may ask: 429', async () => {
    const idle = await createProducer({
      ...options,
      prefix: '{idle}',
      requestTimeoutMs: 1_500,
      maxOpenRequests: 1,
      maxWaitingRequests: 0,
    });
    const asked = post('similarity/topk', question, idle);
    await expect.poll(() => waiting('{idle}')).toBe(1);
    // both kinds share the limit
    expect((await post('embeddings', { model: MODEL, input: 'a' }, idle)).status).toBe(429);
    const response = await asked;
    expect(response.headers.get('retry-after')).toMatch(/^1[0-5]$/); // 10 s, and up to half of it more
    expect([response.status, await response.json()]).toEqual([
      503,
      {
        error: expect.objectContaining({
          code: 'timeout',
          message: expect.stringMatching(/no answer within 1.5 s: no worker serves similarity, /),
        }),
      },
    ]);
    await expect.poll(() => waiting('{idle}')).toBe(0);
    await idle.stop();
  });

  test('and the caller leaves: the question is taken off the queue', async () => {
    const idle = await createProducer({ ...options, prefix: '{idle}' });
    const leaving = new AbortController();
    const asked = post('similarity/topk', question, idle, { signal: leaving.signal }).catch(() => 'left');
    await expect.poll(() => waiting('{idle}')).toBe(1);
    leaving.abort();
    expect(await asked).toBe('left');
    await expect.poll(() => waiting('{idle}')).toBe(0);
    await idle.stop();
  });
});

test('the OpenAPI page and the metrics know of it', async () => {
  expect(await (await fetch(`${producer.url}/openapi.json`)).json()).toMatchObject({
    paths: {
      '/v1/similarity/topk': { post: {} },
      '/v1/similarity/rescore': { post: {} },
      '/v1/similarity/cosine': { post: {} },
      '/v1/similarity/spread': { post: {} },
    },
  });
});
