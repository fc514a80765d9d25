// `rerank` against a real queue server and a stand-in for the worker that keeps to docs/jobs.md: a score is a function
// of query and text, so that a lost, doubled or swapped pair is seen.

import { createHash } from 'node:crypto';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { UnrecoverableError, Worker, type Job } from 'bullmq';
import { Redis } from 'ioredis';
import {
  decodePairs,
  encodeQueryTexts,
  encodeResult,
  keySpace,
  parseRerankJob,
  rerankFingerprint,
  rerankQueue,
} from '@shoal/contract';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import type { ClientOptions, RerankOptions } from './embedding.ts';
import { ShoalClient } from './shoal-client.ts';

const PREFIX = '{t-rerank}';
const keys = keySpace(PREFIX);
const QUERY = 'how do magnets work';

let server: TestServer;
let redis: Redis;
const closers: (() => Promise<unknown>)[] = [];

beforeAll(async () => {
  server = await startTestServer();
  redis = new Redis(server.url, { maxRetriesPerRequest: null });
  redis.on('error', () => undefined);
});
afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});
afterAll(async () => {
  redis.disconnect();
  await server.stop();
});

/** Of few values, so that some documents have the same. */
function scoreOf(query: string, text: string): number {
  return Math.fround(createHash('sha256').update(`${query}\n${text}`).digest()[0]! / 256);
}

interface StandInOptions {
  readonly revision?: string;
  readonly dims?: number;
  readonly failure?: string;
}

/** Serves a reranker, and tells that it does. */
async function serve(name: string, { revision = 'r1', dims = 1, failure }: StandInOptions = {}) {
  const queue = rerankQueue(name);
  const jobs: Job[] = [];
  const connection = new Redis(server.url, { maxRetriesPerRequest: null });
  const run = async (job: Job): Promise<unknown> => {
    jobs.push(job);
    const jobId = job.id!;
    const order = parseRerankJob(jobId, job.name, job.data);
    if (failure !== undefined) throw new UnrecoverableError(failure);
    const { input } = order;
    const bytes =
      input.form === 'inline'
        ? encodeQueryTexts(input.query, input.texts)
        : ((await connection.getBuffer(keys.input(queue, jobId))) as Buffer);
    const model = `${name}@${revision}`;
    const fingerprint = rerankFingerprint({ model, truncate: order.truncate }, bytes);
    if (order.fingerprint !== fingerprint) throw new UnrecoverableError(`FINGERPRINT_MISMATCH: ${fingerprint}`);
    const pairs = decodePairs(bytes);
    if (pairs.form !== 'texts') throw new UnrecoverableError('JOB_INVALID: texts are expected');
    const scores = pairs.texts.flatMap((text) => Array.from({ length: dims }, () => scoreOf(pairs.query, text)));
    const isTruncated = pairs.texts.some((text) => text.length > 1_000);
    await connection.set(
      keys.output(queue, jobId),
      encodeResult(
        { dtype: 'f32', rows: order.rows, dims, fingerprint, isTruncated },
        Buffer.from(Float32Array.from(scores).buffer),
      ),
      'PX',
      order.resultTtlMs,
    );
    return { v: 1, model, rows: order.rows, dims, tokens: 7 * order.rows, truncated: Number(isTruncated) };
  };
  const worker = new Worker(queue, run, { prefix: PREFIX, connection, removeOnComplete: { count: 1_000 } });
  worker.on('error', () => undefined);
  const announce = (outcome: string) => (job: Job | undefined) =>
    job === undefined
      ? undefined
      : void redis.publish(String(job.data.reply), JSON.stringify({ v: 1, queue, [outcome]: [job.id] }));
  worker.on('completed', announce('completed')).on('failed', announce('failed'));
  await tell(name, revision);
  closers.push(async () => {
    await worker.close(true);
    connection.disconnect();
    await redis.del(keys.workers(queue), keys.facts(queue));
  });
  return { queue, jobs };
}

