// `shoal exporter` and a worker's metrics, as Prometheus and a supervisor meet them: real processes, a real server, and
// where promtool is installed its own judgement of each scrape.

import { execFileSync, spawnSync } from 'node:child_process';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { mainQueue } from '@shoal/contract';
import { catalogueEntries, seriesNames, STANDARD_METRICS } from '@shoal/ops/catalogue';
import { parseMetrics, type Exposition } from '@shoal/ops/testing';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { Sandbox, type Running } from '../testing/shoal-process.ts';
import { withShortForms } from './exporter.ts';

vi.setConfig({ testTimeout: 120_000, hookTimeout: 120_000 }); // six processes in all

const box = new Sandbox();
const QUEUE = mainQueue('tiny-random');
let server: TestServer;
let exporter: Running;
let worker: Running;
let fleetUrl: string;
let workerUrl: string;

beforeAll(async () => {
  box.shareModels();
  server = await startTestServer();
  const here = ['--redis-url', server.url];
  exporter = box.start(['exporter', '--port', '0', ...here]);
  worker = box.start(['worker', '--device', 'sim:8000', '--sim-serves', 'model', '--metrics-port', '19464', ...here]);
  fleetUrl = (await printed(exporter)).replace('/metrics', '');
  const found = await vi.waitUntil(() => /"url":"(http:[^"]+)\/metrics"/.exec(worker.stderr())?.[1], {
    timeout: 110_000,
    interval: 50,
  });
  workerUrl = found;
  await vi.waitUntil(async () => (await fetch(`${workerUrl}/readyz`)).ok, { timeout: 110_000, interval: 100 });
});
afterAll(async () => {
  for (const running of [worker, exporter]) running.child.kill('SIGTERM');
  await Promise.all([worker.ended, exporter.ended]);
  await server.stop();
  box.remove();
});

function printed({ child }: Running): Promise<string> {
  return new Promise((resolve) => child.stdout?.once('data', (text: string) => resolve(text.trim())));
}

const textAt = async (url: string): Promise<string> => (await fetch(`${url}/metrics`)).text();
const scrape = async (url: string): Promise<Exposition> => parseMetrics(await textAt(url));

const known = new Set(catalogueEntries().flatMap((entry) => [entry.name, ...seriesNames(entry)]));
const standard = Object.keys(STANDARD_METRICS);
const isKnown = (name: string): boolean =>
  known.has(name) || standard.some((one) => name === one || name.startsWith(`${one}_`));

test('a worker says that it is ready, who it is and where it is; nothing it tells is outside the catalogue', async () => {
  expect(await (await fetch(`${workerUrl}/readyz`)).json()).toMatchObject({ status: 'ready', state: 'ready' });
  expect(await (await fetch(`${workerUrl}/livez`)).json()).toEqual({ status: 'alive' });
  const status = await box.run(['fleet', 'status', '--json', '--redis-url', server.url]);
  expect(JSON.parse(status.stdout)).toMatchObject({ workers: [{ facts: { metricsUrl: workerUrl } }] });
  const { samples, value } = await scrape(workerUrl);
  const info = samples.find(({ name }) => name === 'shoal_worker_info');
  expect(info).toMatchObject({ value: 1, labels: { queue: QUEUE, model: 'tiny-random', device: 'sim:8000' } });
  expect([value('shoal_ready'), value('shoal_executor_up'), value('shoal_queue_server_up')]).toEqual([1, 1, 1]);
  expect(samples.some(({ name }) => name.startsWith('shoal_similarity_'))).toBe(false);
  expect(samples.filter(({ name }) => !isKnown(name))).toEqual([]);
});

