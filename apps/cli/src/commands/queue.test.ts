import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { encodeTexts, keySpace, mainQueue } from '@shoal/contract';
import {
  DEFAULT_LIMITS,
  JobProducer,
  Quarantine,
  closeConnection,
  openConnection,
  type QueueCounts,
  type Redis,
} from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { runHere } from '../testing/command-here.ts';
import { Sandbox, type Result } from '../testing/shoal-process.ts';

vi.setConfig({ testTimeout: 120_000 }); // a handful of processes each

const QUEUE = mainQueue('x');
const keys = keySpace();
const FINGERPRINT = '00112233445566ff';

let server: TestServer;
let redis: Redis;
let producer: JobProducer;
let box: Sandbox;

beforeAll(async () => {
  server = await startTestServer();
  redis = openConnection({ url: server.url, name: 'test' });
  producer = await JobProducer.connect({ redisUrl: server.url, queue: QUEUE });
  box = new Sandbox();
});
afterEach(() => redis.flushall());
afterAll(async () => {
  await producer.close();
  await closeConnection(redis);
  await server.stop();
  box.remove();
});

function run(...args: string[]): Promise<Result> {
  return runHere(box, ['queue', ...args, '--redis-url', server.url, '--model', 'x']);
}

async function add(...jobIds: string[]): Promise<void> {
  await producer.add(jobIds.map((jobId) => ({ jobId, data: { v: 1, fingerprint: FINGERPRINT, texts: ['hello'] } })));
}

/** Ended by hand: who runs jobs is not what is tested here. */
async function end(jobId: string, state: 'completed' | 'failed', { reason = '', agoMs = 0 } = {}): Promise<void> {
  for (const list of ['prioritized', 'delayed']) await redis.zrem(keys.job(QUEUE, list), jobId);
  await redis.lrem(keys.job(QUEUE, 'wait'), 0, jobId);
  const [seconds] = await redis.time();
  const at = Number(seconds) * 1_000 - agoMs;
  await redis.hset(
    keys.job(QUEUE, jobId),
    'finishedOn',
    String(at),
    ...(state === 'failed' ? ['failedReason', reason] : []),
  );
  await redis.zadd(keys.job(QUEUE, state), at, jobId);
}

async function lanes(): Promise<QueueCounts['lanes'][number]> {
  return (JSON.parse((await run('counts', '--json')).stdout) as QueueCounts).lanes[0]!;
}

test('counts: both lanes, quarantine and reserved room, as a table and as JSON', async () => {
  await add('a', 'b', 'c');
  await end('c', 'failed', { reason: 'OUT_OF_VRAM: too large' });
  await redis.rpush(keys.job(`${QUEUE}-cpu`, 'wait'), 'd');
  const { stdout, code } = await run('counts');
  expect(code).toBe(0);
  expect(stdout).toMatch(
    /^queue +waiting +active +delayed +parked +handed over +failed +cancelled +completed +workers +oldest$/m,
  );
  expect(stdout).toMatch(/^embed-x +2 +0 +0 +0 +0 +1 +0 +0 +0 +\d+\.\d s \(interactive\)$/m);
  expect(stdout).toMatch(/^embed-x-cpu +1 +0/m);
  expect(stdout).toMatch(/^in quarantine: 0$/m);
  expect(JSON.parse((await run('counts', '--json')).stdout)).toMatchObject({
    lanes: [
      { queue: 'embed-x', isPaused: false, waiting: 2, failed: 1 },
      { queue: 'embed-x-cpu', waiting: 1 },
    ],
    quarantined: 0,
  });
});

test('pause and resume: both lanes, and counts says so', async () => {
  expect(await run('pause')).toMatchObject({
    code: 0,
    stdout: '',
    stderr: expect.stringContaining('embed-x and its CPU lane are paused'),
  });
  expect(await redis.hget(keys.job(`${QUEUE}-cpu`, 'meta'), 'paused')).not.toBeNull();
  expect((await run('counts')).stdout).toContain('embed-x (paused)');
  expect(await run('resume', '--json')).toMatchObject({
    code: 0,
    stdout: '{"queue":"embed-x","paused":false}\n',
    stderr: '',
  });
  expect((await lanes()).isPaused).toBe(false);
});

