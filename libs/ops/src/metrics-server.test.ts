// The small server of /metrics and the probes, over real sockets.

import { afterEach, expect, test } from 'vitest';
import { RecordingLogger } from '@shoal/core/testing';
import { parseMetrics } from './testing/parse-metrics.ts';
import { serveWorkerMetrics } from './worker-metrics.ts';
import { startMetricsServer, type MetricsServer, type MetricsServerOptions } from './metrics-server.ts';

const servers: MetricsServer[] = [];
afterEach(async () => void (await Promise.all(servers.splice(0).map((server) => server.stop()))));

async function start(options: Partial<MetricsServerOptions> = {}): Promise<MetricsServer> {
  const server = await startMetricsServer({
    port: 0,
    metrics: { contentType: 'text/plain; version=0.0.4; charset=utf-8', text: async () => 'up 1\n' },
    ...options,
  });
  servers.push(server);
  return server;
}

test('serves the metrics with their content type, on loopback, on any free port', async () => {
  const { url } = await start();
  expect(url).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/);
  const response = await fetch(`${url}/metrics`);
  expect([response.status, response.headers.get('content-type'), await response.text()]).toEqual([
    200,
    'text/plain; version=0.0.4; charset=utf-8',
    'up 1\n',
  ]);
});

test('says whether its process lives, and whether it is ready and why not', async () => {
  let reasons = ['it is drained'];
  const { url } = await start({ ready: () => ({ reasons, facts: { state: 'drained' } }) });
  const asked = async (path: string): Promise<unknown> => {
    const answer = await fetch(url + path);
    return [answer.status, await answer.json()];
  };
  expect(await asked('/livez')).toEqual([200, { status: 'alive' }]);
  expect(await asked('/healthz')).toEqual([200, { status: 'ok' }]);
  expect(await asked('/readyz')).toEqual([503, { status: 'not ready', reasons: ['it is drained'], state: 'drained' }]);
  reasons = [];
  expect(await asked('/readyz')).toEqual([200, { status: 'ready', state: 'drained' }]);
});

test('refuses other paths and methods', async () => {
  const { url } = await start();
  expect((await fetch(`${url}/`)).status).toBe(404);
  expect((await fetch(`${url}/metrics`, { method: 'POST' })).status).toBe(405);
  expect((await fetch(`${url}/metrics?x=1`, { method: 'HEAD' })).status).toBe(200);
});

test('metrics that cannot be written are a 500, not a crash', async () => {
  const { url } = await start({
    metrics: { contentType: 'text/plain', text: () => Promise.reject(new Error('broken')) },
  });
  const response = await fetch(`${url}/metrics`);
  expect([response.status, await response.text()]).toEqual([500, 'the metrics could not be written: broken\n']);
});

test('a port that is taken, and a host that is not ours, are settings to change', async () => {
  const { port } = await start();
  await expect(start({ port })).rejects.toMatchObject({
    code: 'CONFIG_INVALID',
    message: expect.stringMatching(/127\.0\.0\.1:\d+: somebody else listens there already; .*metricsPort/),
  });
  await expect(start({ host: '192.0.2.1' })).rejects.toMatchObject({
    code: 'CONFIG_INVALID',
    message: expect.stringContaining('no such address'),
  });
});

test('is gone after stop, also when stopped twice and with a connection open', async () => {
  const server = await start();
  await fetch(`${server.url}/metrics`); // keeps its connection alive
  await Promise.all([server.stop(), server.stop()]);
  await expect(fetch(`${server.url}/metrics`)).rejects.toThrow('fetch failed');
});

const seen = {
  host: '127.0.0.1',
  server: { isUp: true, memory: undefined, reconnects: 0 },
  status: { isExecutorUp: true, live: () => ({ reasons: [] }), ready: () => ({ reasons: [] }) },
  version: '1',
};

test('workers of one machine find ports side by side; where none is free one goes without, and says so', async () => {
  const { port } = await start();
  const log = new RecordingLogger();
  const served = await serveWorkerMetrics({ ...seen, port, log });
  served.recorder.jobClaimed(5, 'bulk');
  const text = await (await fetch(`${served.url}/metrics`)).text();
  await served.stop();
  expect(Number(new URL(served.url!).port)).toBeGreaterThan(port);
  expect(parseMetrics(text).value('shoal_claims_total')).toBe(1);
  const last = await start({ port: 65_535 }).catch(() => undefined); // or somebody else has it
  const off = await serveWorkerMetrics({ ...seen, port: 65_535, log });
  await last?.stop();
  expect([off.url, log.messages('warn')]).toEqual([undefined, [expect.stringContaining('no port is free')]]);
});
