// The fleet page by its HTTP, on a real queue server with workers that only tell: what stands on it, what is found to
// need somebody, and what the stream tells. chromium.test.ts looks at it.

import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { keySpace } from '@shoal/contract';
import { noLog } from '@shoal/core';
import { Quarantine } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createDashboard, type Dashboard } from './dashboard.ts';
import { PREFIX, QUEUE, SimulatedFleet } from './testing/simulated-fleet.ts';

let server: TestServer;
let dashboard: Dashboard;
let fleet: SimulatedFleet;

beforeAll(async () => {
  server = await startTestServer();
});
beforeEach(async () => {
  await server.command('FLUSHALL');
  fleet = new SimulatedFleet(server);
  await fleet.queue().waitUntilReady();
  dashboard = await createDashboard({ redisUrl: server.url, prefix: PREFIX, host: '127.0.0.1', port: 0, log: noLog });
});
afterEach(async () => {
  await dashboard.stop();
  await fleet.stop();
});
afterAll(() => server.stop());

async function get(
  path: string,
): Promise<{ readonly status: number; readonly text: string; readonly headers: Headers }> {
  const response = await fetch(`${dashboard.url}${path}`);
  return { status: response.status, text: plain(await response.text()), headers: response.headers };
}

/** As it is read: without tags, blanks as one. */
function plain(markup: string): string {
  return markup.replaceAll(/<[^>]*>/g, ' ').replaceAll(/\s+/g, ' ');
}

test('an empty fleet says so, and is for looking only', async () => {
  const { status, text, headers } = await get('/');
  expect(status).toBe(200);
  expect(text).toContain('No worker is there, and no job waits');
  expect(text).toContain('For looking only');
  expect(text).not.toContain('Pause');
  expect(headers.get('content-security-policy')).toContain("default-src 'none'");
});

test('workers with what they are, hold, ran and lost', async () => {
  const card = { name: 'NVIDIA H200', utilization: 0.87, temperatureCelsius: 61, powerWatts: 512.4, uuid: 'GPU-1' };
  const events = { 'lost killed by SIGKILL': 2 };
  await fleet.add({ workerId: 'gpu-07-cuda0-00000001', rate: () => 12_000, events, facts: { card } });
  const { text } = await get('/');
  for (const words of [
    'Look: gpu-07-cuda0-00000001 lost its executor 2 times in ten minutes: killed by SIGKILL. docs/runbooks/executor-losses.md',
    'ready It claims',
    'cuda:0, fp16',
    'minilm@c9745ed1d9f2',
    'NVIDIA H200, 87 % used, 61 °C, 512 W, GPU-1',
    'Metrics http://127.0.0.1:9464',
    'model 2 GB peak 7 GB others 20 GB free 112 GB',
    'Texts a second 12 k',
    'Padding 7 %',
    'Last micro-batches',
    'docs~0001',
    '2 × executor lost: killed by SIGKILL',
  ])
    expect(text).toContain(words);
});

test.each([
  [
    'a paused queue',
    async () => fleet.queue().pause(),
    `${QUEUE} is paused, 1 job waits. shoal queue resume --queue ${QUEUE}`,
  ],
  [
    'drained workers',
    async () => drainAll(),
    `all workers of ${QUEUE} are drained, 1 job waits. shoal fleet resume all`,
  ],
  ['a queue that nobody serves', async () => fleet.stop(), `no worker serves ${QUEUE}, 1 job waits`],
])('%s needs somebody', async (_what, happen, expected) => {
  await fleet.add({ workerId: 'one-00000001' });
  await fleet.queue().add('embed', { v: 1, texts: ['a'] }, { jobId: 'waits' });
  await happen();
  expect((await get('/')).text).toContain(expected);
});

async function drainAll(): Promise<void> {
  await server.command('SADD', `${PREFIX}:drained:${QUEUE}`, '*');
}

test('a worker that died without a word is shown as dead; one that has a successor as replaced', async () => {
  await fleet.add({ workerId: 'lost-00000001', rate: () => 10, diedSecondsAgo: 60 });
  await fleet.add({ workerId: 'again-00000001', rate: () => 10, diedSecondsAgo: 60 });
  await fleet.add({ workerId: 'again-00000002', rate: () => 10 });
  const { text } = await get('/');
  expect(text).toMatch(
    /Act: lost-00000001 \(cuda:0 on gpu-07\) of embed-minilm died without a word, last heard of \d+ s ago/,
  );
  expect(text).toMatch(/Look: again-00000001 .* again-00000002 took its place/);
});

