import { afterAll, beforeAll, expect, test } from 'vitest';
import { startTestServer, type TestServer } from '../testing.ts';
import { ServerWatch } from './server-watch.ts';

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ args: ['--maxmemory', '200mb'] });
});
afterAll(() => server.stop());

test('tells whether the server answers, how fast, with how much memory, and how often it came back', async () => {
  const watch = ServerWatch.open({ redisUrl: server.url, everyMs: 50 });
  const trips: number[] = [];
  watch.onRoundTrip((ms) => trips.push(ms));
  await expect.poll(() => watch.memory?.maxBytes, { timeout: 10_000 }).toBe(200 * 1024 * 1024);
  expect([watch.isUp, watch.memory!.usedBytes > 500_000, trips.every((ms) => ms > 0)]).toEqual([true, true, true]);
  const before = watch.reconnects;
  await server.kill9();
  await expect.poll(() => watch.isUp, { timeout: 10_000 }).toBe(false);
  expect(watch.memory).toBeUndefined();
  await server.restart();
  await expect.poll(() => watch.isUp, { timeout: 20_000 }).toBe(true);
  expect(watch.reconnects).toBeGreaterThan(before);
  await watch.stop();
  await watch.stop();
});

test('a server that is stopped is away within two seconds; one that never was there keeps nobody', async () => {
  const watch = ServerWatch.open({ redisUrl: server.url, everyMs: 60_000 });
  await expect.poll(() => watch.isUp, { timeout: 10_000 }).toBe(true);
  await watch.look(); // the one that is under way
  process.kill(server.pid, 'SIGSTOP');
  try {
    await watch.look();
    expect(watch.isUp).toBe(false);
  } finally {
    process.kill(server.pid, 'SIGCONT');
  }
  await watch.stop();
  const nowhere = ServerWatch.open({ redisUrl: 'redis://127.0.0.1:1' });
  await nowhere.look();
  expect(nowhere.isUp).toBe(false);
  await nowhere.stop();
});
