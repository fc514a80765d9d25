// What larger jobs take off the queue server: µs of its command thread for a text in jobs of 1,024 rows and in jobs of 256,
// with as many rows in flight, in turns on one machine. Each turn is device/sim-device.ts in processes of its own, which
// checks every row of every result.
//
//   node --conditions=@shoal/source bench/queue/job-rows.ts [--rounds 3] [--seconds 5] [--rows-in-flight 16384]
//       [--payload-servers 0] [--record]
//
// Prints one JSON line: µs a text and texts/s of each turn, and the median ratio of the turns that followed each other.

import { median } from '@shoal/core/base';
import { simDeviceTurn } from '../device/sim-device-turn.ts';
import { readArguments } from '../rig/arguments.ts';
import { record } from '../rig/record.ts';

const args = readArguments(import.meta.url, {
  rounds: { type: 'string', default: '3' },
  seconds: { type: 'string', default: '5' },
  'rows-in-flight': { type: 'string', default: '16384' },
  'payload-servers': { type: 'string', default: '0' },
  record: { type: 'boolean', default: false },
});

interface Turn {
  readonly microsPerText: number;
  readonly textsPerSecond: number;
}

function turn(rows: number): Turn {
  const { commandMicrosPerJob, textsPerSecond } = simDeviceTurn([
    '--seconds',
    args.seconds,
    '--job-texts',
    String(rows),
    '--in-flight',
    String(Math.ceil(Number(args['rows-in-flight']) / rows)),
    '--payload-servers',
    args['payload-servers'],
  ]);
  return { microsPerText: Math.round((1_000 * commandMicrosPerJob) / rows) / 1_000, textsPerSecond };
}

const rounds = Array.from({ length: Number(args.rounds) }, (_, round) => {
  if (round % 2 === 0) return { small: turn(256), large: turn(1_024) };
  const large = turn(1_024);
  return { small: turn(256), large };
});
const ratio = median(rounds.map(({ small, large }) => large.microsPerText / small.microsPerText));
process.stdout.write(`${JSON.stringify({ bench: 'job-rows', ratio, rounds })}\n`);
record({
  bench: 'job-rows',
  case:
    `1,024 rows a job ÷ 256, ${Number(args['rows-in-flight']).toLocaleString('en-US')} rows in flight a client` +
    (args['payload-servers'] === '0' ? '' : `, ${args['payload-servers']} payload servers`),
  figures: {
    command_thread_ratio: Math.round(1_000 * ratio) / 1_000,
    us_per_text_at_256: median(rounds.map(({ small }) => small.microsPerText)),
    us_per_text_at_1024: median(rounds.map(({ large }) => large.microsPerText)),
    texts_per_s_at_256: median(rounds.map(({ small }) => small.textsPerSecond)),
    texts_per_s_at_1024: median(rounds.map(({ large }) => large.textsPerSecond)),
  },
});
