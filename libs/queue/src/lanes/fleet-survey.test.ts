// What the exporter is told of every queue: by state and class, with the states of workers, for a bounded number of
// commands; and backlogs, by what workers tell of their rates.

import { Queue } from 'bullmq';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { noLog, type WorkerFacts } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { orderWaiting } from '../worker/fair-order.ts';
import { FleetSurvey, MOST_BACKLOG_SECONDS, backlogOf, stateOf } from './fleet-survey.ts';
import { WorkerPresence } from './worker-presence.ts';

const PREFIX = '{t-survey}';
const FACTS: WorkerFacts = {
  device: 'cuda:0',
  precision: 'fp16',
  model: 'x@1',
  host: 'h',
  pid: 7,
  lanes: ['main'],
  isDrained: false,
  rates: { short: 1_000 },
  mix: { short: 1 },
  claims: 2,
  poolTokens: 300,
  tokensPerJob: 640,
};

const add = (queue: Queue, kind: 'interactive' | 'bulk', count: number, rows = 100): Promise<unknown> =>
  queue.addBulk(
    Array.from({ length: count }, (_, at) => ({
      name: 'embed',
      data: { v: 1, texts: Array.from({ length: rows }, () => 't'), class: kind, tenant: `t${at % 3}` },
      opts: { jobId: `${kind}-${at}` },
    })),
  );

const ready = (facts: Partial<WorkerFacts> = {}) => ({ facts: { ...FACTS, ...facts }, state: 'ready' as const });

const inState = (state: 'ready' | 'starting' | 'paused'): WorkerFacts => ({
  ...FACTS,
  standing: { state, reason: '', sinceMs: 0 },
});

describe('of a server', () => {
  let server: TestServer;
  let connection: Redis;
  let survey: FleetSurvey;
  const opened: { close(): Promise<void> }[] = [];

  beforeAll(async () => {
    server = await startTestServer();
    connection = openConnection({ url: server.url, name: 'test' });
  });
  beforeEach(async () => {
    await connection.flushall();
    survey = FleetSurvey.open({ redisUrl: server.url, prefix: PREFIX });
    await vi.waitUntil(() => survey.isConnected, { timeout: 10_000 });
  });
  afterEach(async () => {
    await survey.close();
    await Promise.all(opened.splice(0).map((one) => one.close()));
  });
  afterAll(async () => {
    await closeConnection(connection);
    await server.stop();
  });

  function open(name: string): Queue {
    const queue = new Queue(name, { prefix: PREFIX, connection });
    opened.push(queue);
    return queue;
  }

  async function show(queue: string, workerId: string, facts: Partial<WorkerFacts> = {}): Promise<void> {
    const told = { ...FACTS, ...facts };
    const presence = await WorkerPresence.connect({
      redisUrl: server.url,
      prefix: PREFIX,
      queue,
      workerId,
      facts: () => told,
      log: noLog,
    });
    opened.push({ close: () => presence.stop() });
    await presence.start();
  }

  test('every queue is told of, with its jobs by state and class, whether they have their place in line or not', async () => {
    const main = open('embed-x');
    await add(main, 'bulk', 30);
    await add(main, 'interactive', 7, 1);
    await main.add('embed', { v: 1, texts: ['later'] }, { jobId: 'later', delay: 60_000 });
    await open('similarity').add('topk', {}, { jobId: 'a' });
    const before = await survey.read();
    expect(before.queues.map(({ queue }) => queue)).toEqual(['embed-x', 'similarity']);
    expect(before.queues[0]).toMatchObject({ waiting: { interactive: 7, bulk: 30 }, jobs: { delayed: 1, active: 0 } });
    await orderWaiting(connection, { prefix: PREFIX, queue: 'embed-x' });
    const [placed] = (await survey.read()).queues;
    expect(placed?.waiting).toEqual({ interactive: 7, bulk: 30 });
    expect(placed?.oldestWaitingMs.bulk).toBeGreaterThan(0);
    expect(placed?.backlog).toEqual({ tokens: undefined, tokensPerSecond: undefined, seconds: MOST_BACKLOG_SECONDS });
  });

  test('workers by state, a pause, quarantine, and room that is reserved', async () => {
    await add(open('embed-x'), 'bulk', 3);
    await show('embed-x', 'claims');
    await show('embed-x', 'brakes', {
      standing: { state: 'braked', reason: 'full', sinceMs: 0 },
    });
    await show('embed-x', 'drains', { claims: 0 });
    await connection.sadd(`${PREFIX}:drained:embed-x`, 'drains');
    await open('embed-x-quarantine').add('embed', {}, { jobId: 'killer' });
    await connection.hset(`${PREFIX}:load`, 'bytes', 5_000, 'unread', 2_000, 'rows embed-x', 300);
    await connection.hset(`${PREFIX}:drain:embed-x`, 'rows', 12_000);
    const { queues, reservedBytes, unreadBytes } = await survey.read();
    expect(queues.map(({ queue }) => queue)).toEqual(['embed-x']);
    expect([reservedBytes, unreadBytes]).toEqual([5_000, 2_000]);
    expect(queues[0]).toMatchObject({
      workers: { starting: 0, ready: 1, braked: 1, paused: 0, draining: 0, drained: 1 },
      isPaused: false,
      quarantined: 1,
      reservedRows: 300,
      leftRows: 12_000,
      backlog: { tokens: 1_920, tokensPerSecond: 1_000, seconds: 1.92 },
    });
    await open('embed-x').pause();
    expect((await survey.read()).queues[0]).toMatchObject({
      waiting: { bulk: 3 },
      isPaused: true,
      workers: { ready: 0, paused: 2, drained: 1 },
      backlog: { seconds: MOST_BACKLOG_SECONDS },
    });
  });

  test('a look costs eight commands a queue and two for all, however many jobs, workers and keys there are', async () => {
    const commandsOf = async (queues: number): Promise<number> => {
      for (let at = 0; at < queues; at++) await add(open(`embed-q${at}-${queues}`), 'bulk', 40);
      await show(`embed-q0-${queues}`, 'w');
      for (let at = 0; at < queues; at++) await connection.sadd(`${PREFIX}:queues`, `embed-q${at}-${queues}`);
      const another = FleetSurvey.open({ redisUrl: server.url, prefix: PREFIX });
      opened.push(another);
      await expect.poll(() => another.isConnected, { timeout: 10_000 }).toBe(true);
      await another.read(); // finds the queues, and loads the scripts
      const sent = vi.spyOn(Reflect.get(another, 'connection') as Redis, 'sendCommand');
      await another.read();
      return sent.mock.calls.length;
    };
    expect(await commandsOf(1)).toBe(10);
    await connection.flushall();
    expect(await commandsOf(4)).toBe(34);
  });

  test('a queue with a damaged key is left out and named, the others are told of', async () => {
    const log = new RecordingLogger();
    const other = FleetSurvey.open({ redisUrl: server.url, prefix: PREFIX, log });
    opened.push(other);
    await add(open('embed-x'), 'bulk', 1);
    await add(open('embed-y'), 'bulk', 1);
    await connection.set(`${PREFIX}:embed-y:active`, 'not a list');
    await expect.poll(() => other.isConnected, { timeout: 10_000 }).toBe(true);
    expect((await other.read()).queues.map(({ queue }) => queue)).toEqual(['embed-x']);
    expect(log.lines).toMatchObject([{ level: 'warn', fields: { queue: 'embed-y' } }]);
  });

  test('once queues are noted those are told of, and nobody scans', async () => {
    await add(open('embed-x'), 'bulk', 1);
    await connection.sadd(`${PREFIX}:queues`, 'embed-x', 'embed-x-cpu', 'embed-x-quarantine', 'similarity');
    const sent = vi.spyOn(Reflect.get(survey, 'connection') as Redis, 'scan');
    expect((await survey.read()).queues.map(({ queue }) => queue)).toEqual(['embed-x', 'embed-x-cpu', 'similarity']);
    expect(sent).not.toHaveBeenCalled();
  });

  test('while the server is away it is said at once', async () => {
    await survey.close();
    await expect(survey.read()).rejects.toMatchObject({ code: 'QUEUE_UNREACHABLE' });
  });
});