test('executors lost more often than the alert allows, who left in order, and parked jobs are told', async () => {
  await fleet.add({
    workerId: 'one-00000001',
    rate: () => 10,
    events: { 'lost killed by SIGKILL': 3, 'lost exit code 1': 1 },
  });
  await fleet.add({ workerId: 'left-00000001', rate: () => 10, diedSecondsAgo: 60, hasLeft: true });
  await fleet.add({ workerId: 'back-00000001', rate: () => 10, diedSecondsAgo: 60, hasLeft: true });
  await fleet.add({ workerId: 'back-00000002', rate: () => 10 });
  await fleet.queue().add('embed', { v: 99 }, { jobId: 'newer', delay: 60_000 });
  await server.command('ZADD', keySpace(PREFIX).parked(QUEUE), 99, 'newer');
  const { text } = await get('/');
  expect(text).toContain(
    'Act: one-00000001 lost its executor 4 times in ten minutes: 3 × killed by SIGKILL, 1 × exit code 1. docs/runbooks/executor-losses.md',
  );
  expect(text).toContain('Look: 1 job of embed-minilm is parked: newer (version 99) than what the workers');
  expect(text).toMatch(/nobody of the same name is back: left-00000001 \d+ s ago\./);
});

test('a braked worker is shown with why, and needs somebody', async () => {
  const standing = {
    state: 'braked',
    reason: 'results that nobody has fetched fill the queue server',
    sinceMs: Date.now(),
  } as const;
  await fleet.add({ workerId: 'one-00000001', facts: { standing, startedMs: Date.now() - 7_200_000 } });
  const { text } = await get('/');
  expect(text).toContain(
    'Act: one-00000001 of embed-minilm is braked: results that nobody has fetched fill the queue server',
  );
  expect(text).toContain('Up for 2 h');
});

test('what lies in quarantine is listed with why', async () => {
  const quarantine = new Quarantine({ redisUrl: server.url, prefix: PREFIX, queue: QUEUE });
  const job = { id: 'poison', name: 'embed', data: { v: 1, texts: ['x'] }, timestamp: Date.now() };
  await quarantine.put(QUEUE, job, { code: 'QUARANTINED', message: 'three executors died of <it>' });
  await quarantine.close();
  expect((await get('/')).text).toContain('1 job is in quarantine of embed-minilm');
  const { text } = await get('/quarantine');
  expect(text).toContain('poison QUARANTINED : three executors died of &lt;it&gt;');
  expect((await get('/quarantine?queue=embed-other')).status).toBe(404);
});

test('the stream tells every part at once, and then what changed', async () => {
  const abort = new AbortController();
  const response = await fetch(`${dashboard.url}/events`, { signal: abort.signal });
  expect(response.headers.get('content-type')).toBe('text/event-stream');
  const told = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  const until = async (isThere: (so: string) => boolean): Promise<void> => {
    while (!isThere(text)) text += (await told.read()).value ?? '';
  };
  await until((so) => so.includes('event: fleet') && so.endsWith('\n\n'));
  const first: unknown = JSON.parse(/data: (\{"time".*\})/.exec(text)?.[1] ?? '');
  expect(Object.keys(Reflect.get(Object(first), 'parts'))).toEqual([
    'notices',
    'figures',
    'queues',
    'workers',
    'tenants',
  ]);
  text = '';
  await fleet.add({ workerId: 'late-00000001' });
  await until((so) => so.includes('late-00000001'));
  abort.abort();
});

test('tenants with what waits of each', async () => {
  await fleet.queue().add('embed', { v: 1, texts: ['a', 'b'], tenant: 'acme' }, { jobId: 'acme~1' });
  expect((await get('/')).text).toContain(`acme ${QUEUE} 1 2`);
});

test('names of others do no harm on the page', async () => {
  await fleet.add({ workerId: '<script>alert(1)</script>', facts: { host: '"><img src=x>' } });
  const markup = await (await fetch(`${dashboard.url}/`)).text();
  expect(markup).toContain('&lt;script&gt;alert(1)&lt;/script&gt;');
  expect(markup).not.toContain('<script>alert');
  expect(markup).not.toContain('<img');
});

