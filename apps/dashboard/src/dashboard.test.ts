// The dashboard on a real queue server, by its API and in a real browser: headless Chromium, where there is one.

import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { request } from 'node:http';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { Queue, Worker } from 'bullmq';
import { chromium, type BrowserContext } from 'playwright-core';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { noLog } from '@shoal/core';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createDashboard, type Dashboard } from './dashboard.ts';

const QUEUE = 'embed-minilm';
const TEXTS = Array.from({ length: 64 }, (_, i) => `text ${i} about the sea and ${'everything in it, '.repeat(50)}`);
const VECTOR = Array.from({ length: 384 }, (_, i) => i / 1_000);

let server: TestServer;
let dashboard: Dashboard;
const queues: Queue[] = [];

beforeAll(async () => {
  server = await startTestServer();
});
beforeEach(async () => {
  await server.command('FLUSHALL');
  await fill();
  dashboard = await createDashboard({
    redisUrl: server.url,
    prefix: '{shoal}',
    host: '127.0.0.1',
    port: 0,
    log: noLog,
  });
});
afterEach(async () => {
  await dashboard.stop();
  await Promise.all(queues.splice(0).map((queue) => queue.close()));
});
afterAll(() => server.stop());

/** A finished job, a failed one, a cancelled one, a damaged one and one that waits; the CPU lane is there and empty. */
async function fill(): Promise<void> {
  const connection = { url: server.url };
  const queue = new Queue(QUEUE, { prefix: '{shoal}', connection });
  const cpu = new Queue(`${QUEUE}-cpu`, { prefix: '{shoal}', connection });
  queues.push(queue, cpu);
  await cpu.waitUntilReady();
  await server.command('HSET', `{shoal}:${QUEUE}-cpu:meta`, 'opts.maxLenEvents', 100);
  for (const jobId of ['good-job', 'bad-job', 'cancelled-job'])
    await queue.add('embed', { v: 1, texts: TEXTS }, { jobId });
  const worker = new Worker(
    QUEUE,
    async (job) => {
      if (job.id === 'bad-job')
        throw new Error('INPUT_TOO_LONG: job "bad-job", row 3 has more than the 256 tokens this worker takes');
      if (job.id === 'cancelled-job')
        throw new Error('CANCELLED: the job was cancelled before a worker had claimed it');
      return { v: 1, key: `{shoal}:out:${QUEUE}:good-job`, rows: 64, dims: 384, vector: VECTOR };
    },
    { prefix: '{shoal}', connection },
  );
  await expect.poll(() => queue.getJobCounts('completed', 'failed')).toEqual({ completed: 1, failed: 2 });
  await worker.close();
  for (const jobId of ['waiting-job', 'damaged-job']) await queue.add('embed', { v: 1, texts: TEXTS }, { jobId });
  await server.command('HSET', `{shoal}:${QUEUE}:damaged-job`, 'data', '{"v":1,"texts":["');
}

async function board(query = ''): Promise<{
  status: number;
  body: { queues: { name: string; counts: Record<string, number>; readOnlyMode: boolean; jobs: { id: string }[] }[] };
  text: string;
}> {
  const response = await fetch(`${dashboard.url}/api/queues${query}`);
  const text = await response.text();
  return { status: response.status, body: JSON.parse(text), text };
}

async function dump(): Promise<unknown[]> {
  return Promise.all(
    ['wait', 'completed', 'failed', 'meta'].map(async (key) =>
      String(await server.command('DUMP', `{shoal}:${QUEUE}:${key}`)),
    ),
  );
}

test('shows both lanes with their counts, read-only', async () => {
  const { body } = await board();
  expect(body.queues.map(({ name, readOnlyMode }) => [name, readOnlyMode])).toEqual([
    [QUEUE, true],
    [`${QUEUE}-cpu`, true],
  ]);
  expect(body.queues[0]!.counts).toMatchObject({ completed: 1, failed: 2, waiting: 2 });
});

test('a queue that comes later is shown soon', async () => {
  await board();
  await server.command('HSET', '{shoal}:embed-later:meta', 'opts.maxLenEvents', 100);
  await expect
    .poll(async () => (await board()).body.queues.map(({ name }) => name), { timeout: 10_000 })
    .toContain('embed-later');
});

test('lists jobs of every state, the damaged one too, in a few kilobytes and without vectors', async () => {
  const { body, text } = await board(`?activeQueue=${QUEUE}&status=latest&page=1&jobsPerPage=10`);
  expect(body.queues[0]!.jobs.map(({ id }) => id).toSorted()).toEqual([
    'bad-job',
    'cancelled-job',
    'damaged-job',
    'good-job',
    'waiting-job',
  ]);
  expect(text).toContain('64 texts, the first: text 0 about the sea');
  expect(text).toContain('384 numbers');
  expect(text).not.toContain('0.383');
  expect(text.length).toBeLessThan(14_000);
});

test.each([
  ['PUT', `/api/queues/${QUEUE}/pause`],
  ['PUT', `/api/queues/${QUEUE}/empty`],
  ['PUT', `/api/queues/${QUEUE}/obliterate`],
  ['PUT', `/api/queues/${QUEUE}/retry/failed`],
  ['PUT', `/api/queues/${QUEUE}/clean/failed`],
  ['PUT', `/api/queues/${QUEUE}/bad-job/retry/failed`],
  ['PUT', `/api/queues/${QUEUE}/good-job/clean`],
  ['PUT', '/api/queues/pause'],
])('changes nothing: %s %s', async (method, path) => {
  const before = await dump();
  const response = await fetch(`${dashboard.url}${path}`, { method });
  expect(response.status).toBe(405);
  expect(await dump()).toEqual(before);
});

