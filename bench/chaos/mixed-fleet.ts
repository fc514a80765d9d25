// Workers and producers of two trees on one queue: this one and another checkout that is built (--other). Each of three
// producers (the SDK of either tree, and BullMQ alone) hands the same texts to a fleet of the other tree's workers,
// then of this one's, then of both, of which one is killed and started again in between. Every job has to complete, and
// every text has to have the same vector whoever asked for it and whoever computed it.
//
//   node --conditions=@shoal/source bench/chaos/mixed-fleet.ts --other FOLDER [--texts 600]
//
// One line of JSON; exit 1 when a job did not complete or a vector differs.

import { execFile, fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { startTestServer } from '@shoal/queue/testing';
import { readArguments, refuse } from '../rig/arguments.ts';

const args = readArguments(import.meta.url, {
  other: { type: 'string' },
  texts: { type: 'string', default: '600' },
});
const THIS = fileURLToPath(new URL('../../', import.meta.url)).replace(/\/$/, '');
const OTHER = args.other ?? refuse('--other names no folder: a checkout of another tree that is built');
const WORKER = 'apps/cpu-worker/dist/main.js';
for (const tree of [THIS, OTHER])
  if (!existsSync(join(tree, WORKER)))
    refuse(`${tree} is not built: there is no ${WORKER}; ./shoal --version builds it`);

/** Runs in the tree that it takes its packages from, and prints the vectors of all texts as base64 of f32. */
const SDK = `
  import { ShoalClient } from '@shoal/client';
  import { openModel } from '@shoal/models';
  const { url, cacheDir, texts, run } = JSON.parse(process.env.MIXED_FLEET);
  const { name, revision } = await openModel('tiny-random', { cacheDir });
  const client = await ShoalClient.connect({ redisUrl: url, model: { name, revision }, jobTexts: 16 });
  const { vectors } = await client.embed(texts, { jobId: run });
  process.stdout.write(Buffer.from(vectors.buffer, vectors.byteOffset, vectors.byteLength).toString('base64'));
  await client.close();`;
/** BullMQ alone, by the public format of docs/jobs.md. */
const PLAIN = `
  import { Queue } from 'bullmq';
  import { Redis } from 'ioredis';
  const { url, texts, run } = JSON.parse(process.env.MIXED_FLEET);
  const connection = new Redis(url);
  const queue = new Queue('embed-tiny-random', { connection, prefix: '{shoal}' });
  const jobs = [];
  for (let at = 0; at < texts.length; at += 16)
    jobs.push({ name: 'embed', data: { v: 1, texts: texts.slice(at, at + 16) }, opts: { jobId: run + '-' + at } });
  await queue.addBulk(jobs);
  const parts = [];
  for (const { opts: { jobId } } of jobs) {
    for (;;) {
      const state = await queue.getJobState(jobId);
      if (state === 'failed') throw new Error((await queue.getJob(jobId)).failedReason);
      if (state === 'completed') break;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    parts.push((await connection.getBuffer((await queue.getJob(jobId)).returnvalue.key)).subarray(32));
  }
  process.stdout.write(Buffer.concat(parts).toString('base64'));
  await queue.close();
  connection.disconnect();`;

const PRODUCERS = { 'sdk of this tree': [THIS, SDK], 'sdk of the other': [OTHER, SDK], plain: [THIS, PLAIN] } as const;
const texts = Array.from(
  { length: Number(args.texts) },
  (_, i) => `the cat and the dog ${'in the house '.repeat(i % 9)}${i}`,
);

const cacheDir = mkdtempSync(join(tmpdir(), 'shoal-mixed-'));
const server = await startTestServer();
const workers = new Set<ChildProcess>();
const wrong: string[] = [];
let expected: Float32Array | undefined;
let runs = 0;
let killed = 0;

async function startWorker(tree: string): Promise<ChildProcess> {
  const child = fork(join(tree, WORKER), [], {
    cwd: tree,
    execArgv: [],
    env: {
      ...process.env,
      SHOAL_REDIS_URL: server.url,
      SHOAL_MODEL: 'tiny-random',
      SHOAL_CACHE_DIR: cacheDir,
      SHOAL_THREADS: '1',
      SHOAL_LOG_LEVEL: 'error',
      SHOAL_LEASE_MS: '2000',
      SHOAL_STALLED_CHECK_MS: '500',
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  workers.add(child);
  const [said]: unknown[] = await once(child, 'message');
  if ((said as { kind?: unknown }).kind !== 'ready')
    throw new Error(`a worker of ${tree} says ${JSON.stringify(said)}`);
  return child;
}

async function stopWorkers(): Promise<void> {
  for (const child of workers) {
    const ended = once(child, 'exit');
    if (child.exitCode === null && child.signalCode === null && child.kill()) await ended;
  }
  workers.clear();
}

async function produce(fleet: string, producer: keyof typeof PRODUCERS): Promise<void> {
  const [tree, code] = PRODUCERS[producer];
  const run = `run-${++runs}`;
  const given = JSON.stringify({ url: server.url, cacheDir, texts, run });
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '--eval', code], {
    cwd: tree,
    env: { ...process.env, MIXED_FLEET: given },
    maxBuffer: 2 ** 28,
    timeout: 120_000,
  });
  const bytes = Buffer.from(stdout, 'base64');
  const vectors = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  expected ??= vectors;
  if (vectors.length !== expected.length) wrong.push(`${fleet}, ${producer}: ${vectors.length} values`);
  const differing = vectors.findIndex((value, i) => Math.abs(value - expected![i]!) > 1e-6);
  if (differing !== -1) wrong.push(`${fleet}, ${producer}: value ${differing} differs`);
}

try {
  for (const [fleet, trees] of [
    ['workers of the other tree', [OTHER]],
    ['workers of this tree', [THIS]],
    ['both', [OTHER, THIS]],
  ] as const) {
    const started = await Promise.all(trees.map(startWorker));
    const work = Promise.all(
      (Object.keys(PRODUCERS) as (keyof typeof PRODUCERS)[]).map((producer) => produce(fleet, producer)),
    );
    if (started.length > 1) {
      for (const [at, tree] of trees.entries()) {
        await new Promise((resolve) => setTimeout(resolve, 700));
        started[at]!.kill('SIGKILL');
        killed++;
        await startWorker(tree);
      }
    }
    await work;
    await stopWorkers();
  }
} finally {
  await stopWorkers();
  await server.stop();
  rmSync(cacheDir, { recursive: true, force: true });
}
const report = { bench: 'mixed-fleet', runs, texts: texts.length, killed, wrong: wrong.length, first: wrong[0] };
process.stdout.write(`${JSON.stringify(report)}\n`);
if (wrong.length > 0) process.exitCode = 1;
