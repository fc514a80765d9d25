import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { cpuQueue, keySpace, mainQueue } from '@shoal/contract';
import type { WorkerState } from '@shoal/core';
import { TestPlace, WORKER_FACTS, startTestServer } from '../testing.ts';
import { Fleet, standingSeen } from './fleet.ts';
import type { PresenceOptions, WorkerPresence } from './worker-presence.ts';

const WELL = { isDrained: false, isLeaving: false, state: 'ready', reason: 'it claims' };

let place: TestPlace;
let fleet: Fleet;

beforeAll(async () => {
  place = new TestPlace(await startTestServer(), 'fleet');
});
beforeEach(async () => {
  fleet = place.keep(await Fleet.connect({ ...place.address, queue: 'embed-x' }));
});
afterEach(async () => {
  await place.clear();
  await fleet.close();
});
afterAll(() => place.stop());

function show(
  workerId: string,
  lanes: readonly ('main' | 'cpu')[],
  more: Partial<PresenceOptions> = {},
): Promise<WorkerPresence> {
  const queues = lanes.map((lane) => (lane === 'main' ? mainQueue('x') : cpuQueue('x')));
  return place.show(mainQueue('x'), workerId, { lanes: queues, facts: () => ({ ...WORKER_FACTS, lanes }), ...more });
}

test('shows workers with their lanes and what they tell of themselves, and how full both lanes are', async () => {
  await show('gpu-1', ['main']);
  await show('cpu-1', ['main', 'cpu']);
  const [main, cpu] = [place.queue(mainQueue('x')), place.queue(cpuQueue('x'))];
  await main.add('embed', {}, { jobId: 'a', timestamp: Date.now() - 5_000 });
  await main.add('embed', {}, { jobId: 'b', priority: 3 });
  await main.add('embed', {}, { jobId: 'c', delay: 60_000 });
  await cpu.add('embed', {}, { jobId: 'd' });
  const { lanes, workers } = await fleet.read();
  expect(lanes.main).toMatchObject({ queue: 'embed-x', waiting: 2, active: 0, delayed: 1, handedOver: 0, failed: 0 });
  expect(lanes.main.oldestMs).toBeGreaterThanOrEqual(5_000);
  expect(lanes.main.oldestWaitingMs).toEqual({ interactive: lanes.main.oldestMs, bulk: 0 });
  expect(lanes.cpu).toMatchObject({ queue: 'embed-x-cpu', waiting: 1 });
  expect(workers).toEqual([
    { ...WELL, workerId: 'cpu-1', lanes: ['main', 'cpu'], facts: { ...WORKER_FACTS, lanes: ['main', 'cpu'] } },
    { ...WELL, workerId: 'gpu-1', lanes: ['main'], facts: WORKER_FACTS },
  ]);
});

test('a worker that left, or died, leaves no facts behind', async () => {
  const keys = keySpace(place.prefix);
  const leaving = await show('leaving', ['main', 'cpu']);
  await place.connection.zadd(keys.workers('embed-x'), String(Date.now() - 1), 'dead');
  await place.connection.hset(keys.facts('embed-x'), 'dead', '{}');
  await leaving.stop();
  await show('next', ['main']);
  expect(await place.connection.hkeys(keys.facts('embed-x'))).toEqual(['next']);
  expect(await place.connection.exists(keys.facts('embed-x-cpu'))).toBe(0);
});

test('facts that cannot be read are those of a worker that tells nothing', async () => {
  await show('a', ['main'], { facts: undefined });
  await show('b', ['main']);
  await place.connection.hset(keySpace(place.prefix).facts('embed-x'), 'b', '{"rates":3');
  expect((await fleet.read()).workers.map(({ facts }) => facts)).toEqual([undefined, undefined]);
});

test('one worker is drained and resumed by the beginning of its id', async () => {
  await show('gpu-1', ['main']);
  await show('gpu-2', ['main']);
  expect(await fleet.drain('gpu-1')).toEqual(['gpu-1']);
  expect((await fleet.read()).workers.map(({ workerId, isDrained }) => [workerId, isDrained])).toEqual([
    ['gpu-1', true],
    ['gpu-2', false],
  ]);
  expect(await fleet.resume('gpu-1')).toEqual(['gpu-1']);
  expect((await fleet.read()).workers.map(({ isDrained }) => isDrained)).toEqual([false, false]);
  await expect(fleet.drain('gpu')).rejects.toMatchObject({
    code: 'USAGE',
    message: expect.stringContaining('2 live workers have'),
  });
  await expect(fleet.drain('nobody')).rejects.toMatchObject({
    code: 'USAGE',
    message: expect.stringContaining('alive: gpu-1, gpu-2'),
  });
});

