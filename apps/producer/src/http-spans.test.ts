import { afterEach, expect, test } from 'vitest';
import { RecordingTracer } from '@shoal/core/testing';
import type { Answering } from './gate.ts';
import { startApp, type AppUnderTest } from './testing/app-under-test.ts';

const TEXT = 'planted words';
const CALLER = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
const UNSEEN = '00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-00';

let app: AppUnderTest | undefined;

afterEach(() => app?.stop());

test('a request is a span of its caller’s trace, whose context its jobs get; probes are none', async () => {
  const tracer = new RecordingTracer();
  const traces: Answering['trace'][] = [];
  app = await startApp({ parts: { tracer }, whileOpen: async ({ trace }) => void traces.push(trace) });
  const headers = { traceparent: CALLER, 'x-request-id': 'asked-1' };
  expect((await app.post({ model: 'minilm', input: [TEXT] }, headers)).status).toBe(200);
  expect((await app.post({ model: 'minilm', input: [] }, headers)).status).toBe(400);
  await fetch(`${app.url}/livez`, { headers: { traceparent: CALLER } });
  await expect
    .poll(() => tracer.spans.map(({ ending }) => ending?.facts['http.response.status_code']))
    .toEqual([200, 400]);
  expect(tracer.spans[0]).toMatchObject({
    name: 'POST /v1/embeddings',
    options: {
      kind: 'server',
      parent: { traceparent: CALLER },
      facts: { 'http.route': '/v1/embeddings', 'shoal.request_id': 'asked-1' },
    },
    ending: { failed: undefined }, // what a caller does wrong is no fault of the server's
  });
  expect(traces).toEqual([{ requestId: 'asked-1', ...tracer.spans[0]!.span.context }]);
  expect(JSON.stringify(tracer.spans)).not.toContain(TEXT);
});

test('without traces, or where the caller is not followed, its own context goes on', async () => {
  const traces: Answering['trace'][] = [];
  for (const parts of [{}, { tracer: new RecordingTracer() }]) {
    app = await startApp({ parts, whileOpen: async ({ trace }) => void traces.push(trace) });
    await app.post({ model: 'minilm', input: [TEXT] }, { traceparent: UNSEEN, 'x-request-id': 'asked-2' });
    await app.stop();
  }
  const sent = { requestId: 'asked-2', traceparent: UNSEEN };
  expect(traces).toEqual([sent, sent]);
});
