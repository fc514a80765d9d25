// The queue on every kind of server that it promises to run on: a Sentinel-managed pair and a cluster (of whatever
// program the other tests use), and Debian's Redis 7.0 where it is installed. Every job source passes the same
// conformance suite; then a master dies under the jobs, and another server takes over by hand. The whole suite of this
// package runs on one kind by SHOAL_TEST_TOPOLOGY or SHOAL_TEST_SERVER; see docs/operations.md.

import { execFileSync } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { encodeTokens, type EmbedJobData, type EmbedReturn } from '@shoal/contract';
import type { RawClaim } from '@shoal/core';
import { RecordingLogger, describeJobSource } from '@shoal/core/testing';
import { BullJobSource } from '../worker/bull-job-source.ts';
import { closeConnection, connected, openConnection, untilReady } from './connection.ts';
import { JobProducer } from '../producer/job-producer.ts';
import { RedisPayloadStore } from '../payload.ts';
import { ResultReader } from '../producer/result-reader.ts';
import { claimAll, claimSome } from '../testing/claims.ts';
import { jobSourceHarness } from '../testing/job-source-harness.ts';
import { startTestServer, startTestTopology, type TestServer } from '../testing.ts';

const QUEUE = 'embed-x';
const LEASE_MS = 900;
let prefixes = 0;

function describeSourceOn(kind: string, urlOf: () => string): void {
  describeJobSource(`BullJobSource on ${kind}`, async () => {
    const prefix = `{t-kinds-${++prefixes}}`;
    return jobSourceHarness({
      redisUrl: urlOf(),
      prefix,
      queue: QUEUE,
      leaseMs: LEASE_MS,
      open: () => openSource(urlOf(), prefix),
    });
  });
}

function openSource(redisUrl: string, prefix: string): BullJobSource {
  return new BullJobSource({
    redisUrl,
    prefix,
    queue: QUEUE,
    quarantineOf: QUEUE,
    leaseMs: LEASE_MS,
    stalledCheckMs: 300,
    log: new RecordingLogger(),
  });
}

for (const kind of ['sentinel', 'cluster'] as const) {
  describe(`with ${kind === 'sentinel' ? 'Sentinels' : 'a cluster'}`, () => {
    let servers: Awaited<ReturnType<typeof startTestTopology>>;
    const stopped: { stop(): Promise<void> }[] = [];

    beforeAll(async () => {
      servers = await startTestTopology(kind);
    });
    afterEach(async () => {
      for (const part of stopped.splice(0)) await part.stop();
    });
    afterAll(() => servers.stop());

    describeSourceOn(kind, () => servers.url);

    const keep = <Part extends { stop(): Promise<void> } | { close(): Promise<void> }>(part: Part): Part => {
      stopped.push({ stop: () => ('stop' in part ? part.stop() : part.close()) });
      return part;
    };

    /** A producer with jobs of tokens on the queue, and a worker's three connections to the server. */
    async function setScene(prefix: string) {
      const options = { redisUrl: servers.url, prefix, queue: QUEUE, log: new RecordingLogger() };
      const producer = keep(await JobProducer.connect(options));
      const reader = keep(await ResultReader.connect({ ...options, replyName: 'me' }));
      const store = keep(await RedisPayloadStore.connect(options));
      const source = keep(openSource(servers.url, prefix));
      await source.start();
      return { producer, reader, store, source };
    }

    test(
      'a master that dies is succeeded: jobs that its replica has are claimed, committed and completed, new ones ' +
        'are taken',
      async () => {
        const { producer, store, source } = await setScene('{shoal}');
        const before = newJobs('before', 40);
        await producer.add(before);
        const claims = await claimAll(source, 20);
        await servers.durable();
        await servers.kill9();
        const after = newJobs('after', 20);
        const added = await untilTaken(() => producer.add(after));
        expect(added.every(({ outcome }) => outcome === 'added' || outcome === 'known')).toBe(true);
        const ended = new Set<string>();
        const finish = async (claim: RawClaim): Promise<void> => {
          const [input] = await store.read([{ jobId: claim.jobId, hasInput: true }]);
          expect(input?.input).toEqual(encodeTokens([[1, 2, 3]]));
          if ((await source.settle(claim, { kind: 'complete', value: RETURN })) === 'settled') ended.add(claim.jobId);
        };
        await Promise.all(claims.map(finish));
        while (ended.size < 60) await Promise.all((await claimSome(source, 60)).map(finish));
        expect((await producer.counts()).completed).toBe(60);
        await servers.restart();
      },
    );

    test(
      'a master that is demoted while connections to it live is left, without a word lost or an unhandled ' +
        'rejection',
      async () => {
        const { producer, reader, source } = await setScene('{shoal}');
        const heard: string[] = [];
        reader.onReply(({ completed }) => heard.push(...completed));
        await producer.add(newJobs('one', 4));
        await claimAll(source, 4).then((claims) =>
          Promise.all(claims.map((claim) => source.settle(claim, { kind: 'complete', value: RETURN }))),
        );
        await servers.switchOver();
        await untilTaken(() => producer.add(newJobs('two', 4)));
        const claims = await claimAll(source, 4);
        expect(claims.map(({ jobId }) => jobId).sort()).toEqual(['two-0', 'two-1', 'two-2', 'two-3']);
        expect(
          await Promise.all(claims.map((claim) => source.settle(claim, { kind: 'complete', value: RETURN }))),
        ).toEqual(Array.from({ length: 4 }, () => 'settled'));
        await servers.command(
          'PUBLISH',
          reader.replyChannel,
          JSON.stringify({ v: 1, queue: QUEUE, completed: ['two-0'], failed: [] }),
        );
        while (!heard.includes('two-0')) {
          await sleep(20);
          await servers.command(
            'PUBLISH',
            reader.replyChannel,
            JSON.stringify({ v: 1, queue: QUEUE, completed: ['two-0'], failed: [] }),
          );
        }
      },
    );
  });
}