test('all are drained, those that start later too, until all are resumed', async () => {
  await show('a', ['main']);
  expect(await fleet.drain('all')).toEqual(['a']);
  await show('later', ['main']);
  expect(await fleet.read()).toMatchObject({ isAllDrained: true, workers: [{ isDrained: true }, { isDrained: true }] });
  await expect(fleet.resume('later')).rejects.toMatchObject({ code: 'USAGE' });
  await fleet.drain('later');
  await fleet.resume('all');
  expect(await fleet.read()).toMatchObject({
    isAllDrained: false,
    workers: [{ isDrained: false }, { isDrained: false }],
  });
});

test('the state of a worker is what it tells, and what is known of its queue now', async () => {
  const standing = { state: 'braked', reason: 'results fill it', sinceMs: 1 } as const;
  await show('gpu-1', ['main'], { facts: () => ({ ...WORKER_FACTS, standing }) });
  await show('gpu-2', ['main'], { facts: () => ({ ...WORKER_FACTS, standing: { ...standing, state: 'starting' } }) });
  const states = async (): Promise<string[]> => (await fleet.read()).workers.map(({ state }) => state);
  expect(await states()).toEqual(['braked', 'starting']);
  const queue = place.queue(mainQueue('x'));
  await queue.pause();
  expect(await fleet.read()).toMatchObject({ lanes: { main: { isPaused: true }, cpu: { isPaused: false } } });
  expect(await states()).toEqual(['paused', 'starting']);
  await fleet.drain('gpu-1');
  expect(await states()).toEqual(['draining', 'starting']);
});

const stateOf = (state: WorkerState, isDrained: boolean, isPaused: boolean): string =>
  standingSeen({ ...WORKER_FACTS, standing: { state, reason: '', sinceMs: 0 } }, isDrained, isPaused).state;

test('the state that is seen: as it told, and as its queue is now', () => {
  expect(standingSeen(undefined, false, false).state).toBe('ready');
  expect(stateOf('starting', false, true)).toBe('starting');
  expect(stateOf('ready', false, true)).toBe('paused');
  expect(stateOf('paused', false, false)).toBe('ready'); // it was resumed since
  expect(stateOf('ready', true, false)).toBe('draining');
  expect(stateOf('drained', true, false)).toBe('drained');
  expect(standingSeen({ ...WORKER_FACTS, claims: 0 }, true, false).state).toBe('drained'); // 0.1.0 tells no state
});

test('a worker that is being started is shown as such and serves nobody', async () => {
  const told = { device: 'gpu:0', host: 'h', pid: 7, name: 'gpu' };
  const starting = await show('gpu-1', ['main'], { isStarting: true, facts: () => told });
  expect(await fleet.read()).toMatchObject({ workers: [], starting: [{ ...told, workerId: 'gpu-1' }] });
  await starting.stop();
  expect((await fleet.read()).starting).toEqual([]);
});

test('a worker that is told to leave is known by its id, until it has left', async () => {
  const leaving = await show('gpu-1', ['main']);
  await fleet.leave(['gpu-1']);
  expect((await fleet.read()).workers).toMatchObject([{ workerId: 'gpu-1', isLeaving: true, state: 'ready' }]);
  await leaving.stop();
  expect(await place.connection.exists(keySpace(place.prefix).leaving(mainQueue('x')))).toBe(0);
});

test('a drain outlasts an outage in which everybody’s time ran out', async () => {
  const [drained, other] = [await show('drained', ['main', 'cpu']), await show('other', ['main', 'cpu'])];
  await fleet.drain('drained');
  const { workers } = keySpace(place.prefix);
  for (const lane of ['embed-x', 'embed-x-cpu'])
    for (const id of ['drained', 'other']) await place.connection.zadd(workers(lane), String(Date.now() - 60_000), id);
  expect((await fleet.read()).workers).toEqual([]);
  await Reflect.apply(Reflect.get(other, 'show') as () => Promise<void>, other, []); // the first to show itself again
  expect((await fleet.read()).workers).toMatchObject([{ workerId: 'other', isDrained: false }]);
  await Reflect.apply(Reflect.get(drained, 'show') as () => Promise<void>, drained, []);
  expect((await fleet.read()).workers).toMatchObject([
    { workerId: 'drained', isDrained: true },
    { workerId: 'other', isDrained: false },
  ]);
});

test('a drained worker that never comes back is forgotten after a day', async () => {
  const keys = keySpace(place.prefix);
  for (const [id, agoMs] of [
    ['lately', 82_800_000],
    ['long-ago', 90_000_000],
  ] as const) {
    await place.connection.zadd(keys.workers('embed-x'), String(Date.now() - agoMs), id);
    await place.connection.sadd(keys.drained('embed-x'), id);
  }
  await show('next', ['main']);
  expect(await place.connection.smembers(keys.drained('embed-x'))).toEqual(['lately']);
  expect(await place.connection.zrange(keys.workers('embed-x'), '0', '-1')).toEqual(['lately', 'next']);
});

test('a worker that was drained and left does not come back drained', async () => {
  const one = await show('one', ['main']);
  await fleet.drain('one');
  await one.stop();
  await show('one', ['main']);
  expect((await fleet.read()).workers).toMatchObject([{ workerId: 'one', isDrained: false }]);
});
