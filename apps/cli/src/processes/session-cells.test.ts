// Two cells that are real servers, one of which is killed.

import { afterAll, beforeAll, expect, test } from 'vitest';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import type { Terminal } from '../terminal.ts';
import { AskedCells, beginningCell } from './session-cells.ts';

const terminal = { ...process, signal: new AbortController().signal } as unknown as Terminal;
let [a, b]: TestServer[] = [];

beforeAll(async () => {
  [a, b] = await Promise.all([startTestServer({ topology: 'single' }), startTestServer({ topology: 'single' })]);
});

afterAll(() => Promise.all([a!.stop(), b!.stop()]));

function listed({ write = true } = {}): string {
  return JSON.stringify([
    { name: 'a', address: a!.url },
    { name: 'b', address: b!.url, write },
  ]);
}

async function beginning(write = true): Promise<string> {
  const settings = { cells: listed({ write }), redisUrl: a!.url, prefix: '{t}' };
  return (await beginningCell(terminal, settings, true)).name;
}

test('a command begins with home, and with another cell that takes work where home is away', async () => {
  expect(await beginning()).toBe('a');
  const cells = new AskedCells(listed(), '{t}');
  expect(await cells.ask((connection) => connection.ping())).toEqual(['PONG', 'PONG']);
  await a!.kill9();
  expect(await beginning()).toBe('b');
  await expect.poll(() => cells.ask((connection) => connection.ping())).toEqual(['PONG']);
  const away = { code: 'QUEUE_UNREACHABLE', message: expect.stringContaining(a!.url) };
  await expect(beginning(false)).rejects.toMatchObject(away);
  await b!.kill9();
  await expect(beginning()).rejects.toMatchObject(away);
  await cells.close();
}, 60_000);
