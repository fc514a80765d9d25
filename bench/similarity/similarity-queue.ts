// How much of the kernels' speed is left when every query goes through the queue: top-k jobs of 8 queries on one
// collection, against the same queries given to the same kernels directly, in the very batches that the worker made of
// them. Answers are compared with the kernels' before anything is timed; both sides run alternately, the same number of
// threads.
//
//   node --conditions=@shoal/source bench/similarity/similarity-queue.ts [--jobs 1024] [--rounds 3] [--rows 100000]
//   [--dims 384] [--k 10] [--threads N] [--device gpu:0]
//
// Prints one JSON line: queries/s of each round and side, median ratio, mean queries of a batch; the share of each
// queued round in which kernels ran (`busy`: what is missing to 1 is the first jobs' way in, the last answers' way out
// and what lies between runs); and how much CPU time the kernels take alone ÷ what everybody takes with the queue
// (Linux), which says the same where others use the machine as well.

import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { availableParallelism, cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { median } from '@shoal/core/base';
import { ShoalClient } from '@shoal/client';
import type { Ranking } from '@shoal/contract';
import { tuning } from '@shoal/private-server';
import { startTestServer } from '@shoal/queue/testing';
import {
  CudaEngine,
  createCollection,
  hitsOf,
  kernelsOn,
  openCollectionRows,
  openCuda,
  openKernels,
  type Kernels,
  type RowBlock,
} from '@shoal/similarity';
import { OF_EVERY_STEP, readArguments } from '../rig/arguments.ts';
import { randomFrom } from '../rig/ragged-corpus.ts';
import { childrenOf, processCpuMs } from '../rig/processes.ts';

const args = readArguments(import.meta.url, {
  jobs: { type: 'string', default: '1024' },
  rounds: { type: 'string', default: '3' },
  rows: { type: 'string', default: '100000' },
  dims: { type: 'string', default: '384' },
  k: { type: 'string', default: '10' },
  threads: { type: 'string', default: String(availableParallelism()) },
  device: { type: 'string', default: 'cpu' },
  ...OF_EVERY_STEP,
});
const [jobs, rows, dims, k, threads] = [
  args.small ? 64 : Number(args.jobs),
  args.small ? 2_000 : Number(args.rows),
  Number(args.dims),
  Number(args.k),
  Number(args.threads),
];
const isGpu = args.device !== 'cpu';
const JOB_QUERIES = 8;
/** Jobs between asked and answered: enough that the worker always has more than one batch before it. */
const JOBS_IN_FLIGHT = 512;
/** f32 sums in another order for another batch; the ids may not differ at all. */
const MOST_SCORE_ERROR = 1e-6;

function randomVectors(count: number, seed: number): Float32Array {
  const random = randomFrom(seed);
  return Float32Array.from({ length: count * dims }, () => 2 * random() - 1);
}

/** Queries of each batch that the worker ran since the last look, from its log, and how long all of them ran. */
const batches: number[] = [];
let ranMs = 0;

function startWorker(url: string, folder: string): ChildProcess {
  const worker = fork(
    fileURLToPath(new URL(`../../apps/${isGpu ? 'gpu' : 'cpu'}-worker/src/main.ts`, import.meta.url)),
    [],
    {
      env: {
        ...process.env,
        SHOAL_REDIS_URL: url,
        SHOAL_KIND: 'similarity',
        SHOAL_DEVICE: args.device,
        SHOAL_CACHE_DIR: folder,
        SHOAL_THREADS: String(threads),
        SHOAL_LOG_LEVEL: 'debug',
      },
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
    },
  );
  createInterface({ input: worker.stderr! }).on('line', (line) => {
    const { msg, rows: queries, runMs } = parsed(line);
    if (msg !== 'micro-batch ran') return;
    batches.push(Number(queries));
    ranMs += Number(runMs);
  });
  return worker;
}

function parsed(line: string): Record<string, unknown> {
  try {
    return JSON.parse(line) as Record<string, unknown>;
  } catch {
    return {};
  }
}

/** Every job's answer, in order; no more than JOBS_IN_FLIGHT are open. */
async function throughQueue(client: ShoalClient, queries: Float32Array): Promise<Ranking[]> {
  const answers: Ranking[][] = [];
  let next = 0;
  const line = async (): Promise<void> => {
    while (next < jobs) {
      const job = next++;
      const size = JOB_QUERIES * dims;
      answers[job] = await client.topK(
        'bench@1',
        { values: queries.subarray(job * size, (job + 1) * size), dims },
        { k, class: 'bulk' },
      );
    }
  };
  await Promise.all(Array.from({ length: Math.min(jobs, JOBS_IN_FLIGHT) }, line));
  return answers.flat();
}

type Cpu = Readonly<Record<'server' | 'claimer' | 'executor' | 'client', number>>;

/** So far, ms. The kernels run in the client's process when they are asked directly. */
function cpuMs(): Cpu {
  const { user, system } = process.cpuUsage();
  return {
    server: processCpuMs(server.pid),
    claimer: processCpuMs(worker.pid!),
    executor: processCpuMs(childrenOf(worker.pid!)[0]!),
    client: (user + system) / 1_000,
  };
}

function sumOf({ server: a, claimer, executor, client: b }: Cpu): number {
  return a + claimer + executor + b;
}

function since(now: Cpu, before: Cpu): Cpu {
  return {
    server: now.server - before.server,
    claimer: now.claimer - before.claimer,
    executor: now.executor - before.executor,
    client: now.client - before.client,
  };
}

async function secondsOf(work: () => Promise<unknown>): Promise<number> {
  const startedMs = performance.now();
  await work();
  return (performance.now() - startedMs) / 1_000;
}

function checkAnswers(found: readonly Ranking[], expected: readonly Ranking[]): void {
  for (const [query, { ids, scores }] of found.entries()) {
    const exact = expected[query]!;
    const isSame =
      ids.length === exact.ids.length &&
      ids.every((id, i) => id === exact.ids[i] && Math.abs(scores[i]! - exact.scores[i]!) <= MOST_SCORE_ERROR);
    if (!isSame) throw new Error(`query ${query}: the queue answers ${String(ids)}, the kernels ${String(exact.ids)}`);
  }
}

/** The GPU alone, with the rows staying there. */
function gpuKernels(held: RowBlock): Kernels {
  const found = openCuda(process.env['SHOAL_CUDA_LIBRARY']);
  if (!found.ok) throw new Error(found.reason);
  const engine = new CudaEngine({ cuda: found.cuda, device: 0, residentBytes: 2 ** 32, workBytes: 2 ** 30 });
  engine.keep(held);
  return kernelsOn(engine);
}

const folder = mkdtempSync(join(tmpdir(), 'shoal-bench-'));
const server = await startTestServer({ appendFsync: 'everysec', args: tuning() }); // as the product starts it
await createCollection(join(folder, 'collections'), 'bench', [{ dims, vectors: randomVectors(rows, 1) }]);
const source = await openCollectionRows(join(folder, 'collections'), 'bench@1');
const block = await source.read(0, rows);
const kernels = isGpu ? gpuKernels(block) : openKernels({ threads });
const queries = randomVectors(jobs * JOB_QUERIES, 2);
const total = jobs * JOB_QUERIES;
const worker = startWorker(server.url, folder);
const [ready] = (await once(worker, 'message')) as [
  { readonly kind: string; readonly failure?: { readonly message: string } },
];
if (ready.kind !== 'ready') throw new Error(ready.failure?.message ?? 'the worker did not start');
const client = await ShoalClient.connect({ redisUrl: server.url, model: { name: 'none', revision: '0' } });

/** The same queries in order, in batches of these sizes. */
async function direct(sizes: readonly number[]): Promise<Ranking[]> {
  const answers: Ranking[] = [];
  for (const size of sizes) {
    const from = answers.length;
    const found = await kernels.topK(
      { values: queries.subarray(from * dims, (from + size) * dims), rows: size, dims },
      block,
      { k, metric: 'cosine' },
    );
    for (let query = 0; query < size; query++) answers.push(hitsOf(found, query));
  }
  return answers;
}

try {
  const found = await throughQueue(client, queries); // warms both sides
  checkAnswers(found, await direct(batches.splice(0)));
  const bare: number[] = [];
  const queued: number[] = [];
  const busy: number[] = [];
  const sizes: number[] = [];
  const cpu: { readonly queued: Cpu; readonly bare: number }[] = [];
  for (let round = 0; round < Number(args.rounds); round++) {
    const before = cpuMs();
    ranMs = 0;
    const seconds = await secondsOf(() => throughQueue(client, queries));
    queued.push(total / seconds);
    busy.push(Number((ranMs / 1e3 / seconds).toFixed(3)));
    const between = cpuMs();
    const made = batches.splice(0);
    sizes.push(...made);
    if (made.reduce((sum, size) => sum + size, 0) !== total)
      throw new Error(`the worker says that it ran ${String(made)} queries, not ${total}`);
    bare.push(total / (await secondsOf(() => direct(made))));
    cpu.push({ queued: since(between, before), bare: sumOf(since(cpuMs(), between)) });
  }
  process.stdout.write(
    `${JSON.stringify({
      part: 'similarity: queue',
      bench: 'similarity-queue',
      device: args.device,
      cpu: cpus()[0]?.model,
      threads,
      isa: kernels.isa,
      rows,
      dims,
      k,
      jobs,
      jobQueries: JOB_QUERIES,
      bareQueriesPerSecond: bare.map(Math.round),
      queuedQueriesPerSecond: queued.map(Math.round),
      meanBatch: Math.round(sizes.reduce((sum, size) => sum + size, 0) / sizes.length),
      ratio: Number((median(queued) / median(bare)).toFixed(3)),
      cpuRatio: Number(median(cpu.map(({ bare: alone, queued: all }) => alone / sumOf(all))).toFixed(3)),
      cpuMs: cpu,
      busy,
      ratios: queued.map((rate, i) => Number((rate / bare[i]!).toFixed(3))),
    })}\n`,
  );
} finally {
  await client.close();
  await source.close();
  const gone = once(worker, 'exit');
  worker.kill('SIGTERM');
  await gone;
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
}
