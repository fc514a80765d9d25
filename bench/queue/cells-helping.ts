// What it gives that idle workers of other cells help: one cell has more bulk than its worker, on a simulated device that is
// held to a rate, can do; others have a worker each and nothing to do. In turns, the cell alone and with these helpers, which
// are started for their turn. A producer takes each row once and compares it with what the cell gave alone at the start.
//
//   node --conditions=@shoal/source bench/queue/cells-helping.ts [--helpers 1] [--rounds 3] [--seconds 10] [--warm 5]
//       [--tokens-per-ms 40] [--job-texts 64] [--in-flight 1024] [--record]
//
// `--warm`: a helper begins when it had nothing at home for a second and jobs waited at two looks. Prints one JSON line:
// texts/s and CPU a job in both ways, and the median ratio, which is one more than `--helpers` at most. Linux only.

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { median } from '@shoal/core/base';
import { OF_EVERY_STEP, readArguments } from '../rig/arguments.ts';
import { record } from '../rig/record.ts';
import { FIXED_DEVICE, openRig, type Rig } from '../rig/rig.ts';
import type { Asked, Cell, Counted } from './cells-producer.ts';

const args = readArguments(import.meta.url, {
  ...OF_EVERY_STEP,
  helpers: { type: 'string', default: '1' },
  rounds: { type: 'string', default: '3' },
  seconds: { type: 'string', default: '10' },
  warm: { type: 'string', default: '5' },
  'tokens-per-ms': { type: 'string', default: '40' },
  'job-texts': { type: 'string', default: '64' },
  'in-flight': { type: 'string', default: '1024' },
  record: { type: 'boolean', default: false },
});
const jobTexts = Number(args['job-texts']);
const environment = { ...FIXED_DEVICE, SHOAL_DEVICE: `sim:${args['tokens-per-ms']}` };

interface Turn {
  readonly textsPerSecond: number;
  readonly cpuMicrosPerJob: number;
}

const busy = await openRig(environment);
const home: Cell = { name: 'busy', address: busy.url };
const producer = fork(fileURLToPath(new URL('./cells-producer.ts', import.meta.url)), [], {
  stdio: ['ignore', 2, 2, 'ipc'],
});
const died = once(producer, 'exit').then(([code]) => {
  throw new Error(`the producer ended: ${String(code)}`);
});
died.catch(() => undefined);
try {
  await ask({ ask: 'expect', cells: [home], model: 'minilm-sim', jobTexts });
  await ask({ ask: 'start', cells: [home], inFlightJobs: Number(args['in-flight']) });
  const alone: Turn[] = [];
  const helped: Turn[] = [];
  for (let round = 0; round < Number(args.rounds); round++) {
    alone.push(await turn([]));
    const helpers = await Promise.all(Array.from({ length: Number(args.helpers) }, (_, at) => openHelper(at)));
    helped.push(await turn(helpers));
    await Promise.all(helpers.map((rig) => rig.stop()));
  }
  const { rows } = await ask({ ask: 'stop' });
  const ratio = median(helped.map((one, at) => one.textsPerSecond / alone[at]!.textsPerSecond));
  const cpuRatio = median(helped.map((one, at) => one.cpuMicrosPerJob / alone[at]!.cpuMicrosPerJob));
  process.stdout.write(
    `${JSON.stringify({ bench: 'cells-helping', helpers: Number(args.helpers), jobTexts, ratio, cpuRatio, rows, alone, helped })}\n`,
  );
  record({
    bench: 'cells',
    case: `a cell with bulk that waits, helped by ${args.helpers} idle worker of another cell ÷ alone, ${jobTexts} texts a job`,
    figures: {
      texts_ratio: Math.round(1_000 * ratio) / 1_000,
      cpu_per_job_ratio: Math.round(1_000 * cpuRatio) / 1_000,
      alone_texts_per_s: Math.round(median(alone.map(({ textsPerSecond }) => textsPerSecond))),
      helped_texts_per_s: Math.round(median(helped.map(({ textsPerSecond }) => textsPerSecond))),
      rows,
      lost_other_or_twice: 0,
    },
  });
} finally {
  producer.removeAllListeners('exit').kill('SIGKILL');
  await busy.stop();
}
process.exit(0);

function openHelper(at: number): Promise<Rig> {
  return openRig((url) => ({
    ...environment,
    SHOAL_WORKER_NAME: `helper${at}`,
    SHOAL_CELLS: JSON.stringify([home, { name: `idle${at}`, address: url }]),
  }));
}

/** The producer is at work all the time. */
async function turn(helpers: readonly Rig[]): Promise<Turn> {
  await Promise.race([sleep(1_000 * Number(args.warm)), died]);
  const before = await snapshot(helpers);
  await Promise.race([sleep(1_000 * Number(args.seconds)), died]);
  const after = await snapshot(helpers);
  const rows = after.rows - before.rows;
  return {
    textsPerSecond: (1_000 * rows) / (after.atMs - before.atMs),
    cpuMicrosPerJob: (1_000 * (after.cpuMs - before.cpuMs)) / (rows / jobTexts),
  };
}

async function snapshot(helpers: readonly Rig[]) {
  const { rows, cpuMs } = await ask({ ask: 'count' });
  const spent = [busy, ...helpers].map((rig) => rig.cpuMs());
  return {
    atMs: performance.now(),
    rows,
    cpuMs: spent.reduce((sum, { server, claimer, executor }) => sum + server + claimer + executor, cpuMs),
  };
}

async function ask(asked: Asked): Promise<Counted> {
  const answer = once(producer, 'message');
  producer.send(asked);
  return ((await Promise.race([answer, died])) as [Counted])[0];
}
