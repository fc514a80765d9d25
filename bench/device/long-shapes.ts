// Whether an executor's memory stays where it is: minutes of runs of mixed shapes on the real CPU provider, through the
// executor process with its pool, its budget and its commits. Every minute the lengths change their mix: short rows,
// the standard mix, long rows, anything. After two minutes the resident set has to stay within 5 %.
//   node --conditions=@shoal/source bench/device/long-shapes.ts [--minutes 30] [--model minilm] [--threads 2]
// A line a minute on stderr; exit 1 when it did not stay. Less than five minutes are not judged: then every mix was not
// seen twice.

import { cpus } from 'node:os';
import { openModel } from '@shoal/models';
import { readArguments } from '../rig/arguments.ts';
import { heldBytes, hostExecutors, rowOf, type LoneExecutor } from '../rig/lone-executor.ts';
import { cacheDir, MAX_TOKENS } from '../rig/sides.ts';

const args = readArguments(import.meta.url, {
  minutes: { type: 'string', default: '30' },
  model: { type: 'string', default: 'minilm' },
  threads: { type: 'string', default: '2' },
});
const MINUTES = Number(args.minutes);
const SETTLED_AFTER_MINUTES = 2;
const MAX_SPREAD = 0.05;
const LEAST_MINUTES = 5;
/** Jobs at the executor at a time: the pool is never empty. */
const OPEN_JOBS = 8;
const READ_EVERY_MS = 500;

let state = 1;
/** mulberry32: the same jobs in every run. */
function random(): number {
  state = (state + 0x6d2b79f5) >>> 0;
  let mixed = Math.imul(state ^ (state >>> 15), state | 1);
  mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
  return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
}

const MIXES: readonly { readonly name: string; readonly length: () => number }[] = [
  {
    name: 'standard',
    length: () =>
      Math.exp(Math.log(52) + 0.98 * Math.sqrt(-2 * Math.log(random() + 1e-12)) * Math.cos(2 * Math.PI * random())),
  },
  { name: 'short', length: () => 8 + 24 * random() },
  { name: 'long', length: () => 256 + 256 * random() },
  { name: 'any', length: () => 8 + 504 * random() },
];

const model = await openModel(args.model, { cacheDir });
const host = await hostExecutors(cacheDir);
const shapes = new Set<string>();
const samples: { readonly minute: number; readonly bytes: number }[] = [];
let startedMs = 0; // when the executor was ready
const minutesSoFar = (): number => (performance.now() - startedMs) / 60_000;
let rows = 0;
try {
  const executor = await host.start(model, { threads: Number(args.threads), limits: {} });
  startedMs = performance.now();
  executor.onMessage((message) => {
    if (message.kind === 'ran') shapes.add(`${message.rows}×${message.width}`);
  });
  const reading = setInterval(
    () => samples.push({ minute: minutesSoFar(), bytes: heldBytes(executor.pid, 'VmRSS') }),
    READ_EVERY_MS,
  );
  const telling = setInterval(tell, 60_000);
  await Promise.all(Array.from({ length: OPEN_JOBS }, (_, lane) => feed(executor, lane)));
  clearInterval(reading);
  clearInterval(telling);
  await executor.stop();
  judge();
} finally {
  await host.stop();
}

async function feed(executor: LoneExecutor, lane: number): Promise<void> {
  for (let n = 0; minutesSoFar() < MINUTES; n++) {
    const mix = MIXES[Math.floor(minutesSoFar()) % MIXES.length]!;
    const job = Array.from({ length: 1 + Math.floor(64 * random()) }, (_, row) =>
      rowOf(Math.max(8, Math.min(MAX_TOKENS, Math.round(mix.length()))), n * 64 + row, model),
    );
    const outcome = await executor.run(`job-${lane}-${n}`, job);
    if (outcome.kind !== 'committed') throw new Error(`a job ended as ${JSON.stringify(outcome)}`);
    rows += job.length;
  }
}

function tell(): void {
  const minute = Math.round(minutesSoFar());
  const last = samples.filter((sample) => sample.minute > minute - 1).map(({ bytes }) => bytes);
  process.stderr.write(
    `minute ${minute} (${MIXES[(minute - 1) % MIXES.length]!.name}): ${megabytes(Math.min(...last))} to ` +
      `${megabytes(Math.max(...last))} MB, ${rows} rows, ${shapes.size} shapes so far\n`,
  );
}

/** From the highest to the lowest reading after the first minutes: growth and dips alike. */
function judge(): void {
  const settled = samples
    .filter(({ minute }) => minute >= Math.min(SETTLED_AFTER_MINUTES, MINUTES / 2))
    .map(({ bytes }) => bytes);
  const [least, most] = [Math.min(...settled), Math.max(...settled)];
  const spread = most / least - 1;
  const isFlat = spread <= MAX_SPREAD;
  process.stdout.write(
    `${JSON.stringify({
      bench: 'long-shapes',
      cpu: cpus()[0]?.model,
      model: model.name,
      minutes: MINUTES,
      rows,
      shapes: shapes.size,
      readings: settled.length,
      leastMb: Number(megabytes(least)),
      mostMb: Number(megabytes(most)),
      spread: Number(spread.toFixed(4)),
      isJudged: MINUTES >= LEAST_MINUTES,
      isFlat,
    })}\n`,
  );
  if (MINUTES >= LEAST_MINUTES && !isFlat) process.exitCode = 1;
}

function megabytes(bytes: number): string {
  return (bytes / 1e6).toFixed(1);
}
