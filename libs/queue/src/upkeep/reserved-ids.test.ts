// A job whose id is the name of a key of the queue: BullMQ lets everybody add it. Whatever it does to the queue, one
// command, or any worker that lives, brings the queue back, and nothing that was accepted is lost.

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { JOB_KEY_PARTS, QUEUE_KEY_NAMES, isReservedJobId, keySpace } from '@shoal/contract';
import { noLog } from '@shoal/core';
import { Queue, QueueKeys, type JobsOptions } from 'bullmq';
import { readFileSync, readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Canceller } from '../producer/cancel.ts';
import { Fleet } from '../lanes/fleet.ts';
import { JobProducer } from '../producer/job-producer.ts';
import { QueueGauge } from '../producer/queue-depth.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { BullJobSource } from '../worker/bull-job-source.ts';
import { claimAll, startTestServer, type TestServer } from '../testing.ts';
import { Quarantine } from './quarantine.ts';
import { QueueAdmin } from './queue-admin.ts';
import { TYPES_OF_QUEUE_KEYS, isWrongType } from './queue-keys.ts';

const PREFIX = '{t-reserved}';
const QUEUE = 'embed-x';
const keys = keySpace(PREFIX);
const key = (name: string): string => keys.job(QUEUE, name);
const DATA = { v: 1, texts: ['poison'] };

let server: TestServer;
let connection: Redis;
let queue: Queue;
let admin: QueueAdmin;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});
beforeEach(async () => {
  await connection.flushall();
  queue = new Queue(QUEUE, { prefix: PREFIX, connection });
  await queue.waitUntilReady();
  admin = await QueueAdmin.connect({ redisUrl: server.url, prefix: PREFIX, queue: QUEUE });
});
afterEach(async () => {
  await admin.close();
  await queue.close();
});
afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

function newSource(): BullJobSource {
  const place = { redisUrl: server.url, prefix: PREFIX, queue: QUEUE, quarantineOf: QUEUE, log: noLog };
  return new BullJobSource({ ...place, leaseMs: 15_000, stalledCheckMs: 5_000 });
}

/** Ids of so many jobs that a worker gets and ends. */
async function done(source: BullJobSource, count: number): Promise<string[]> {
  const claims = await claimAll(source, count);
  for (const claim of claims)
    await source.settle(claim, { kind: 'fail', failure: { code: 'INFERENCE_FAILED', message: 'seen' } });
  return claims.map(({ jobId }) => jobId).toSorted();
}

async function add(jobId: string, opts: JobsOptions = {}): Promise<boolean> {
  return queue.add('embed', DATA, { ...opts, jobId }).then(
    () => true,
    () => false,
  );
}

/** What may be left of a poisoned queue: everything that was added is here, in quarantine, or its add was refused. */
async function whereIs(jobId: string): Promise<'quarantine' | 'kept' | 'nowhere'> {
  const quarantine = new Quarantine({ redisUrl: server.url, prefix: PREFIX, queue: QUEUE });
  const held = await quarantine.list();
  await quarantine.close();
  if (held.some((job) => job.jobId.startsWith(`set-aside~${jobId.replaceAll(':', '~')}~`))) return 'quarantine';
  const names = await connection.zrange(keys.setAside(QUEUE), '0', '-1');
  return names.some((name) => name.startsWith(`${jobId}:`)) ? 'kept' : 'nowhere';
}

describe('the list of names', () => {
  test('has every key of the pinned BullMQ, and each with its type', () => {
    const ofBullmq = Object.keys(new QueueKeys('p').getKeys('q')).filter((name) => name !== '');
    expect(ofBullmq.filter((name) => !isReservedJobId(name))).toEqual([]);
    expect(Object.keys(TYPES_OF_QUEUE_KEYS).toSorted()).toEqual([...QUEUE_KEY_NAMES].toSorted());
  });

  test('has every name that a script of the pinned BullMQ puts behind a queue or a job', () => {
    const folder = join(dirname(fileURLToPath(import.meta.resolve('bullmq'))), 'scripts');
    const names = readdirSync(folder)
      .filter((file) => file.endsWith('.js') && !file.startsWith('relay'))
      .flatMap((file) => [...readFileSync(join(folder, file), 'utf8').matchAll(/\.\.\s*"(:?)([a-z-]+)(:?)"/g)])
      .filter(([, before, , after]) => before === ':' || after === ':' || before === '')
      .map(([, , name = '', after]) => (after === ':' ? `${name}:x` : name));
    const free = [...new Set(names)].filter((name) => !isReservedJobId(name) && !isReservedJobId(`a:b:${name}`));
    expect(names.length).toBeGreaterThan(50);
    expect(free).toEqual([]);
  });
});