describe('backlogs', () => {
  test.each([
    ['none waits', 0, [ready()], 0],
    ['one worker has a rate', 10, [ready()], 6.4],
    ['rates add up', 10, [ready(), ready()], 3.2],
    [
      'lengths are mixed by their times',
      10,
      [ready({ rates: { short: 1_000, long: 250 }, mix: { short: 0.5, long: 0.5 } })],
      16,
    ],
    ['nobody claims', 10, [{ ...ready(), state: 'drained' as const }], MOST_BACKLOG_SECONDS],
    ['nobody has run yet', 10, [ready({ rates: {}, mix: {}, tokensPerJob: undefined })], undefined],
    ['a CPU worker serves beside a GPU', 10, [ready(), ready({ lanes: ['main', 'cpu'], rates: { short: 10 } })], 6.4],
    ['a CPU worker serves alone', 10, [ready({ lanes: ['main', 'cpu'] })], 6.4],
    ['it is more than a day', 10_000_000, [ready()], MOST_BACKLOG_SECONDS],
  ])('%s', (_, jobs, seen, seconds) => {
    expect(backlogOf(jobs, seen).seconds).toBe(seconds);
  });
});

test('the state of a worker: as it told, and as its queue is now', () => {
  const now = { isPaused: false, isDrained: false };
  expect(stateOf(undefined, now)).toBe('ready');
  expect(stateOf(inState('starting'), { ...now, isPaused: true })).toBe('starting');
  expect(stateOf(inState('ready'), { ...now, isPaused: true })).toBe('paused');
  expect(stateOf(inState('paused'), now)).toBe('ready');
  expect(stateOf(inState('ready'), { ...now, isDrained: true })).toBe('draining');
  expect(stateOf({ ...inState('ready'), claims: 0 }, { ...now, isDrained: true })).toBe('drained');
});
