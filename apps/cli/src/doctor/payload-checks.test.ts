// What doctor says of real payload servers and folders, and of workers that have others.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { payloadSetOf } from '@shoal/queue';
import { WORKER_FACTS, emptyLane, startTestServer, type TestServer } from '@shoal/queue/testing';
import type { QueueSeen } from './fleet-checks.ts';
import { checkPayloadServers } from './payload-checks.ts';

let server: TestServer;
let folder: string;

beforeAll(async () => {
  server = await startTestServer({ topology: 'single', appendFsync: 'no' });
  folder = await mkdtemp(join(tmpdir(), 'shoal-payloads-'));
});

afterAll(async () => {
  await Promise.all([server.stop(), rm(folder, { recursive: true })]);
});

function seen(queue: string, sets: Readonly<Record<string, string | undefined>>): QueueSeen {
  const lanes = { main: emptyLane(queue), cpu: emptyLane(`${queue}-cpu`) };
  const workers = Object.entries(sets).map(([workerId, payloads]) => ({
    workerId,
    facts: { ...WORKER_FACTS, payloads },
  }));
  return { queue, view: { lanes, workers, starting: [], isAllDrained: false } as unknown as QueueSeen['view'] };
}

async function linesOf(payloadServers: string | undefined, queues: readonly QueueSeen[] = []): Promise<string[]> {
  return (await checkPayloadServers(payloadServers, queues)).map(
    ({ state, about, found }) => `${state} ${about}: ${found}`,
  );
}

test('nothing is said without the setting', async () => {
  expect(await linesOf(undefined, [seen('embed-x', { a: undefined })])).toEqual([]);
});

test('each server and folder that takes a body and gives it back is well, and keeps nothing of it', async () => {
  const name = server.url.replace('redis://', '');
  expect(await linesOf(`${server.url},${pathToFileURL(folder).href}`)).toEqual([
    `ok payload server ${name}: takes a body and gives it back`,
    `ok payload server file:${folder}: takes a body and gives it back`,
  ]);
  await expect.poll(() => server.command('DBSIZE')).toBe(0);
});

test('one that takes none is a warning with what it said, and a cure', async () => {
  await server.command('CONFIG', 'SET', 'maxmemory', '1');
  const findings = await checkPayloadServers(`${server.url},file:///no/such/folder`, []);
  await server.command('CONFIG', 'SET', 'maxmemory', '0');
  expect(findings).toMatchObject([
    { state: 'warning', found: expect.stringMatching(/^takes no body \(OOM/), cure: expect.any(String) },
    { state: 'warning', found: expect.stringMatching(/^takes no body \(ENOENT/), cure: expect.any(String) },
  ]);
});

test('one where nothing may be deleted is said to be so', async () => {
  await server.command('ACL', 'SETUSER', 'default', '-unlink');
  const findings = await checkPayloadServers(server.url, []);
  await server.command('ACL', 'SETUSER', 'default', '+unlink');
  expect(findings).toMatchObject([
    { state: 'ok' },
    { state: 'warning', found: expect.stringMatching(/deletes nothing \(NOPERM/), cure: expect.any(String) },
  ]);
});

test('workers that embed and have others are named', async () => {
  const set = payloadSetOf(server.url);
  const queues = [
    seen('embed-x', { a: set, b: undefined, c: 'ffffffffffffffff' }),
    seen('similarity', { d: undefined }),
  ];
  expect((await linesOf(server.url, queues)).at(-1)).toBe(
    'warning payload servers of workers: b, c have others, or none: everything goes by the queue server',
  );
  expect((await linesOf(server.url, [seen('embed-x', { a: set })])).at(-1)).toBe(
    'ok payload servers of workers: all have the same',
  );
});
