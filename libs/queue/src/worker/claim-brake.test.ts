import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { RecordingLogger } from '@shoal/core/testing';
import { keySpace } from '@shoal/contract';
import { Queue } from 'bullmq';
import { readServerMemory } from '../admission/admission.ts';
import { BullJobSource } from './bull-job-source.ts';
import type { ServerPressure } from './claim-brake.ts';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';

let server: TestServer;
let connection: Redis;
let queue: Queue;
let source: BullJobSource;
let changes: (ServerPressure | undefined)[];

beforeEach(async () => {
  server = await startTestServer({ appendFsync: 'no' });
  connection = openConnection({ url: server.url, name: 'test' });
  queue = new Queue('embed-x', { prefix: '{t}', connection });
  await connection.set('ballast', Buffer.alloc(40_000_000)); // beside it what connections take does not show
  // its copy on the way to the file is gone
  await vi.waitUntil(async () => (await readServerMemory(connection)).usedBytes < 60_000_000, { timeout: 10_000 });
  changes = [];
  source = new BullJobSource({
    redisUrl: server.url,
    prefix: '{t}',
    queue: 'embed-x',
    leaseMs: 5_000,
    stalledCheckMs: 5_000,
    log: new RecordingLogger(),
    brake: { maxMemoryShare: 0.8, maxUnreadShare: 0.5 },
    onBrake: (reason) => changes.push(reason),
  });
  await queue.addBulk(Array.from({ length: 20 }, (_, i) => ({ name: 'embed', data: {}, opts: { jobId: `j-${i}` } })));
});

afterEach(async () => {
  await source.stop();
  await queue.close();
  await closeConnection(connection);
  await server.stop();
});

/** Sets maxmemory so that so much of it is in use. */
async function fill(share: number): Promise<void> {
  await server.command(
    'CONFIG',
    'SET',
    'maxmemory',
    Math.round((await readServerMemory(connection)).usedBytes / share),
  );
}

test('a source stops while the server is away, whatever the brake was about to read', async () => {
  await fill(0.85);
  await source.start();
  const claims = await source.claim(20);
  expect(claims).toHaveLength(4);
  process.kill(server.pid, 'SIGSTOP');
  try {
    const waiting = source.claim(20);
    await sleep(1_500); // its next look waits for an answer by now
    await source.stopClaiming();
    expect(await waiting).toEqual([]);
  } finally {
    process.kill(server.pid, 'SIGCONT');
  }
});

describe('the brake', () => {
  test(
    'above its share of memory few jobs are claimed, one handful after the other is settled; below it all, by ' +
      'itself',
    async () => {
      await fill(0.85);
      await source.start();
      const claims = await source.claim(20);
      expect(claims).toHaveLength(4);
      expect(changes).toEqual(['memory']);
      expect(await source.claimNow(20)).toEqual([]);
      expect(await source.claimable()).toBe(0); // so that nobody takes it for wedged
      for (const claim of claims)
        await source.settle(claim, { kind: 'fail', failure: { code: 'JOB_INVALID', message: 'test' } });
      expect(await source.claim(20)).toHaveLength(4);
      const waiting = source.claim(20);
      await fill(0.5);
      expect(await waiting).toHaveLength(12);
      expect(changes).toEqual(['memory', undefined]);
    },
  );

  test('near the end of memory, or while unread results fill their share, nothing is claimed', async () => {
    await fill(0.95);
    await source.start();
    const waiting = source.claim(20);
    await vi.waitFor(() => expect(changes).toEqual(['memory']), { timeout: 10_000 });
    const { maxBytes } = await readServerMemory(connection);
    await connection.hset(keySpace('{t}').load(), 'unread', String(maxBytes));
    await fill(0.6);
    await vi.waitFor(() => expect(changes).toEqual(['memory', 'unread']), { timeout: 10_000 });
    await connection.hdel(keySpace('{t}').load(), 'unread');
    expect((await waiting).length).toBeGreaterThan(0);
    expect(changes).toEqual(['memory', 'unread', undefined]);
  });

  test('a worker that drains does not wait for the brake', async () => {
    await fill(0.95);
    await source.start();
    const waiting = source.claim(20);
    await vi.waitFor(() => expect(changes).toEqual(['memory']), { timeout: 10_000 });
    await source.stopClaiming();
    expect(await waiting).toEqual([]);
  });
});
