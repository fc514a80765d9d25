// Everything dies, and nothing is lost: a real queue server with an append-only file, supervised workers on the small
// test model (one of them refuses rows of one kind, so that jobs are handed over to the CPU lane all the time),
// producers that keep to what was acknowledged, and faults by a seed: SIGKILL of workers, executors and the server, cut
// connections, an outage, memory that is full, fsyncs that take 300 ms. Every row of every answer is compared with an
// undisturbed run's, and what was called and answered is held against what is promised (docs/simulation.md).
//
//   node --conditions=@shoal/source bench/chaos/chaos.ts [--seconds 600] [--texts 1000000] [--mode everysec|always]
//       [--seed N] [--workers 3] [--producers 2] [--window 150] [--outage 20] [--slow 20] [--every 4] [--lease-ms 5000]
//       [--matrix] [--payload-servers 0] [--bucket] [--record]
//
// `--matrix`: the faults of the matrix as well (Linux only): wires of workers and producers that go bad, each behind a
// proxy of its own, processes that are stopped or get no descriptor or no memory, and with SHOAL_TEST_FAKETIME, the path of a
// libfaketime.so.1, the last worker's clock two hours off.
//
// `--payload-servers N`: inputs and results of most jobs lie on so many servers beside the queue's, which are killed,
// emptied, filled up and stopped as well. What they lose is computed again, and counted. `--bucket`: a bucket is one of them
// (moto of PyPI has it), and its store is killed, emptied, stopped and at the end of its strength (503 SlowDown).
//
// `everysec`: producers add again what the server forgot. `always`: they do not, and nothing may be forgotten. Prints
// one JSON line and ends with 1 when anything was lost, wrong or visible twice, or never ended; `--record` keeps it as a row
// of bench/results/chaos.jsonl. --seconds 20 --texts 0 --outage 3
// --slow 3 is the form for CI.

