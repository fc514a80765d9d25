// One request followed through processes that are real, by what a collector receives: HTTP, the job it makes, the worker
// that runs it and the micro-batch it was in. And what no span and no line of a log may have: texts and keys. By day
// each part is tested alone: http-spans.test.ts, add-spans.test.ts, job-spans.test.ts, open-tracer.test.ts.

import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { OtlpReceiver, type ReceivedSpan } from '@shoal/ops/testing';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { startProcess, type StartedApp } from './testing/processes.ts';

const TEXT = 'planted words of somebody';
const KEY = 'shoal_planted_key_4711';
const SEEN = '0af7651916cd43dd8448eb211c80319c';
const UNSEEN = '0af7651916cd43dd8448eb211c80319d';
const CALLER = 'b7ad6b7169203331';
const QUEUE = 'embed-tiny-random';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('spans of real processes are followed at night (npm run test:nightly)');

let server: TestServer;
let receiver: OtlpReceiver;
let cacheDir: string;
let worker: StartedApp;
let http: StartedApp;

async function embed(traceparent: string, id: string): Promise<number> {
  const { status } = await fetch(`${http.report.url}/v1/embeddings`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'x-request-id': id, traceparent, authorization: `Bearer ${KEY}` },
    body: JSON.stringify({ model: 'tiny-random', input: [TEXT, 'another'] }),
  });
  return status;
}

function linesOf(app: StartedApp): Record<string, unknown>[] {
  const lines = app.log().trim().split('\n');
  return lines.filter((line) => line.startsWith('{')).map((line) => JSON.parse(line) as Record<string, unknown>);
}

describe.skipIf(!isNightly)('a request through real processes', () => {
  beforeAll(async () => {
    [server, receiver] = await Promise.all([startTestServer(), OtlpReceiver.start()]);
    cacheDir = await mkdtemp(join(tmpdir(), 'shoal-traces-'));
    const environment = {
      SHOAL_REDIS_URL: server.url,
      SHOAL_PREFIX: '{traces}',
      SHOAL_CACHE_DIR: cacheDir,
      SHOAL_MODEL: 'tiny-random',
      SHOAL_LOG_LEVEL: 'info',
      SHOAL_LOG_FORMAT: 'json',
      SHOAL_TRACES: 'otlp',
      OTEL_EXPORTER_OTLP_ENDPOINT: receiver.url,
      OTEL_BSP_SCHEDULE_DELAY: '50',
    };
    worker = await startProcess('gpu-worker', {
      ...environment,
      SHOAL_DEVICE: 'sim:8000',
      SHOAL_SIM_SERVES: 'model',
      SHOAL_WORKER_NAME: 'w1',
      SHOAL_METRICS_PORT: '0',
    });
    http = await startProcess('producer', { ...environment, SHOAL_HTTP_PORT: '0' });
  });
  afterAll(async () => {
    await http?.stop();
    await worker?.stop();
    await receiver.stop();
    await server.stop();
    await rm(cacheDir, { recursive: true, force: true });
  });

  test('a traced request is one tree from HTTP to the micro-batch; one that its caller does not trace is nowhere', async () => {
    expect(await embed(`00-${UNSEEN}-${CALLER}-00`, 'not-traced')).toBe(200);
    expect(await embed(`00-${SEEN}-${CALLER}-01`, 'traced-1')).toBe(200);
    const named = (name: string): ReceivedSpan[] => receiver.spans.filter((span) => span.name === name);
    await expect.poll(() => named('POST /v1/embeddings').length + named(`run ${QUEUE}`).length).toBe(2);
    const [[asked], [sent], [ran], [batch]] = [
      'POST /v1/embeddings',
      `send ${QUEUE}`,
      `process ${QUEUE}`,
      `run ${QUEUE}`,
    ].map(named) as [[ReceivedSpan], [ReceivedSpan], [ReceivedSpan], [ReceivedSpan]];
    expect(receiver.spans).toHaveLength(4);
    expect([asked, sent, ran].map(({ traceId }) => traceId)).toEqual([SEEN, SEEN, SEEN]);
    expect([asked.parentId, sent.parentId, ran.parentId, batch.parentId]).toEqual([
      CALLER,
      asked.spanId,
      sent.spanId,
      '',
    ]);
    expect([asked.kind, sent.kind, ran.kind, batch.kind]).toEqual([2, 4, 5, 1]);
    expect([asked.service, sent.service, ran.service, batch.service]).toEqual([
      'shoal-http',
      'shoal-http',
      'shoal-worker',
      'shoal-worker',
    ]);
    expect(batch.links).toEqual([{ traceId: SEEN, spanId: ran.spanId }]);
    expect(ran.links).toEqual([{ traceId: batch.traceId, spanId: batch.spanId }]);
    expect(asked.attributes).toMatchObject({ 'http.response.status_code': 200, 'shoal.request_id': 'traced-1' });
    expect(ran.attributes).toMatchObject({
      'messaging.destination.name': QUEUE,
      'messaging.message.id': sent.attributes['messaging.message.id'],
      'shoal.request_id': 'traced-1',
      'shoal.rows': 2,
      'shoal.outcome': 'complete',
      'shoal.worker': 'w1',
    });
    expect(batch.attributes).toMatchObject({ 'shoal.rows': 2, 'shoal.device': 'sim:8000' });
    expect(batch.attributes['shoal.run_ms']).toBeGreaterThan(0);
  });

  test('what waits is sent as a process ends, and no text or key is in what was sent or logged', async () => {
    expect(await embed(`00-${SEEN}-${CALLER}-01`, 'traced-2')).toBe(200);
    const refused = await fetch(`${http.report.url}/v1/embeddings`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-request-id': 'refused-1', authorization: `Bearer ${KEY}` },
      body: JSON.stringify({ model: 'tiny-random', input: [TEXT], [TEXT]: KEY }),
    });
    expect(refused.status).toBe(400);
    await http.stop();
    await worker.stop();
    expect(receiver.spans.filter(({ attributes }) => attributes['shoal.request_id'] === 'traced-2')).toHaveLength(3);
    const told = [...receiver.bodies.map(String), http.log(), worker.log()].join('\n');
    for (const secret of [TEXT, KEY]) expect(told).not.toContain(secret);
    expect(linesOf(http).find(({ requestId }) => requestId === 'refused-1')).toMatchObject({
      level: 'info',
      name: 'http',
      msg: 'request refused',
      status: 400,
      code: 'unknown_parameter',
    });
  });

  test('lines of a worker say their level in a word, and which worker, queue and version they are of', () => {
    const lines = linesOf(worker);
    const ready = lines.findIndex(({ msg }) => msg === 'worker ready');
    expect(ready).toBeGreaterThanOrEqual(0);
    for (const line of lines.slice(ready))
      expect(line).toMatchObject({
        level: expect.stringMatching(/^(debug|info|warn|error)$/),
        worker: 'w1',
        queue: QUEUE,
        version: expect.stringMatching(/^\d+\.\d+\.\d+/),
      });
  });
});
