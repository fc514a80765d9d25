import { Queue } from 'bullmq';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { keySpace } from '@shoal/contract';
import { RecordingLogger } from '@shoal/core/testing';
import { mainLanes } from '../lanes/known-queues.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { Quarantine } from '../upkeep/quarantine.ts';
import { orderWaiting } from '../worker/fair-order.ts';
import { QueueLook } from './queue-look.ts';

let server: TestServer;
let connection: Redis;
let look: QueueLook;
let prefix: string;
let queue: Queue;
let prefixes = 0;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

beforeEach(async () => {
  prefix = `{t-look-${++prefixes}}`;
  queue = new Queue('embed-x', { prefix, connection });
  look = await QueueLook.connect({ redisUrl: server.url, prefix });
});

afterEach(async () => {
  await Promise.all([queue.close(), look.close()]);
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

const add = (jobId: string, data: object, more = {}) => queue.add('embed', { v: 1, ...data }, { jobId, ...more });
const texts = (count: number): string[] => Array.from({ length: count }, (_, at) => `text ${at}`);

test('queues are main lanes, however many lanes and quarantines they have', async () => {
  const others = ['embed-x-cpu', 'similarity', 'embed-y-quarantine'].map(
    (name) => new Queue(name, { prefix, connection }),
  );
  await Promise.all([queue, ...others].map((one) => one.waitUntilReady()));
  await Promise.all([queue, ...others].map((one) => one.setGlobalConcurrency(1)));
  expect(await look.queues()).toEqual(['embed-x', 'embed-y', 'similarity']);
  await Promise.all(others.map((one) => one.close()));
  expect(mainLanes(['only-cpu', 'a', 'a-cpu', 'b:c', ''])).toEqual(['a', 'only-cpu']);
});

test('tenants are told with what they reserved, what waits of them, and for how long', async () => {
  const keys = keySpace(prefix);
  await connection.hset(keys.load(), {
    'rows embed-x loud': 600,
    'bytes loud': 9_000,
    'rows embed-x': 700,
    'rows embed-y loud': 5,
  });
  const timestamp = Date.now() - 60_000;
  for (let at = 0; at < 3; at++) await add(`loud-${at}`, { texts: texts(200), tenant: 'loud' }, { timestamp });
  await add('quiet-1', { texts: ['a'], tenant: 'quiet' });
  await add('keyed', { input: { form: 'tokens', rows: 4, tokens: 90, tokenizer: '0'.repeat(16) }, tenant: 'quiet' });
  await add('plain', { texts: ['a'] });
  await orderWaiting(connection, { prefix, queue: 'embed-x', mostJobs: 2 });
  const { tenants, waiting, seen } = await look.tenants('embed-x');
  expect({ waiting, seen }).toEqual({ waiting: 6, seen: 6 });
  expect(tenants).toMatchObject([
    { tenant: 'loud', reservedRows: 600, reservedBytes: 9_000, jobs: 3, rows: 600, oldestMs: { interactive: 0 } },
    { tenant: 'quiet', reservedRows: 0, jobs: 2, rows: 5, tokens: 90, oldestMs: { bulk: 0 } },
    { tenant: 'default', jobs: 1, rows: 1 },
  ]);
  expect(tenants[0]!.oldestMs.bulk).toBeGreaterThanOrEqual(59_000);
});

test('a job is found wherever it is, with the reason in one sentence', async () => {
  const keys = keySpace(prefix);
  for (const jobId of ['a', 'b', 'c']) await add(jobId, { texts: ['a'], tenant: 't' });
  await add('later', { texts: ['a'] }, { delay: 60_000 });
  expect((await look.why('b')).why).toContain('no worker serves embed-x');
  expect((await look.why('b')).found).toMatchObject([
    { state: 'unplaced', tenant: 't', class: 'interactive', rows: 1 },
  ]);
  await orderWaiting(connection, { prefix, queue: 'embed-x' });
  expect((await look.why('b')).found).toMatchObject([
    { state: 'in-line', position: { ahead: 1, of: 3 }, kind: 'embed' },
  ]);
  await queue.pause();
  expect((await look.why('b')).why).toContain('embed-x is paused; shoal queue resume');
  await queue.resume();
  const [later] = (await look.why('later')).found;
  expect(later!.delayMs).toBeGreaterThan(50_000);
  expect(later!.delayMs).toBeLessThanOrEqual(60_500);
  await connection.set(keys.output('embed-x', 'gone'), Buffer.from('SHL1\u0001\u0000\u0001\u0000rest'), 'PX', 60_000);
  expect(await look.why('gone')).toMatchObject({ found: [{ state: 'result-only', result: { isTaken: true } }] });
  await connection.set(keys.input('embed-x', 'early'), 'x');
  expect(await look.why('early')).toMatchObject({ found: [{ state: 'input-only', inputBytes: 1 }] });
  expect((await look.why('nobody')).why).toContain('no queue of this server has a job');
  expect((await look.why('active')).found).toEqual([]); // the name of a key of the queue
  expect(await look.why('b', ['similarity'])).toMatchObject({ found: [], queues: ['similarity'] });
});

test('what runs is told with who has it, what ended with how, what is lost or in quarantine with the cure', async () => {
  const key = (name: string): string => keySpace(prefix).job('embed-x', name);
  for (const jobId of ['runs', 'stuck', 'bad', 'lost'])
    await add(jobId, { input: { form: 'texts', rows: 1 }, tenant: 't' }, { timestamp: Date.now() });
  await connection.del(key('wait'));
  await connection.rpush(key('active'), 'runs', 'stuck');
  await connection.set(`${key('runs')}:lock`, 'gpu-0~there~7~9~tok', 'PX', 10_000);
  await connection.hset(key('runs'), { processedOn: Date.now() - 2_000, ats: 3, stc: 2 });
  await connection.zadd(key('failed'), Date.now(), 'bad');
  await connection.hset(key('bad'), { failedReason: 'OUT_OF_VRAM: too little', finishedOn: Date.now() });
  await connection.set(keySpace(prefix).input('embed-x', 'bad'), 'x');
  expect((await look.why('runs')).found).toMatchObject([
    { state: 'running', lease: { holder: 'gpu-0' }, claims: 3, stalls: 2, needsInput: true },
  ]);
  expect((await look.why('runs')).why).toMatch(/^gpu-0 has it for [2-9]\.\d s, its lease lasts/);
  expect((await look.why('stuck')).why).toContain('nobody holds its lease any more');
  expect((await look.why('bad')).why).toMatch(/OUT_OF_VRAM: too little; shoal queue retry bad --queue embed-x/);
  expect((await look.why('lost')).why).toContain('it is in no list of the queue');
  const quarantine = new Quarantine({ redisUrl: server.url, prefix, queue: 'embed-x', log: new RecordingLogger() });
  const poison = { id: 'poison', name: 'embed', data: { v: 1, texts: ['a'] }, timestamp: Date.now() };
  await quarantine.put('embed-x', poison as never, { code: 'QUARANTINED', message: 'it killed two' });
  await quarantine.close();
  expect((await look.why('poison')).why).toMatch(
    /QUARANTINED: it killed two\. .*quarantine return poison --queue embed-x/,
  );
});
