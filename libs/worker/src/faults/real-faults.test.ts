// What a worker survives with a real executor process on the real CPU provider: no address space left in the middle of
// the work, a native abort inside a run, and a process that stops answering. Nothing is lost, the worker's own process
// goes on, and each test prints what its fault cost.

import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { noLog } from '@shoal/core';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { OrtBackend } from '@shoal/inference';
import { importModel, openGraph, writeTinyModel, type StoredModel } from '@shoal/models';
import { cpuKind, profileKey, storeProfile } from '../measure/profile-store.ts';
import {
  WorkerBench,
  childrenOf,
  limitAddressSpace,
  statusBytes,
  until,
  untilBusy,
  type WorkerProcess,
} from '../testing/worker-bench.ts';

/** Wide enough that a large micro-batch takes hundreds of megabytes. */
const SHAPE = { hidden: 256, heads: 8, layers: 2, seed: 11 };
const JOBS = 3;
/** A job alone makes a micro-batch of 32,768 tokens, and needs 0.7 GB. */
const ROWS = 128;
const MAX_TOKENS = 256;
/** Says far too little: running out of memory is how the truth comes out. */
const NAIVE_LAW = {
  loadedBytes: 1,
  floorBytes: 1,
  slackBytes: 0,
  perToken: [{ width: 8, bytes: 1 }],
  arena: 'exact',
} as const;

let bench: WorkerBench;
let model: StoredModel;
const jobs = new Map(
  Array.from({ length: JOBS }, (_, job) => [
    `job-${job}`,
    Array.from({ length: ROWS }, (_unused, row) => rowOf(job * ROWS + row)),
  ]),
);
const expected = new Map<string, Float32Array>();

function rowOf(seed: number): number[] {
  return Array.from({ length: MAX_TOKENS - (seed % 48) }, (_, at) => 5 + ((seed * 31 + at * 7) % 150));
}

beforeAll(async () => {
  bench = await WorkerBench.start();
  const given = join(bench.cacheDir, 'given');
  await writeTinyModel(given, SHAPE);
  ({ model } = await importModel(given, { cacheDir: bench.cacheDir, name: 'wide' }));
  rmSync(given, { recursive: true });
  const graphPath = await openGraph(model, { cacheDir: bench.cacheDir });
  const key = profileKey({ model, graphPath, provider: 'cpu', precision: 'fp32', deviceKind: cpuKind(1) });
  await storeProfile(
    bench.cacheDir,
    key,
    { memory: { ...NAIVE_LAW, perToken: [...NAIVE_LAW.perToken] }, kneeTokens: 32_768 },
    noLog,
  );
  await embedUndisturbed(graphPath);
});

afterEach(() => bench.clear());
afterAll(() => bench.stop());

/** One row at a time, without queue or worker. */
async function embedUndisturbed(graphPath: string): Promise<void> {
  const backend = await OrtBackend.open({
    graphPath,
    dims: model.dims,
    threads: 2,
    slotRows: 1,
    slotTokens: MAX_TOKENS,
  });
  for (const [jobId, rows] of jobs) {
    const vectors = new Float32Array(ROWS * model.dims);
    for (const [at, row] of rows.entries()) {
      const slot = backend.lend()!;
      slot.ids.set(row);
      slot.lengths[0] = row.length;
      await backend.run(slot, { rows: 1, width: Math.ceil(row.length / 8) * 8 });
      vectors.set(slot.embeddings.subarray(0, model.dims), at * model.dims);
      backend.giveBack(slot);
    }
    expected.set(jobId, vectors);
  }
  await backend.stop();
}

/** Adds all jobs, lets `fault` happen, and expects every vector, in its place, from the undisturbed run. */
async function survive(
  worker: WorkerProcess,
  fault: (executorPid: number) => Promise<void> | void,
): Promise<{ seconds: number; splits: number }> {
  const executorPid = await worker.executorPid();
  const ownBytes = statusBytes(worker.pid, 'VmRSS');
  const startedMs = performance.now();
  const queue = await bench.addJobs('wide', model.tokenizerHash, jobs);
  await fault(executorPid);
  expect(await queue.getCompletedCount(), 'the fault comes in the middle of the work').toBeLessThan(JOBS);
  let splits = 0;
  for (const [jobId, vectors] of expected) {
    const value = await bench.finished(queue, jobId, 120_000);
    splits += value.splits;
    expectSame(await bench.vectorsOf(value), vectors);
    expect((await queue.getJob(jobId))!.attemptsMade).toBeLessThanOrEqual(1);
  }
  expect(await queue.getJobCounts('active', 'waiting', 'prioritized', 'failed', 'delayed')).toEqual({
    active: 0,
    waiting: 0,
    prioritized: 0,
    failed: 0,
    delayed: 0,
  });
  expect(statusBytes(worker.pid, 'VmRSS') / ownBytes).toBeLessThan(2); // the memory that ran out was not the claimer's
  return { seconds: (performance.now() - startedMs) / 1000, splits };
}

