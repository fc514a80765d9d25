// The dashboard looked at in a real browser, headless Chromium, where there is one: every page of ours in light and dark,
// on a desktop and on a phone, without an error on the console, without a question to any other machine and without a
// finding of axe. At night, and by day where SHOAL_SCREENSHOTS names a folder for pictures.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Page } from 'playwright-core';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { makeApiKey, noLog } from '@shoal/core';
import { FileApiKeys, Quarantine } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createDashboard, type Dashboard } from './dashboard.ts';
import { axeFindings, findChromium, openBrowser, problemsOf, type TestBrowser } from './testing/browser.ts';
import { PREFIX, QUEUE, SimulatedFleet } from './testing/simulated-fleet.ts';

const shots = process.env['SHOAL_SCREENSHOTS'];
const program = findChromium();
const isNight = process.env['SHOAL_TEST_NIGHTLY'] !== undefined || shots !== undefined;
if (program === undefined)
  process.stderr.write(
    'the dashboard was not looked at in a browser: there is no chromium on PATH (apt-get install chromium)\n',
  );
else if (!isNight)
  process.stderr.write('the dashboard is looked at in a browser at night only (SHOAL_TEST_NIGHTLY=1)\n');

const DESKTOP = { width: 1400, height: 900 };
const PHONE = { width: 390, height: 844 };
const VIEWS = (['light', 'dark'] as const).flatMap((scheme) => [
  { name: `desktop-${scheme}`, size: DESKTOP, scheme },
  { name: `phone-${scheme}`, size: PHONE, scheme },
]);
const wave = (from: number) => (step: number) => from * (1 + 0.25 * Math.sin(step / 5));
const steady = (): number => 2_000;
const TEXTS = Array.from({ length: 64 }, (_, i) => `text ${i} about the sea and ${'everything in it, '.repeat(50)}`);

/** Of two queues the one is a quarantine, and needs none. */
async function oneWithoutWorkers(page: Page): Promise<void> {
  await page.getByText('No workers').first().waitFor();
  expect(await page.getByText('No workers').count()).toBe(1);
}

