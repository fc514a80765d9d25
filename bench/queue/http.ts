// HTTP on a simulated device that takes 15 ms a run, with API keys: how many texts a second come through in requests of
// 64, how long a request of one text takes among 500 a second, what a quiet tenant feels of a loud one, whether every
// one of 1,500 calls of OpenAI's client at the same moment is answered, and, of ten times as many callers as there are
// places, whether those who were refused find one when they were told to come back.
//
//   node --conditions=@shoal/source bench/queue/http.ts [--seconds 15] [--overload-seconds 90] [--only texts,single]
//       [--report] [--record]
//
// --only: of texts, single, quiet, crowd and overload, the parts that are measured.
//
// Bars: ≥ 10,000 texts/s; p99 of single requests ≤ 60 ms; the quiet tenant's p99 ≤ that of the empty system and three
// runs of the device; no call of the official client fails; the median time told within 30 % of the median until a place
// was found, and memory of HTTP below 768 MB. One JSON line, exit 1 when a bar is missed. Callers are processes of their
// own, the quiet tenant's another than the loud one's; `cpu` says how much of a core each process took of each part,
// theirs too: all of them share the machine. Takes about 3 minutes. Wants a quiet machine.

import { cpus, loadavg } from 'node:os';
import { median } from '@shoal/core/base';
import { readArguments, refuse } from '../rig/arguments.ts';
import { startCallers, type Answered } from '../rig/http-callers.ts';
import { BenchKeys, HttpServer } from '../rig/http-server.ts';
import { processCpuMs } from '../rig/processes.ts';
import { record } from '../rig/record.ts';
import type { Bar } from '../rig/results.ts';
import { FIXED_DEVICE, openRig, percentile } from '../rig/rig.ts';

const PARTS = ['texts', 'single', 'quiet', 'crowd', 'overload'] as const;
type Part = (typeof PARTS)[number];

const args = readArguments(import.meta.url, {
  seconds: { type: 'string', default: '15' },
  'overload-seconds': { type: 'string', default: '90' },
  only: { type: 'string', default: PARTS.join(',') },
  report: { type: 'boolean', default: false },
  record: { type: 'boolean', default: false },
});
const [forMs, overloadMs] = [1_000 * Number(args.seconds), 1_000 * Number(args['overload-seconds'])];
const wanted = new Set(args.only.split(','));
for (const name of wanted)
  if (!PARTS.some((part) => part === name)) refuse(`--only ${name}: there is ${PARTS.join(', ')}`);
const RUN_MS = 15;
/** So few places that ten times as many callers are no load by themselves. */
const NARROW = { SHOAL_MAX_OPEN_REQUESTS: '8', SHOAL_MAX_WAITING_REQUESTS: '24' };
const CALLERS = 320;
const CROWD = 1_500;

const keys = new BenchKeys();
const [loudKey, quietKey] = [await keys.of('loud'), await keys.of('quiet')];
const rig = await openRig({ ...FIXED_DEVICE, SHOAL_SIM_SERVES: 'model' });
const http = await HttpServer.start(rig.url, keys);
const [loudCallers, quietCallers] = [startCallers(), startCallers()];
const loud = { url: http.url, key: loudKey, texts: 64 };
const quiet = { url: http.url, key: quietKey, texts: 1 };
let narrow: HttpServer | undefined;
const cpu: Partial<Record<Part | 'alone', Readonly<Record<string, number>>>> = {};

await loudCallers.loop(loud, 8, Math.min(2_000, forMs)); // warm
await quietCallers.offer(quiet, 20, 100);

const texts = await measured('texts', () => loudCallers.loop(loud, 32, forMs));
const single = await measured('single', () => quietCallers.offer(quiet, 500, forMs));
const alone = await measured('quiet', () => quietCallers.offer(quiet, 20, forMs), 'alone');
const beside = await measured('quiet', async () => {
  const [felt] = await Promise.all([
    quietCallers.offer(quiet, 20, 1.5 * forMs),
    loudCallers.loop(loud, 512, 1.5 * forMs),
  ]);
  return felt.filter(({ sinceMs }) => sinceMs > forMs / 2); // by then 512 connections are no news
});
const crowd = await measured('crowd', () => quietCallers.official(quiet, CROWD));
const crowdedMb = http.peakMb();
if (wanted.has('overload')) narrow = await HttpServer.start(rig.url, keys, NARROW);
const returned = await measured('overload', () =>
  loudCallers.comingBack({ ...loud, url: narrow!.url }, CALLERS, overloadMs),
);
const steady = returned?.filter(({ refusedMs }) => refusedMs > 0.3 * overloadMs);

interface Case {
  readonly part: Part | 'memory';
  readonly case: string;
  readonly figures: Readonly<Record<string, number>>;
  readonly bar: Bar;
}

