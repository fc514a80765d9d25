// Inputs and results in a bucket, end to end, at night: a real queue server, a store of S3's protocol (moto's, of PyPI),
// core's pipeline and executor on a simulated device, the SDK. Whatever the store does, every row is delivered once and
// is the one that a plain client gets.

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { Redis } from 'ioredis';
import { payloadSetOf } from '@shoal/queue';
import {
  S3Gate,
  startS3Server,
  startTestServer,
  type LaneWorker,
  type S3Server,
  type TestServer,
} from '@shoal/queue/testing';
import { ShoalClient } from './shoal-client.ts';
import { MODEL, ROWS, callsUntil, leaveUntaken, startWorker, tell, texts } from './testing/payload-scene.ts';

const STORE = 's3://shoal/night';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('a bucket under the SDK is tried at night alone, with moto (npm run test:nightly)');

const isResult = (bytes: Buffer): boolean => bytes.subarray(0, 4).toString() === 'SHL1';

describe.skipIf(!isNightly)('(nightly: moto of PyPI)', () => {
  let queueServer: TestServer;
  let redis: Redis;
  let s3: S3Server;
  let gate: S3Gate;
  let worker: LaneWorker;
  let prefix = '';
  let tests = 0;
  const closers: (() => Promise<unknown>)[] = [];

  beforeAll(async () => {
    [queueServer, s3] = await Promise.all([startTestServer(), startS3Server()]);
    await s3.makeBucket('shoal');
    gate = await S3Gate.open(s3.endpoint);
    Object.assign(process.env, s3.credentials, { AWS_ENDPOINT_URL_S3: gate.endpoint });
    redis = new Redis(queueServer.url, { maxRetriesPerRequest: null });
  }, 600_000);

  beforeEach(async () => {
    prefix = `{t-bucket-${++tests}}`;
    await s3.empty();
    await work();
    await tell(redis, prefix, payloadSetOf(STORE));
  });

  afterEach(async () => {
    gate.refuse(undefined);
    for (const close of closers.splice(0).toReversed()) await close();
  });

  afterAll(async () => {
    delete process.env['AWS_ENDPOINT_URL_S3'];
    redis.disconnect();
    await gate.close();
    await Promise.all([queueServer.stop(), s3.stop()]);
  });

  async function work(): Promise<void> {
    const started = await startWorker({ redisUrl: queueServer.url, prefix, payloadServers: STORE });
    worker = started;
    closers.push(() => started.stop());
  }

  async function connect(payloadServers: string | undefined = STORE): Promise<ShoalClient> {
    const options = { redisUrl: queueServer.url, prefix, model: MODEL, jobTexts: ROWS };
    const client = await ShoalClient.connect({ ...options, ...(payloadServers !== '' && { payloadServers }) });
    closers.push(() => client.close());
    return client;
  }

  /** As vectors come without payload servers. */
  async function expected(asked: readonly string[]): Promise<Buffer> {
    return bytesOf((await (await connect('')).embed(asked, { jobId: `plain-${asked.length}` })).vectors);
  }

  async function leave(runId: string, asked: readonly string[]): Promise<void> {
    closers.push(await leaveUntaken(await connect(), runId, asked));
  }

  const held = async (): Promise<number> => (await s3.objects('shoal')).size;

  test('inputs and results lie there, and are gone once they are taken', async () => {
    const asked = texts(4 * ROWS);
    const vectors = await expected(asked);
    await leave('seen', texts(ROWS));
    expect([...(await s3.objects('shoal')).values()].some(isResult)).toBe(true);
    const client = await connect();
    expect(bytesOf((await client.embed(asked)).vectors).equals(vectors)).toBe(true);
    expect(client.counts()).toMatchObject({ delivered: 4, askedAgain: 0 });
  });

  test.each<[string, () => Promise<unknown>]>([
    ['is emptied', () => s3.empty()],
    ['was killed', () => s3.kill9().then(() => s3.restart())],
    ['has other bytes', () => replaceResults((bytes) => Buffer.from(bytes).fill(1, bytes.length - 4))],
    ['has less of it', () => replaceResults((bytes) => bytes.subarray(0, -4))],
  ])('a result that the store loses because it %s is computed again', async (_, spoil) => {
    const asked = texts(ROWS);
    const vectors = await expected(asked);
    await leave('a', asked);
    await spoil();
    const client = await connect();
    expect(bytesOf((await client.embed(asked, { jobId: 'a-0' })).vectors).equals(vectors)).toBe(true);
    expect(client.counts()).toMatchObject({ ready: 1, askedAgain: 1 });
  });

  test.each<[string, () => Promise<unknown>]>([
    ['is emptied', () => s3.empty()],
    ['has other bytes', async () => replaceAll((bytes) => Buffer.from(bytes).fill(1, bytes.length - 4))],
  ])('an input that the store loses because it %s is asked for again', async (_, spoil) => {
    const asked = texts(ROWS);
    const vectors = await expected(asked);
    await worker.stop();
    const client = await connect();
    const embedded = client.embed(asked);
    await expect.poll(held, { timeout: 20_000 }).toBe(1);
    await spoil();
    await work();
    expect(bytesOf((await embedded).vectors).equals(vectors)).toBe(true);
    expect(client.counts()).toMatchObject({ askedAgain: 1 });
  });

  test.each([
    ['asks for patience', { status: 503, code: 'SlowDown', methods: ['PUT', 'GET', 'DELETE'] }],
    ['is full', { status: 507, code: 'InsufficientStorage', methods: ['PUT'] }],
    ['is closed to us', { status: 403, code: 'AccessDenied', methods: ['PUT', 'GET', 'DELETE'] }],
  ])('a store that %s in the middle costs no row', async (_, refusal) => {
    const asked = texts(12 * ROWS);
    const vectors = await expected(asked);
    const client = await connect();
    const refused = (async () => {
      await expect.poll(held, { interval: 5, timeout: 20_000 }).toBeGreaterThan(0);
      gate.refuse(refusal);
      await expect.poll(() => gate.refused.get('PUT'), { timeout: 20_000 }).toBeGreaterThan(0);
    })();
    for (const found of await callsUntil(refused, client, asked)) expect(bytesOf(found).equals(vectors)).toBe(true);
  });

  async function replaceAll(make: (bytes: Buffer) => Buffer, which: (bytes: Buffer) => boolean = () => true) {
    for (const [key, bytes] of await s3.objects('shoal'))
      if (which(bytes)) await s3.write('shoal', key, Uint8Array.from(make(bytes)));
  }

  async function replaceResults(make: (bytes: Buffer) => Buffer): Promise<void> {
    await replaceAll(make, isResult);
  }
});

function bytesOf({ buffer, byteOffset, byteLength }: Float32Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength);
}