test('retry: by id, by code, all; what cannot be run again is named, and makes the exit code 1', async () => {
  await add('oom', 'nan', 'fine');
  await producer.add([
    {
      jobId: 'keyed',
      data: { v: 1, fingerprint: FINGERPRINT, input: { form: 'texts', rows: 1 } },
      input: encodeTexts(['x']),
    },
  ]);
  await end('oom', 'failed', { reason: 'OUT_OF_VRAM: too large' });
  await end('nan', 'failed', { reason: 'INFERENCE_FAILED: NaN' });
  await end('keyed', 'failed', { reason: 'OUT_OF_VRAM: too large' });
  await redis.del(keys.input(QUEUE, 'keyed'));
  await redis.hset(keys.job(QUEUE, 'nan'), 'defa', 'why', 'stc', '9');
  expect(await run('retry', '--code', 'INFERENCE_FAILED')).toMatchObject({
    code: 0,
    stderr: expect.stringContaining('1 job: waiting again'),
  });
  expect(await redis.hmget(keys.job(QUEUE, 'nan'), 'defa', 'stc', 'finishedOn', 'failedReason')).toEqual([
    null,
    null,
    null,
    null,
  ]);
  expect(await run('retry', 'oom', 'fine', 'nobody', '--json')).toMatchObject({
    code: 1,
    stdout:
      '[{"jobId":"oom","outcome":"retried"},{"jobId":"fine","outcome":"not-failed"},' +
      '{"jobId":"nobody","outcome":"not-failed"}]\n',
    stderr: expect.stringContaining('fine, nobody: not failed, or gone'),
  });
  expect(await run('retry', '--all')).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('keyed: without an input, which went with the failure; to be added anew'),
  });
  expect(await lanes()).toMatchObject({ waiting: 3, failed: 1 });
  expect(await run('retry')).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('name the jobs to run again, or all that failed with --all or --code CODE'),
  });
  expect(await run('retry', '--code', 'OOPS')).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('"OOPS" is no error code; known are JOB_INVALID'),
  });
});

test('cancel: what waits fails with CANCELLED, input and all', async () => {
  await add('a', 'b');
  await end('b', 'completed');
  expect(await run('cancel', 'a', 'b', 'nobody')).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/1 job: cancelled\n[^]*b: ended before; nobody: not known/),
  });
  expect(await redis.hget(keys.job(QUEUE, 'a'), 'failedReason')).toMatch(/^CANCELLED: /);
});

test('quarantine: list, return, drop', async () => {
  const quarantine = new Quarantine({ redisUrl: server.url, prefix: '{shoal}', queue: QUEUE });
  const data = { v: 1, fingerprint: FINGERPRINT, input: { form: 'texts', rows: 1 } };
  for (const id of ['deadly', 'worse']) {
    await redis.set(keys.input(QUEUE, id), encodeTexts(['boom']));
    await quarantine.put(
      QUEUE,
      { id, name: 'embed', data, timestamp: 1 },
      { code: 'QUARANTINED', message: 'it killed its executor alone' },
    );
    await redis.del(keys.input(QUEUE, id));
  }
  await quarantine.close();
  const { stdout } = await run('quarantine', 'list');
  expect(stdout).toMatch(
    /^deadly\n {2}QUARANTINED: it killed its executor alone\n {2}since 20.*Z, last in embed-x, input of \d+ bytes$/m,
  );
  expect(JSON.parse((await run('quarantine', 'list', '--json')).stdout)).toMatchObject([
    { jobId: expect.any(String), failure: { code: 'QUARANTINED' } },
    {},
  ]);
  expect(await run('quarantine', 'return', 'deadly')).toMatchObject({
    code: 0,
    stderr: expect.stringContaining('1 job: waiting again'),
  });
  expect(await redis.exists(keys.input(QUEUE, 'deadly'))).toBe(1);
  expect(await run('quarantine', 'drop', 'worse', 'nobody')).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/1 job: dropped, input included\n[^]*nobody: not in quarantine/),
  });
  expect(await run('quarantine', 'list')).toMatchObject({
    code: 0,
    stdout: '',
    stderr: expect.stringContaining('nothing is in quarantine'),
  });
  expect(await lanes()).toMatchObject({ waiting: 1 });
});

test('quarantine return: what there is no room for stays, and says so', async () => {
  const quarantine = new Quarantine({ redisUrl: server.url, prefix: '{shoal}', queue: QUEUE });
  await quarantine.put(
    QUEUE,
    { id: 'deadly', name: 'embed', data: { v: 1, fingerprint: FINGERPRINT, texts: ['boom'] }, timestamp: 1 },
    { code: 'QUARANTINED', message: 'it killed its executor alone' },
  );
  await quarantine.close();
  await redis.hset(keys.load(), `rows ${QUEUE}`, DEFAULT_LIMITS.maxQueuedRows);
  expect(await run('quarantine', 'return', 'deadly', '--json')).toMatchObject({
    code: 1,
    stdout: '[{"jobId":"deadly","outcome":"refused"}]\n',
    stderr: expect.stringContaining('deadly: left in quarantine, because the queue is full; to be given back later'),
  });
  expect(JSON.parse((await run('quarantine', 'list', '--json')).stdout)).toMatchObject([{ jobId: 'deadly' }]);
});

