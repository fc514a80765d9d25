// Hand-overs under fire: thousands of jobs, half of which do not fit the simulated GPU, go through both lanes while
// workers of both kinds are killed again and again. Every result is then fetched, compared and fetched again.
//
//   node --conditions=@shoal/source bench/queue/hand-over-crash.ts [--jobs 3000] [--changes 60] [--seed 1] [--fsync
//   everysec|always]
//
// Prints one JSON line. Exit 1 when a job was misplaced at any look, lost, wrong, or to be had twice. 3,000 jobs take
// about four minutes on two cores.

import { availableParallelism, cpus } from 'node:os';
import { startTestServer } from '@shoal/queue/testing';
import { readArguments } from '../rig/arguments.ts';
import { crashHandOvers } from '../../libs/queue/src/testing/hand-over-crash.ts';

const args = readArguments(import.meta.url, {
  jobs: { type: 'string', default: '3000' },
  changes: { type: 'string', default: '60' },
  seed: { type: 'string', default: String(Math.floor(Math.random() * 2 ** 32)) },
  fsync: { type: 'string', default: 'everysec' },
});

const server = await startTestServer({ appendFsync: args.fsync === 'always' ? 'always' : 'everysec' });
try {
  const startedMs = performance.now();
  const { misplaced, wrong, ...report } = await crashHandOvers({
    redisUrl: server.url,
    prefix: '{crash}',
    jobs: Number(args.jobs),
    seed: Number(args.seed),
    mostChanges: Number(args.changes),
  });
  for (const line of [...misplaced, ...wrong].slice(0, 20)) process.stderr.write(`${line}\n`);
  const seconds = Math.round((performance.now() - startedMs) / 1_000);
  const found = {
    bench: 'hand-over-crash',
    cpu: cpus()[0]?.model,
    cores: availableParallelism(),
    seed: Number(args.seed),
    seconds,
    ...report,
    misplaced: misplaced.length,
    wrong: wrong.length,
  };
  process.stdout.write(`${JSON.stringify(found)}\n`);
  if (misplaced.length + wrong.length > 0) process.exitCode = 1;
} finally {
  await server.stop();
}