describe.runIf(program !== undefined && isNight)('in Chromium', () => {
  let server: TestServer;
  let browser: TestBrowser;
  let folder: string;
  let fleet: SimulatedFleet;
  let dashboard: Dashboard;
  let key: string;

  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'shoal-dashboard-'));
    const { text, kept } = makeApiKey({ name: 'otto', scopes: ['operate'] }, Date.now());
    key = text;
    await new FileApiKeys(join(folder, 'keys.json')).add(kept);
    [server, browser] = await Promise.all([startTestServer(), openBrowser(program!)]);
  });
  afterAll(async () => {
    await browser.close();
    await server.stop();
    await rm(folder, { recursive: true });
  });
  beforeEach(async ({ onTestFinished }) => {
    await server.command('FLUSHALL');
    await browser.context.clearCookies();
    fleet = new SimulatedFleet(server);
    await fleet.queue().waitUntilReady();
    onTestFinished(async () => {
      await dashboard.stop();
      await fleet.stop();
    });
  });

  async function open(keyFile?: string, payloadServers?: string): Promise<void> {
    const place = { redisUrl: server.url, payloadServers, prefix: PREFIX, host: '127.0.0.1', port: 0, log: noLog };
    dashboard = await createDashboard({ ...place, keyFile });
  }

  /**
   * Looks at a page, after what is done there, until it has these words. Resolves to what is wrong with it: problems,
   * and of our own pages what axe finds and what runs out to the side.
   */
  async function look(
    path: string,
    name: string,
    words: readonly string[],
    {
      size = DESKTOP,
      scheme = 'light' as 'light' | 'dark',
      isOurs = true,
      act = async (_page: Page): Promise<void> => undefined,
    } = {},
  ): Promise<readonly string[]> {
    const page = await browser.context.newPage();
    const problems = problemsOf(page, dashboard.url);
    await page.setViewportSize(size);
    await page.emulateMedia({ colorScheme: scheme, reducedMotion: 'reduce' });
    await page.goto(`${dashboard.url}${path}`);
    await act(page);
    for (const text of words) await page.getByText(text).first().waitFor({ timeout: 60_000 });
    if (shots !== undefined) await page.screenshot({ path: join(shots, `${name}.png`), fullPage: isOurs });
    const { clientWidth: width, scrollWidth: wide } = await page.evaluate<{ clientWidth: number; scrollWidth: number }>(
      '({ clientWidth: document.documentElement.clientWidth, scrollWidth: document.documentElement.scrollWidth })',
    );
    const wrong = isOurs && wide > width ? [`${wide - width} pixels run out to the side`] : [];
    const findings = isOurs ? await axeFindings(page) : [];
    await page.close();
    return [...problems, ...findings, ...wrong];
  }

  async function addLoad(): Promise<void> {
    await fleet.add({
      workerId: 'gpu-07-cuda0-00000001',
      rate: wave(12_000),
      events: { 'handed-over OUT_OF_VRAM': 3 },
    });
    await fleet.add({ workerId: 'gpu-08-cuda0-00000002', rate: wave(9_000), facts: { host: 'gpu-08' } });
    await fleet.add({
      workerId: 'cpu-01-00000003',
      rate: wave(400),
      facts: {
        device: 'cpu',
        precision: 'fp32',
        host: 'cpu-01',
        lanes: ['main', 'cpu'],
        memoryBytes: 600e6,
        budget: {
          maxPaddedTokens: 16_384,
          limitedBy: 'knee',
          source: 'fitted',
          device: { totalBytes: 32e9, othersBytes: 4e9, loadedBytes: 220e6 },
        },
      },
    });
    const jobs = Array.from({ length: 120 }, (_, at) => ({
      name: 'embed',
      data: { v: 1, texts: TEXTS.slice(0, 1 + (at % 8)) },
      opts: { jobId: `docs~${at}` },
    }));
    await fleet.queue().addBulk(jobs);
  }

  test('idle', async () => {
    await fleet.add({ workerId: 'gpu-07-cuda0-00000001', rate: () => 0 });
    await open();
    for (const scheme of ['light', 'dark'] as const)
      expect(await look('/', `idle-${scheme}`, ['Nothing needs anybody', 'live, as of'], { scheme })).toEqual([]);
  });

  test('under load, on desktop and phone, in light and dark', async () => {
    await addLoad();
    await open();
    for (const { name, ...view } of VIEWS)
      expect(
        await look('/', `load-${name}`, ['gpu-08-cuda0-00000002', 'live, as of'], {
          ...view,
          act: async (page) => page.getByText('Last micro-batches').first().click(),
        }),
      ).toEqual([]);
  });

  test('payload servers, of which one fails and one worker has none, on desktop and phone, in light and dark', async () => {
    const payloadServers = [
      { name: '10.0.0.5:6379', memory: { usedBytes: 3.1e9, maxBytes: 4e9 } },
      {
        name: '10.0.0.6:6379',
        problem: "takes no body (OOM command not allowed when used memory > 'maxmemory'.)",
        sinceMs: Date.now() - 200_000,
        memory: { usedBytes: 4e9, maxBytes: 4e9 },
      },
      { name: 's3://shoal-payloads/production/bodies' },
    ];
    const bodies = { put: 412_345, byQueueServer: 17, lost: 0 };
    for (const workerId of ['gpu-07-cuda0-00000001', 'gpu-08-cuda0-00000002'])
      await fleet.add({ workerId, rate: wave(9_000), facts: { payloads: 'a', payloadServers, bodies } });
    await fleet.add({ workerId: 'gpu-09-cuda0-00000003', rate: wave(9_000) });
    await open(undefined, `${server.url},file:///no/such/folder`);
    for (const { name, ...view } of VIEWS)
      expect(await look('/', `payloads-${name}`, ['payload servers differ', 'live, as of'], view)).toEqual([]);
  });

  test('a worker that died, with what it did last', async () => {
    await addLoad();
    await fleet.add({
      workerId: 'gpu-09-cuda0-00000009',
      rate: () => 11_000,
      diedSecondsAgo: 70,
      facts: { host: 'gpu-09' },
      events: { 'lost killed by SIGKILL': 12 },
    });
    await open();
    expect(await look('/', 'worker-dead', ['died without a word', 'dead', '12 ×'])).toEqual([]);
  });

  test('workers that are braked, draining and starting, with why', async () => {
    const sinceMs = Date.now() - 90_000;
    const reason = 'the memory of the queue server is almost full; a few jobs are claimed at a time';
    const standing = { state: 'braked', reason, sinceMs } as const;
    await fleet.add({
      workerId: 'gpu-07-cuda0-00000001',
      rate: steady,
      facts: { standing, startedMs: sinceMs - 7_200_000 },
    });
    await fleet.add({ workerId: 'gpu-08-cuda0-00000002', rate: steady, facts: { host: 'gpu-08' } });
    await server.command('SADD', `${PREFIX}:drained:${QUEUE}`, 'gpu-08-cuda0-00000002');
    await open();
    for (const scheme of ['light', 'dark'] as const)
      expect(await look('/', `braked-${scheme}`, ['is braked', 'draining'], { scheme })).toEqual([]);
  });

  test('what an operator sees and does, with the keyboard alone', async () => {
    await addLoad();
    const quarantine = new Quarantine({ redisUrl: server.url, prefix: PREFIX, queue: QUEUE });
    const job = { id: 'poison-1', name: 'embed', data: { v: 1, texts: ['x'] }, timestamp: Date.now() };
    await quarantine.put(QUEUE, job, { code: 'QUARANTINED', message: 'three executors died while it ran alone' });
    await quarantine.close();
    await open(join(folder, 'keys.json'));
    expect(
      await look('/', 'login', ["Log in to Shoal's dashboard"], {
        act: async (page) => {
          await page.locator('#key').focus();
          await page.keyboard.type(key);
        },
      }),
    ).toEqual([]);
    expect(
      await look('/', 'operator', ['otto', 'Drain it'], {
        act: async (page) => {
          await page.locator('#key').fill(key);
          await page.keyboard.press('Enter');
          await page.getByText('Drain it').first().waitFor();
        },
      }),
    ).toEqual([]);
    expect(
      await look(`/act/pause?queue=${QUEUE}`, 'confirm', ['jobs that wait', 'Yes, do it'], { scheme: 'dark' }),
    ).toEqual([]);
    expect(await look('/quarantine', 'quarantine', ['poison-1', 'Drop all'])).toEqual([]);
    expect(
      await look(`/act/drop?queue=${QUEUE}&id=poison-1`, 'confirm-drop', ['Yes, for good'], { size: PHONE }),
    ).toEqual([]);
    expect(
      await look(`/act/pause?queue=${QUEUE}`, 'paused', ['is paused'], {
        act: async (page) => {
          await page.getByRole('button', { name: 'Yes, do it' }).focus();
          await page.keyboard.press('Enter');
          await page.getByText('is paused').waitFor();
        },
      }),
    ).toEqual([]);
    expect(await look('/', 'paused-fleet', [`${QUEUE} is paused`])).toEqual([]);
  });

  test('jobs found by id and by the beginning of it', async () => {
    await addLoad();
    await open();
    expect(await look('/search?q=docs~7', 'search', ['It waits in', 'Tenant'])).toEqual([]);
    const phone = { size: PHONE, scheme: 'dark' } as const;
    expect(await look('/search?q=docs~*', 'search-many', ['120 jobs'], phone)).toEqual([]);
    expect(await look('/search?q=nobody', 'search-none', ['Look for ids that begin so'])).toEqual([]);
  });

  test('the page follows what happens and leaves the reader where he is', async () => {
    await addLoad();
    await open();
    expect(
      await look('/', 'followed', ['live, as of'], {
        act: async (page) => {
          await page.getByText('Last micro-batches').first().click();
          await page.locator('#main table a').first().focus();
          await fleet.queue().pause();
          await page.getByText(`${QUEUE} is paused`).waitFor();
          expect(await page.locator('details[open]').count()).toBe(1);
          expect(await page.evaluate('document.activeElement.textContent')).toBe(QUEUE);
        },
      }),
    ).toEqual([]);
  });

  test('without script it stands still and is whole', async () => {
    await addLoad();
    await open();
    const context = await browser.context.browser()?.newContext({ javaScriptEnabled: false });
    const page = await (context ?? browser.context).newPage();
    await page.goto(`${dashboard.url}/`);
    const body = await page.locator('body').innerText();
    for (const words of ['gpu-07-cuda0-00000001', 'as of', 'Texts a second']) expect(body).toContain(words);
    await context?.close();
  });

  test('Bull Board behind it, with its jobs and without a font of others', async () => {
    await fleet.queue().add('embed', { v: 1, texts: TEXTS }, { jobId: 'bad-job' });
    await fleet.fail(QUEUE, 1, 'INPUT_TOO_LONG: job "bad-job", row 3 has more than the 256 tokens this worker takes');
    await fleet.queue().add('embed', { v: 1, texts: TEXTS }, { jobId: 'waiting-job' });
    await fleet.queue(`${QUEUE}-quarantine`).add('embed', { v: 1 }, { jobId: 'poison' });
    await open();
    const isOurs = false;
    expect(await look('/queues/', 'board', [QUEUE, `${QUEUE}-quarantine`], { isOurs, act: oneWithoutWorkers })).toEqual(
      [],
    );
    expect(
      await look(`/queues/queue/${QUEUE}/bad-job`, 'board-job', ['bad-job', 'INPUT_TOO_LONG'], { isOurs }),
    ).toEqual([]);
    expect(
      await look(
        `/queues/queue/${QUEUE}-quarantine?status=waiting`,
        'board-quarantine',
        ['poison', 'no worker is needed'],
        { isOurs },
      ),
    ).toEqual([]);
  });
});
