// The small server of /metrics and /healthz, over real sockets.

import { afterEach, expect, test } from 'vitest';
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

test('says whether its process is well', async () => {
  let isHealthy = true;
  const { url } = await start({ health: () => ({ isHealthy, state: 'claiming' }) });
  expect(await (await fetch(`${url}/healthz`)).json()).toEqual({ status: 'ok', state: 'claiming' });
  isHealthy = false;
  const sick = await fetch(`${url}/healthz`);
  expect([sick.status, await sick.json()]).toEqual([503, { status: 'failing', state: 'claiming' }]);
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

test('a worker counts and serves with a port, and does neither without', async () => {
  const probe = await start();
  await probe.stop(); // its port is free now
  const served = await serveWorkerMetrics({ host: '127.0.0.1', port: probe.port });
  served.recorder.jobClaimed(5, 'bulk');
  const text = await (await fetch(`${served.url}/metrics`)).text();
  await served.stop();
  expect(parseMetrics(text).value('shoal_claims_total')).toBe(1);
  const off = await serveWorkerMetrics({ host: '127.0.0.1', port: 0 });
  off.recorder.jobClaimed(5, 'bulk');
  expect(off.url).toBeUndefined();
  await off.stop();
});
