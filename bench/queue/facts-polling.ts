// What it costs the queue server that workers look at their fleet: so many simulated workers show themselves every two
// seconds and look every second, as real ones do; counted are commands and bytes that the server sends a second.
//
//   node --conditions=@shoal/source bench/queue/facts-polling.ts [--workers 40] [--gpus 40] [--seconds 20]
//
// `--gpus`: so many of them decide nothing by what others are like. Prints one JSON line. Says nothing about jobs.

import { setTimeout as sleep } from 'node:timers/promises';
import { noLog, systemClock, type WorkerFacts } from '@shoal/core';
import { Fleet, FleetWatch, WorkerPresence, closeConnection, openConnection } from '@shoal/queue';
import { startTestServer } from '@shoal/queue/testing';
import { readArguments } from '../rig/arguments.ts';

const values = readArguments(import.meta.url, {
  workers: { type: 'string', default: '40' },
  gpus: { type: 'string', default: '40' },
  seconds: { type: 'string', default: '20' },
});
const [workers, gpus, seconds] = [Number(values.workers), Number(values.gpus), Number(values.seconds)];
const QUEUE = 'embed-x';

/** As much as a worker that embeds tells. */
function factsOf(at: number): WorkerFacts {
  const isGpu = at < gpus;
  return {
    device: isGpu ? 'cuda:0' : 'cpu:avx512',
    precision: isGpu ? 'fp16' : 'fp32',
    model: 'minilm@1110a243fdf4706b3f48f1d95db1a4f5529b4d41',
    host: `node-${at}.example.internal`,
    pid: 1_000 + at,
    version: '0.1.0',
    jobVersion: 2,
    prompts: ['query', 'passage'],
    isNormalized: true,
    lanes: isGpu ? ['main'] : ['main', 'cpu'],
    isDrained: false,
    claims: 100 + at,
    poolTokens: 24_000,
    tokensPerJob: 5_248,
    rates: { short: 8_123_456.7, medium: 7_654_321.1, long: 1_000_000.9 },
    mix: { short: 0.25, medium: 0.5, long: 0.25 },
    budget: { maxPaddedTokens: 65_536, limitedBy: 'knee', source: 'stored' },
    memoryBytes: 2_100_000_000,
  };
}

const server = await startTestServer();
const connection = openConnection({ url: server.url, name: 'bench' });

/** Commands so far, and bytes that the server sent. */
async function counted(): Promise<{ readonly commands: number; readonly bytes: number }> {
  const stats = await connection.info('stats');
  const figure = (name: string): number => Number(new RegExp(`${name}:(\\d+)`).exec(stats)?.[1]);
  return { commands: figure('total_commands_processed'), bytes: figure('total_net_output_bytes') };
}

const parts = await Promise.all(
  Array.from({ length: workers }, async (_, at) => {
    const place = { redisUrl: server.url, prefix: '{bench}', queue: QUEUE, log: noLog };
    const lanes = at < gpus ? [QUEUE] : [QUEUE, `${QUEUE}-cpu`];
    const presence = await WorkerPresence.connect({ ...place, workerId: `w-${at}`, lanes, facts: () => factsOf(at) });
    const fleet = await Fleet.connect(place);
    await presence.start();
    await sleep(Math.random() * 1_000);
    const read = () => fleet.look({ withFacts: at >= gpus });
    const watch = new FleetWatch({ read, onView: () => undefined, clock: systemClock, log: noLog });
    await watch.start();
    return { presence, fleet, watch };
  }),
);
await sleep(3_000);
const [before, startedMs] = [await counted(), performance.now()];
await sleep(seconds * 1_000);
const [after, tookMs] = [await counted(), performance.now() - startedMs];
const perSecond = (count: number): number => Math.round((count / tookMs) * 1_000);
process.stdout.write(
  `${JSON.stringify({
    workers,
    gpus,
    commandsPerSecond: perSecond(after.commands - before.commands),
    bytesPerSecond: perSecond(after.bytes - before.bytes),
  })}\n`,
);
await Promise.all(parts.map(({ watch }) => watch.stop()));
await Promise.all(parts.flatMap(({ presence, fleet }) => [presence.stop(), fleet.close()]));
await closeConnection(connection);
await server.stop();