/** A live worker of the queue, as it tells of itself. */
async function tell(name: string, revision: string, more: object = {}): Promise<void> {
  const queue = rerankQueue(name);
  await redis.sadd(keys.queues(), queue);
  await redis.zadd(keys.workers(queue), Date.now() + 50_000, 'worker-1');
  const facts = { device: 'cpu', model: `${name}@${revision}`, lanes: ['main'], rates: {}, mix: {}, ...more };
  await redis.hset(keys.facts(queue), 'worker-1', JSON.stringify(facts));
}

let models = 0;
const newName = (): string => `reranker-${++models}`;

async function connect(options: Partial<ClientOptions> = {}): Promise<ShoalClient> {
  const client = await ShoalClient.connect({
    redisUrl: server.url,
    prefix: PREFIX,
    model: { name: 'embeds', revision: 'r1' },
    ...options,
  });
  closers.push(() => client.close());
  return client;
}

const documentsOf = (count: number): string[] => Array.from({ length: count }, (_, at) => `document ${at}`);

function expected(documents: readonly string[]) {
  const scores = documents.map((text) => scoreOf(QUERY, text));
  const ranked = scores.map((_, at) => at).sort((a, b) => scores[b]! - scores[a]! || a - b);
  return { scores: Float32Array.from(scores), ranked };
}

describe('scores', () => {
  test('stand in the order of the documents, and the best are ranked, equal ones in their order', async () => {
    const name = newName();
    const { jobs } = await serve(name);
    const client = await connect();
    const documents = [...documentsOf(30), 'document 3', ''];
    const result = await client.rerank({ model: name, query: QUERY, documents, topN: 5 });
    const { scores, ranked } = expected(documents);
    expect(result).toEqual({
      scores,
      ranked: ranked.slice(0, 5),
      model: `${name}@r1`,
      tokens: 7 * documents.length,
      truncated: 0,
      isTruncated: false,
      isSimulated: false,
    });
    expect(ranked.indexOf(30)).toBeGreaterThan(ranked.indexOf(3)); // the same text
    expect(jobs.map(({ name: named, data }) => [named, data.v, data.class, data.query, data.texts.length])).toEqual([
      ['rerank', 2, 'interactive', QUERY, 32],
    ]);
  });

  test.each([
    ['300 documents are jobs of up to 256 pairs', { jobTexts: 256 }, documentsOf(300), [256, 44]],
    [
      'and where 1,024 are asked for of workers that do not take them',
      { jobTexts: 1_024 },
      documentsOf(300),
      [256, 44],
    ],
    ['without a setting they are jobs of up to 64', {}, documentsOf(130), [64, 64, 2]],
    ['large documents go by input keys', { jobTexts: 256 }, ['a'.repeat(700_000), 'b'.repeat(700_000), 'c'], [1, 2]],
  ])('%s', async (_, options, documents, rows) => {
    const name = newName();
    const { jobs } = await serve(name);
    const client = await connect(options);
    const result = await client.rerank({ model: name, query: QUERY, documents });
    expect(result).toMatchObject(expected(documents));
    expect(result.isTruncated).toBe(documents.some((text) => text.length > 1_000));
    expect(jobs.map(({ data }) => data.texts?.length ?? data.input.rows).sort()).toEqual(rows.toSorted());
    expect(new Set(jobs.map(({ data }) => data.class))).toEqual(
      new Set([documents.length > 64 ? 'bulk' : 'interactive']),
    );
    const keyed = jobs.filter(({ data }) => 'input' in data);
    expect(keyed.map(({ data }) => data.input.form)).toEqual(documents[0]!.length > 1_000 ? ['texts', 'texts'] : []);
  });

  test('300 documents are one job where 1,024 are asked for of workers that take them', async () => {
    const name = newName();
    const { jobs } = await serve(name);
    await tell(name, 'r1', { maxJobRows: 1_024 });
    const documents = documentsOf(300);
    const asked = { model: name, query: QUERY, documents, jobId: 'large' };
    expect(await (await connect({ jobTexts: 1_024 })).rerank(asked)).toMatchObject({
      ...expected(documents),
      tokens: 2_100,
    });
    await tell(name, 'r1');
    expect(await (await connect({ jobTexts: 1_024 })).rerank(asked)).toMatchObject(expected(documents));
    expect(jobs.map(({ id }) => id).sort()).toEqual(['default~large', 'default~large-0x1024', 'default~large-256']);
  });

  test('of no documents there are none, and nothing is asked', async () => {
    const name = newName();
    const { jobs } = await serve(name);
    const result = await (await connect()).rerank({ model: name, query: QUERY, documents: [] });
    expect([result.scores.length, result.ranked, result.tokens, jobs.length]).toEqual([0, [], 0, 0]);
  });

  test('of the same request are computed once', async () => {
    const name = newName();
    const { jobs } = await serve(name);
    const client = await connect();
    const asked = { model: name, query: QUERY, documents: documentsOf(3), jobId: 'ask-1', tenant: 'mine' };
    const [first, second] = await Promise.all([client.rerank(asked), client.rerank(asked)]);
    expect(first.scores).toEqual(second.scores);
    expect(jobs.map(({ id, data }) => [id, data.tenant])).toEqual([['mine~ask-1', 'mine']]);
    await expect(client.rerank({ ...asked, query: 'something else' })).rejects.toMatchObject({
      code: 'JOB_ID_CONFLICT',
    });
  });

  test('that are not one a document are refused', async () => {
    const name = newName();
    await serve(name, { dims: 2 });
    await expect((await connect()).rerank({ model: name, query: QUERY, documents: ['a'] })).rejects.toMatchObject({
      code: 'RESULT_CORRUPT',
      message: expect.stringContaining('2 values'),
    });
  });
});

