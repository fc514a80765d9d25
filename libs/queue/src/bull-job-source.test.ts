import { afterAll, beforeAll, vi } from 'vitest';
import { setTimeout as sleep } from 'node:timers/promises';
import { keySpace, type Logger } from '@shoal/core';
import { describeJobSource } from '@shoal/core/testing';
import { Queue } from 'bullmq';
import { BullJobSource } from './bull-job-source.ts';
import { closeConnection, openConnection, type Redis } from './connection.ts';
import { startTestServer, type TestServer } from './testing.ts';

const silent: Logger = { debug: () => undefined, info: () => undefined, warn: () => undefined, error: () => undefined };
const LEASE_MS = 600;
const STALLED_CHECK_MS = 200;

let server: TestServer;
let connection: Redis;
let prefixes = 0;


beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});

afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

interface Scene {
  readonly prefix: string;
  readonly queue: Queue;
  open(settings?: { leaseMs?: number; log?: Logger }): BullJobSource;
  close(): Promise<void>;
}

function setScene(url = server.url): Scene {
  const prefix = `{t-source-${++prefixes}}`;
  const own = openConnection({ url, name: 'test' });
  const queue = new Queue('embed-x', { prefix, connection: own });
  const opened: BullJobSource[] = [];
  return {
    prefix,
    queue,
    open: ({ leaseMs = LEASE_MS, log = silent } = {}) => {
      const source = new BullJobSource({ redisUrl: url, prefix, queue: 'embed-x', leaseMs, stalledCheckMs: STALLED_CHECK_MS, workerId: `worker-${opened.length}`, log });
      opened.push(source);
      return source;
    },
    close: async () => {
      await Promise.all(opened.map((source) => source.stop()));
      await queue.close();
      await closeConnection(own);
      if (url === server.url) await expectNoConnections();
    },
  };
}

/** The server knows of every connection: none of a stopped worker may be left. */
async function expectNoConnections(): Promise<void> {
  await vi.waitFor(async () => {
    const clients = String(await server.command('CLIENT', 'LIST'));
    if (clients.split('\n').some((line) => / name=(shoal:worker|\{t-source)/.test(line))) throw new Error(`connections left behind:\n${clients}`);
  });
}

/** A key with a stranger's token and a long life. */
async function steal(prefix: string, jobId: string): Promise<void> {
  await connection.set(keySpace(prefix).lock('embed-x', jobId), 'a stranger', 'PX', 60_000);
}


describeJobSource('BullJobSource', async () => {
  const scene = setScene();
  return {
    leaseMs: LEASE_MS,
    open: () => scene.open(),
    add: async (jobId, data) => void (await scene.queue.add('embed', data, { jobId, attempts: 3 })),
    inspect: async (jobId) => {
      const job = await scene.queue.getJob(jobId);
      const state = await job?.getState();
      if (job === undefined || state === undefined || state === 'unknown' || state === 'waiting-children' || state === 'prioritized') return undefined;
      return { state, attempts: job.attemptsMade, returnValue: job.returnvalue ?? undefined, failedReason: job.failedReason };
    },
    steal: (jobId) => steal(scene.prefix, jobId),
    passTime: (ms) => sleep(ms),
    close: () => scene.close(),
  };
});