test('in a cluster each prefix is served by the node that owns its slot, whatever node the URL names', async () => {
  const servers = await startTestTopology('cluster', { replicas: 0 });
  const ports = new Set<string | undefined>();
  for (let i = 0; i < 12; i++) {
    const prefix = `{t-${i}}`;
    const connection = await connected({ url: servers.url.replace(/,.*/, ''), prefix, name: 'test' });
    await connection.set(`${prefix}:a`, i);
    expect(await connection.get(`${prefix}:a`)).toBe(String(i));
    ports.add(/tcp_port:(\d+)/.exec(await connection.info('server'))?.[1]);
    await closeConnection(connection);
  }
  expect(ports.size).toBe(3);
  await servers.stop();
});

test('what is not a cluster, and Sentinels that know no such master, are named with what they said', async () => {
  const server = await startTestServer({ topology: 'single' });
  const single = server.url.replace('redis://', 'redis+cluster://');
  const connection = openConnection({ url: single, name: 'test' });
  await expect(untilReady(connection, single, { waitMs: 1_000 })).rejects.toMatchObject({
    code: 'QUEUE_UNREACHABLE',
    message: expect.stringMatching(/cluster support disabled/),
  });
  await closeConnection(connection);
  const none = 'redis+sentinel://127.0.0.1:1,127.0.0.1:2/none';
  const away = openConnection({ url: none, name: 'test' });
  await expect(untilReady(away, none, { waitMs: 500 })).rejects.toMatchObject({
    code: 'QUEUE_UNREACHABLE',
    message: expect.stringMatching(/sentinels are unreachable/),
  });
  await closeConnection(away);
  await server.stop();
});

const redis70 = process.env['SHOAL_TEST_REDIS_7_0'] ?? 'redis-server';
const redis70Version = versionOf(redis70);
const isRedis70 = redis70Version?.startsWith('7.0.') === true;
if (!isRedis70)
  console.warn(
    `skipped: the queue on Redis 7.0, because ${redis70} ` +
      `${
        redis70Version === undefined
          ? 'is not installed (apt-get install redis-server on Debian 12)'
          : `is ${redis70Version}`
      }`,
  );

describe.skipIf(!isRedis70)('with Redis 7.0', () => {
  let server: TestServer;
  beforeAll(async () => {
    server = await startTestServer({ program: redis70, topology: 'single' });
  });
  afterAll(() => server.stop());
  describeSourceOn(`Redis ${redis70Version}`, () => server.url);
});

function versionOf(program: string): string | undefined {
  try {
    return /v=(\d+\.\d+\.\d+)/.exec(execFileSync(program, ['--version'], { encoding: 'utf8' }))?.[1];
  } catch {
    return undefined;
  }
}

const RETURN: EmbedReturn = {
  v: 1,
  key: '{shoal}:out:embed-x:a',
  model: 'x@1',
  rows: 1,
  dims: 4,
  dtype: 'f32',
  device: 'cpu',
  precision: 'fp32',
  tokens: 3,
  truncated: 0,
  splits: 0,
  ms: { queued: 1, run: 2 },
};

function newJobs(name: string, count: number) {
  const data: EmbedJobData = {
    v: 1,
    fingerprint: '00112233445566ff',
    input: { form: 'tokens', rows: 1, tokens: 3, tokenizer: '00112233445566ff' },
  };
  return Array.from({ length: count }, (_, index) => ({
    jobId: `${name}-${index}`,
    data,
    input: encodeTokens([[1, 2, 3]]),
  }));
}

/** As a producer does: a call that met a fault is repeated as a whole. */
async function untilTaken<Value>(call: () => Promise<Value>): Promise<Value> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await call();
    } catch (error) {
      if (attempt > 100 || Reflect.get(error as object, 'code') !== 'QUEUE_UNREACHABLE') throw error;
      await sleep(100);
    }
  }
}