describe('the reranker', () => {
  test('that nobody serves is refused at once, and what is served is named', async () => {
    const name = newName();
    const { queue } = await serve(name);
    await expect((await connect()).rerank({ model: 'misspelt', query: QUERY, documents: ['a'] })).rejects.toMatchObject(
      {
        code: 'NOT_SERVED',
        message: `no worker serves rerank-misspelt, and none ever did; served now: ${queue}. Is the name of the model right? If it is, start a worker for it`,
      },
    );
  });

  test('may be called as the hub does, and is told by both names where nobody serves it', async () => {
    await serve('org--scorer-1-5');
    const client = await connect();
    const asked = { query: QUERY, documents: ['a', 'b'] };
    for (const model of ['Org/Scorer-1.5', { name: 'org/scorer-1.5', revision: 'r1' }])
      expect(await client.rerank({ ...asked, model })).toMatchObject({
        model: 'org--scorer-1-5@r1',
        scores: expected(['a', 'b']).scores,
      });
    const own = await connect({ model: { name: 'Org/Scorer-1.5', kind: 'reranker' } });
    expect((await own.rerank(asked)).model).toBe('org--scorer-1-5@r1');
    await expect(client.rerank({ ...asked, model: 'Org/Other' })).rejects.toMatchObject({
      code: 'NOT_SERVED',
      message: expect.stringMatching(/^"Org\/Other" is "org--other" in the store: no worker serves rerank-org--other,/),
    });
    await expect(client.rerank({ ...asked, model: 'Org/Scorer-1.5@main' })).rejects.toThrow(
      "rerank: model is 'Org/Scorer-1.5@main', with a revision of the hub, which workers do not know; pass 'Org/Scorer-1.5'",
    );
    await expect(connect({ model: { name: 'Org/Unknown' } })).rejects.toMatchObject({
      code: 'MODEL_UNKNOWN',
      message: expect.stringContaining('the model "Org/Unknown" ("org--unknown" in the store) is given without'),
    });
  });

  test('whose revision is given is waited for, and given up with the queues that are served', async () => {
    await serve(newName());
    const client = await connect({ notServedAfterMs: 100 });
    await expect(client.rerank({ model: 'misspelt@r1', query: QUERY, documents: ['a'] })).rejects.toMatchObject({
      code: 'NOT_SERVED',
      message: expect.stringMatching(/served now: rerank-reranker-/),
    });
  }, 20_000);

  test('may be replaced by another revision while a client is connected', async () => {
    const name = newName();
    await serve(name, { revision: 'r2' });
    await tell(name, 'r1'); // as it was told before
    const client = await connect();
    const asked = { model: name, query: QUERY, documents: ['a'] };
    await expect(client.rerank(asked)).rejects.toMatchObject({ code: 'FINGERPRINT_MISMATCH' });
    await tell(name, 'r2');
    expect((await client.rerank(asked)).model).toBe(`${name}@r2`);
  });

  test("may be the client's own model, which then has no vectors", async () => {
    const name = newName();
    await serve(name);
    const client = await connect({ model: { name, kind: 'reranker' } });
    expect(await client.rerank({ query: QUERY, documents: ['a', 'b'] })).toMatchObject(expected(['a', 'b']));
    await expect(client.embed(['a'])).rejects.toThrow(
      new TypeError(`the client's model ${name} is a reranker, which gives scores and no vectors: use rerank`),
    );
    expect(client.counts()).toMatchObject({ added: 1, delivered: 1 });
  });

  test('says what fails', async () => {
    const name = newName();
    await serve(name, { failure: 'INPUT_TOO_LONG: row 1 has more than 512 tokens' });
    const asked = { model: name, query: QUERY, documents: ['a', 'b'], truncate: 'error' } as const;
    await expect((await connect()).rerank(asked)).rejects.toMatchObject({
      code: 'INPUT_TOO_LONG',
      message: 'row 1 has more than 512 tokens',
    });
  });
});