test('clean: finished jobs of one state and age, hundreds at a time', async () => {
  const ids = Array.from({ length: 450 }, (_, i) => `job-${i}`);
  await add(...ids, 'failed-one');
  await Promise.all(ids.map((id, i) => end(id, 'completed', { agoMs: i < 50 ? 0 : 7_200_000 })));
  await end('failed-one', 'failed', { reason: 'JOB_INVALID: x' });
  expect(await run('clean', '--older-than', '1h')).toMatchObject({
    code: 0,
    stderr: expect.stringContaining('400 jobs taken away that had completed'),
  });
  expect(await lanes()).toMatchObject({ completed: 50, failed: 1 });
  expect(await run('clean', '--state', 'failed', '--json')).toMatchObject({ code: 0, stdout: '{"removed":1}\n' });
  expect(await run('clean', '--older-than', 'soon')).toMatchObject({
    code: 2,
    stderr: expect.stringContaining('It must be a number with a unit'),
  });
});

test('repair: says what was found and done, and that all is well', async () => {
  await add('a', 'b');
  expect(await run('repair')).toMatchObject({ code: 0, stderr: expect.stringContaining('2 jobs looked at, all well') });
  await redis.hset(keys.job(QUEUE, 'a'), 'data', '{"v":1,}');
  const { code, stderr } = await run('repair');
  expect([code, stderr]).toEqual([
    0,
    expect.stringMatching(
      /looked at:\n {2}1 damaged records can be read again\n {2}1 of the waiting ones have failed, with what was found/,
    ),
  ]);
  expect(JSON.parse((await run('repair', '--json')).stdout)).toMatchObject({ mended: 0, failed: 0 });
});

test('a job under the name of a key of the queue: counts and doctor name it, repair brings the queue back', async () => {
  await add('a');
  const data = JSON.stringify({ v: 1, texts: ['x'] });
  const record = { name: 'embed', data, opts: '{}', timestamp: 1, delay: 0, priority: 0 };
  await redis.hset(keys.job(QUEUE, 'completed'), record); // as BullMQ adds it
  await redis.lpush(keys.job(QUEUE, 'wait'), 'completed');
  const counted = await run('counts');
  expect(counted.code).toBe(1);
  expect(counted.stderr).toMatch(/:completed should be a zset and is a hash.*"shoal queue repair" moves it aside/);
  expect(counted.stderr).not.toContain('bug');
  const repaired = await run('repair');
  expect(repaired.code).toBe(0);
  expect(repaired.stderr).toMatch(/1 keys of the queue were of another type and were moved aside/);
  expect(repaired.stderr).toMatch(/"shoal queue quarantine return" gives them back: set-aside~completed~/);
  expect(await run('counts')).toMatchObject({ code: 0 });
});

describe('without a server', () => {
  test('nothing is started, and it says so', async () => {
    const commands = [
      'queue counts',
      'queue pause',
      'queue quarantine list',
      'queue cancel a',
      'fleet status',
      'fleet drain all',
      'fleet resume all',
    ];
    const results = await Promise.all(commands.map((command) => runHere(box, command.split(' '))));
    for (const result of results) {
      expect(result).toMatchObject({
        code: 1,
        stdout: '',
        stderr: expect.stringMatching(
          /^shoal: no private queue server .* is running, and this command starts none\. Start .* shoal up.*REDIS_URL/,
        ),
      });
    }
    expect(existsSync(join(box.cacheDir, 'server'))).toBe(false);
    expect(box.processes()).toEqual([]);
  });

  test('one that does not answer is named', async () => {
    expect(await runHere(box, ['queue', 'counts', '--redis-url', 'redis://127.0.0.1:1'])).toMatchObject({
      code: 1,
      stderr: expect.stringContaining('the queue server at redis://127.0.0.1:1 does not answer'),
    });
  });
});

test('a queue by its name, and help for each command', async () => {
  expect(
    JSON.parse(
      (await runHere(box, ['queue', 'counts', '--queue', 'similarity', '--json', '--redis-url', server.url])).stdout,
    ),
  ).toMatchObject({ lanes: [{ queue: 'similarity' }, {}] });
  const wrong = await Promise.all(
    ['', 'a:b'].map((queue) => runHere(box, ['queue', 'counts', '--queue', queue, '--redis-url', server.url])),
  );
  for (const result of wrong)
    expect(result).toMatchObject({
      code: 2,
      stderr: expect.stringContaining('It must be the name of a queue, which is not empty and has no ":"'),
    });
  const commands = [
    ['counts'],
    ['pause'],
    ['resume'],
    ['retry'],
    ['cancel'],
    ['clean'],
    ['repair'],
    ['quarantine', 'list'],
    ['quarantine', 'return'],
    ['quarantine', 'drop'],
  ];
  await Promise.all(
    commands.map(async (command) => {
      expect(await runHere(box, ['queue', ...command, '--help'])).toMatchObject({
        code: 0,
        stdout: expect.stringMatching(new RegExp(`Usage: shoal queue ${command.join(' ')}`)),
      });
    }),
  );
  expect((await runHere(box, ['completion', 'bash'])).stdout).toMatch(/'queue quarantine'\) words='list return drop/);
});
