// For tests and benches: a whole worker without a model, as a process that can be killed. Core's pipeline and executor,
// a simulated device, the real queue server. `gpu` has no memory for a row of more than 16 tokens and hands such jobs
// over; `cpu` serves the CPU lane alone. Says "ready" to its parent and dies with it.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { EMBED_JOB_VERSIONS, ShoalError, cpuLaneOf, keySpace } from '@shoal/contract';
import { Pipeline, READ_JOBS, fixedBudget, noLog, noMetrics, systemClock, type PayloadStore } from '@shoal/core';
import { faultPointsFrom, type FaultPoints } from '@shoal/core/base';
import { FakeBackend, FakeTokenizer, InProcessExecutor } from '@shoal/core/testing';
import { BullJobSource } from '../worker/bull-job-source.ts';
import { LanesSource, type MainLaneGate } from '../lanes/lanes-source.ts';
import { PayloadServers, RedisPayloadStore } from '../payload.ts';
import { RedisAnnouncer } from '../worker/announcer.ts';

export const LANE_QUEUE = 'embed-x';
export const LANE_CPU_QUEUE = 'embed-x-cpu';
/** Widest row that fits the simulated GPU. */
export const GPU_WIDTH = 16;

export interface LaneWorkerOptions {
  readonly redisUrl: string;
  readonly prefix: string;
  readonly role: 'gpu' | 'cpu';
  readonly leaseMs: number;
  /**
   * The newest version of jobs that it knows: 1, as workers of 0.1.0 do, or one that no worker of this tree knows, which
   * it reads as version 1.
   */
  readonly newestVersion?: number | undefined;
  /** See core's FaultPoints. */
  readonly faultPoint?: string | undefined;
  /** Default `LANE_QUEUE`. */
  readonly queue?: string | undefined;
  /** Of its vectors. Default 8. */
  readonly dims?: number | undefined;
  /** See the setting. Default: none. */
  readonly payloadServers?: string | undefined;
}

export interface LaneWorker {
  /** Rejects when it cannot go on. */
  readonly failed: Promise<never>;
  /** Drains it. */
  stop(): Promise<void>;
}

const closedGate: MainLaneGate = { allows: () => 0, took: () => undefined, onChange: () => undefined };

const ENVIRONMENT = 'SHOAL_LANE_WORKER';

/** Claims when it resolves. */
export async function startLaneWorker(options: LaneWorkerOptions): Promise<ChildProcess> {
  const child = fork(fileURLToPath(import.meta.url), [], {
    env: { ...process.env, [ENVIRONMENT]: JSON.stringify(options) },
    execArgv: ['--conditions=@shoal/source'],
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  const failed = once(child, 'exit').then(([code, signal]: unknown[]) => {
    throw new Error(`a lane worker ended before it was ready (${String(code ?? signal)})`);
  });
  failed.catch(() => undefined);
  await Promise.race([once(child, 'message'), failed]);
  return child;
}

/** The same within this process; claims when it resolves. */
export async function openLaneWorker(options: LaneWorkerOptions): Promise<LaneWorker> {
  const { redisUrl, prefix, role, leaseMs, faultPoint, newestVersion, queue = LANE_QUEUE, payloadServers } = options;
  const faults = faultPointsFrom(faultPoint, (signal) => process.kill(process.pid, signal));
  const server = { redisUrl, prefix, queue, log: noLog };
  const cpuQueue = cpuLaneOf(queue);
  const common = { ...server, newestVersion, leaseMs, stalledCheckMs: Math.ceil(leaseMs / 3) };
  const source =
    role === 'gpu'
      ? new BullJobSource({ ...common, handOverTo: cpuQueue, faults })
      : new LanesSource({
          cpu: new BullJobSource({ ...common, queue: cpuQueue }),
          main: new BullJobSource(common),
          gate: closedGate,
        });
  const payloads =
    payloadServers === undefined
      ? undefined
      : await PayloadServers.connect({ payloadServers, clientName: 'lane-worker' });
  const [announcer, store] = await Promise.all([
    RedisAnnouncer.connect(server),
    RedisPayloadStore.connect({ ...server, cpuQueue, payloads }),
  ]);
  const executor = new InProcessExecutor({
    log: noLog,
    clock: systemClock,
    store: withFaults(store, faults),
    tokenizer: new FakeTokenizer(),
    limits: { maxRowAgeMs: 50, windowRows: 8, maxWaitMs: 1, minRows: 1 },
    isLastLane: role === 'cpu',
    resultKey: (resultId) => keySpace(prefix).output(queue, resultId),
    newBudget: () => fixedBudget({ maxPaddedTokens: 1_024, maxRows: 64 }),
    newBackend: (clock) =>
      deviceOf(
        role,
        new FakeBackend({ clock, runMs: () => 2, ...(options.dims !== undefined && { dims: options.dims }) }),
      ),
  });
  const pipeline = new Pipeline({
    source,
    announcer,
    executor,
    log: noLog,
    faults,
    metrics: noMetrics,
    clock: systemClock,
    serverNowMs: Date.now,
    readJob: readerOf(newestVersion),
    limits: { poolTokens: 512, executorTimeoutMs: 10_000, drainTimeoutMs: 5_000, claimTimeoutMs: 60_000 },
  });
  await pipeline.start();
  return {
    failed: pipeline.failed,
    async stop() {
      await pipeline.stop();
      await Promise.all([announcer.stop(), store.stop()]);
    },
  };
}

async function run(options: LaneWorkerOptions): Promise<void> {
  const { failed } = await openLaneWorker(options);
  process.send?.('ready');
  await failed;
}

function readerOf(newestVersion: number | undefined): typeof READ_JOBS.embedder {
  return (claim) => {
    const { v, ...data } = Object(claim.data) as { readonly v?: number };
    if (newestVersion === 1 && v === 2)
      throw new ShoalError('JOB_VERSION_UNKNOWN', 'this worker knows version 1', { version: v });
    return READ_JOBS.embedder(
      v === newestVersion && v !== undefined && !EMBED_JOB_VERSIONS.includes(v)
        ? { ...claim, data: { ...data, v: 1 } }
        : claim,
    );
  };
}

function deviceOf(role: LaneWorkerOptions['role'], backend: FakeBackend): FakeBackend {
  if (role === 'gpu') backend.runsOutOfVramWhen(({ width }) => (width > GPU_WIDTH ? 'too-large' : 'fits'));
  return backend;
}

/** Where core's executor has them in a process of its own. */
function withFaults(store: RedisPayloadStore, faults: FaultPoints): PayloadStore {
  return {
    read: (jobs) => store.read(jobs),
    stop: () => store.stop(),
    async commit(requests) {
      faults.reach('before-commit');
      const results = await store.commit(requests);
      faults.reach('after-commit');
      return results;
    },
  };
}

const given = process.env[ENVIRONMENT];
if (given !== undefined && process.argv[1] === fileURLToPath(import.meta.url)) {
  process.on('disconnect', () => process.kill(process.pid, 'SIGKILL'));
  await run(JSON.parse(given) as LaneWorkerOptions);
}