const cases: Case[] = [];
if (texts !== undefined)
  cases.push({
    part: 'texts',
    case: 'requests of 64 texts, 32 callers',
    figures: { texts_per_s: Math.round((64 * texts.length * 1_000) / forMs), ...coresOf('texts') },
    bar: { figure: 'texts_per_s', at_least: 10_000 },
  });
if (single !== undefined)
  cases.push({
    part: 'single',
    case: '500 requests of one text a second',
    figures: { ...timesOf(single), ...coresOf('single') },
    bar: { figure: 'p99_ms', at_most: 60 },
  });
if (alone !== undefined && beside !== undefined) {
  const aloneMs = timesOf(alone).p99_ms;
  cases.push({
    part: 'quiet',
    case: 'quiet tenant, 20 requests of one text a second, beside 512 callers with 64 texts',
    figures: {
      ...timesOf(beside),
      alone_p99_ms: aloneMs,
      more_ms: timesOf(beside).p99_ms - aloneMs,
      ...coresOf('quiet'),
    },
    bar: { figure: 'more_ms', at_most: 3 * RUN_MS },
  });
}
if (crowd !== undefined)
  cases.push({
    part: 'crowd',
    case: `${CROWD} calls of the official client at once`,
    figures: { ...timesOf(crowd), failed: CROWD - crowd.length },
    bar: { figure: 'failed', at_most: 0 },
  });
if (steady !== undefined) {
  const [toldMs, tookMs] = [steady.map((one) => one.toldMs), steady.map((one) => one.tookMs)].map(middle) as [
    number,
    number,
  ];
  cases.push({
    part: 'overload',
    case: `${CALLERS} callers for 32 places`,
    figures: {
      returned: steady.length,
      told_ms: toldMs,
      took_ms: tookMs,
      off: steady.length === 0 ? 1 : Number(Math.abs(toldMs / tookMs - 1).toFixed(2)),
    },
    bar: { figure: 'off', at_most: 0.3 },
  });
}
cases.push({
  part: 'memory',
  case: 'memory of HTTP',
  figures: { peak_mb: Math.max(crowdedMb, narrow?.peakMb() ?? 0) },
  bar: { figure: 'peak_mb', at_most: 768 },
});

const rows = cases.map(({ case: name, figures, bar }) => record({ bench: 'http', case: name, figures, bar }));
const missed = cases.flatMap(({ part }, at) => (rows[at]!.held === true ? [] : [part]));
process.stdout.write(
  `${JSON.stringify({
    ...Object.fromEntries(cases.map(({ part, figures }) => [part, figures])),
    cpu,
    load: loadavg().map((one) => Number(one.toFixed(1))),
    machine: `${cpus().length} × ${cpus()[0]?.model ?? 'unknown'}`,
    missed,
  })}\n`,
);
await Promise.all([http.stop(), narrow?.stop(), loudCallers.close(), quietCallers.close()]);
await rig.stop();
keys.close();
process.exitCode = missed.length > 0 && !args.report ? 1 : 0;

/** Undefined where the part is not wanted. Keeps how much of a core each process took meanwhile. */
async function measured<Answer>(
  part: Part,
  measure: () => Promise<Answer>,
  as: keyof typeof cpu = part,
): Promise<Answer | undefined> {
  if (!wanted.has(part)) return undefined;
  const [before, startMs] = [cpuMs(), performance.now()];
  const answer = await measure();
  const [after, tookMs] = [cpuMs(), performance.now() - startMs];
  cpu[as] = Object.fromEntries(
    Object.entries(after).map(([name, ms]) => [name, Number(((ms - before[name]!) / tookMs).toFixed(2))]),
  );
  return answer;
}

function cpuMs(): Record<string, number> {
  const { server, claimer, executor } = rig.cpuMs();
  return {
    http: processCpuMs(http.pid) + (narrow === undefined ? 0 : processCpuMs(narrow.pid)),
    claimer,
    executor,
    server,
    loud: processCpuMs(loudCallers.pid),
    quiet: processCpuMs(quietCallers.pid),
  };
}

/** How many cores HTTP took, and its callers beside it. */
function coresOf(part: keyof typeof cpu): { readonly http_cores: number; readonly callers_cores: number } {
  const { http: ours = 0, loud: many = 0, quiet: few = 0 } = cpu[part] ?? {};
  return { http_cores: ours, callers_cores: Number((many + few).toFixed(2)) };
}

function timesOf(answers: readonly Answered[]): { readonly p50_ms: number; readonly p99_ms: number } {
  const times = answers.map(({ ms }) => ms);
  return { p50_ms: Math.round(percentile(times, 0.5)), p99_ms: Math.round(percentile(times, 0.99)) };
}

function middle(times: readonly number[]): number {
  return times.length === 0 ? 0 : Math.round(median(times));
}
