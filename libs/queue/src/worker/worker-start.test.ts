// A worker in another container, or on another machine, than its predecessor: no pid tells whether that one lives, its
// start does.

import { Queue } from 'bullmq';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { keySpace } from '@shoal/contract';
import { RecordingLogger } from '@shoal/core/testing';
import { closeConnection, openConnection, type Redis } from '../redis/connection.ts';
import { startTestServer, type TestServer } from '../testing.ts';
import { claimAll } from '../testing/claims.ts';
import { BullJobSource } from './bull-job-source.ts';

const NAME = 'shoal-worker-0';
/** What lock tokens of a worker of this name begin with that ran in another container. */
const THEIRS = `${NAME}~abcdef12.4026530000~1~4711`;

let server: TestServer;
let connection: Redis;
let prefix: string;
let prefixes = 0;
const opened: BullJobSource[] = [];

beforeAll(async () => {
  server = await startTestServer();
  connection = openConnection({ url: server.url, name: 'test' });
});
beforeEach(() => (prefix = `{t-start-${++prefixes}}`));
afterEach(async () => {
  await Promise.all(opened.splice(0).map((one) => one.stop()));
});
afterAll(async () => {
  await closeConnection(connection);
  await server.stop();
});

function source(isNameChosen = true, workerName = NAME): BullJobSource {
  const made = new BullJobSource({
    redisUrl: server.url,
    prefix,
    queue: 'embed-x',
    workerName,
    isNameChosen,
    leaseMs: 60_000,
    stalledCheckMs: 60_000,
    log: new RecordingLogger(),
  });
  opened.push(made);
  return made;
}

const starts = (): Promise<string[]> => connection.zrange(keySpace(prefix).starts('embed-x'), '0', '-1');
const lives = (ms: number): Promise<unknown> =>
  connection.zadd(keySpace(prefix).starts('embed-x'), Date.now() + ms, THEIRS);

/** A job that a worker in another container has claimed. */
async function claimedElsewhere(): Promise<void> {
  const queue = new Queue('embed-x', { prefix, connection });
  await queue.add('embed', {}, { jobId: 'a' });
  await queue.close();
  const holder = source(false, 'holder');
  await holder.start();
  await claimAll(holder, 1);
  await connection.set(keySpace(prefix).lock('embed-x', 'a'), `${THEIRS}~uuid:1@60000`, 'PX', 60_000);
}

describe('claims of a predecessor in another container', () => {
  test('come back at once when its start is over', async () => {
    await claimedElsewhere();
    await lives(-1);
    const next = source();
    await next.start();
    expect(await claimAll(next, 1)).toMatchObject([{ jobId: 'a', attempt: 0, stalls: 1 }]);
  });

  test('come back within its life of six seconds, long before the lease, when it was killed just now', async () => {
    await claimedElsewhere();
    await lives(2_000);
    const next = source(false);
    await next.start();
    expect(await claimAll(next, 1)).toMatchObject([{ jobId: 'a' }]);
    expect(await connection.pttl(keySpace(prefix).lock('embed-x', 'a'))).toBeGreaterThan(40_000); // ours by now
  });

  test('are left to their lease while it lives, and when it never said that it did (0.1.0)', async () => {
    await claimedElsewhere();
    await source(false).start();
    expect(await connection.get(keySpace(prefix).lock('embed-x', 'a'))).toContain(THEIRS);
    await lives(60_000);
    await source(false).start();
    expect(await connection.get(keySpace(prefix).lock('embed-x', 'a'))).toContain(THEIRS);
  });
});

describe('a name that somebody chose', () => {
  test('is refused to a second worker while the first lives, and nothing is left of the second', async () => {
    const first = source();
    await first.start();
    const before = await starts();
    const second = source();
    // of this process, whose start is the same: another one has another
    await connection.zadd(keySpace(prefix).starts('embed-x'), Date.now() + 6_000, THEIRS);
    const renewing = setInterval(() => void lives(6_000), 500);
    await expect(second.start()).rejects.toMatchObject({
      code: 'CONFIG_INVALID',
      message: expect.stringMatching(
        /a worker named "shoal-worker-0" serves embed-x already and lives .*--worker-name/,
      ),
    });
    clearInterval(renewing);
    expect(before).toHaveLength(1);
  });

  test('is taken over when the other does not say again that it lives', async () => {
    await lives(1_500);
    const next = source();
    await next.start();
    expect(await starts()).toContain(THEIRS); // over, and told from one that never was
    await next.stop();
    expect(await starts()).toEqual([THEIRS]);
  });

  test('that nobody chose may be had by several, as two workers on one CPU have it', async () => {
    await lives(60_000);
    await expect(source(false).start()).resolves.toBeUndefined();
  });
});
