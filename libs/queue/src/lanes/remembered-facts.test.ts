import { afterAll, beforeAll, expect, test } from 'vitest';
import type { WorkerFacts } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { Fleet } from './fleet.ts';
import { RememberedFacts } from './remembered-facts.ts';
import { WorkerPresence } from './worker-presence.ts';

const PREFIX = '{t-facts}';
let server: TestServer;
let connection: Redis;

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});
afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

const factsOf = (claims: number, lanes: WorkerFacts['lanes'] = ['main']): WorkerFacts => ({
  device: 'cpu',
  precision: 'fp32',
  model: 'x@1',
  host: 'h',
  pid: 7,
  lanes,
  isDrained: false,
  claims,
  poolTokens: 0,
  tokensPerJob: undefined,
  rates: {},
  mix: {},
});

async function show(workerId: string, facts: () => WorkerFacts, queue: string): Promise<WorkerPresence> {
  const lanes = facts().lanes.map((lane) => (lane === 'cpu' ? `${queue}-cpu` : queue));
  const log = new RecordingLogger();
  const presence = await WorkerPresence.connect({
    redisUrl: server.url,
    prefix: PREFIX,
    queue,
    workerId,
    lanes,
    facts,
    log,
  });
  await presence.start();
  return presence;
}

/** Of a command, since the server began. */
async function calls(command: string): Promise<number> {
  const stats = String(await server.command('INFO', 'commandstats'));
  return Number(new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats)?.[1] ?? 0);
}

test('what known workers tell is asked again after some five seconds, and of a new one at once', async () => {
  let nowMs = 1_000;
  const queue = 'embed-a';
  const facts = new RememberedFacts({ connection, prefix: PREFIX, queue, nowMs: () => nowMs });
  const key = `${PREFIX}:facts:${queue}`;
  await connection.hset(key, { one: JSON.stringify(factsOf(1)), two: JSON.stringify(factsOf(2)) });
  const claims = async (...ids: string[]): Promise<unknown[]> =>
    [...(await facts.of(ids))].map(([workerId, told]) => [workerId, told?.claims]);
  expect(await claims('one')).toEqual([['one', 1]]);
  await connection.hset(key, 'one', JSON.stringify(factsOf(11)));
  nowMs += 3_999;
  expect(await claims('one', 'two')).toEqual([
    ['one', 1],
    ['two', 2],
  ]);
  nowMs += 2_001;
  expect(await claims('one', 'gone')).toEqual([
    ['one', 11],
    ['gone', undefined],
  ]);
});

test('a look without facts reads none, and one with them none twice; both see who lives in which lane', async () => {
  const queue = 'embed-b';
  const workers = [
    await show('cpu-1', () => factsOf(3, ['main', 'cpu']), queue),
    await show('gpu-1', () => factsOf(4), queue),
  ];
  const fleet = await Fleet.connect({ redisUrl: server.url, prefix: PREFIX, queue });
  const before = [await calls('hmget'), await calls('hgetall')];
  const seen = async (withFacts: boolean): Promise<unknown[]> =>
    (await fleet.look({ withFacts })).workers.map(({ workerId, lanes, facts }) => [workerId, lanes, facts?.claims]);
  expect(await seen(false)).toEqual([
    ['cpu-1', ['main', 'cpu'], undefined],
    ['gpu-1', ['main'], undefined],
  ]);
  expect([await calls('hmget'), await calls('hgetall')]).toEqual(before);
  for (let at = 0; at < 3; at++)
    expect(await seen(true)).toEqual([
      ['cpu-1', ['main', 'cpu'], 3],
      ['gpu-1', ['main'], 4],
    ]);
  expect(await calls('hmget')).toBe(before[0]! + 1); // of the main lane; the CPU lane has nobody else
  await Promise.all([fleet.close(), ...workers.map((worker) => worker.stop())]);
});