test('the server knows the same names as the contract', async () => {
  const include = readFileSync(new URL('../redis/lua/includes/set-aside.lua', import.meta.url), 'utf8');
  const ask = `${include}\nreturn reservedKind(ARGV[1]) and 1 or 0`;
  const parts = JOB_KEY_PARTS.flatMap((part) => [`a:b:${part}`, `repeat:n:17:${part}`, part]);
  const others = ['metrics:completed', 'de:x', 'dn:x', 'relay:x', 'repeat:n', 'repeat:n:17', 'a:b:c', 'a~1', '17', ''];
  for (const jobId of [...QUEUE_KEY_NAMES, ...parts, ...others])
    expect([jobId, await connection.eval(ask, 0, jobId)]).toEqual([jobId, isReservedJobId(jobId) ? 1 : 0]);
});

test('a producer that adds many is told before anything of them is written', async () => {
  for (const name of ['wait', 'active', 'marker', 'events']) {
    await connection.del(key(name));
    await connection.hset(key(name), 'name', 'poison');
    const producer = await JobProducer.connect({ redisUrl: server.url, prefix: PREFIX, queue: QUEUE });
    const job = { jobId: 'sound', data: { v: 1 as const, texts: ['a'], fingerprint: '0123456789abcdef' } };
    await expect(producer.add([job])).rejects.toMatchObject({ code: 'QUEUE_DAMAGED' });
    expect(await connection.exists(key('sound'))).toBe(0);
    await admin.repair();
    expect(await producer.add([job])).toMatchObject([{ outcome: 'added' }]);
    await queue.remove('sound');
    await producer.close();
  }
});

test('fleet status and the message of any other call name it as well', async () => {
  await add('delayed');
  const fleet = await Fleet.connect({ redisUrl: server.url, prefix: PREFIX, queue: QUEUE });
  await expect(fleet.read()).rejects.toMatchObject({ code: 'QUEUE_DAMAGED' });
  await fleet.close();
});

const IDS = [...QUEUE_KEY_NAMES, 'metrics:completed:data', 'dn:x:y', 'x:y:lock', 'x:y:processed'];
/** Where another script than the plain one writes. */
const OTHERS = ['wait', 'active', 'prioritized', 'delayed', 'marker', 'pc', 'events', 'failed'];
const WAYS: readonly (readonly [how: string, opts: JobsOptions, ids: readonly string[]])[] = [
  ['plainly', {}, IDS],
  ['with a priority', { priority: 3 }, OTHERS],
  ['delayed', { delay: 1 }, OTHERS],
];

describe.each(WAYS)('an id of a key of the queue, added %s', (_how, opts, ids) => {
  test.each(ids)('%s: one repair, and jobs flow again; nothing is lost', async (jobId) => {
    await add('before');
    await connection.lrem(key('wait'), 0, 'before'); // as in a queue that is empty but for a job that is nowhere
    const wasAdded = await add(jobId, opts);
    await admin.repair();
    await add('after');
    expect((await admin.counts()).lanes[0]?.waiting).toBe(2);
    const source = newSource();
    await source.start();
    expect(await done(source, 2)).toEqual(['after', 'before']);
    await source.stop();
    // "meta" is there before any job: BullMQ takes such an add for a repeated one
    const isKept = !wasAdded || jobId === 'meta' || (await whereIs(jobId)) === 'quarantine';
    expect(isKept).toBe(true);
    expect((await admin.repair()).moved).toBe(0);
  });
});

test.each(IDS)('a worker that lives goes on by itself: %s', async (jobId) => {
  const source = newSource();
  await source.start();
  const claimed = done(source, 2);
  await add(jobId);
  const first = add('first');
  await first;
  while (!(await add('second'))) await admin.repair(); // the add itself is refused while a key is of the wrong type
  await admin.repair();
  expect(await claimed).toEqual(['first', 'second']);
  await source.stop();
});

test('ids that somebody pushed by hand are taken out of every list, and what lies under their name stays', async () => {
  await queue.upsertJobScheduler('nightly', { every: 60_000 }, { name: 'embed', data: DATA });
  for (const jobId of ['meta', 'wait', 'repeat:nightly']) {
    await connection.lpush(key('wait'), jobId);
    for (const state of ['prioritized', 'delayed', 'completed', 'failed', 'waiting-children'])
      await connection.zadd(key(state), 1, jobId);
    await connection.lpush(key('active'), jobId);
  }
  const report = await admin.repair();
  expect(report).toMatchObject({ moved: 0, setAside: 21, quarantined: [], kept: [] });
  expect(await connection.hgetall(key('repeat:nightly'))).toMatchObject({ name: 'embed' });
  expect(await queue.getMeta()).toMatchObject({ version: expect.any(String) });
  expect((await admin.counts()).lanes[0]).toMatchObject({ waiting: 1, active: 0, failed: 0, completed: 0 });
});

