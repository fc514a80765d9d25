import { setTimeout as sleep } from 'node:timers/promises';
import { Queue } from 'bullmq';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { invariant, keySpace } from '@shoal/contract';
import type { RawClaim } from '@shoal/core';
import {
  ManualClock,
  MemoryJobSource,
  MemoryQueue,
  RecordingLogger,
  describeJobSource,
  settled,
  type JobRecord,
} from '@shoal/core/testing';
import { BullJobSource } from '../worker/bull-job-source.ts';
import { Canceller } from '../producer/cancel.ts';
import { closeConnection, openConnection } from '../redis/connection.ts';
import { LanesSource, openGate, type MainLaneGate } from './lanes-source.ts';
import { Quarantine } from '../upkeep/quarantine.ts';
import { startTestServer, type TestServer } from '../testing.ts';

const LEASE_MS = 900;
let server: TestServer;
let prefixes = 0;

beforeAll(async () => {
  server = await startTestServer();
});

afterAll(() => server.stop());

/** A gate that a test moves by hand. */
class HandGate implements MainLaneGate {
  room = 0;
  private readonly listeners: (() => void)[] = [];

  allows(limit: number): number {
    return Math.min(limit, this.room);
  }

  took(jobs: number): void {
    this.room -= jobs;
  }

  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  move(room: number): void {
    this.room = room;
    for (const listener of this.listeners) listener();
  }
}

function setup() {
  const clock = new ManualClock();
  const cpu = new MemoryQueue(clock);
  const main = new MemoryQueue(clock);
  const gate = new HandGate();
  const open = async (): Promise<LanesSource> => {
    const source = new LanesSource({ cpu: new MemoryJobSource(cpu), main: new MemoryJobSource(main), gate });
    await source.start();
    return source;
  };
  return { clock, cpu, main, gate, open };
}

const idsOf = (claims: readonly RawClaim[]): string[] => claims.map(({ lane, jobId }) => `${lane}:${jobId}`);

describe('LanesSource', () => {
  test('takes from the CPU lane first and fills up from the main lane as far as the gate allows', async () => {
    const { cpu, main, gate, open } = setup();
    for (let i = 0; i < 3; i++) cpu.add(`c${i}`, {});
    for (let i = 0; i < 9; i++) main.add(`m${i}`, {});
    gate.move(2);
    const source = await open();
    expect(idsOf(await source.claim(8))).toEqual(['cpu:c0', 'cpu:c1', 'cpu:c2', 'main:m0', 'main:m1']);
    gate.move(100);
    expect(idsOf(await source.claim(4))).toEqual(['main:m2', 'main:m3', 'main:m4', 'main:m5']);
    await source.stop();
  });

  test('a closed gate keeps it from the main lane; it takes from there as soon as the gate opens', async () => {
    const { main, gate, open } = setup();
    main.add('m', {});
    const source = await open();
    let claims: readonly RawClaim[] | undefined;
    void source.claim(8).then((got) => (claims = got));
    await settled();
    expect(claims).toBeUndefined();
    expect(await source.claimable()).toBe(0);
    gate.move(8);
    await settled();
    expect(idsOf(claims ?? [])).toEqual(['main:m']);
    await source.stop();
  });

  test('a question that is answered after the gate has closed gives its job back unspent', async () => {
    const { main, gate, open } = setup();
    gate.move(8);
    const source = await open();
    const waiting = source.claim(8);
    await settled();
    gate.move(0);
    main.add('m', {});
    await settled();
    expect(main.inspect('m')).toMatchObject({ state: 'waiting', attempts: 0 });
    await source.stop();
    expect(await waiting).toEqual([]);
  });

  test('a question that is answered while nobody claims gives its job back, whichever lane it is of', async () => {
    const { cpu, main, gate, open } = setup();
    gate.move(8);
    const source = await open();
    const waiting = source.claim(8);
    await settled();
    cpu.add('c', {});
    expect(idsOf(await waiting)).toEqual(['cpu:c']);
    main.add('m', {}); // its question still waits, and the pipeline is full
    await settled();
    expect(main.inspect('m')?.state).toBe('waiting');
    expect(idsOf(await source.claim(8))).toEqual(['main:m']);
    await source.stop();
  });

  test('never brings more than was asked for', async () => {
    const { cpu, main, gate, open } = setup();
    gate.move(8);
    const source = await open();
    const waiting = source.claim(1);
    await settled();
    cpu.add('c', {});
    main.add('m', {});
    const first = await waiting;
    const second = await source.claim(1);
    expect([...idsOf(first), ...idsOf(second)].sort()).toEqual(['cpu:c', 'main:m']);
    await source.stop();
  });

  test('jobs of one id in both lanes are two claims, each with an ending of its own', async () => {
    const { cpu, main, gate, open } = setup();
    gate.move(8);
    cpu.add('a', {});
    main.add('a', {});
    const source = await open();
    const [child, job] = await source.claim(8);
    await source.settle(child!, { kind: 'fail', failure: { code: 'OUT_OF_VRAM', message: 'x' } });
    expect([cpu.inspect('a')?.state, main.inspect('a')?.state]).toEqual(['failed', 'active']);
    await source.settle(job!, { kind: 'return', delayMs: 0, reason: 'x' });
    expect(main.inspect('a')?.state).toBe('waiting');
    await source.stop();
  });
});

