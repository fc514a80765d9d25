// What is quarantined can be looked at, given back and dropped, with its input, for as long as a person likes.

import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { encodeTexts, keySpace, type EmbedJobData } from '@shoal/contract';
import { Queue } from 'bullmq';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { failWaiting } from '../bullmq/internals.ts';
import { Quarantine } from './quarantine.ts';
import { quarantineQueue } from '../lanes/quarantine-queue.ts';
import { startTestServer, type TestServer } from '../testing.ts';

const FAILURE = { code: 'QUARANTINED', message: 'it killed two executors' } as const;
let server: TestServer;
let connection: Redis;
let scenes = 0;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

describe('quarantine', () => {
  let prefix: string;
  let main: Queue;
  let quarantine: Quarantine;
  const inputAt = (queue: string): Promise<Buffer | null> => connection.getBuffer(keySpace(prefix).input(queue, 'a'));
  const input = encodeTexts(['deadly']);
  const keyed = { v: 1, fingerprint: '0123456789abcdef', input: { form: 'texts', rows: 1 } } as EmbedJobData;

  beforeEach(() => {
    prefix = `{t-quarantine-${++scenes}}`;
    main = new Queue('embed-x', { prefix, connection });
    quarantine = new Quarantine({ redisUrl: server.url, prefix, queue: 'embed-x' });
    return async () => {
      await quarantine.close();
      await main.close();
    };
  });

  async function put(data: EmbedJobData = keyed): Promise<void> {
    if ('input' in data) await connection.set(keySpace(prefix).input('embed-x', 'a'), input);
    const job = await main.add('embed', data, { jobId: 'a' });
    await quarantine.put('embed-x', job, FAILURE);
  }

  test('keeps a job with its reason and a copy of its input, in a queue that Bull Board shows', async () => {
    await put();
    await connection.del(keySpace(prefix).input('embed-x', 'a')); // as the announcement of a failed job does
    const [job] = await quarantine.list();
    expect(job).toMatchObject({ jobId: 'a', failure: FAILURE, lane: 'embed-x', data: keyed, inputBytes: input.length });
    expect(job!.sinceMs).toBeGreaterThan(0);
    expect(await inputAt(quarantineQueue('embed-x'))).toEqual(input);
    const shown = new Queue(quarantineQueue('embed-x'), { prefix, connection });
    expect((await shown.getJob('a'))?.data).toMatchObject({ failure: FAILURE });
    await shown.close();
  });

  test('is kept by a server that forgot its scripts meanwhile', async () => {
    await put();
    await quarantine.drop(['a']);
    await server.command('SCRIPT', 'FLUSH');
    await quarantine.put('embed-x', (await main.getJob('a'))!, FAILURE);
    expect(await quarantine.list()).toMatchObject([{ jobId: 'a', inputBytes: input.length }]);
  });

  test('what a full queue refuses stays, input and all, and is given back when there is room', async () => {
    await put();
    await main.remove('a');
    const load = keySpace(prefix).load();
    await connection.hset(load, 'rows embed-x', 4_000_000);
    expect(await quarantine.giveBack(['a'])).toMatchObject([{ jobId: 'a', outcome: 'refused' }]);
    expect(await quarantine.list()).toMatchObject([{ jobId: 'a', inputBytes: input.length }]);
    expect(await main.getJob('a')).toBeUndefined();
    await connection.del(load);
    expect(await quarantine.giveBack(['a'])).toMatchObject([{ outcome: 'added' }]);
    expect(await quarantine.list()).toEqual([]);
  });

  test('putting the same job in twice keeps one', async () => {
    await put();
    await quarantine.put('embed-x', (await main.getJob('a'))!, FAILURE);
    expect(await quarantine.list()).toHaveLength(1);
  });

  test.each([keyed, { v: 1, fingerprint: '0123456789abcdef', texts: ['deadly'] } as EmbedJobData])(
    'gives a job back under its id, input and all',
    async (data) => {
      await put(data);
      await main.remove('a');
      await connection.del(keySpace(prefix).input('embed-x', 'a'));
      expect(await quarantine.giveBack(['a', 'nobody'])).toMatchObject([{ jobId: 'a', outcome: 'added' }, undefined]);
      expect((await main.getJob('a'))?.data).toEqual(data);
      expect(await inputAt('embed-x')).toEqual('input' in data ? input : null);
      expect(await quarantine.list()).toEqual([]);
      expect(await inputAt(quarantineQueue('embed-x'))).toBeNull();
    },
  );

  test.each([['plain'], ['1'], ['repeat:nightly:1732600000000']])(
    'gives back a job of plain BullMQ, %s, which has neither a fingerprint nor room reserved',
    async (jobId) => {
      const plain = { v: 1, texts: ['deadly'] } as EmbedJobData;
      const job = await main.add('embed', plain, jobId === '1' ? {} : { jobId });
      await quarantine.put('embed-x', job, FAILURE);
      await failWaiting(connection, {
        prefix,
        queue: 'embed-x',
        jobId,
        reason: 'QUARANTINED: it killed two executors',
      });
      const [held] = await quarantine.list();
      expect(await quarantine.giveBack([held!.jobId])).toEqual([{ jobId, outcome: 'added' }]);
      const returned = await main.getJob(jobId);
      expect([returned?.data, returned?.timestamp, await returned?.getState()]).toEqual([
        plain,
        job.timestamp,
        'waiting',
      ]);
      expect(await quarantine.list()).toEqual([]);
    },
  );

  test('gives back a job of a reranker as one, of a client and of plain BullMQ', async () => {
    const plain = { v: 2, query: 'deadly', texts: ['poison'] };
    for (const [jobId, data] of [
      ['plain', plain],
      ['asked', { ...plain, fingerprint: '0123456789abcdef' }],
    ] as const) {
      await quarantine.put('embed-x', await main.add('rerank', data, { jobId }), FAILURE);
      await main.remove(jobId);
      expect(await quarantine.giveBack([jobId])).toMatchObject([{ jobId, outcome: 'added' }]);
      const returned = await main.getJob(jobId);
      expect([returned?.name, returned?.data]).toEqual(['rerank', data]);
    }
  });

  test('leaves a plain job where it is while its id is in use for another, and keeps both of one number', async () => {
    const jobs = [];
    for (const text of ['first', 'second']) {
      await main.obliterate({ force: true });
      const job = await main.add('embed', { v: 1, texts: [text] }, { timestamp: 1732600000000 + jobs.length });
      await quarantine.put('embed-x', job, FAILURE);
      jobs.push(job);
    }
    expect(jobs.map(({ id }) => id)).toEqual(['1', '1']);
    const held = (await quarantine.list()).map(({ jobId }) => jobId);
    expect(held.toSorted()).toEqual(['1@1732600000000', '1@1732600000001']);
    expect(await quarantine.giveBack(['1@1732600000000', '1@1732600000001'])).toMatchObject([
      { outcome: 'conflict' },
      { outcome: 'known' },
    ]);
    expect((await quarantine.list()).map(({ jobId }) => jobId)).toEqual(['1@1732600000000']);
  });

  test('does not give back what lost its input, and keeps it', async () => {
    await put();
    await connection.del(keySpace(prefix).input(quarantineQueue('embed-x'), 'a'));
    await expect(quarantine.giveBack(['a'])).rejects.toMatchObject({ code: 'INPUT_LOST' });
    expect(await quarantine.list()).toHaveLength(1);
  });

  test('drops jobs with their inputs', async () => {
    await put();
    expect(await quarantine.drop(['a', 'nobody'])).toEqual(['a']);
    expect(await quarantine.list()).toEqual([]);
    expect(await inputAt(quarantineQueue('embed-x'))).toBeNull();
  });
});
