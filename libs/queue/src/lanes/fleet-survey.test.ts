// What the exporter is told of every queue: by state and class, with the states of workers, for a bounded number of
// commands; and backlogs, by what workers tell of their rates.

import type { Queue } from 'bullmq';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import type { Logger, WorkerFacts } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import type { Redis } from '../redis/connection.ts';
import { TestPlace, WORKER_FACTS, startTestServer } from '../testing.ts';
import { orderWaiting } from '../worker/fair-order.ts';
import { FleetSurvey, MOST_BACKLOG_SECONDS, backlogOf } from './fleet-survey.ts';

const add = (queue: Queue, kind: 'interactive' | 'bulk', count: number, rows = 100): Promise<unknown> =>
  queue.addBulk(
    Array.from({ length: count }, (_, at) => ({
      name: 'embed',
      data: { v: 1, texts: Array.from({ length: rows }, () => 't'), class: kind, tenant: `t${at % 3}` },
      opts: { jobId: `${kind}-${at}` },
    })),
  );

const ready = (facts: Partial<WorkerFacts> = {}) => ({ facts: { ...WORKER_FACTS, ...facts }, state: 'ready' as const });

describe('of a server', () => {
  let place: TestPlace;
  let survey: FleetSurvey;

  beforeAll(async () => {
    place = new TestPlace(await startTestServer(), 'survey');
  });
  beforeEach(async () => {
    survey = await open();
  });
  afterEach(() => place.clear());
  afterAll(() => place.stop());

  async function open(log?: Logger): Promise<FleetSurvey> {
    return place.keep(await FleetSurvey.connect({ ...place.address, log }));
  }

  const show = (queue: string, workerId: string, facts: Partial<WorkerFacts> = {}): Promise<unknown> =>
    place.show(queue, workerId, { facts: () => ({ ...WORKER_FACTS, ...facts }) });

  test('every queue is told of, with its jobs by state and class, whether they have their place in line or not', async () => {
    const main = place.queue('embed-x');
    await add(main, 'bulk', 30);
    await add(main, 'interactive', 7, 1);
    await main.add('embed', { v: 1, texts: ['later'] }, { jobId: 'later', delay: 60_000 });
    await place.queue('similarity').add('topk', {}, { jobId: 'a' });
    const before = await survey.read();
    expect(before.queues.map(({ queue }) => queue)).toEqual(['embed-x', 'similarity']);
    expect(before.queues[0]).toMatchObject({ waiting: { interactive: 7, bulk: 30 }, jobs: { delayed: 1, active: 0 } });
    await orderWaiting(place.connection, { prefix: place.prefix, queue: 'embed-x' });
    const [placed] = (await survey.read()).queues;
    expect(placed?.waiting).toEqual({ interactive: 7, bulk: 30 });
    expect(placed?.oldestWaitingMs.bulk).toBeGreaterThan(0);
    expect(placed?.backlog).toEqual({ tokens: undefined, tokensPerSecond: undefined, seconds: MOST_BACKLOG_SECONDS });
  });

  test('payload servers of all queues, and how many sets of them the workers of one have', async () => {
    const payloadServers = [{ name: 'a:6379', problem: 'takes no body (OOM)', sinceMs: 1 }];
    await show('embed-x', 'has', { payloads: 'set', payloadServers });
    await show('embed-x-cpu', 'has', { payloads: 'set', payloadServers });
    await show('embed-x', 'has-none');
    await show('embed-y', 'has-none-either');
    const read = await survey.read(['embed-x', 'embed-x-cpu', 'embed-y']);
    expect(read.queues.map(({ payloadSets }) => payloadSets)).toEqual([2, 1, undefined]);
    expect(read.payloadServers).toMatchObject([{ name: 'a:6379', workers: ['has'], failing: [{ workerId: 'has' }] }]);
  });

  test('workers by state, a pause, quarantine, and room that is reserved', async () => {
    await add(place.queue('embed-x'), 'bulk', 3);
    await show('embed-x', 'claims');
    await show('embed-x', 'brakes', {
      standing: { state: 'braked', reason: 'full', sinceMs: 0 },
    });
    await show('embed-x', 'drains', { claims: 0 });
    await place.connection.sadd(`${place.prefix}:drained:embed-x`, 'drains');
    const told = { device: 'gpu:0', host: 'h', pid: 7, name: 'gpu' };
    await place.show('embed-x', 'starts', { isStarting: true, facts: () => told });
    await place.queue('embed-x-quarantine').add('embed', {}, { jobId: 'killer' });
    await place.connection.hset(`${place.prefix}:load`, 'bytes', 5_000, 'unread', 2_000, 'rows embed-x', 300);
    await place.connection.hset(`${place.prefix}:drain:embed-x`, 'rows', 12_000);
    const { queues, reservedBytes, unreadBytes } = await survey.read();
    expect(queues.map(({ queue }) => queue)).toEqual(['embed-x']);
    expect([reservedBytes, unreadBytes]).toEqual([5_000, 2_000]);
    expect(queues[0]).toMatchObject({
      workers: { starting: 1, ready: 1, braked: 1, paused: 0, draining: 0, drained: 1 },
      live: [
        { workerId: 'brakes', state: 'braked', reason: 'full', lanes: ['main'], isDrained: false },
        { workerId: 'claims', state: 'ready', isLeaving: false },
        { workerId: 'drains', state: 'drained', isDrained: true },
      ],
      starting: [{ workerId: 'starts', device: 'gpu:0' }],
      isAllDrained: false,
      isPaused: false,
      quarantined: 1,
      reservedRows: 300,
      leftRows: 12_000,
      backlog: { tokens: 1_920, tokensPerSecond: 1_000, seconds: 1.92 },
    });
    // of the queues that were asked for
    expect((await survey.read(['embed-y'])).queues.map(({ queue }) => queue)).toEqual(['embed-y']);
    await place.queue('embed-x').pause();
    expect((await survey.read()).queues[0]).toMatchObject({
      waiting: { bulk: 3 },
      isPaused: true,
      workers: { ready: 0, paused: 2, drained: 1 },
      backlog: { seconds: MOST_BACKLOG_SECONDS },
    });
  });

  test('a look costs nine commands a queue and three for all, however many jobs, workers and keys there are', async () => {
    const commandsOf = async (queues: number): Promise<number> => {
      for (let at = 0; at < queues; at++) await add(place.queue(`embed-q${at}-${queues}`), 'bulk', 40);
      await show(`embed-q0-${queues}`, 'w');
      for (let at = 0; at < queues; at++)
        await place.connection.sadd(`${place.prefix}:queues`, `embed-q${at}-${queues}`);
      const another = await open();
      await another.read(); // finds the queues, and loads the scripts
      const sent = vi.spyOn(Reflect.get(another, 'connection') as Redis, 'sendCommand');
      await another.read();
      return sent.mock.calls.length;
    };
    expect(await commandsOf(1)).toBe(12);
    await place.connection.flushall();
    expect(await commandsOf(4)).toBe(39);
  });

  test('a queue with a damaged key is left out and named, the others are told of', async () => {
    const log = new RecordingLogger();
    const other = await open(log);
    await add(place.queue('embed-x'), 'bulk', 1);
    await add(place.queue('embed-y'), 'bulk', 1);
    await place.connection.set(`${place.prefix}:embed-y:active`, 'not a list');
    const { queues, unread } = await other.read();
    expect(queues.map(({ queue }) => queue)).toEqual(['embed-x']);
    expect(unread).toEqual([
      { queue: 'embed-y', problem: expect.stringMatching(/embed-y:active should be a list and is a string/) },
    ]);
    await other.read(); // is not logged again
    expect(log.lines).toMatchObject([{ level: 'warn', fields: { queue: 'embed-y' } }]);
  });

  test('once queues are noted those are told of, and nobody scans', async () => {
    await add(place.queue('embed-x'), 'bulk', 1);
    await place.connection.sadd(`${place.prefix}:queues`, 'embed-x', 'embed-x-cpu', 'embed-x-quarantine', 'similarity');
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
