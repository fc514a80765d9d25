// The producer and the reader against a real queue server. Jobs are ended by a plain BullMQ worker in here.

import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { Job, Queue, UnrecoverableError, Worker } from 'bullmq';
import { decodeResultHeader, encodeResult, encodeTexts, isShoalError, keySpace } from '@shoal/contract';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { orderWaiting } from '../worker/fair-order.ts';
import { JobProducer } from './job-producer.ts';
import type { NewJob } from './new-job.ts';
import { ResultReader } from './result-reader.ts';
import { startTestServer, type TestServer } from '../testing.ts';

const PREFIX = '{t-producer}';
const keys = keySpace(PREFIX);
const OURS = '00000000000000aa';
const THEIRS = '00000000000000bb';

let server: TestServer;
let connection: Redis;
let queues = 0;
const closers: (() => Promise<unknown>)[] = [];

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

afterEach(async () => {
  for (const close of closers.splice(0).toReversed()) await close();
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

async function setup() {
  const queue = `embed-p${++queues}`;
  const producer = await connectProducer(queue);
  return { queue, producer };
}

async function connectProducer(queue: string, url = server.url): Promise<JobProducer> {
  const producer = await JobProducer.connect({ redisUrl: url, prefix: PREFIX, queue });
  closers.push(() => producer.close());
  return producer;
}

/** At the end of every text. */
let padding = '';
function keyed(jobId: string, fingerprint = OURS, text = 'a'): NewJob {
  return {
    jobId,
    data: { v: 1, fingerprint, input: { form: 'texts', rows: 1 } },
    input: encodeTexts([text + padding]),
  };
}

function inline(jobId: string, fingerprint = OURS): NewJob {
  return { jobId, data: { v: 1, fingerprint, texts: ['a'] } };
}

function resultOf(fingerprint: string): Buffer {
  return encodeResult({ dtype: 'f32', rows: 1, dims: 1, fingerprint, isTruncated: false }, new Uint8Array(4));
}

/**
 * Ends every waiting job: with a result of `fingerprint`, without one, or by failing. Inputs are deleted as announcing
 * does.
 */
async function finish(
  queue: string,
  { fingerprint, failure }: { fingerprint?: string; failure?: string } = {},
): Promise<void> {
  const own = openConnection({ url: server.url, name: 'test-worker' });
  const worker = new Worker(queue, undefined, { prefix: PREFIX, connection: own, autorun: false });
  for (;;) {
    const job = await worker.getNextJob('t', { block: false });
    if (job?.id === undefined) break;
    if (fingerprint !== undefined)
      await connection.set(keys.output(queue, job.id), resultOf(fingerprint), 'PX', 60_000);
    if (failure === undefined) await job.moveToCompleted({ v: 1 }, 't', false);
    else await job.moveToFailed(new UnrecoverableError(failure), 't', false);
    await connection.del(keys.input(queue, job.id));
  }
  await worker.close(true);
  await closeConnection(own);
}

async function waiting(queue: string): Promise<number> {
  return connection.llen(`${PREFIX}:${queue}:wait`);
}

describe.each([
  ['small inputs, which travel in the script', ''],
  ['large inputs, which are staged', 'b'.repeat(20_000)],
])('add of %s', (_form, end) => {
  beforeEach(() => {
    padding = end;
  });
  afterEach(async () => {
    padding = '';
    const left = await connection.keys(keys.staged('*', '*', '*'));
    if (left.length > 0) throw new Error(`inputs were left staged: ${left.join(', ')}`);
  });

  test('puts input and job on the queue, and a repeated call changes nothing', async () => {
    const { queue, producer } = await setup();
    const jobs = [keyed('a-1'), inline('a-2')];
    expect(await producer.add(jobs)).toEqual([
      { jobId: 'a-1', outcome: 'added' },
      { jobId: 'a-2', outcome: 'added' },
    ]);
    expect(await producer.add(jobs)).toEqual([
      { jobId: 'a-1', outcome: 'known' },
      { jobId: 'a-2', outcome: 'known' },
    ]);
    expect(await connection.getBuffer(keys.input(queue, 'a-1'))).toEqual(jobs[0]?.input);
    expect(await waiting(queue)).toBe(2);
  });

  test('keeps the order of 500 jobs over many transactions', async () => {
    const { queue, producer } = await setup();
    const jobs = Array.from({ length: 500 }, (_, i) => keyed(`j-${i}`));
    expect((await producer.add(jobs)).map(({ outcome }) => outcome)).toEqual(jobs.map(() => 'added'));
    expect((await connection.lrange(`${PREFIX}:${queue}:wait`, 0, -1)).toReversed()).toEqual(
      jobs.map(({ jobId }) => jobId),
    );
    expect(await producer.counts()).toEqual({ waiting: 500, active: 0, delayed: 0, completed: 0, failed: 0 });
  });

  test('an id that comes twice in one call is added once, with the input that came first', async () => {
    const { queue, producer } = await setup();
    const results = await producer.add([
      keyed('t-1', OURS, 'first'),
      keyed('t-2'),
      keyed('t-1', OURS, 'second'),
      keyed('t-1', THEIRS, 'third'),
    ]);
    expect(results.map(({ outcome }) => outcome)).toEqual(['added', 'added', 'known', 'conflict']);
    expect(await connection.getBuffer(keys.input(queue, 't-1'))).toEqual(keyed('t-1', OURS, 'first').input);
    expect(await waiting(queue)).toBe(2);
  });

  test('an id of another request is a conflict, and its input is left alone', async () => {
    const { queue, producer } = await setup();
    await producer.add([keyed('c-1', THEIRS, 'theirs'), inline('c-2', THEIRS)]);
    const results = await producer.add([keyed('c-1'), keyed('c-2')]);
    expect(results.map(({ outcome }) => outcome)).toEqual(['conflict', 'conflict']);
    expect(results[0]).toMatchObject({ error: { code: 'JOB_ID_CONFLICT', fields: { found: THEIRS, asked: OURS } } });
    expect(await connection.getBuffer(keys.input(queue, 'c-1'))).toEqual(keyed('c-1', THEIRS, 'theirs').input);
    expect(await connection.exists(keys.input(queue, 'c-2'))).toBe(0);
  });

  test('an unread result of another request is a conflict even when its job is gone; no job stays behind', async () => {
    const { queue, producer } = await setup();
    await connection.set(keys.output(queue, 'c-3'), resultOf(THEIRS));
    expect((await producer.add([keyed('c-3')]))[0]).toMatchObject({ outcome: 'conflict' });
    expect(await waiting(queue)).toBe(0);
    expect(await connection.exists(keys.input(queue, 'c-3'))).toBe(0);
  });

  test('a finished request with an unread result is ready, without an input left behind', async () => {
    const { queue, producer } = await setup();
    await producer.add([keyed('r-1')]);
    await finish(queue, { fingerprint: OURS });
    expect(await producer.add([keyed('r-1')])).toEqual([{ jobId: 'r-1', outcome: 'ready' }]);
    expect(await connection.exists(keys.input(queue, 'r-1'))).toBe(0);
    expect(await waiting(queue)).toBe(0);
  });

  test.for(['taken', 'expired', 'failed'])(
    'a finished request whose result is used up (%s) is replaced, input and all',
    async (how) => {
      const { queue, producer } = await setup();
      await producer.add([keyed('u-1'), inline('u-2')]);
      await finish(
        queue,
        how === 'failed' ? { failure: 'OUT_OF_VRAM: too wide' } : how === 'taken' ? { fingerprint: OURS } : {},
      );
      if (how === 'taken')
        for (const jobId of ['u-1', 'u-2']) await connection.setrange(keys.output(queue, jobId), 6, '\x01');
      const left = await producer.add([keyed('u-1'), inline('u-2')], { again: 'never' });
      expect(left).toEqual(
        ['u-1', 'u-2'].map((jobId) => ({
          jobId,
          outcome: 'finished',
          failedReason: how === 'failed' ? 'OUT_OF_VRAM: too wide' : undefined,
        })),
      );
      expect((await producer.add([keyed('u-1'), inline('u-2')])).map(({ outcome }) => outcome)).toEqual([
        'added',
        'added',
      ]);
      expect(await waiting(queue)).toBe(2);
      expect(await connection.exists(keys.input(queue, 'u-1'))).toBe(1);
      expect(await connection.exists(keys.output(queue, 'u-1'), keys.output(queue, 'u-2'))).toBe(0);
    },
  );

  test('what an acknowledged result left behind is cleared away by the call that adds its job again', async () => {
    const { queue, producer } = await setup();
    const taken = resultOf(OURS).subarray(0, 32);
    taken.writeUInt8(1, 6);
    await connection.set(keys.output(queue, 't-1'), taken);
    expect(await producer.add([keyed('t-1')])).toEqual([{ jobId: 't-1', outcome: 'added' }]);
    expect(await connection.exists(keys.output(queue, 't-1'))).toBe(0);
  });

  test('asking always replaces a result of our own, but never somebody else’s unread one', async () => {
    const { queue, producer } = await setup();
    await producer.add([keyed('w-1'), keyed('w-2', THEIRS)]);
    await finish(queue, { fingerprint: OURS });
    await connection.set(keys.output(queue, 'w-2'), resultOf(THEIRS));
    expect(
      (await producer.add([keyed('w-1'), keyed('w-2')], { again: 'always' })).map(({ outcome }) => outcome),
    ).toEqual(['added', 'conflict']);
    expect(await connection.exists(keys.output(queue, 'w-1'))).toBe(0);
    expect(await connection.exists(keys.output(queue, 'w-2'))).toBe(1);
  });

  test('of producers that add other requests under one id at once one has it, with its own input', async () => {
    const { queue, producer } = await setup();
    const rival = await connectProducer(queue);
    const ids = Array.from({ length: 120 }, (_, i) => `v-${i}`);
    const [ours, theirs] = [ids.map((id) => keyed(id, OURS, 'ours')), ids.map((id) => keyed(id, THEIRS, 'theirs'))];
    const answers = await Promise.all([
      producer.add(ours),
      rival.add(theirs.toReversed()).then((added) => added.toReversed()),
    ]);
    for (const [i, id] of ids.entries()) {
      expect([id, answers.map((answer) => answer[i]?.outcome).toSorted()]).toEqual([id, ['added', 'conflict']]);
      const winner = answers[0][i]?.outcome === 'added' ? ours[i] : theirs[i];
      expect([id, await connection.getBuffer(keys.input(queue, id))]).toEqual([id, winner?.input]);
    }
  });

  test('of producers that replace the same jobs at once one adds each job and the others find it', async () => {
    const { queue, producer } = await setup();
    const jobs = Array.from({ length: 120 }, (_, i) => keyed(`s-${i}`));
    await producer.add(jobs);
    await finish(queue);
    const producers = [producer, await connectProducer(queue), await connectProducer(queue)];
    const answers = await Promise.all(producers.map((one) => one.add(jobs)));
    for (const [i, { jobId }] of jobs.entries()) {
      const outcomes = answers.map((answer) => answer[i]?.outcome);
      expect([jobId, outcomes.filter((outcome) => outcome === 'added').length]).toEqual([jobId, 1]);
      expect([jobId, outcomes.filter((outcome) => outcome === 'known').length]).toEqual([jobId, 2]);
    }
    expect(await waiting(queue)).toBe(120);
    expect(await connection.exists(...jobs.map(({ jobId }) => keys.input(queue, jobId)))).toBe(120);
  });

  test('a replacement whose connection is cut after it looked does not undo what a rival did meanwhile', async () => {
    const { queue, producer } = await setup();
    const rival = await connectProducer(queue);
    const jobs = [keyed('r-1')];
    await producer.add(jobs);
    await finish(queue);
    const replacements = Reflect.get(producer, 'replacements') as object;
    const look = Reflect.get(replacements, 'look') as (...args: unknown[]) => Promise<unknown>;
    Reflect.set(replacements, 'look', async (...args: unknown[]) => {
      Reflect.deleteProperty(replacements, 'look');
      const clients = String(await server.command('CLIENT', 'LIST'))
        .split('\n')
        .filter((line) => line.includes('name=shoal-producer-watch'));
      await Promise.all(clients.map((line) => server.command('CLIENT', 'KILL', 'ID', /id=(\d+)/.exec(line)![1]!)));
      const [looked] = await Promise.allSettled([look.apply(replacements, args)]);
      expect(await rival.add(jobs)).toMatchObject([{ outcome: 'added' }]);
      if (looked.status === 'rejected') throw looked.reason;
      return looked.value;
    });
    await expect(producer.add(jobs)).rejects.toMatchObject({ code: 'QUEUE_UNREACHABLE' });
    expect(await producer.add(jobs)).toMatchObject([{ outcome: 'known' }]);
  });

  test('refuses before sending: ids, formats, a missing fingerprint, an input that is or is not there', async () => {
    const { queue, producer } = await setup();
    const { input: _, ...withoutInput } = keyed('x-1');
    for (const job of [
      keyed('a:b'),
      keyed('17'),
      { ...keyed('x-2'), data: { v: 1, texts: ['a'] } },
      withoutInput,
      { ...inline('x-3'), input: encodeTexts(['a']) },
    ] as NewJob[]) {
      await expect(producer.add([inline('fine'), job])).rejects.toMatchObject({ code: 'JOB_INVALID' });
    }
    expect(await waiting(queue)).toBe(0);
  });

  test('a full server is QUEUE_FULL, nothing is added by halves, and the same call succeeds later', async () => {
    const { queue, producer } = await setup();
    const jobs = [keyed('f-1'), inline('f-2')];
    await server.command('CONFIG', 'SET', 'maxmemory', '100kb');
    await expect(producer.add(jobs)).rejects.toMatchObject({ code: 'QUEUE_FULL' });
    await server.command('CONFIG', 'SET', 'maxmemory', '0');
    expect(await waiting(queue)).toBe(0);
    expect(await connection.exists(keys.input(queue, 'f-1'))).toBe(0);
    expect((await producer.add(jobs)).map(({ outcome }) => outcome)).toEqual(['added', 'added']);
  });

  test('a server that forgot its scripts takes new jobs and replacements all the same', async () => {
    const { queue, producer } = await setup();
    const jobs = [keyed('n-1'), inline('n-2')];
    const outcomes = async (ofJobs: readonly NewJob[]): Promise<string[]> =>
      (await producer.add(ofJobs)).map(({ outcome }) => outcome);
    await producer.add([keyed('n-3')]);
    await server.command('SCRIPT', 'FLUSH');
    expect(await outcomes(jobs)).toEqual(['added', 'added']);
    expect(await connection.exists(keys.input(queue, 'n-1'))).toBe(1);
    for (let round = 0; round < 2; round++) {
      await finish(queue);
      await server.command('SCRIPT', 'FLUSH');
      expect(await outcomes(jobs)).toEqual(['added', 'added']);
      expect(await waiting(queue)).toBe(2);
      expect(await connection.exists(keys.input(queue, 'n-1'))).toBe(1);
    }
  });

  test('a connection cut in the middle is repeated without a double', async () => {
    const { queue, producer } = await setup();
    const jobs = Array.from({ length: 300 }, (_, i) => keyed(`k-${i}`));
    const codes = new Set<unknown>();
    for (let i = 0; i < 12; i++) {
      const add = producer.add(jobs).then(
        () => 'added',
        (error: unknown) => (isShoalError(error) ? error.code : error),
      );
      await server.command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
      codes.add(await add);
    }
    expect([...codes].filter((code) => code !== 'added' && code !== 'QUEUE_UNREACHABLE')).toEqual([]);
    await producer.add(jobs);
    expect(await waiting(queue)).toBe(300);
  });
});

describe('states and remove', () => {
  test('tell waiting, completed, failed and unknown jobs apart', async () => {
    const { queue, producer } = await setup();
    await producer.add([inline('s-1')]);
    await finish(queue);
    await producer.add([inline('s-2')]);
    await finish(queue, { failure: 'DEADLINE_PASSED: too late' });
    await producer.add([inline('s-3'), inline('s-4')]);
    await orderWaiting(connection, { prefix: PREFIX, queue, mostJobs: 1 }); // one has its place in line, one has not
    expect(await producer.states(['s-1', 's-2', 's-3', 's-4', 's-5'])).toEqual([
      { jobId: 's-1', state: 'completed', failedReason: undefined },
      { jobId: 's-2', state: 'failed', failedReason: 'DEADLINE_PASSED: too late' },
      { jobId: 's-3', state: 'waiting', failedReason: undefined },
      { jobId: 's-4', state: 'waiting', failedReason: undefined },
      { jobId: 's-5', state: 'unknown', failedReason: undefined },
    ]);
  });

  test('endings are told without looking where a job waits, also of a retried one and of what is no job', async () => {
    const { queue, producer } = await setup();
    await producer.add([inline('e-1')]);
    await finish(queue);
    await producer.add([inline('e-2')]);
    await finish(queue, { failure: 'DEADLINE_PASSED: too late' });
    await producer.add([inline('e-3')]);
    await finish(queue, { failure: 'INTERNAL: for once' });
    const bull = new Queue(queue, { prefix: PREFIX, connection });
    closers.push(() => bull.close());
    await (await Job.fromId(bull, 'e-3'))!.retry('failed');
    await producer.add([inline('e-4')]);
    await connection.set(keys.job(queue, 'e-5'), 'no hash');
    const open = { state: 'open', failedReason: undefined };
    expect(await producer.endings(['e-1', 'e-2', 'e-3', 'e-4', 'e-5', 'e-6'])).toEqual([
      { jobId: 'e-1', state: 'completed', failedReason: undefined },
      { jobId: 'e-2', state: 'failed', failedReason: 'DEADLINE_PASSED: too late' },
      { jobId: 'e-3', ...open },
      { jobId: 'e-4', ...open },
      { jobId: 'e-5', ...open },
      { jobId: 'e-6', state: 'unknown', failedReason: undefined },
    ]);
    await finish(queue);
    expect((await producer.endings(['e-3', 'e-4'])).map(({ state }) => state)).toEqual(['completed', 'completed']);
  });

  test('what completed jobs returned is told as it is stored, of others nothing', async () => {
    const { queue, producer } = await setup();
    await producer.add([inline('v-1')]);
    await finish(queue);
    const stored = await connection.hget(keys.job(queue, 'v-1'), 'returnvalue');
    await producer.add([inline('v-2')]);
    await connection.set(keys.job(queue, 'v-3'), 'no hash');
    expect(await producer.returnValues(['v-1', 'v-2', 'v-3', 'v-4'])).toEqual([
      stored,
      undefined,
      undefined,
      undefined,
    ]);
    expect(stored).toEqual(expect.any(String));
  });

  test('remove cancels what waits with its input, and leaves running and finished jobs alone', async () => {
    const { queue, producer } = await setup();
    await producer.add([keyed('d-1')]);
    await finish(queue, { fingerprint: OURS });
    await producer.add([keyed('d-2')]);
    const worker = new Worker(queue, undefined, { prefix: PREFIX, connection, autorun: false });
    await worker.getNextJob('t', { block: false });
    await producer.add([keyed('d-3')]);
    expect(await producer.remove(['d-1', 'd-2', 'd-3', 'd-4'])).toEqual(['d-3']);
    expect(await connection.exists(keys.input(queue, 'd-3'))).toBe(0);
    expect(await connection.exists(keys.input(queue, 'd-2'))).toBe(1);
    expect((await producer.states(['d-1', 'd-2', 'd-3'])).map(({ state }) => state)).toEqual([
      'completed',
      'active',
      'unknown',
    ]);
    await worker.close(true);
  });
});

describe('ResultReader', () => {
  test('hears of jobs on its own channel only, and of nothing that is not a reply', async () => {
    const { queue } = await setup();
    const reader = await ResultReader.connect({ redisUrl: server.url, prefix: PREFIX, queue, replyName: 'one' });
    closers.push(() => reader.close());
    const heard: string[] = [];
    reader.onReply(({ completed, failed }) => heard.push(...completed, ...failed));
    await connection.publish(keys.reply('two'), JSON.stringify({ v: 1, queue, completed: ['other'] }));
    for (const noise of ['', '{', '[]', '{"v":2}']) await connection.publish(reader.replyChannel, noise);
    await connection.publish(reader.replyChannel, JSON.stringify({ v: 1, queue, completed: ['a'], failed: ['b'] }));
    await expect.poll(() => heard).toEqual(['a', 'b']);
  });

  test('hears again after its connections were cut, and says when', async () => {
    const { queue } = await setup();
    const reader = await ResultReader.connect({ redisUrl: server.url, prefix: PREFIX, queue, replyName: 'cut' });
    closers.push(() => reader.close());
    const events: string[] = [];
    const heard: string[] = [];
    reader.onConnection((event) => events.push(event));
    reader.onReply(({ completed }) => heard.push(...completed));
    for (let i = 1; i <= 3; i++) {
      await server.command('CLIENT', 'KILL', 'TYPE', 'pubsub');
      await expect.poll(() => events.length).toBe(2 * i);
      await connection.publish(reader.replyChannel, JSON.stringify({ v: 1, queue, completed: [`after-${i}`] }));
      await expect.poll(() => heard.at(-1)).toBe(`after-${i}`);
    }
    expect(events).toEqual(['lost', 'back', 'lost', 'back', 'lost', 'back']);
  });

  test('closing while it subscribes again leaves no rejection that nobody handles', async () => {
    const { queue } = await setup();
    const unhandled: unknown[] = [];
    const note = (error: unknown): unknown => unhandled.push(error);
    process.on('unhandledRejection', note);
    closers.push(async () => void process.off('unhandledRejection', note));
    for (let i = 0; i < 15; i++) {
      const reader = await ResultReader.connect({
        redisUrl: server.url,
        prefix: PREFIX,
        queue,
        replyName: `closed-${i}`,
      });
      await server.command('CLIENT', 'KILL', 'TYPE', 'pubsub');
      await sleep(46 + i); // the first reconnect comes after 50 ms
      await reader.close();
    }
    expect(unhandled).toEqual([]);
  });

  test('a result can be read often until it is marked taken, and then only its header is left', async () => {
    const { queue } = await setup();
    const reader = await ResultReader.connect({ redisUrl: server.url, prefix: PREFIX, queue, replyName: 'three' });
    closers.push(() => reader.close());
    await connection.set(keys.output(queue, 'm-1'), resultOf(OURS), 'PX', 60_000);
    expect(await reader.peek(['m-1', 'm-2'])).toEqual([resultOf(OURS), undefined]);
    await reader.markTaken(['m-1', 'm-2']);
    await reader.markTaken(['m-1']);
    const [bytes] = (await reader.peek(['m-1'])) as Buffer[];
    expect(bytes?.length).toBe(32);
    expect(decodeResultHeader(bytes ?? Buffer.alloc(0))).toMatchObject({ isTaken: true, fingerprint: OURS });
    expect(await connection.pttl(keys.output(queue, 'm-1'))).toBeGreaterThan(50_000);
    expect(await reader.acknowledge(['m-1', 'm-2'])).toMatchObject([{ kind: 'taken' }, { kind: 'absent' }]);
  });

  test(
    'a server that died and forgot what was taken is told again, and a later result under the same id is left ' +
      'alone',
    async () => {
      const { queue } = await setup();
      const reader = await ResultReader.connect({ redisUrl: server.url, prefix: PREFIX, queue, replyName: 'four' });
      closers.push(() => reader.close());
      const ids = ['f-1', 'f-2', 'f-3', 'f-4'];
      const outputs = ids.map((id) => keys.output(queue, id));
      for (const key of outputs) await connection.set(key, resultOf(OURS), 'PX', 60_000);
      await reader.markTaken(ids.slice(0, 3));
      await reader.acknowledge(ids.slice(3));
      const back = new Promise<void>((resolve) =>
        reader.onConnection((event) => (event === 'back' ? resolve() : undefined)),
      );
      await connection.set(outputs[0]!, resultOf(OURS), 'PX', 60_000); // the mark was forgotten,
      await connection.del(outputs[1]!); // the result as well,
      await connection.set(outputs[2]!, resultOf(THEIRS), 'PX', 60_000); // and here is somebody else's
      await connection.set(outputs[3]!, resultOf(OURS), 'PX', 60_000);
      await server.command('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
      await back;
      expect(await reader.acknowledge(ids)).toMatchObject([
        { kind: 'taken' },
        { kind: 'taken' },
        { kind: 'body' },
        { kind: 'taken' },
      ]);
    },
  );
});

test(
  'what was seen and then forgotten by a server that died, before it was marked, is not delivered again when it ' +
    'is computed anew',
  async () => {
    const { queue } = await setup();
    const reader = await ResultReader.connect({ redisUrl: server.url, prefix: PREFIX, queue, replyName: 'five' });
    closers.push(() => reader.close());
    const [forgotten, anew, theirs] = ['s-1', 's-2', 's-3'].map((id) => keys.output(queue, id)) as [
      string,
      string,
      string,
    ];
    for (const key of [forgotten, anew, theirs]) await connection.set(key, resultOf(OURS), 'PX', 60_000);
    await reader.peek(['s-1', 's-2', 's-3']);
    await connection.del(forgotten);
    await connection.set(theirs, resultOf(THEIRS), 'PX', 60_000);
    await reader.markTaken(['s-1', 's-2', 's-3']);
    expect(await reader.acknowledge(['s-1', 's-2', 's-3'])).toMatchObject([
      { kind: 'taken' },
      { kind: 'taken' },
      { kind: 'body' },
    ]);
  },
);

test('closing rejects what is open and leaves no connection', async () => {
  const own = await startTestServer();
  closers.push(() => own.stop());
  const producer = await connectProducer('embed-close', own.url);
  await producer.add([inline('z-1')]);
  await producer.close();
  await producer.close();
  await expect(producer.add([inline('z-2')])).rejects.toMatchObject({ code: 'QUEUE_UNREACHABLE' });
  expect(String(await own.command('CLIENT', 'LIST'))).not.toContain('name=shoal-producer');
  expect(await own.command('LLEN', `${PREFIX}:embed-close:wait`)).toBe(1);
});
