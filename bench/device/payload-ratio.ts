// What payload servers take off the queue server: µs of its command thread for a job of 256 rows, with inputs and results
// beside it and without, in turns on one machine. Each turn is sim-device.ts in processes of its own, which checks every
// row of every result.
//
//   node --conditions=@shoal/source bench/device/payload-ratio.ts [--rounds 3] [--seconds 5] [--payload-servers 2]
//       [--in-flight 64] [--record]
//
// Prints one JSON line: µs a job and texts/s of each turn, and the median ratio of the turns that followed each other. Its
// goal is a ratio of 0.4: a queue server then carries 2.5 times the jobs (arithmetic, not measured).

import { median } from '@shoal/core/base';
import { readArguments } from '../rig/arguments.ts';
import { record } from '../rig/record.ts';
import { simDeviceTurn } from './sim-device-turn.ts';

const args = readArguments(import.meta.url, {
  rounds: { type: 'string', default: '3' },
  seconds: { type: 'string', default: '5' },
  'payload-servers': { type: 'string', default: '2' },
  'in-flight': { type: 'string', default: '64' },
  record: { type: 'boolean', default: false },
});

interface Turn {
  readonly microsPerJob: number;
  readonly textsPerSecond: number;
}

function turn(payloadServers: string): Turn {
  const { commandMicrosPerJob, textsPerSecond } = simDeviceTurn([
    '--seconds',
    args.seconds,
    '--in-flight',
    args['in-flight'],
    '--payload-servers',
    payloadServers,
  ]);
  return { microsPerJob: commandMicrosPerJob, textsPerSecond };
}

const rounds = Array.from({ length: Number(args.rounds) }, (_, round) => {
  const first = round % 2 === 0 ? '0' : args['payload-servers'];
  const [one, other] = [turn(first), turn(first === '0' ? args['payload-servers'] : '0')];
  return first === '0' ? { server: one, beside: other } : { server: other, beside: one };
});
const ratio = median(rounds.map(({ server, beside }) => beside.microsPerJob / server.microsPerJob));
process.stdout.write(`${JSON.stringify({ bench: 'payload-ratio', ratio, rounds })}\n`);
record({
  bench: 'payload-ratio',
  case: `256 texts a job, ${args['in-flight']} in flight a client, ${args['payload-servers']} payload servers ÷ none`,
  figures: {
    command_thread_ratio: Math.round(1_000 * ratio) / 1_000,
    server_us_per_job: median(rounds.map(({ server }) => server.microsPerJob)),
    beside_us_per_job: median(rounds.map(({ beside }) => beside.microsPerJob)),
    server_texts_per_s: median(rounds.map(({ server }) => server.textsPerSecond)),
    beside_texts_per_s: median(rounds.map(({ beside }) => beside.textsPerSecond)),
  },
  bar: { figure: 'command_thread_ratio', at_most: 0.4 },
});
