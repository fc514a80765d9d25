// The password of a queue server is in nothing that commands write, whatever is wrong with its address.

import { writeFileSync } from 'node:fs';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { Sandbox, says } from '../testing/shoal-process.ts';

const MARK = 'Hunter2Marker';
const box = new Sandbox();
let server: TestServer;
let url: string;

beforeAll(async () => {
  box.shareModels();
  server = await startTestServer();
  await server.command('CONFIG', 'SET', 'requirepass', MARK);
  url = server.url.replace('redis://', `redis://:${MARK}@`);
});
afterAll(async () => {
  await server.stop();
  box.remove();
});

test('of addresses that are none, wherever they were given', async () => {
  writeFileSync(box.path('shoal.config.json'), `{"redisUrl": redis://:${MARK}@h}`);
  const runs = [
    box.run(['queue', 'counts'], { folder: box.root, environment: { REDIS_URL: `user:${MARK}@host` } }),
    box.run(['queue', 'counts', '--redis-url', `redis:/u:${MARK}@host`], { folder: box.root }),
    box.run(['doctor', '--redis-url', `redis://127.0.0.1:1?password=${MARK}`, '--device', 'sim:1'], {
      folder: box.root,
    }),
    box.run(['queue', 'counts', `--redisurl=redis://:${MARK}@h`], { folder: box.root }),
    box.run(['embed', `redis://:${MARK}@host`, '--redis-url', `redis://a,redis://:${MARK}@b`], { folder: box.root }),
    box.run(['queue', 'counts']),
  ];
  for (const { code, stdout, stderr } of await Promise.all(runs)) {
    expect(code).not.toBe(0);
    expect(`${stdout}${stderr}`).not.toContain(MARK);
    expect(stderr).toMatch(/^shoal: /m);
  }
});

test('of the one that is used: in what is printed, in logs, metrics and pages, and in the list of processes', async () => {
  const environment = { LOG_LEVEL: 'debug', SHOAL_HTTP_PORT: '0', SHOAL_DASHBOARD_PORT: '0' };
  const up = box.start(['up', '--json', '--device', 'sim:8000', '--redis-url', url], { environment, folder: box.root });
  let stdout = '';
  up.child.stdout?.on('data', (text: string) => (stdout += text));
  await vi.waitUntil(() => stdout.includes('\n'), { timeout: 110_000 });
  expect(stdout).toContain('redis://***@');
  const seen = box.processes().map(({ command }) => command);
  expect(seen.length).toBeGreaterThan(3);
  expect(seen.filter((command) => command.includes(MARK))).toEqual([]);
  const { http, dashboard } = JSON.parse(stdout) as { readonly http: string; readonly dashboard: string };
  const worker = await vi.waitUntil(() => /"url":"(http:[^"]+)\/metrics"/.exec(up.stderr())?.[1], { timeout: 110_000 });
  for (const page of [`${http}/metrics`, `${dashboard}/metrics`, `${worker}/metrics`, `${worker}/readyz`, dashboard]) {
    const answer = await (await fetch(page)).text();
    expect(answer).toMatch(/shoal|ready/i);
    expect(answer).not.toContain(MARK);
  }
  await server.kill9();
  await says(up, 'queue server lost');
  up.child.kill('SIGTERM');
  const { stderr } = await up.ended;
  expect(stdout + stderr).not.toContain(MARK);
});
