// The user of docs/security.md, exactly as it stands there, on a real server: workers, producers and operators do their
// work, and one without a right is told which.

import { readFileSync, writeFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { Sandbox } from '../testing/shoal-process.ts';

vi.setConfig({ testTimeout: 180_000 }); // a dozen processes

const PAGE = readFileSync(new URL('../../../../docs/security.md', import.meta.url), 'utf8');
const box = new Sandbox();
let server: TestServer;

beforeAll(async () => {
  box.shareModels();
  server = await startTestServer();
});
afterAll(async () => {
  await server.stop();
  box.remove();
});

/** Makes the user of the page's line that begins so, with `change` made to it; returns its URL. */
async function user(name: string, change: (rule: string) => string = (rule) => rule): Promise<string> {
  const line = PAGE.split('\n').find((text) => text.startsWith(`ACL SETUSER ${name} `));
  if (line === undefined) throw new Error(`docs/security.md has no user ${name}`);
  await server.command('ACL', 'DELUSER', name);
  const [, ...rules] = change(line.replace('<password>', 'pw')).split(' ').slice(1);
  await server.command('ACL', 'SETUSER', ...rules);
  return server.url.replace('redis://', `redis://${name}:pw@`);
}

test('the worker and producer of the page embed, and the operator sees and mends the queue', async () => {
  writeFileSync(box.path('texts.txt'), 'one text\nanother\n');
  const url = await user('shoal');
  const embed = await box.run(['embed', 'texts.txt', '--output', 'rows.jsonl', '--redis-url', url]);
  expect([embed.code, embed.stderr]).toEqual([0, expect.not.stringMatching(/NOPERM|permission/i)]);
  expect(readFileSync(box.path('rows.jsonl'), 'utf8').trim().split('\n')).toHaveLength(2);
  const commands = [
    ['queue', 'counts'],
    ['queue', 'pause'],
    ['queue', 'repair'],
    ['fleet', 'status'],
  ];
  const results = await Promise.all(commands.map((command) => box.run([...command, '--redis-url', url])));
  expect(results.map(({ code }, at) => [commands[at], code])).toEqual(commands.map((command) => [command, 0]));
});

test('without the right to INFO a worker and a command say so and which right it is', async () => {
  const url = await user('shoal', (rule) => rule.replace(' +info', ''));
  const results = await Promise.all([
    box.run(['worker', '--device', 'sim:1', '--redis-url', url]),
    box.run(['embed', '-', '--redis-url', url], { input: 'a\n' }),
  ]);
  for (const { code, stderr } of results) {
    expect(code).toBe(1);
    expect(stderr).toMatch(/may not run INFO.*docs\/security\.md/s);
    expect(stderr).not.toMatch(/ReplyError|bug worth|\n {4}at |Unhandled/);
  }
});