test('answers to names of this machine only', async () => {
  const port = Number(new URL(dashboard.url).port);
  const statusFor = (host: string): Promise<number | undefined> =>
    new Promise((resolve, reject) => {
      request({ host: '127.0.0.1', port, path: '/api/queues', headers: { host } }, (response) =>
        resolve(response.resume().statusCode),
      )
        .on('error', reject)
        .end();
    });
  expect(
    await Promise.all(
      [`127.0.0.1:${port}`, `localhost:${port}`, `[::1]:${port}`, 'evil.example', `evil.example:${port}`].map(
        statusFor,
      ),
    ),
  ).toEqual([200, 200, 200, 403, 403]);
});

test('says 503 while the server is away, and is right again after', async () => {
  await server.kill9();
  await expect.poll(async () => (await fetch(`${dashboard.url}/api/queues`)).status).toBe(503);
  await server.restart();
  await expect.poll(async () => (await fetch(`${dashboard.url}/api/queues`)).status, { timeout: 10_000 }).toBe(200);
});

test('a port that is taken is a setting to change; stop can be called twice', async () => {
  const taken = createDashboard({
    redisUrl: server.url,
    prefix: '{shoal}',
    host: '127.0.0.1',
    port: Number(new URL(dashboard.url).port),
    log: noLog,
  });
  await expect(taken).rejects.toMatchObject({
    code: 'CONFIG_INVALID',
    message: expect.stringContaining('dashboardPort'),
  });
  await Promise.all([dashboard.stop(), dashboard.stop()]);
  await expect(fetch(dashboard.url)).rejects.toThrow('fetch failed');
});

// ---- in a browser -------------------------------------------------------------------------------------------------

const program = findChromium();
if (program === undefined)
  process.stderr.write(
    'the dashboard was not looked at in a browser: there is no chromium on PATH (apt-get install chromium)\n',
  );

function findChromium(): string | undefined {
  const folders = (process.env['PATH'] ?? '').split(delimiter);
  const candidates = ['chromium', 'chromium-browser', 'google-chrome'].flatMap((name) =>
    folders.map((folder) => join(folder, name)),
  );
  return [process.env['SHOAL_TEST_CHROMIUM'] ?? '', ...candidates].find((path) => path !== '' && existsSync(path));
}

describe.runIf(program !== undefined)('in Chromium', () => {
  let profile: string;
  let browser: BrowserContext;

  beforeAll(async () => {
    profile = await mkdtemp(join(tmpdir(), 'shoal-chromium-'));
    browser = await chromium.launchPersistentContext(profile, {
      ...(program === undefined ? {} : { executablePath: program }),
      headless: true,
      viewport: { width: 1400, height: 900 },
      args: [
        '--headless',
        '--no-sandbox',
        '--disable-gpu',
        '--disable-quic',
        '--no-first-run',
        '--disable-background-networking',
        '--disable-component-update',
        '--disable-sync',
      ],
    });
  });
  afterAll(async () => {
    await browser.close();
    await rm(profile, { recursive: true, force: true });
  });

  /**
   * Opens a page of the dashboard and waits for texts on it. Problems: errors of its scripts, answers of any other
   * machine.
   */
  async function look(
    path: string,
    name: string,
    expected: readonly string[],
  ): Promise<{ readonly body: string; readonly problems: readonly string[] }> {
    const page = await browser.newPage();
    const problems: string[] = [];
    page.on('pageerror', (error) => problems.push(error.message));
    page.on('requestfinished', (asked) => {
      if (!asked.url().startsWith(dashboard.url) && !asked.url().startsWith('data:'))
        problems.push(`asks ${asked.url()}`);
    });
    await page.goto(`${dashboard.url}${path}`);
    for (const text of expected) await page.getByText(text).first().waitFor({ timeout: 60_000 });
    const shot = process.env['SHOAL_SCREENSHOTS'];
    if (shot !== undefined) await page.screenshot({ path: join(shot, `${name}.png`) });
    const body = await page.locator('body').innerText();
    await page.close();
    return { body, problems };
  }

  test('the overview names the queues', async () => {
    expect(await look('/', 'overview', [QUEUE, `${QUEUE}-cpu`, '5 jobs'])).toMatchObject({ problems: [] });
  });

  test('a finished job, with the beginning of its texts and without its vectors', async () => {
    expect(await look(`/queue/${QUEUE}?status=completed`, 'completed', ['good-job'])).toMatchObject({ problems: [] });
    const { body, problems } = await look(`/queue/${QUEUE}/good-job`, 'finished-job', [
      'good-job',
      '64 texts, the first: text 0',
    ]);
    expect(body).not.toContain('0.383');
    expect(problems).toEqual([]);
  });

  test('a cancelled job among the failed ones, which its name and the page say', async () => {
    const expected = ['cancelled-job', 'embed (cancelled)', 'Cancelled jobs are listed'];
    const { body, problems } = await look(`/queue/${QUEUE}?status=failed`, 'cancelled', expected);
    expect(body.match(/\(cancelled\)/g)).toHaveLength(1);
    expect(problems).toEqual([]);
  });

  test('a failed job, with the reason', async () => {
    expect(await look(`/queue/${QUEUE}?status=failed`, 'failed', ['bad-job'])).toMatchObject({ problems: [] });
    expect(await look(`/queue/${QUEUE}/bad-job`, 'failed-job', ['bad-job', 'INPUT_TOO_LONG'])).toMatchObject({
      problems: [],
    });
  });

  test('the waiting jobs, the damaged one among them', async () => {
    expect(
      await look(`/queue/${QUEUE}?status=waiting`, 'waiting', ['waiting-job', 'damaged-job', 'unreadable']),
    ).toMatchObject({ problems: [] });
  });
});
