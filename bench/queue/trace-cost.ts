// What following jobs costs: texts/s of the whole path on the simulated device (bench/device/sim-device.ts) with traces
// off, on as they are by default (one job of a hundred), and on for every job; by turns, medians. The collector is a
// server in this process that reads what it is sent and throws it away.
//
//   node --conditions=@shoal/source bench/queue/trace-cost.ts [--rounds 3] [--seconds 5] [--warm 3] [--job-texts 64]
//       [--record]
//
// Prints one JSON line. Takes about 12 s a run, three of them a round. Its goal is that the default costs under 3 %.

import { createServer } from 'node:http';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { median } from '@shoal/core/base';
import { readArguments } from '../rig/arguments.ts';
import { record } from '../rig/record.ts';
import { runBench } from '../rig/run-bench.ts';

const args = readArguments(import.meta.url, {
  rounds: { type: 'string', default: '3' },
  seconds: { type: 'string', default: '5' },
  warm: { type: 'string', default: '3' },
  'job-texts': { type: 'string', default: '64' },
  record: { type: 'boolean', default: false },
});

const received = { requests: 0, bytes: 0 };
const collector = createServer((request, response) => {
  received.requests++;
  request.on('data', (chunk: Buffer) => (received.bytes += chunk.length));
  request.on('end', () => response.end());
}).listen(0, '127.0.0.1');
await once(collector, 'listening');
const endpoint = `http://127.0.0.1:${(collector.address() as AddressInfo).port}`;

const ON = { SHOAL_TRACES: 'otlp', OTEL_EXPORTER_OTLP_ENDPOINT: endpoint };
const WAYS = {
  off: { SHOAL_TRACES: 'off' },
  default: ON,
  all: { ...ON, OTEL_TRACES_SAMPLER: 'parentbased_always_on' },
} as const;
type Way = keyof typeof WAYS;

const texts: Record<Way, number[]> = { off: [], default: [], all: [] };
const sent: Record<Way, number> = { off: 0, default: 0, all: 0 };
for (let round = 0; round < Number(args.rounds); round++) {
  const ways = Object.keys(WAYS) as Way[];
  for (const way of round % 2 === 0 ? ways : ways.toReversed()) {
    Object.assign(process.env, WAYS[way]);
    if (way !== 'all') delete process.env['OTEL_TRACES_SAMPLER'];
    const before = received.bytes;
    const lengths = ['--seconds', args.seconds, '--warm', args.warm, '--job-texts', args['job-texts']];
    const { textsPerSecond } = await runBench('device/sim-device', ...lengths);
    texts[way].push(Number(textsPerSecond));
    sent[way] += received.bytes - before;
  }
}
collector.closeAllConnections();
collector.close();
if (sent.off > 0 || sent.all === 0) throw new Error(`the collector was sent ${JSON.stringify(sent)} bytes`);

const [off, byDefault, all] = [median(texts.off), median(texts.default), median(texts.all)];
const ratio = (way: number): number => Math.round((1_000 * way) / off) / 1_000;
process.stdout.write(
  `${JSON.stringify({ bench: 'trace-cost', texts, sent, ratioDefault: ratio(byDefault), ratioAll: ratio(all) })}\n`,
);
record({
  bench: 'trace-cost',
  case: `${args['job-texts']} texts a job, medians of ${args.rounds} runs by turns`,
  figures: {
    off_texts_per_s: off,
    default_texts_per_s: byDefault,
    all_texts_per_s: all,
    ratio_default: ratio(byDefault),
    ratio_all: ratio(all),
  },
  bar: { figure: 'ratio_default', at_least: 0.97 },
});