const unanswered = (): RerankOptions => ({ model: `${newName()}@r1`, query: QUERY, documents: documentsOf(3) });

async function waiting(queue: string): Promise<number> {
  return (await redis.llen(keys.job(queue, 'wait'))) + (await redis.zcard(keys.job(queue, 'prioritized')));
}

describe('a call that nobody answers', () => {
  test('ends in time, says why, and leaves nothing on the queue', async () => {
    const client = await connect();
    const options = unanswered();
    await expect(client.rerank({ ...options, timeoutMs: 400 })).rejects.toMatchObject({
      code: 'DEADLINE_PASSED',
      message: expect.stringMatching(/^the scores had not come within 0\.4 s: no worker serves rerank-/),
    });
    expect(await waiting(rerankQueue(String(options.model)))).toBe(0);
  });

  test('is stopped by its signal, and taken back by its id', async () => {
    const client = await connect();
    const [stopped, cancelled] = [unanswered(), unanswered()];
    const stopping = new AbortController();
    const first = client.rerank({ ...stopped, signal: stopping.signal });
    const second = client.rerank({ ...cancelled, jobId: 'later' });
    const queue = rerankQueue(String(cancelled.model));
    while ((await waiting(queue)) === 0 || (await waiting(rerankQueue(String(stopped.model)))) === 0);
    expect((await client.whyWaiting({ reranker: cancelled.model! })).message).toContain(queue);
    stopping.abort();
    await expect(first).rejects.toMatchObject({ code: 'INTERRUPTED', name: 'AbortError' });
    const ending = second.then(String, (error: unknown) => error); // it may come before the next answer
    expect(await client.cancel(['later'])).toMatchObject([{ jobId: 'default~later' }]);
    expect(await ending).toMatchObject({ code: 'CANCELLED' });
    await expect(client.rerank({ ...unanswered(), signal: AbortSignal.abort() })).rejects.toMatchObject({
      code: 'INTERRUPTED',
    });
  });
});

