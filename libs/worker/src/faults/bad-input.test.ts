// Jobs that somebody put on the queue by hand, with raw commands: each ends as a failed job with a code and a sentence,
// its healthy neighbours complete, and the listings of a dashboard show them all. One real worker on the tiny model.

import { fork, type ChildProcess } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Queue } from 'bullmq';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { programOf } from '@shoal/core/testing';
import { encodeTexts, encodeTokens, keySpace, mainQueue, parseFailedReason } from '@shoal/contract';
import { openModel, openTokenizer } from '@shoal/models';
import { BoardQueues, closeConnection, openConnection, type Redis } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';

const PREFIX = '{shoal}';
const QUEUE = mainQueue('tiny-random');
const keys = keySpace(PREFIX);
const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-bad-input-'));

let server: TestServer;
let redis: Redis;
let queue: Queue;
let worker: ChildProcess;
let tokenizer = '';
let neighbours = 0;

beforeAll(async () => {
  server = await startTestServer();
  redis = openConnection({ url: server.url, name: 'test' });
  queue = new Queue(QUEUE, { connection: redis, prefix: PREFIX });
  worker = await startWorker();
  tokenizer = (await openTokenizer(await openModel('tiny-random', { cacheDir }))).hash;
});

/** Whatever a test did: what is healthy still completes, and nothing is left behind. */
afterEach(async () => {
  await expectHealthyQueue();
  await redis.flushall();
});

afterAll(async () => {
  const exited = new Promise((resolve) => worker.once('exit', resolve));
  worker.kill('SIGTERM');
  await exited;
  await queue.close();
  await closeConnection(redis);
  await server.stop();
  rmSync(cacheDir, { recursive: true, force: true });
});

async function expectHealthyQueue(): Promise<void> {
  const jobId = `neighbour-${++neighbours}`;
  await queue.add('embed', { v: 1, texts: ['hello'] }, { jobId });
  expect(await ending(jobId)).toMatchObject({ state: 'completed' });
  await expectListings();
}

