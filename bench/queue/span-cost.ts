// What spans cost a claimer, in microseconds of its CPU a job: claimed, in a micro-batch of sixteen jobs, ended; sampling,
// OpenTelemetry's SDK, encoding and sending included. With traces off, as they are by default (one job of a hundred), and
// on for every job. CPU time, so it needs no quiet machine; what it does to texts/s is in trace-cost.ts.
//
//   node --conditions=@shoal/source bench/queue/span-cost.ts [--jobs 20000] [--record]
//
// Prints one JSON line. Its goal is 20 µs a job at the default.

import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setImmediate as turn } from 'node:timers/promises';
import { openTracer } from '@shoal/ops/service';
import { JobSpans, UNTRACED, endSpan } from '../../libs/core/src/claimer/job-spans.ts';
import { readEmbedJob } from '../../libs/core/src/claimer/queued-job.ts';
import { readArguments } from '../rig/arguments.ts';
import { record } from '../rig/record.ts';

const args = readArguments(import.meta.url, {
  jobs: { type: 'string', default: '20000' },
  record: { type: 'boolean', default: false },
});
const count = Number(args.jobs);
const IN_BATCH = 16;
const RAN = { rows: 1_024, width: 64, tokens: 50_000, runMs: 8, duplicates: 0, poolTokens: 0, poolAgeMs: 0 };
const claims = Array.from({ length: count }, (_, i) => ({
  jobId: `job-${i}`,
  token: 'token',
  name: 'embed',
  data: { v: 1, input: { form: 'texts', rows: 64 } },
  attempt: 0,
  queuedMs: 3,
  mustFail: undefined,
}));
const jobs = claims.map(readEmbedJob);

async function live(spans: JobSpans): Promise<void> {
  for (let at = 0; at < count; at += IN_BATCH) {
    const open = claims
      .slice(at, at + IN_BATCH)
      .map((claim, i) => ({ claim, span: spans.claimed(claim, jobs[at + i]) }));
    spans.hear({ kind: 'began', batch: at, jobIds: open.map(({ claim }) => claim.jobId) });
    spans.hear({ kind: 'ran', batch: at, ...RAN });
    for (const { claim, span } of open) {
      spans.left(claim.jobId, span);
      endSpan(span, { outcome: 'complete', code: undefined, rows: 64 });
    }
    if (at % (IN_BATCH * 32) === 0) await turn();
  }
}

const received = { bytes: 0 };
const collector = createServer((request, response) => {
  request.on('data', (chunk: Buffer) => (received.bytes += chunk.length));
  request.on('end', () => response.end());
}).listen(0, '127.0.0.1');
await once(collector, 'listening');
process.env['OTEL_EXPORTER_OTLP_ENDPOINT'] = `http://127.0.0.1:${(collector.address() as AddressInfo).port}`;
process.env['OTEL_BSP_MAX_QUEUE_SIZE'] = String(2 * count); // all that is kept is sent

/** µs of CPU a job. */
async function cost(sampler: string | undefined): Promise<number> {
  const environment = { ...process.env, ...(sampler !== undefined && { OTEL_TRACES_SAMPLER: sampler }) };
  const log = { debug() {}, info() {}, warn() {}, error() {} };
  const traces = sampler === undefined ? 'off' : 'otlp';
  const { tracer, stop } = await openTracer({ traces, environment, name: 'bench', version: '', log });
  const traced = tracer.isOn ? { tracer, queue: 'embed-bench', workerName: 'w' } : UNTRACED;
  await live(new JobSpans(traced, () => performance.now())); // compiled by now
  const before = process.cpuUsage();
  await live(new JobSpans(traced, () => performance.now()));
  await stop();
  const { user, system } = process.cpuUsage(before);
  return Math.round((10 * (user + system)) / count) / 10;
}

const off = await cost(undefined);
const byDefault = await cost('parentbased_traceidratio');
const bytesByDefault = received.bytes;
const all = await cost('parentbased_always_on');
collector.closeAllConnections();
collector.close();
if (received.bytes <= 10 * bytesByDefault) throw new Error('the collector was not sent what was to be kept');
const figures = { off_us_per_job: off, default_us_per_job: byDefault, all_us_per_job: all };
process.stdout.write(`${JSON.stringify({ bench: 'span-cost', jobs: count, ...figures })}\n`);
record({
  bench: 'span-cost',
  case: 'a job of 64 texts, sixteen a micro-batch',
  figures,
  bar: { figure: 'default_us_per_job', at_most: 20 },
});
