// Who works on a batch: one process at a time, and after a kill another one.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { noLog } from '@shoal/core';
import { BatchStore, ownerOf } from './batch-store.ts';
import { DiskStorage } from './disk-storage.ts';
import { Held, LeaseLost } from './held.ts';
import { InFlight } from './in-flight.ts';
import { inTurns } from './runner.ts';
import { newId, nowSeconds, type BatchRecord } from './records.ts';

let folder: string;
let store: BatchStore;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-held-'));
  store = new BatchStore(await DiskStorage.open(folder));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const LONG = { leaseMs: 60_000, log: noLog };

async function newBatch(tenant = 'acme'): Promise<BatchRecord> {
  const record: BatchRecord = {
    tenant,
    id: newId('batch'),
    endpoint: '/v1/embeddings',
    input_file_id: newId('file'),
    completion_window: '24h',
    status: 'in_progress',
    created_at: nowSeconds(),
    expires_at: nowSeconds() + 60,
    request_counts: { total: 0, completed: 0, failed: 0 },
    tokens: 0,
    metadata: null,
    progress: { shards: 0, line: 0, offset: 0 },
  };
  return (await store.create('batch', record)).record;
}

async function claim({ tenant, id }: BatchRecord, owner: string, leaseMs = 60_000): Promise<Held<'batch'> | undefined> {
  const found = await store.find('batch', tenant, id);
  return Held.claim(store, 'batch', found!, { ...LONG, owner, leaseMs });
}

test('of two processes that want a batch one gets it, until it lets go', async () => {
  const batch = await newBatch();
  const found = (await store.find('batch', batch.tenant, batch.id))!;
  const claims = await Promise.all(
    ['a', 'b', 'c'].map((owner) => Held.claim(store, 'batch', found, { ...LONG, owner })),
  );
  const [held, ...others] = claims.filter((one) => one !== undefined);
  expect(others).toEqual([]);
  expect(await claim(batch, 'd')).toBeUndefined();
  await held!.end((record) => ({ ...record, tokens: 5 }));
  const next = await claim(batch, 'd');
  expect(next?.record.tokens).toBe(5);
  next!.drop();
});

test('who stood still until the lease ran out hears that another has it, and writes nothing', async () => {
  const batch = await newBatch();
  const first = (await claim(batch, 'a', 1))!;
  first.drop(); // it renews no more
  await expect.poll(() => claim(batch, 'b')).toBeDefined();
  await expect(first.save((record) => ({ ...record, tokens: 1_000 }))).rejects.toThrow(LeaseLost);
  expect(first.interrupted.signal.aborted).toBe(true);
  expect((await store.find('batch', batch.tenant, batch.id))!.record.tokens).toBe(0);
});

test('a lease is renewed while it is held', async () => {
  const batch = await newBatch();
  const held = (await claim(batch, 'a', 100))!;
  const until = (): Promise<number> =>
    store.find('batch', batch.tenant, batch.id).then((found) => found!.record.lease!.untilMs);
  const first = await until();
  await expect.poll(until).toBeGreaterThan(first);
  held.drop();
});

test('a cancellation by another process is seen, and both changes stay', async () => {
  const batch = await newBatch();
  const held = (await claim(batch, 'a'))!;
  await store.update('batch', batch.tenant, batch.id, (record) => ({ ...record, status: 'cancelling' }));
  await held.save((record) => ({ ...record, tokens: 7 }));
  expect(held.interrupted.signal.reason).toBe('cancelled');
  expect((await store.find('batch', batch.tenant, batch.id))!.record).toMatchObject({
    status: 'cancelling',
    tokens: 7,
  });
  held.drop();
});

test('what is another tenant’s is not there', async () => {
  const batch = await newBatch('acme');
  expect(await store.find('batch', 'other', batch.id)).toBeUndefined();
  expect(await store.update('batch', 'other', batch.id, (record) => record)).toBeUndefined();
  expect((await store.page('batch', 'other', { limit: 10 }))!.data).toEqual([]);
  expect(await store.page('batch', 'other', { limit: 10, after: batch.id })).toBeUndefined();
  expect(await store.find('file', 'acme', batch.id)).toBeUndefined(); // of another kind
});

