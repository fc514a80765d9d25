import { execFileSync } from 'node:child_process';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { noLog } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { OtlpReceiver } from '../testing/otlp-receiver.ts';
import { openTracer, samplingOf, type OpenTracer } from './open-tracer.ts';
import { spanCounts } from './span-counts.ts';

const CALLER = { traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', tracestate: 'vendor=x' };
const UNSEEN = { traceparent: '00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-00' };

let receiver: OtlpReceiver;
let opened: OpenTracer | undefined;

beforeEach(async () => {
  receiver = await OtlpReceiver.start();
});
afterEach(async () => {
  await opened?.stop();
  opened = undefined;
  await receiver.stop();
  vi.unstubAllEnvs();
});

/** OpenTelemetry's SDK reads the environment itself. */
async function open(environment: Record<string, string> = {}, log = noLog): Promise<OpenTracer> {
  const all = { OTEL_EXPORTER_OTLP_ENDPOINT: receiver.url, ...environment };
  for (const [name, value] of Object.entries(all)) vi.stubEnv(name, value);
  return (opened = await openTracer({ traces: 'otlp', environment: all, name: 'test', version: '1.2.3', log }));
}

test('a span of a traced caller arrives as its child, with what was told of it', async () => {
  const { tracer, stop } = await open({ OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment=night' });
  const span = tracer.start('process q', { kind: 'consumer', parent: CALLER, facts: { rows: 3, gone: undefined } });
  span.event('split', { code: 'OUT_OF_VRAM' });
  const { traceparent, tracestate } = span.context!;
  expect(traceparent).toMatch(/^00-0af7651916cd43dd8448eb211c80319c-[0-9a-f]{16}-01$/);
  expect(tracestate).toBe('vendor=x');
  span.end({ outcome: 'fail' }, 'INPUT_TOO_LONG');
  await stop();
  expect(receiver.spans).toMatchObject([
    {
      service: 'shoal-test',
      name: 'process q',
      kind: 5,
      traceId: '0af7651916cd43dd8448eb211c80319c',
      spanId: traceparent?.split('-')[2],
      parentId: 'b7ad6b7169203331',
      attributes: { rows: 3, outcome: 'fail', 'error.type': 'INPUT_TOO_LONG' },
      events: [{ name: 'split', attributes: { code: 'OUT_OF_VRAM' } }],
      status: 2,
    },
  ]);
});

test('whom the caller did not choose is not seen, and one trace of a hundred that begin here is', async () => {
  const { tracer, stop } = await open();
  const unseen = tracer.start('a', { kind: 'server', parent: UNSEEN });
  expect(unseen.isSampled).toBe(false);
  expect(unseen.context?.traceparent).toMatch(/-00$/); // who comes after does not choose anew
  const begun = [...Array(20_000).keys()].filter(() => tracer.start('b', { kind: 'server' }).isSampled);
  expect(begun.length).toBeGreaterThan(100);
  expect(begun.length).toBeLessThan(300);
  await stop();
});

test('a micro-batch is seen where one of its jobs is, and is linked with it', async () => {
  const { tracer, stop } = await open();
  const [seen, unseen] = [CALLER, UNSEEN].map((parent) => tracer.start('process q', { kind: 'consumer', parent }));
  const run = tracer.start('run q', { kind: 'internal', links: [unseen!, seen!], agoMs: 50 });
  seen!.link(run);
  run.end();
  expect(tracer.start('run q', { kind: 'internal', links: [unseen!] }).isSampled).toBe(false);
  seen!.end();
  await stop();
  const [batch, job] = receiver.spans;
  expect(batch).toMatchObject({ name: 'run q', parentId: '' });
  expect(batch!.links.map(({ spanId }) => spanId)).toContain(job!.spanId);
  expect(job!.links).toEqual([{ traceId: batch!.traceId, spanId: batch!.spanId }]);
  expect(batch!.endMs - batch!.startMs).toBeGreaterThanOrEqual(49);
});

test('a collector that takes nothing costs counted spans and one line, and is told of when it is back', async () => {
  const log = new RecordingLogger();
  const { tracer, stop } = await open({ OTEL_TRACES_SAMPLER: 'always_on', OTEL_BSP_SCHEDULE_DELAY: '20' }, log);
  const before = { ...spanCounts };
  receiver.status = 400;
  for (let n = 0; n < 3; n++) {
    tracer.start('lost', { kind: 'server' }).end();
    await expect.poll(() => spanCounts.dropped - before.dropped).toBe(n + 1);
  }
  receiver.status = 200;
  tracer.start('there', { kind: 'server' }).end();
  await stop();
  expect(log.messages('warn')).toEqual([
    'the collector does not take spans; they are dropped and counted until it does',
  ]);
  expect(log.lines.at(-1)).toMatchObject({ message: 'the collector takes spans again', fields: { dropped: 3 } });
  expect(receiver.spans.map(({ name }) => name)).toEqual(['there']);
  expect(spanCounts.exported - before.exported).toBe(1);
});

test('every span is sent or counted: what has no room in line is dropped', async () => {
  const { tracer, stop } = await open({ OTEL_TRACES_SAMPLER: 'always_on', OTEL_BSP_MAX_QUEUE_SIZE: '8' });
  const before = { ...spanCounts };
  for (let n = 0; n < 100; n++) tracer.start('many', { kind: 'server' }).end();
  await stop();
  const dropped = spanCounts.dropped - before.dropped;
  expect(dropped).toBeGreaterThan(80); // one line full is on its way, another waits
  expect(receiver.spans).toHaveLength(100 - dropped);
  expect(spanCounts.exported - before.exported).toBe(100 - dropped);
});

test('what OpenTelemetry’s variables ask for and is not there is refused by name', async () => {
  const wrong = {
    OTEL_TRACES_SAMPLER: 'jaeger_remote',
    OTEL_TRACES_SAMPLER_ARG: 'often',
    OTEL_TRACES_EXPORTER: 'zipkin',
    OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc',
  };
  for (const [name, value] of Object.entries(wrong))
    await expect(open({ [name]: value })).rejects.toMatchObject({
      code: 'CONFIG_INVALID',
      message: expect.stringContaining(`${name} = "${value}"`),
    });
  expect(samplingOf({ OTEL_TRACES_SAMPLER: 'traceidratio', OTEL_TRACES_SAMPLER_ARG: '0.5' })).toEqual({
    isParentBased: false,
    ratio: 0.5,
  });
});

test('OpenTelemetry’s own switches turn it off', async () => {
  for (const off of [{ OTEL_SDK_DISABLED: 'true' }, { OTEL_TRACES_EXPORTER: 'none' }])
    expect((await open(off as Record<string, string>)).tracer.isOn).toBe(false);
});

test('with traces off not one module of OpenTelemetry’s SDK is loaded', () => {
  const program = `
    import { registerHooks } from 'node:module';
    registerHooks({ load: (url, context, next) => {
      // its API comes with prom-client
      if (/@opentelemetry.(?!api.)/.test(url)) throw new Error(url);
      return next(url, context);
    } });
    const { openTracer } = await import('@shoal/ops/service');
    await import('@shoal/ops');
    const given = { environment: { OTEL_TRACES_SAMPLER: 'always_on' }, name: 'x', version: '', log: { info() {} } };
    const { tracer } = await openTracer({ ...given, traces: 'off' });
    const failed = await openTracer({ ...given, traces: 'otlp' }).then(() => 'loaded', () => 'refused by the hook');
    console.log(tracer.isOn, failed);`;
  const options = ['--conditions=@shoal/source', '--input-type=module', '-e', program];
  expect(execFileSync(process.execPath, options, { cwd: import.meta.dirname, encoding: 'utf8' })).toBe(
    'false refused by the hook\n',
  );
});