describe('submitted', () => {
  test('documents have their scores by the id alone, from another client as well, in jobs of a few each', async () => {
    const name = newName();
    const client = await connect({ jobTexts: 4 });
    await tell(name, 'r1');
    const documents = documentsOf(10);
    const handle = await client.submitRerank({ model: name, query: QUERY, documents, jobId: 'night', meta: { at: 1 } });
    expect(await handle.status()).toMatchObject({ state: 'waiting', rows: 10, rowsDone: 0, model: `${name}@r1` });
    const early = handle.result();
    const { jobs } = await serve(name);
    const result = { ...expected(documents), model: `${name}@r1`, tokens: 70, truncated: 0, meta: { at: 1 } };
    expect(await early).toMatchObject(result);
    expect(new Set(jobs.map(({ data }) => `${data.class} ${data.resultTtlMs}`))).toEqual(new Set(['bulk 86400000']));
    const other = await connect({ model: { name, kind: 'reranker' } });
    const found = await other.rerankJob('night');
    expect(await found.result()).toMatchObject(result);
    await found.release();
    expect(await handle.cancel()).toBe('finished');
    expect(await found.status()).toMatchObject({ state: 'unknown' });
  });

  test('asked again with the same id they are the same request, and with others a conflict', async () => {
    const name = newName();
    const client = await connect();
    await tell(name, 'r1');
    const asked = { model: name, query: QUERY, documents: ['a', 'b'], jobId: 'once' };
    await client.submitRerank(asked);
    await client.submitRerank(asked);
    await expect(client.submitRerank({ ...asked, query: 'another' })).rejects.toMatchObject({
      code: 'JOB_ID_CONFLICT',
    });
    expect(await client.cancel(['once'])).toMatchObject([{ outcome: 'cancelled' }]);
  });

  test.each([
    [{ query: 'a', documents: [] }, 'submitRerank needs at least one document'],
    [{ query: 'a', documents: ['a'], topN: 3 }, 'submitRerank has no option "topN"'],
    [{ query: 'a', documents: ['a'], timeoutMs: 3 }, 'submitRerank has no option "timeoutMs"'],
    [{ query: 'a', documents: ['a'], model: undefined }, 'submitRerank needs model, the name of a reranker'],
  ])('what cannot be is refused by name: %j', async (wrong, message) => {
    const client = await connect();
    await expect(client.submitRerank({ model: 'r', ...wrong } as never)).rejects.toThrow(message);
  });
});

test.each([
  [{ documents: ['a'] }, 'rerank needs query, the text that documents are weighed against; found undefined'],
  [{ query: 'a', texts: ['a'] }, 'rerank has no option "texts" (it is documents); there are signal'],
  [{ query: 'a', documents: 'a' }, "rerank needs documents, an array of texts; found 'a'"],
  [{ query: 'a', documents: ['a', 1] }, 'rerank takes texts as documents, and found 1 at 1'],
  [{ query: 'a', documents: ['a'], top_n: 3 }, 'rerank has no option "top_n" (it is topN)'],
  [{ query: 'a', documents: ['a'], topN: 0 }, 'rerank: topN is 0; it is a whole number from 1'],
  [{ query: 'a', documents: ['a'], prompt: 'query' }, 'rerank has no option "prompt"'],
  [{ query: 'a', documents: ['a'], model: '@r1' }, "rerank: model is '@r1'; it is the name of a reranker"],
  [{ query: 'a', documents: ['a'], model: {} }, 'rerank: model is {}; it is the name of a reranker'],
  [{ query: 'a', documents: ['a'], timeoutMs: -1 }, 'rerank: timeoutMs is -1'],
  [{ query: 'a', documents: ['a'] }, "rerank needs model, the name of a reranker: this client's own model, embeds,"],
])('a call of the wrong shape is refused by name: %j', async (options, message) => {
  const client = await connect();
  const refused = client.rerank(options as unknown as RerankOptions);
  await expect(refused).rejects.toBeInstanceOf(TypeError);
  await expect(refused).rejects.toThrow(message);
});
