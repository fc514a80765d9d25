// What a producer leaves behind is on the server's disk before it goes, as far as the server has one.

import { expect, test } from 'vitest';
import { startTestServer } from '../testing.ts';
import { Durability } from './durability.ts';

test.each([
  ['with an append-only file, those who ask together wait together', 'everysec', /^[12]$/],
  ['without one there is nothing to wait for', 'no', /^[0-9]+$/],
] as const)('%s', async (_, appendFsync, calls) => {
  const server = await startTestServer({ appendFsync, topology: 'single' });
  const durability = new Durability({ redisUrl: server.url });
  await Promise.all(Array.from({ length: 20 }, () => durability.settled()));
  const stats = String(await server.command('INFO', 'commandstats'));
  expect(/cmdstat_waitaof:calls=(\d+)/.exec(stats)?.[1]).toMatch(calls);
  await durability.close();
  await server.stop();
});