test('a job is found by its id or the beginning of it, and what is not there is said', async () => {
  await fleet.queue().add('embed', { v: 1, texts: ['a text about the sea'], tenant: 'acme' }, { jobId: 'acme~1' });
  await fleet.queue(`${QUEUE}-cpu`).add('embed', { v: 1 }, { jobId: 'acme~2' });
  const { text } = await get('/search?q=acme~1');
  for (const words of [
    'It waits in embed-minilm',
    'no worker serves embed-minilm',
    'Tenant acme',
    'Size 1 row, interactive',
  ])
    expect(text).toContain(words);
  expect((await get('/search?q=acme~*')).text).toMatch(
    /2 jobs .*acme~1 embed-minilm waiting acme~2 embed-minilm-cpu waiting/,
  );
  expect((await get('/search?q=nobody')).text).toContain(
    'No queue of this server has a job, an input or a result of the id',
  );
  expect((await get('/search?q=*')).status).toBe(404);
});

test('addresses of 0.1.0 lead to Bull Board', async () => {
  const response = await fetch(`${dashboard.url}/queue/${QUEUE}/job-1`, { redirect: 'manual' });
  expect(response.headers.get('location')).toBe(`/queues/queue/${QUEUE}/job-1`);
});

test('cells are a table: who is home, who takes no new work, who is away; without any there is none', async () => {
  expect((await get('/')).text).not.toContain('Cells');
  const other = await startTestServer({ topology: 'single' });
  const cells = JSON.stringify([
    { name: 'near', address: server.url },
    { name: 'far', address: other.url, write: false },
    { name: 'gone', address: 'redis://127.0.0.1:1' },
  ]);
  const options = { redisUrl: server.url, cells, prefix: PREFIX, host: '127.0.0.1', port: 0, log: noLog };
  const withCells = await createDashboard(options);
  try {
    await fleet.add({ workerId: 'one-00000001' });
    const page = async (): Promise<string> => plain(await (await fetch(withCells.url)).text());
    await expect
      .poll(page, { timeout: 10_000 })
      .toMatch(/near \(home\) open 1 0 – 0 0 far no workers, no new work 0 0 – 0 0 gone away – /);
    expect(await page()).toContain('Act: the cell gone does not answer');
  } finally {
    await withCells.stop();
    await other.stop();
  }
});

test('payload servers are a table: with whom each fails, from here too; who has others is named; without any there is none', async () => {
  expect((await get('/')).text).not.toContain('Payload servers');
  const [near, away] = [new URL(server.url).host, '127.0.0.1:1'];
  const failing = { name: away, problem: 'gives nothing (ECONNREFUSED)', sinceMs: Date.now() - 90_000 };
  const memory = { usedBytes: 3e9, maxBytes: 4e9 };
  const bodies = { put: 1_234, byQueueServer: 5, lost: 0 };
  const payloadServers = [{ name: near, memory }, failing];
  await fleet.add({ workerId: 'one-00000001', facts: { payloads: 'a', bodies, payloadServers } });
  await fleet.add({ workerId: 'two-00000002' });
  const options = { redisUrl: server.url, prefix: PREFIX, host: '127.0.0.1', port: 0, log: noLog };
  const page = await createDashboard({ ...options, payloadServers: `${server.url},redis://${away}` });
  try {
    const text = plain(await (await fetch(page.url)).text());
    expect(text).toMatch(/127.0.0.1:1 fails for \d+ (?:s|min) fails 1 of 2 – – server/);
    expect(text).toMatch(/127.0.0.1:\d+ answers answers 1 of 2 [\d.]+ MB none server/);
    expect(text).toContain('1,234 results put there, 5 by the queue server, 0 inputs lost there');
    expect(text).toMatch(
      /Look: payload server 127.0.0.1:1 gives nothing \(ECONNREFUSED\), as one-00000001 sees it; .* shoal doctor/,
    );
    expect(text).toMatch(
      /Look: payload servers differ: one-00000001 has .*; two-00000002 has none; until all have the same/,
    );
  } finally {
    await page.stop();
  }
  expect((await get('/')).text).toMatch(/not in the settings here 1 of 2 3 GB \(75 %\) 4 GB/);
});