import type { ChildProcess } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { availableParallelism, cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { DEFAULT_PREFIX, keySpace, mainQueue } from '@shoal/contract';
import { cacheFolder } from '@shoal/core';
import { S3Gate, startS3Server, startTestServer } from '@shoal/queue/testing';
import { HistoryWriter, Recorder } from '@shoal/world';
import { readArguments } from '../rig/arguments.ts';
import { record } from '../rig/record.ts';
import { BadWire } from './bad-wire.ts';
import { Faults, canSlowDisk, type BucketParts, type MatrixParts } from './faults.ts';
import { SupervisedFleet } from './fleet.ts';
import { judgeHistory } from './judge-history.ts';
import { MODEL, REFUSED_TOKEN, prepareLoad, startProducer } from './load.ts';
import { SteppedClock } from './process-faults.ts';
import { connectRaw, whyOfJob, type Redis } from './producer-parts.ts';
import type { OpenSeen, ProducerOrder, ProducerReport } from './producer.ts';
import { QueueWitness } from './queue-witness.ts';
import { randomFrom } from '../rig/ragged-corpus.ts';

const args = readArguments(import.meta.url, {
  seconds: { type: 'string', default: '600' },
  texts: { type: 'string', default: '1000000' },
  mode: { type: 'string', default: 'everysec' },
  seed: { type: 'string', default: String(Math.floor(Math.random() * 1e6)) },
  workers: { type: 'string', default: '3' },
  producers: { type: 'string', default: '2' },
  window: { type: 'string', default: '150' },
  outage: { type: 'string', default: '20' },
  slow: { type: 'string', default: '20' },
  'lease-ms': { type: 'string', default: '5000' },
  every: { type: 'string', default: '4' },
  matrix: { type: 'boolean', default: false },
  'payload-servers': { type: 'string', default: '0' },
  bucket: { type: 'boolean', default: false },
  record: { type: 'boolean', default: false },
});
/** How long everything may take to come to rest after the last fault. */
const REST_MS = 180_000;
/** Of jobs that are open after that, so many are told of one by one. */
const OPEN_TOLD = 20;
const random = randomFrom(Number(args.seed));
const seconds = Number(args.seconds);
const workers = Number(args.workers);
const cacheDir = cacheFolder(process.env['SHOAL_CACHE_DIR']);

function workerSettings(
  index: number,
  matrix: MatrixParts | undefined,
  payloadServers: string,
): Record<string, string> {
  return {
    ...(matrix === undefined ? {} : { SHOAL_REDIS_URL: matrix.wires[index]!.url }),
    ...(index === workers - 1 ? matrix?.clock?.environment : {}),
    ...(payloadServers === '' ? {} : { SHOAL_PAYLOAD_SERVERS: payloadServers }),
    SHOAL_MODEL: MODEL,
    SHOAL_CACHE_DIR: cacheDir,
    SHOAL_THREADS: '1',
    SHOAL_LOG_LEVEL: process.env['CHAOS_LOG'] ?? 'silent',
    SHOAL_MAX_PADDED_TOKENS: '4096',
    SHOAL_HYBRID: 'always',
    SHOAL_LEASE_MS: args['lease-ms'],
    SHOAL_STALLED_CHECK_MS: String((Number(args['lease-ms']) / 3) | 0),
    ...(index === 0 ? { SHOAL_FAULT_TOKEN: `${REFUSED_TOKEN}:refuse` } : {}),
  };
}

/** A wire each for workers and then producers, where they are asked for. */
async function openMatrix(serverUrl: string, folder: string): Promise<MatrixParts | undefined> {
  if (!args.matrix) return undefined;
  const library = process.env['SHOAL_TEST_FAKETIME'];
  if (library === undefined) process.stderr.write('chaos: no clock steps, SHOAL_TEST_FAKETIME names no libfaketime\n');
  return {
    wires: await Promise.all(Array.from({ length: workers + Number(args.producers) }, () => BadWire.open(serverUrl))),
    clock: library === undefined ? undefined : new SteppedClock(folder, 'worker', library),
  };
}

/** All processes have its address and its credentials by our environment. */
async function openBucket(): Promise<BucketParts | undefined> {
  if (!args.bucket) return undefined;
  const store = await startS3Server();
  await store.makeBucket('shoal');
  const gate = await S3Gate.open(store.endpoint);
  Object.assign(process.env, store.credentials, { AWS_ENDPOINT_URL_S3: gate.endpoint });
  return { store, gate };
}

async function startProducers(
  order: Omit<ProducerOrder, 'index' | 'life' | 'historyPath'>,
  histories: string,
  wires: readonly BadWire[],
) {
  return Promise.all(
    Array.from({ length: Number(args.producers) }, async (_, index) => {
      const historyPath = join(histories, `producer-${index}.jsonl`);
      const redisUrl = wires[workers + index]?.url ?? order.redisUrl;
      const child = await startProducer({ ...order, redisUrl, index, life: 0, historyPath });
      child.once('exit', (code) => (code === 0 ? undefined : fail(`a producer ended with ${code}`)));
      return child;
    }),
  );
}

async function ask<Answer = ProducerReport>(
  children: readonly ChildProcess[],
  message: 'report' | 'finish' | 'open',
): Promise<Answer[]> {
  return Promise.all(
    children.map(
      (child) =>
        new Promise<Answer>((resolve, reject) => {
          const gone = (): void => reject(new Error(`a producer is gone that was asked for "${message}"`));
          const hear = (answer: Answer & { readonly to: string }): void => {
            if (answer.to !== message) return;
            child.off('message', hear);
            child.off('exit', gone);
            resolve(answer);
          };
          child.on('message', hear);
          child.once('exit', gone);
          if (child.connected) child.send(message);
          else gone();
        }),
    ),
  );
}

/** A line for each of the first jobs that have not ended: whether its producer was told that it is taken, and where it is. */
async function tellOpen(connection: Redis, producers: readonly ChildProcess[]): Promise<void> {
  const told = await ask<{ readonly jobs: readonly OpenSeen[] }>(producers, 'open');
  for (const { jobId, isAcknowledged } of told.flatMap(({ jobs }) => jobs).slice(0, OPEN_TOLD)) {
    const { found, why: unknown } = await whyOfJob(connection, DEFAULT_PREFIX, jobId, [mainQueue(MODEL)]);
    const why = found.map((one) => `${one.lane}, ${one.claims} claims: ${one.why}`).join('; ') || unknown;
    process.stderr.write(`open: ${jobId}, ${isAcknowledged ? '' : 'not '}acknowledged; ${why}\n`);
  }
}

function fail(reason: string): void {
  process.stderr.write(`chaos: ${reason} (seed ${args.seed})\n`);
  process.exitCode = 1;
}

/** How a row is called: the mode, and what happened besides kills and cuts. */
function caseOf(): string {
  const beside = Number(args['payload-servers']);
  const more = [
    ...(args.matrix ? ['of the matrix'] : []),
    ...(beside > 0 ? [`of ${beside} payload servers`] : []),
    ...(args.bucket ? ['of a bucket'] : []),
  ];
  return `mode ${args.mode}${more.length === 0 ? '' : `, faults ${more.join(' and ')} as well`}`;
}

function sum(reports: readonly ProducerReport[], key: keyof ProducerReport): number {
  return reports.reduce((total, report) => total + Number(report[key]), 0);
}

function failedOf(reports: readonly ProducerReport[]): Record<string, number> {
  const failed: Record<string, number> = {};
  for (const report of reports)
    for (const [code, count] of Object.entries(report.failed)) failed[code] = (failed[code] ?? 0) + count;
  return failed;
}

async function main(): Promise<void> {
  process.stderr.write(`chaos: seed ${args.seed}\n`);
  const folder = mkdtempSync(join(tmpdir(), 'shoal-chaos-'));
  const histories = join(folder, 'history');
  mkdirSync(histories);
  const load = await prepareLoad(folder, cacheDir, random);
  const server = await startTestServer({ appendFsync: args.mode === 'always' ? 'always' : 'everysec' });
  const beside = await Promise.all(
    Array.from({ length: Number(args['payload-servers']) }, () =>
      startTestServer({ appendFsync: 'no', topology: 'single' }),
    ),
  );
  const bucket = await openBucket();
  const payloadServers = [...beside.map(({ url }) => url), ...(bucket === undefined ? [] : ['s3://shoal/chaos'])].join(
    ',',
  );
  const matrix = await openMatrix(server.url, folder);
  const fleet = new SupervisedFleet({
    redisUrl: server.url,
    workers: Array.from({ length: workers }, (_, index) => workerSettings(index, matrix, payloadServers)),
  });
  await fleet.start();
  const history = new Recorder('chaos', new HistoryWriter(join(histories, 'chaos.jsonl')));
  const witness = new QueueWitness(
    await connectRaw(server.url),
    keySpace().job(mainQueue(MODEL), '').slice(0, -1),
    new Recorder('server', new HistoryWriter(join(histories, 'server.jsonl'))),
  );
  witness.start();
  const raw = await connectRaw(server.url);
  const producers = await startProducers(
    {
      ...load,
      redisUrl: server.url,
      seed: Number(args.seed),
      mode: args.mode === 'always' ? 'once' : 'again',
      window: Number(args.window),
      payloadServers,
    },
    histories,
    matrix?.wires ?? [],
  );
  const startedMs = performance.now();
  const elapsed = (): number => (performance.now() - startedMs) / 1_000;
  const faults = new Faults({
    server,
    fleet,
    workers,
    random,
    outageMs: Number(args.outage) * 1_000,
    slowMs: Number(args.slow) * 1_000,
    forgets: args.mode !== 'always',
    history,
    matrix,
    payloadServers: beside,
    bucket,
  });
  const isSlowable = canSlowDisk();
  if (!isSlowable) process.stderr.write('chaos: no round with a slow disk, strace cannot delay fsyncs here\n');
  let texts = 0;
  for (let turn = 0; elapsed() < seconds || texts < Number(args.texts); turn++) {
    await sleep((0.5 + random()) * Number(args.every) * 1_000);
    if (faults.counts.outage === 0 && elapsed() > seconds / 3) await faults.happen('outage');
    else if (faults.counts['slow-fsync'] === 0 && isSlowable && elapsed() > (2 * seconds) / 3)
      await faults.happen('slow-fsync');
    else await faults.anyOne();
    if (turn % 10 !== 0) continue;
    const reports = await ask(producers, 'report');
    texts = sum(reports, 'texts');
    process.stderr.write(
      `chaos: ${Math.round(elapsed())} s, ${texts} texts acknowledged, ${sum(reports, 'completed')} jobs ` +
        `completed, ${sum(reports, 'open')} open\n`,
    );
  }
  const restMs = performance.now();
  const final = await Promise.race([ask(producers, 'finish'), sleep(REST_MS, undefined, { ref: false })]);
  const reports = final ?? (await ask(producers, 'report'));
  const [acknowledged, completed, lost, wrong, visibleTwice, open] = (
    ['acknowledged', 'completed', 'lost', 'wrong', 'visibleTwice', 'open'] as const
  ).map((key) => sum(reports, key)) as [number, number, number, number, number, number];
  const failed = failedOf(reports);
  const ended = completed + Object.values(failed).reduce((total, count) => total + count, 0);
  const restSeconds = (performance.now() - restMs) / 1_000;
  if (open > 0) await tellOpen(raw, producers);
  raw.disconnect();
  const claimedAgainPercent = (100 * sum(reports, 'claimedAgain')) / Math.max(1, sum(reports, 'claimsKnown'));
  const exitCodes = await fleet.stop();
  await witness.stop();
  history.observe('rest', '');
  const judged = judgeHistory(histories, { settleMs: REST_MS });
  process.stdout.write(
    `${JSON.stringify({
      bench: 'chaos',
      cpu: cpus()[0]?.model,
      cores: availableParallelism(),
      mode: args.mode,
      seed: Number(args.seed),
      seconds: Math.round(elapsed()),
      texts: sum(reports, 'texts'),
      acknowledged,
      completed,
      failed,
      lost,
      wrong,
      visibleTwice,
      open,
      handedOver: sum(reports, 'handedOver'),
      addedAgain: sum(reports, 'addedAgain'),
      payloads: { put: sum(reports, 'payloadsPut'), lost: sum(reports, 'payloadsLost') },
      claimedAgainPercent: Number(claimedAgainPercent.toFixed(2)),
      faults: faults.counts,
      workerStarts: fleet.starts,
      leftByThemselves: fleet.leftByThemselves,
      unended: fleet.unended,
      exitCodes,
      restSeconds: Number(restSeconds.toFixed(1)),
      history: { ...judged, gaps: witness.gaps },
    })}\n`,
  );
  record({
    bench: 'chaos',
    case: caseOf(),
    figures: {
      texts: sum(reports, 'texts'),
      jobs: acknowledged,
      run_s: Math.round(elapsed()),
      lost_wrong_twice_or_open: lost + wrong + visibleTwice + open,
      history_violations: judged.violations + judged.undecided,
      history_events: judged.events,
      failed: ended - completed,
      handed_over: sum(reports, 'handedOver'),
      added_again: sum(reports, 'addedAgain'),
      ...(payloadServers === '' ? {} : { payloads_lost: sum(reports, 'payloadsLost') }),
      claimed_again_percent: Number(claimedAgainPercent.toFixed(1)),
      worker_starts: fleet.starts,
      workers_that_did_not_end: fleet.unended.length,
      rest_s: Number(restSeconds.toFixed(1)),
      faults: Object.values(faults.counts).reduce((total, count) => total + count, 0),
    },
    bar: { figure: 'lost_wrong_twice_or_open', at_most: 0 },
  });
  if (lost > 0 || wrong > 0 || visibleTwice > 0 || open > 0 || acknowledged !== ended)
    fail('something was lost, wrong, visible twice, or never ended');
  if (fleet.unended.length > 0) fail(`workers did not end when they were told to: ${fleet.unended.join('; ')}`);
  if (payloadServers !== '' && (sum(reports, 'payloadsPut') === 0 || sum(reports, 'payloadsLost') === 0))
    fail('payload servers were to lose something, and did not: nothing was tried');
  if (judged.violations > 0 || judged.undecided > 0)
    fail(`the history has ${judged.violations} violations and ${judged.undecided} jobs that nothing can be said of`);
  for (const child of producers) {
    child.removeAllListeners('exit');
    child.kill('SIGKILL');
  }
  await Promise.all((matrix?.wires ?? []).map((wire) => wire.close()));
  await bucket?.gate.close();
  await Promise.all([server, ...beside, ...(bucket === undefined ? [] : [bucket.store])].map((one) => one.stop()));
  rmSync(folder, { recursive: true, force: true });
}

await main();