test('what has expired, or ended long ago, is removed with its contents; what goes on is kept', async () => {
  const tenant = 'swept';
  const going = await newBatch(tenant);
  const ended = await newBatch(tenant);
  await store.update('batch', tenant, ended.id, (record) => ({ ...record, status: 'completed', completed_at: 1 }));
  const told = await newBatch(tenant);
  const webhook = { url: 'https://example.com', status: 'pending', attempts: 1 } as const;
  await store.update('batch', tenant, told.id, (record) => ({ ...record, status: 'failed', failed_at: 1, webhook }));
  const file = { tenant, id: newId('file'), bytes: 1, created_at: 1, filename: 'a', purpose: 'batch' } as const;
  await store.create('file', { ...file, expires_at: nowSeconds() - 1 });
  await store.mark('batch', tenant, going.id);
  const input = { ...file, id: going.input_file_id, expires_at: nowSeconds() - 1 };
  await store.create('file', input); // expired, and still read
  await store.storage.write(store.contentKey(tenant, file.id), [Buffer.from('x')]);
  await store.storage.write(store.shardKey(tenant, ended.id, 0, 'out'), [Buffer.from('x')]);
  const orphans = [`file-${'f'.repeat(32)}`, newId('file')]; // of an upload that was killed long ago, and of one that goes on
  for (const id of orphans) await store.storage.write(store.contentKey(tenant, id), [Buffer.from('x')]);
  expect(await store.find('file', tenant, file.id)).toBeUndefined(); // at once
  expect(await store.sweep(tenant, 60)).toBe(3);
  expect(await store.find('batch', tenant, ended.id)).toBeUndefined();
  expect(await store.find('batch', tenant, going.id)).toBeDefined();
  expect(await store.find('batch', tenant, told.id)).toBeDefined();
  expect(await store.findOf('file', ownerOf(tenant), input.id)).toBeDefined();
  expect(await store.tooMany('batch', tenant, 1)).toBe(1);
  expect(await store.tooMany('batch', tenant, 2)).toBeUndefined();
  expect(await store.storage.read(store.contentKey(tenant, file.id))).toBeUndefined();
  expect(await store.storage.read(store.shardKey(tenant, ended.id, 0, 'out'))).toBeUndefined();
  const left = await Promise.all(orphans.map((id) => store.storage.read(store.contentKey(tenant, id))));
  expect(left.map((one) => one !== undefined)).toEqual([false, true]);
  const tenants: string[] = [];
  for await (const one of store.tenants()) tenants.push(one);
  expect(tenants.toSorted()).toEqual(['acme', tenant]);
});

test('so many rows are with the queue at a time, first come, first served, and who leaves makes room', async () => {
  const room = new InFlight(4);
  const { signal } = new AbortController();
  const leaving = new AbortController();
  const leave = await room.enter(3 * 64, signal);
  const order: string[] = [];
  const large = room.enter(10_000, leaving.signal).then(
    () => order.push('large'),
    () => order.push('left'),
  );
  const small = room.enter(1, signal).then((done) => {
    order.push('small');
    return done;
  });
  await new Promise((resolve) => setImmediate(resolve));
  expect(order).toEqual([]); // the small one waits behind the large one
  leaving.abort('gone');
  (await small)();
  await large;
  expect(order.toSorted()).toEqual(['left', 'small']);
  leave();
  leave(); // twice is once
  const all = await room.enter(4 * 64, signal);
  all();
});

const of = (owner: string, id: string) => ({ kind: 'batch', owner, id }) as const;

test('batches are taken in turns of their owners, the oldest of each first', () => {
  const free = [of('a', 'a1'), of('a', 'a2'), of('a', 'a3'), of('b', 'b9'), of('c', 'c5')];
  expect(inTurns(free, ['c']).map(({ id }) => id)).toEqual(['b9', 'a3', 'c5', 'a2', 'a1']);
  expect(inTurns([], ['c'])).toEqual([]);
});