function startWorker(): Promise<ChildProcess> {
  const { main, execArgv } = programOf('cpu-worker');
  const child = fork(main, [], {
    execArgv: [...execArgv],
    env: {
      ...process.env,
      SHOAL_REDIS_URL: server.url,
      SHOAL_MODEL: 'tiny-random',
      SHOAL_CACHE_DIR: cacheDir,
      SHOAL_THREADS: '1',
      SHOAL_LOG_LEVEL: 'silent',
      SHOAL_LEASE_MS: '1500',
      SHOAL_STALLED_CHECK_MS: '300',
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  return new Promise((resolve, reject) => {
    child.once('message', (message: { kind: string; failure?: { message: string } }) =>
      message.kind === 'ready' ? resolve(child) : reject(new Error(message.failure?.message)),
    );
    child.once('exit', (code, signal) => reject(new Error(`worker ended before it was ready: ${code ?? signal}`)));
  });
}

/** As a person at redis-cli would: a hash, an id in the list, a marker. A healthy job goes in before and after it. */
async function putByHand(jobId: string, fields: Record<string, string | Buffer>): Promise<void> {
  const key = keys.job(QUEUE, jobId);
  const [before, after] = [`before-${++neighbours}`, `after-${neighbours}`];
  await queue.pause();
  await queue.add('embed', { v: 1, texts: ['before'] }, { jobId: before });
  if (Object.keys(fields).length > 0) await redis.hset(key, fields);
  await redis.lpush(keys.job(QUEUE, 'wait'), jobId);
  await queue.add('embed', { v: 1, texts: ['after'] }, { jobId: after });
  await queue.resume();
  expect([await ending(before), await ending(after)]).toMatchObject([{ state: 'completed' }, { state: 'completed' }]);
}

function hashOf(data: unknown, more: Record<string, string> = {}): Record<string, string> {
  return {
    name: 'embed',
    data: typeof data === 'string' ? data : JSON.stringify(data),
    opts: '{}',
    timestamp: String(Date.now()),
    delay: '0',
    priority: '0',
    ...more,
  };
}

/** Read with plain commands: the record may be one that BullMQ cannot read. */
async function ending(jobId: string): Promise<{ state: 'completed' | 'failed'; code: string; message: string }> {
  const deadline = performance.now() + 20_000;
  for (;;) {
    const [finishedOn, failedReason, isCompleted] = [
      await redis.hget(keys.job(QUEUE, jobId), 'finishedOn'),
      await redis.hget(keys.job(QUEUE, jobId), 'failedReason'),
      await redis.zscore(keys.job(QUEUE, 'completed'), jobId),
    ];
    if (finishedOn !== null && isCompleted !== null) return { state: 'completed', code: '', message: '' };
    if (finishedOn !== null && (await redis.zscore(keys.job(QUEUE, 'failed'), jobId)) !== null)
      return { state: 'failed', ...parseFailedReason(failedReason ?? '') };
    if (performance.now() > deadline)
      throw new Error(`${jobId} never ended: ${JSON.stringify(await redis.hgetall(keys.job(QUEUE, jobId)))}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Bull Board's own way of listing, on the queue that a BullMQ program opens, and on the dashboard's. */
async function expectListings(): Promise<void> {
  const board = await BoardQueues.connect({ redisUrl: server.url });
  const found = (await board.find()).find(({ name }) => name === QUEUE);
  for (const listed of [queue, found!]) {
    const jobs = await listed.getJobs(['wait', 'active', 'prioritized', 'delayed', 'completed', 'failed'], 0, 500);
    const counts = await listed.getJobCounts('wait', 'active', 'prioritized', 'delayed', 'completed', 'failed');
    expect(jobs.length).toBe(Object.values(counts).reduce((sum, count) => sum + count, 0));
    for (const job of jobs) JSON.stringify(job.toJSON());
  }
  await board.close();
}

async function expectFailure(jobId: string, code: string, message: RegExp): Promise<void> {
  expect(await ending(jobId)).toMatchObject({ state: 'failed', code, message: expect.stringMatching(message) });
}

describe('a record that cannot be read', () => {
  test('data that is not JSON', async () => {
    await putByHand('a', hashOf('{"v":1,"texts":["x"'));
    await expectFailure(
      'a',
      'JOB_INVALID',
      /its record cannot be read: "data" is not JSON.*kept in the job's field "damaged:data".*Add the job again/,
    );
    expect(await redis.hget(keys.job(QUEUE, 'a'), 'damaged:data')).toBe('{"v":1,"texts":["x"');
  });

  test('opts that are not JSON, or no object', async () => {
    await putByHand('a', hashOf({ v: 1, texts: ['x'] }, { opts: 'nonsense' }));
    await putByHand('b', hashOf({ v: 1, texts: ['x'] }, { opts: 'null' }));
    await expectFailure('a', 'JOB_INVALID', /"opts" is not JSON/);
    await expectFailure('b', 'JOB_INVALID', /"opts" is null, not an object/);
  });

  test('several fields at once, binary noise among them', async () => {
    await putByHand('a', {
      ...hashOf('\u0000\u0001'),
      opts: Buffer.from([0xff, 0xfe, 0x00]),
      progress: '{',
      parent: '[',
    });
    await expectFailure(
      'a',
      'JOB_INVALID',
      /"data" is not JSON.*"opts" is not JSON.*"progress" is not JSON.*"parent" is not JSON/,
    );
  });

  test('a record that says it is another job', async () => {
    await putByHand('a', hashOf({ v: 1, texts: ['x'] }, { id: 'somebody-else' }));
    expect(await ending('a')).toMatchObject({ state: 'completed' });
  });

  test('an id without a record', async () => {
    await putByHand('ghost', {});
    await expectFailure('ghost', 'JOB_INVALID', /its record is gone; only its id was left in the queue/);
  });

  test('a record deleted while a worker has the job', async () => {
    await redis.hset(keys.job(QUEUE, 'held'), hashOf({ v: 1, texts: ['x'] }));
    // As a claim of a worker that is about to find out: active, locked, and the record gone.
    await redis.lpush(keys.job(QUEUE, 'active'), 'held');
    await redis.set(keys.lock(QUEUE, 'held'), 'a token', 'PX', 700);
    await redis.del(keys.job(QUEUE, 'held'));
    await expectFailure('held', 'JOB_INVALID', /its record is gone/);
  });

  test('an id whose key holds something else than a record', async () => {
    await redis.set(keys.job(QUEUE, 'odd'), 'a string');
    await redis.lpush(keys.job(QUEUE, 'wait'), 'odd');
    await redis.zadd(keys.job(QUEUE, 'marker'), 0, '0');
    const isGone = async (): Promise<boolean> =>
      (await redis.lpos(keys.job(QUEUE, 'wait'), 'odd')) === null &&
      (await redis.lpos(keys.job(QUEUE, 'active'), 'odd')) === null;
    const deadline = performance.now() + 20_000;
    while (!(await isGone()) && performance.now() < deadline) await new Promise((resolve) => setTimeout(resolve, 50));
    expect(await isGone()).toBe(true);
    // nobody's job, and perhaps somebody's: moved aside, never thrown away
    const [name] = await redis.zrange(keys.setAside(QUEUE), '0', '-1');
    expect(name).toMatch(/^odd:\d+$/);
    expect(await redis.get(`${keys.setAside(QUEUE)}:${name}`)).toBe('a string');
  });
});

describe('a job that is not what the format says', () => {
  const cases: readonly (readonly [what: string, data: unknown, message: RegExp])[] = [
    ['no version', { texts: ['x'] }, /field "v", the version .* must be 1, found nothing/],
    ['a wrong version', { v: 0, texts: ['x'] }, /field "v", the version .* must be 1, found 0/],
    ['a version that is text', { v: '1', texts: ['x'] }, /field "v", the version .* must be 1, found "1"/],
    ['an unknown field', { v: 1, texts: ['x'], model: 'other' }, /unknown field "model"/],
    ['0 texts', { v: 1, texts: [] }, /texts: .*1/],
    ['10,000 texts', { v: 1, texts: Array.from({ length: 10_000 }, () => 'x') }, /texts: .*256/],
    ['1,024 texts with version 1', { v: 1, texts: Array(1_024).fill('x') }, /texts: .*256.*found 1024.*"v": 2/],
    ['1,025 texts with version 2', { v: 2, texts: Array(1_025).fill('x') }, /texts: .*1024.*found 1025/],
    ['a text that is not a string', { v: 1, texts: ['x', 7] }, /texts\.1: .*string/],
    ['a list', [1, 2], /its data is not an object/],
    ['nothing', null, /its data is not an object/],
    ['another name for its input', { v: 1, input: { form: 'images', rows: 1 } }, /input/],
  ];
  test.each(cases)('%s', async (_, data, message) => {
    await putByHand('a', hashOf(data));
    await expectFailure('a', 'JOB_INVALID', message);
  });

  test('a version of the future is parked for a newer worker, however old the job is', async () => {
    await putByHand('new', hashOf({ v: 3, texts: ['x'] }));
    await putByHand('old', hashOf({ v: 3, texts: ['x'] }, { timestamp: String(Date.now() - 660_000) }));
    await expect
      .poll(() => redis.zrange(keys.parked(QUEUE), '0', '-1', 'WITHSCORES'), { timeout: 20_000 })
      .toEqual(['new', '3', 'old', '3']);
    for (const jobId of ['new', 'old']) expect(await redis.zscore(keys.job(QUEUE, 'delayed'), jobId)).not.toBeNull();
  });

  test('a name that this queue does not know', async () => {
    await putByHand('a', { ...hashOf({ v: 1, texts: ['x'] }), name: 'resize-image' });
    await expectFailure('a', 'JOB_INVALID', /named "resize-image"; this queue takes jobs named "embed"/);
  });

  test('ids that cannot be: with ":", a negative number, very long', async () => {
    for (const jobId of ['a:b', '-17', 'x'.repeat(300)]) {
      await putByHand(jobId, hashOf({ v: 1, texts: ['x'] }));
      await expectFailure(jobId, 'JOB_INVALID', /cannot be used: .*choose 1 to 256 characters without ":"/);
    }
  });
});

function tokensJob(): object {
  return { v: 1, input: { form: 'tokens', rows: 2, tokens: 6, tokenizer } };
}

async function withInput(jobId: string, bytes: Buffer, jobData: object = tokensJob()): Promise<void> {
  await redis.set(keys.input(QUEUE, jobId), bytes);
  await putByHand(jobId, hashOf(jobData));
}

describe('an input key', () => {
  const tokens = encodeTokens([
    [2, 5, 3],
    [2, 6, 3],
  ]);
  test('that is as it should be completes', async () => {
    await withInput('a', tokens);
    expect(await ending('a')).toMatchObject({ state: 'completed' });
  });

  test('of another tokenizer', async () => {
    await withInput('a', tokens, {
      v: 1,
      input: { form: 'tokens', rows: 2, tokens: 6, tokenizer: '0000000000000000' },
    });
    await expectFailure('a', 'TOKENIZER_MISMATCH', /tokenizer/);
  });

  test.each([
    ['truncated', tokens.subarray(0, tokens.length - 1), /bytes where its offsets ask for/],
    ['truncated inside its header', tokens.subarray(0, 5), /does not begin with a SHI1 header/],
    ['too long', Buffer.concat([tokens, Buffer.alloc(1_000)]), /bytes where its offsets ask for/],
    ['far too long', Buffer.concat([tokens, Buffer.alloc(40 << 20)]), /bytes where its offsets ask for/],
    ['empty', Buffer.alloc(0), /SHI1/],
    ['noise', Buffer.from('not an input at all'), /SHI1/],
    ['texts where the job says tokens', encodeTexts(['x', 'y']), /./],
  ])('%s', async (_, bytes, message) => {
    await withInput('a', bytes);
    await expectFailure('a', 'INPUT_CORRUPT', message);
    expect(await redis.exists(keys.input(QUEUE, 'a'))).toBe(0);
  });

  test('that is missing', async () => {
    await putByHand('a', hashOf(tokensJob()));
    await expectFailure('a', 'INPUT_LOST', /./);
  });

  test('of another kind than a string', async () => {
    await redis.lpush(keys.input(QUEUE, 'a'), 'x');
    await putByHand('a', hashOf(tokensJob()));
    await expectFailure('a', 'INPUT_LOST', /./);
  });
});

describe('a result key', () => {
  test.each([
    ['noise', async (key: string) => void (await redis.set(key, 'noise'))],
    ['a list', async (key: string) => void (await redis.lpush(key, 'x'))],
    [
      'nothing but a header of another request',
      async (key: string) =>
        void (await redis.set(
          key,
          Buffer.concat([Buffer.from('SHL1'), Buffer.from([1, 0, 0, 0]), Buffer.alloc(24, 7)]),
        )),
    ],
  ])('overwritten with %s is not overwritten in turn: the job fails', async (_, overwrite) => {
    await overwrite(keys.output(QUEUE, 'a'));
    await putByHand('a', hashOf({ v: 1, texts: ['x'], fingerprint: undefined }));
    await expectFailure('a', 'JOB_ID_CONFLICT', /./);
  });
});

describe('clocks that differ by an hour', () => {
  test('a producer in the future or the past: its jobs complete, its waiting time is not negative', async () => {
    await putByHand('future', hashOf({ v: 1, texts: ['x'] }, { timestamp: String(Date.now() + 3_600_000) }));
    await putByHand('past', hashOf({ v: 1, texts: ['x'] }, { timestamp: String(Date.now() - 3_600_000) }));
    for (const jobId of ['future', 'past']) {
      expect(await ending(jobId)).toMatchObject({ state: 'completed' });
      const value = JSON.parse((await redis.hget(keys.job(QUEUE, jobId), 'returnvalue')) ?? '{}') as {
        ms: { queued: number };
      };
      expect(value.ms.queued).toBeGreaterThanOrEqual(0);
    }
  });

  test('a deadline counts by the clock of the server', async () => {
    const [seconds] = await redis.time();
    await putByHand(
      'late',
      hashOf(
        { v: 1, texts: ['x'], deadline: Number(seconds) * 1_000 - 1_000 },
        { timestamp: String(Date.now() - 3_600_000) },
      ),
    );
    await expectFailure('late', 'DEADLINE_PASSED', /passed/);
    await putByHand(
      'early',
      hashOf(
        { v: 1, texts: ['x'], deadline: Number(seconds) * 1_000 + 60_000 },
        { timestamp: String(Date.now() + 3_600_000) },
      ),
    );
    expect(await ending('early')).toMatchObject({ state: 'completed' });
  });

  test('numbers of the record that are none', async () => {
    await putByHand(
      'a',
      hashOf({ v: 1, texts: ['x'] }, { timestamp: 'yesterday', delay: 'x', priority: 'high', atm: 'many', stc: '-' }),
    );
    expect(await ending('a')).toMatchObject({ state: 'completed' });
    await putByHand('b', hashOf({ v: 1, texts: ['x'] }, { ats: 'often' }));
    expect(await ending('b')).toMatchObject({ state: 'completed' });
  });
});