for (const lane of ['cpu', 'main'] as const) {
  describeJobSource(`LanesSource with jobs in its ${lane} lane`, async () => {
    const clock = new ManualClock();
    const queues = { cpu: new MemoryQueue(clock, 1_000), main: new MemoryQueue(clock, 1_000) };
    return {
      leaseMs: 1_000,
      open: () =>
        new LanesSource({
          cpu: new MemoryJobSource(queues.cpu),
          main: new MemoryJobSource(queues.main),
          gate: openGate,
        }),
      add: async (jobId, data) => queues[lane].add(jobId, data),
      inspect: async (jobId) => queues[lane].inspect(jobId),
      steal: async (jobId) => queues[lane].steal(jobId),
      passTime: (ms) => clock.advance(ms),
      cancel: async (jobId) => queues[lane].cancel(jobId),
      quarantined: async () => [...queues[lane].quarantined.keys()],
      close: async () => {
        await clock.advance(0);
        invariant(clock.pending === 0, 'a stopped source leaves no timer behind');
      },
    };
  });
}

/** Over the real thing: jobs go to the two lanes in turns. */
describeJobSource('LanesSource over two BullJobSources', async () => {
  const prefix = `{t-lanes-${++prefixes}}`;
  const connection = openConnection({ url: server.url, prefix, name: 'test' });
  const lanes = ['embed-x', 'embed-x-cpu'].map((name) => new Queue(name, { prefix, connection })) as [Queue, Queue];
  let added = prefixes;
  const find = async (jobId: string) =>
    (await Promise.all(lanes.map((lane) => lane.getJob(jobId)))).find((job) => job !== undefined);
  const open = (queue: string): BullJobSource =>
    new BullJobSource({
      redisUrl: server.url,
      prefix,
      queue,
      quarantineOf: 'embed-x',
      leaseMs: LEASE_MS,
      stalledCheckMs: 300,
      log: new RecordingLogger(),
    });
  return {
    leaseMs: LEASE_MS,
    open: () => new LanesSource({ main: open('embed-x'), cpu: open('embed-x-cpu'), gate: openGate }),
    add: async (jobId, data) => void (await lanes[added++ % 2]!.add('embed', data, { jobId })),
    inspect: async (jobId): Promise<JobRecord | undefined> => {
      const job = await find(jobId);
      const state = await job?.getState();
      if (job === undefined || state === undefined || state === 'unknown' || state === 'waiting-children')
        return undefined;
      return {
        state: state === 'prioritized' ? 'waiting' : state,
        attempts: job.attemptsMade,
        returnValue: job.returnvalue ?? undefined,
        failedReason: job.failedReason,
      };
    },
    steal: async (jobId) => {
      const job = await find(jobId);
      await connection.set(keySpace(prefix).lock(job?.queueName ?? '', jobId), 'a stranger', 'PX', 60_000);
    },
    cancel: async (jobId) => {
      const canceller = await Canceller.connect({
        redisUrl: server.url,
        prefix,
        queue: (await find(jobId))?.queueName ?? '',
        log: new RecordingLogger(),
      });
      await canceller.cancel([jobId]);
      await canceller.close();
    },
    quarantined: async () => {
      const quarantine = new Quarantine({ redisUrl: server.url, prefix, queue: 'embed-x' });
      const jobs = await quarantine.list();
      await quarantine.close();
      return jobs.map(({ jobId }) => jobId);
    },
    passTime: (ms) => sleep(ms),
    close: async () => {
      await Promise.all(lanes.map((lane) => lane.close()));
      await closeConnection(connection);
    },
  };
});