function expectSame(found: Float32Array, vectors: Float32Array): void {
  expect(found.length).toBe(vectors.length);
  for (let at = 0; at < found.length; at += model.dims) {
    let [dot, aa, bb] = [0, 0, 0];
    for (let i = at; i < at + model.dims; i++) {
      dot += found[i]! * vectors[i]!;
      aa += found[i]! ** 2;
      bb += vectors[i]! ** 2;
    }
    expect(dot / Math.sqrt(aa * bb)).toBeGreaterThan(0.999999);
  }
}

/** How many claimed jobs went to another executor, by the worker's own log. */
function jobsOfLostExecutors(worker: WorkerProcess): number[] {
  return worker.log.filter((line) => line['code'] === 'EXECUTOR_LOST').map((line) => Number(line['jobs']));
}

function outOfMemory(worker: WorkerProcess): object[] {
  return worker.log.filter((line) => line['code'] === 'OUT_OF_VRAM');
}

function nonEmpty<T>(found: T[]): T[] | undefined {
  return found.length === 0 ? undefined : found;
}

function report(fault: string, facts: object): void {
  process.stdout.write(`${fault}: ${JSON.stringify(facts)}\n`);
}

const LARGE_BATCHES = {
  SHOAL_POOL_TOKENS: '131072',
  SHOAL_MAX_TOKENS: String(MAX_TOKENS),
  SHOAL_MAX_WAIT_MS: '200',
  SHOAL_WINDOW_ROWS: '512',
};

/**
 * The arena's first region is no larger than the device, so 256 MB; what is more has to come out of the address space.
 */
const SMALL_DEVICE = { SHOAL_MAX_DEVICE_BYTES: String(500e6) };

test.skipIf(process.platform !== 'linux')(
  'running out of address space splits micro-batches in the same executor, and nothing is lost',
  async () => {
    const worker = await bench.startWorker('wide', { ...LARGE_BATCHES, ...SMALL_DEVICE });
    const executorPid = await worker.executorPid();
    limitAddressSpace(executorPid, 112 << 20); // less than the largest tensor, 134 MB
    const { seconds, splits } = await survive(worker, async () => {
      await until('a micro-batch finds no memory', async () => nonEmpty(outOfMemory(worker)));
      // the arena takes whatever is left, and V8 aborts the process where it finds none
      limitAddressSpace(executorPid, Infinity);
    });
    expect(splits).toBeGreaterThan(0);
    expect(jobsOfLostExecutors(worker)).toEqual([]);
    expect(childrenOf(worker.pid)).toContain(executorPid);
    expect(worker.log.some((line) => line['msg'] === 'what was measured of this model on this device is used')).toBe(
      true,
    );
    report('out of address space', { seconds, splits, jobs: JOBS, batchesSplit: outOfMemory(worker).length });
  },
);

test.skipIf(process.platform !== 'linux')(
  'a native abort inside a run costs one executor and the work that was with it',
  async () => {
    const worker = await bench.startWorker('wide', LARGE_BATCHES);
    const { seconds } = await survive(worker, async (executorPid) => {
      await untilBusy(executorPid);
      process.kill(executorPid, 'SIGABRT');
    });
    const lost = await until('the loss is logged', async () => nonEmpty(jobsOfLostExecutors(worker)));
    expect(lost).toHaveLength(1);
    report('native abort', { seconds, jobsRunAgain: lost[0], jobs: JOBS });
  },
);

test.skipIf(process.platform !== 'linux')(
  'an executor that hangs in a run is killed after its deadline, and its jobs run again',
  async () => {
    const deadlineMs = 8_000;
    const worker = await bench.startWorker('wide', {
      ...LARGE_BATCHES,
      SHOAL_MAX_PADDED_TOKENS: '2048',
      SHOAL_EXECUTOR_TIMEOUT_MS: String(deadlineMs),
    });
    let hung = 0;
    const { seconds } = await survive(worker, async (executorPid) => {
      hung = executorPid;
      await untilBusy(executorPid);
      process.kill(executorPid, 'SIGSTOP');
    });
    await until('the hung process is gone', async () => (childrenOf(worker.pid).includes(hung) ? undefined : true));
    const lost = await until('the loss is logged', async () => nonEmpty(jobsOfLostExecutors(worker)));
    expect(lost).toHaveLength(1);
    report('hang', { seconds, jobsRunAgain: lost[0], jobs: JOBS, deadlineMs });
  },
);