test('a list in place of a claimed job’s record does not stay active, and is kept', async () => {
  await add('a');
  const source = newSource();
  await source.start();
  await claimAll(source, 1);
  await connection.del(key('a'));
  await connection.rpush(key('a'), 'something else');
  const report = await admin.repair();
  expect(report).toMatchObject({ setAside: 1, kept: [expect.stringMatching(/:set-aside:embed-x:a:\d+$/)] });
  expect(await connection.lrange(report.kept[0] ?? '', 0, -1)).toEqual(['something else']);
  expect((await admin.counts()).lanes[0]?.active).toBe(0);
  await source.stop();
});

test('counts, gauge, cancel and retry name what is wrong and the cure', async () => {
  await add('completed');
  const damaged = {
    code: 'QUEUE_DAMAGED',
    message: expect.stringMatching(/:completed should be a zset and is a hash.*shoal queue repair/),
  };
  await expect(admin.counts()).rejects.toMatchObject(damaged);
  const gauge = await QueueGauge.connect({ redisUrl: server.url, prefix: PREFIX, queue: QUEUE });
  await expect(gauge.read()).rejects.toMatchObject(damaged);
  await gauge.close();
  const canceller = await Canceller.connect({ redisUrl: server.url, prefix: PREFIX, queue: QUEUE, log: noLog });
  expect(await canceller.cancel(['wait'])).toEqual([{ jobId: 'wait', outcome: 'unknown' }]);
  await canceller.close();
  expect(await admin.retry(['active'])).toEqual([{ jobId: 'active', outcome: 'not-failed' }]);
});

test('a job that was set aside runs once it is given back, under an id that is free', async () => {
  await add('active');
  const { quarantined } = await admin.repair();
  const quarantine = new Quarantine({ redisUrl: server.url, prefix: PREFIX, queue: QUEUE });
  expect(await quarantine.giveBack(quarantined)).toMatchObject([{ outcome: 'added' }]);
  expect(await quarantine.list()).toEqual([]);
  await quarantine.close();
  expect((await queue.getJob(quarantined[0] ?? ''))?.data).toEqual(DATA);
});

/** What its producer hears. */
function told(jobId: string): unknown {
  return {
    v: 1,
    queue: QUEUE,
    failed: [jobId],
    reasons: { [jobId]: expect.stringMatching(/^JOB_INVALID: no job may have the id ".*was set aside/) },
  };
}

async function addTo(jobId: string, reply: string): Promise<void> {
  // BullMQ meets the wrong key as well
  await queue.add('embed', { ...DATA, reply }, { jobId }).catch(() => undefined);
}

test('the producer of a job that is set aside is told so, whoever meets it', async () => {
  const channel = `${PREFIX}:reply:somebody`;
  const listener = connection.duplicate();
  await listener.subscribe(channel);
  const messages: unknown[] = [];
  listener.on('message', (_, text: string) => messages.push(JSON.parse(text)));
  await addTo('active', channel); // in place of a key of the queue
  await addTo('events', `${PREFIX}:other`); // no reply channel: nothing is published there
  await admin.repair();
  const source = newSource();
  await source.start();
  const claimed = done(source, 1);
  await addTo('x:y:processed', channel); // a worker meets it
  await add('sound');
  expect(await claimed).toEqual(['sound']);
  await source.stop();
  await connection.lpush(key('wait'), 'metrics:one:two'); // a repair meets it in a list
  await connection.hset(key('metrics:one:two'), {
    name: 'embed',
    data: JSON.stringify({ reply: channel }),
    timestamp: 1,
    delay: 0,
    priority: 0,
  });
  await admin.repair();
  await expect.poll(() => messages).toEqual([told('active'), told('x:y:processed'), told('metrics:one:two')]);
  await closeConnection(listener);
});

test('a refusal is known from within a transaction, also one that stands among its own earlier ones', () => {
  const wrong = new Error('WRONGTYPE Operation against a key holding the wrong kind of value');
  const refused = Object.assign(new Error('EXECABORT'), { previousErrors: [new Error('ERR'), wrong] });
  const cut: Error & { previousErrors?: Error[] } = new Error('Connection is closed.');
  cut.previousErrors = [cut];
  expect([wrong, refused, cut, 'WRONGTYPE'].map(isWrongType)).toEqual([true, true, false, false]);
});
