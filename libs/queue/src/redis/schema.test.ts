// What a process does that meets structures which it cannot read: it refuses before it has changed anything.

import { afterAll, afterEach, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { keySpace } from '@shoal/contract';
import { RecordingLogger } from '@shoal/core/testing';
import { Fleet } from '../lanes/fleet.ts';
import { JobProducer } from '../producer/job-producer.ts';
import { QueueGauge } from '../producer/queue-depth.ts';
import { TestPlace, startTestServer } from '../testing.ts';
import { BoardQueues } from '../upkeep/board-queues.ts';
import { QueueAdmin } from '../upkeep/queue-admin.ts';
import { BullJobSource } from '../worker/bull-job-source.ts';
import { closeConnection, openConnection, type Redis } from './connection.ts';
import { SCHEMA_VERSION, checkSchema } from './schema.ts';

let place: TestPlace;
let connection: Redis;
let prefix: string;

beforeAll(async () => {
  place = new TestPlace(await startTestServer(), 'schema');
  ({ connection } = place);
});
beforeEach(() => ({ prefix } = place));
afterEach(() => place.clear());
afterAll(() => place.stop());

const schema = (): Promise<Record<string, string>> => connection.hgetall(keySpace(prefix).schema());

function source(): BullJobSource {
  const log = new RecordingLogger();
  const lease = { leaseMs: 15_000, stalledCheckMs: 5_000 };
  return new BullJobSource({ ...place.address, queue: 'embed-x', version: '1.2.3', ...lease, log });
}

/** Every way into a queue that a process has. */
const DOORS: readonly (readonly [string, () => Promise<{ stop?(): Promise<void>; close?(): Promise<void> }>])[] = [
  [
    'a worker',
    () =>
      source()
        .start()
        .then(() => ({})),
  ],
  ['a producer', () => JobProducer.connect({ ...place.address, queue: 'embed-x' })],
  ['fleet commands', () => Fleet.connect({ ...place.address, queue: 'embed-x' })],
  ['queue commands', () => QueueAdmin.connect({ ...place.address, queue: 'embed-x' })],
  ['health checks', () => QueueGauge.connect({ ...place.address, queue: 'embed-x' })],
  ['the dashboard', () => BoardQueues.connect(place.address)],
];

test('the first worker writes it down, and the next one leaves it as it is', async () => {
  const worker = source();
  await worker.start();
  await worker.stop();
  const first = await schema();
  const version = String(SCHEMA_VERSION);
  expect(first).toEqual({ version, minReader: version, maxReader: version, writer: '1.2.3' });
  await connection.hset(keySpace(prefix).schema(), 'writer', '1.0.0');
  const next = source();
  await next.start();
  await next.stop();
  expect(await schema()).toEqual({ ...first, writer: '1.0.0' });
});

test.each(DOORS)('%s refuses structures that only newer processes read, and changes nothing', async (_, open) => {
  await connection.hset(keySpace(prefix).schema(), { version: 7, minReader: 6, maxReader: 7, writer: '3.0.0' });
  const before = await connection.keys(`${prefix}*`);
  await expect(open()).rejects.toMatchObject({
    code: 'QUEUE_UNSAFE',
    message: expect.stringMatching(
      /written by Shoal 3\.0\.0 in structures of version 7, which only .* know version 6; this one knows 1\. Update it \(docs\/upgrade\.md\)/,
    ),
  });
  expect(await connection.keys(`${prefix}*`)).toEqual(before);
  await vi.waitFor(async () => expect(String(await place.server.command('CLIENT', 'LIST'))).not.toMatch(/name=shoal/), {
    timeout: 20_000,
  });
});

test('structures of a later version that this one can read are good, and so is a server without any', async () => {
  await connection.hset(keySpace(prefix).schema(), { version: 7, minReader: 1, maxReader: 7, writer: '3.0.0' });
  await expect(checkSchema(connection, prefix)).resolves.toBeUndefined();
  await expect(checkSchema(connection, '{t-schema-none}')).resolves.toBeUndefined();
});

test('structures older than what a process still reads are refused with what to do first', async () => {
  await connection.hset(keySpace(prefix).schema(), { version: 1, minReader: 1, maxReader: 1, writer: '0.1.0' });
  await expect(checkSchema(connection, prefix, { knows: 3, oldest: 2 })).rejects.toMatchObject({
    code: 'QUEUE_UNSAFE',
    message: expect.stringMatching(/reads none older than 2\. Let workers of Shoal 0\.1\.0 empty the queues first/),
  });
});

test('a key that says something else is named with how to mend it', async () => {
  await connection.hset(keySpace(prefix).schema(), { version: 'seven' });
  await expect(checkSchema(connection, prefix)).rejects.toMatchObject({
    code: 'QUEUE_DAMAGED',
    message: expect.stringMatching(/says version "seven".*DEL '\{t-schema-\d+\}:schema'/),
  });
  await connection.del(keySpace(prefix).schema());
  await connection.set(keySpace(prefix).schema(), 'text');
  await expect(checkSchema(connection, prefix)).rejects.toMatchObject({ code: 'QUEUE_DAMAGED' });
});

test('a server that answers for long that it cannot yet is unreachable in our words, with its own', async () => {
  const orphan = await startTestServer({ topology: 'single', appendFsync: 'no' });
  await orphan.command('CONFIG', 'SET', 'replica-serve-stale-data', 'no');
  await orphan.command('REPLICAOF', '127.0.0.1', 1);
  const waiting = openConnection({ url: orphan.url, name: 'test' });
  await expect(checkSchema(waiting, prefix, undefined, 500)).rejects.toMatchObject({
    code: 'QUEUE_UNREACHABLE',
    message: expect.stringMatching(/answers and cannot serve yet, for 0\.5 s: MASTERDOWN .*[^.]\. Try again/),
    fields: { reply: expect.stringMatching(/^MASTERDOWN/) },
  });
  await closeConnection(waiting);
  await orphan.stop();
});