test('the exporter tells of the queue, its worker and its backlog', async () => {
  const embed = await box.run(['embed', '-q', '-', '--redis-url', server.url], { input: 'one\ntwo\nthree\n' });
  expect(embed.code).toBe(0);
  const fleet = await vi.waitUntil(
    async () => {
      const found = await scrape(fleetUrl);
      return found.value('shoal_queue_capacity_tokens_per_second', { queue: QUEUE }) === undefined ? undefined : found;
    },
    { timeout: 60_000, interval: 200 },
  );
  expect(fleet.value('shoal_queue_workers', { queue: QUEUE, state: 'ready' })).toBe(1);
  expect(fleet.value('shoal_queue_jobs', { queue: QUEUE, state: 'waiting', class: 'bulk' })).toBe(0);
  expect(fleet.value('shoal_queue_backlog_seconds', { queue: QUEUE })).toBe(0);
  expect(fleet.value('shoal_queue_left_rows_total', { queue: QUEUE })).toBe(3);
  expect(fleet.samples.filter(({ name }) => !isKnown(name))).toEqual([]);
  const stages = await scrape(workerUrl);
  // texts come as token ids here, so nothing is tokenized
  for (const stage of ['fill', 'plan', 'run', 'commit', 'settle'])
    await expect
      .poll(async () => (await scrape(workerUrl)).value('shoal_stage_duration_seconds_count', { stage }), {
        timeout: 30_000,
      })
      .toBeGreaterThan(0);
  expect(stages.value('shoal_device_busy_seconds_total', { lane: '1' })).toBeGreaterThan(0);
});

test('while the queue server is away workers live and are not ready, and the exporter tells that instead of old figures', async () => {
  await server.kill9();
  await expect.poll(async () => (await fetch(`${workerUrl}/readyz`)).status, { timeout: 30_000 }).toBe(503);
  expect(await (await fetch(`${workerUrl}/readyz`)).json()).toMatchObject({
    status: 'not ready',
    reasons: [expect.stringContaining('queue server')],
  });
  expect((await fetch(`${workerUrl}/livez`)).status).toBe(200);
  await expect.poll(async () => (await scrape(fleetUrl)).value('shoal_queue_server_up'), { timeout: 30_000 }).toBe(0);
  const { samples } = await scrape(fleetUrl);
  expect(samples.filter(({ name }) => name.startsWith('shoal_queue_jobs'))).toEqual([]);
  await server.restart();
  await expect.poll(async () => (await fetch(`${workerUrl}/readyz`)).status, { timeout: 30_000 }).toBe(200);
  await expect
    .poll(async () => (await scrape(fleetUrl)).value('shoal_queue_workers', { queue: QUEUE, state: 'ready' }), {
      timeout: 30_000,
    })
    .toBe(1);
});

test('short flags are the settings, and are refused beside them', () => {
  expect(withShortForms({ port: '1', host: '::1' })).toEqual({ exporterPort: '1', exporterHost: '::1' });
  for (const twice of [
    { port: '1', exporterPort: '2' },
    { host: 'a', exporterHost: 'b' },
  ])
    expect(() => withShortForms(twice)).toThrow(/--port is --exporter-port/);
});

const hasPromtool = spawnSync('promtool', ['--version']).status === 0;
const missing =
  process.env['SHOAL_TEST_NIGHTLY'] !== '1'
    ? 'only at night: SHOAL_TEST_NIGHTLY=1'
    : hasPromtool
      ? undefined
      : 'promtool is not installed: apt-get install --no-install-recommends prometheus';
if (missing !== undefined) console.log(`promtool check metrics is not run: ${missing}`);

describe.skipIf(missing !== undefined)('promtool', () => {
  test('finds nothing wrong with a scrape of a worker, of HTTP and of the exporter', async () => {
    const http = box.start(['serve', '--http-port', '0', '--redis-url', server.url]);
    try {
      const httpUrl = await printed(http);
      for (const url of [workerUrl, fleetUrl, httpUrl]) {
        const said = execFileSync('promtool', ['check', 'metrics'], { input: await textAt(url), encoding: 'utf8' });
        expect(said).toBe('');
      }
    } finally {
      http.child.kill('SIGTERM');
      await http.ended;
    }
  });
});
