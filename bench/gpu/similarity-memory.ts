// A similarity worker on a GPU with little of its memory allowed: collections of three times that and more, asked in
// turns through the queue by jobs of every kind, so that they come and leave. Every answer is compared with the CPU's;
// what was held, what left, and whether anything was lost is taken from the worker's own facts and the queue.
//
//   similarity-memory.ts [--device gpu:0] [--jobs 900] [--small]

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ShoalClient } from '@shoal/client';
import { SIMILARITY_QUEUE } from '@shoal/contract';
import type { SimilarityFacts } from '@shoal/core/similarity';
import { Fleet } from '@shoal/queue';
import { startTestServer } from '@shoal/queue/testing';
import { createCollection, hitsOf, matrixOf, openKernels, rowsOf, type RowBlock } from '@shoal/similarity';
import { randomFrom } from '../rig/ragged-corpus.ts';
import { device, isSmall, partArguments, row } from './kit.ts';

const values = partArguments(import.meta.url, { jobs: { type: 'string' } });
const jobs = Number(values.jobs ?? (isSmall ? 60 : 900));
const DIMS = 384;
const ROWS = isSmall ? 500 : 20_000;
const COLLECTIONS = 12;
/** The least that the setting takes: 67 MB, for 369 MB of rows and half as much again in fp16. */
const MAX_DEVICE_BYTES = 2 ** 26;
const IN_FLIGHT = 24;
const K = 10;

const folder = mkdtempSync(join(tmpdir(), 'shoal-bench-'));
const server = await startTestServer();
const random = randomFrom(5);
const vectors = (count: number): Float32Array => Float32Array.from({ length: count * DIMS }, () => 2 * random() - 1);
const blocks: RowBlock[] = [];
for (let at = 0; at < COLLECTIONS; at++) {
  const rows = vectors(ROWS);
  await createCollection(join(folder, 'collections'), `c${at}`, [{ dims: DIMS, vectors: rows }]);
  blocks.push(rowsOf(matrixOf(rows, DIMS)));
}
const worker = fork(
  fileURLToPath(new URL(`../../apps/${device === 'cpu' ? 'cpu' : 'gpu'}-worker/src/main.ts`, import.meta.url)),
  [],
  {
    env: {
      ...process.env,
      SHOAL_REDIS_URL: server.url,
      SHOAL_KIND: 'similarity',
      SHOAL_DEVICE: device,
      SHOAL_CACHE_DIR: folder,
      SHOAL_MAX_DEVICE_BYTES: String(MAX_DEVICE_BYTES),
      SHOAL_SMALL_ON_CPU: 'never',
      SHOAL_LOG_LEVEL: 'warn',
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  },
);
const [ready] = (await once(worker, 'message')) as [
  { readonly kind: string; readonly device?: string; readonly failure?: { readonly message: string } },
];
if (ready.kind !== 'ready') throw new Error(ready.failure?.message ?? 'the worker did not start');
const client = await ShoalClient.connect({ redisUrl: server.url, model: { name: 'none', revision: '0' } });
const fleet = await Fleet.connect({ redisUrl: server.url, queue: SIMILARITY_QUEUE });
const kernels = openKernels();
let [next, answered, wrong] = [0, 0, 0];
const errors: string[] = [];

/** By turns: the best of a collection, of some of its rows, and every score of the first. */
async function ask(job: number): Promise<void> {
  const at = job % COLLECTIONS;
  const queries = { values: vectors(8), dims: DIMS, rows: 8 };
  const name = `c${at}@1`;
  if (job % 3 === 0) {
    const candidates = Array.from({ length: 8 }, () =>
      BigUint64Array.from({ length: 50 }, () => BigInt(Math.floor(random() * ROWS))),
    );
    const found = await client.rescore(name, queries, candidates, { k: K });
    const exact = await kernels.rescore(queries, blocks[at]!, candidates, { k: K, metric: 'cosine' });
    if (found.some(({ ids }, query) => ids.join() !== hitsOf(exact, query).ids.join())) wrong++;
  } else {
    const metric = job % 3 === 1 ? 'cosine' : 'l2';
    const found = await client.topK(name, queries, { k: K, metric, class: 'bulk' });
    const exact = await kernels.topK(queries, blocks[at]!, { k: K, metric });
    if (found.some(({ ids }, query) => ids.join() !== hitsOf(exact, query).ids.join())) wrong++;
  }
  answered++;
}

const startedMs = performance.now();
await Promise.all(
  Array.from({ length: IN_FLIGHT }, async () => {
    while (next < jobs) await ask(next++).catch((error: unknown) => errors.push(String(error)));
  }),
);
const seconds = (performance.now() - startedMs) / 1000;
await new Promise((resolve) => setTimeout(resolve, 4_500)); // facts are told every two seconds
const view = await fleet.read();
const facts: SimilarityFacts | undefined = view.workers[0]?.facts?.similarity;
row({
  part: 'similarity: memory',
  device: ready.device,
  collections: COLLECTIONS,
  rows: ROWS,
  deviceBytes: MAX_DEVICE_BYTES,
  rowBytes: COLLECTIONS * ROWS * DIMS * 4,
  jobs,
  answered,
  wrong,
  lost: jobs - answered,
  failures: errors.length,
  first: errors[0],
  seconds: Number(seconds.toFixed(2)),
  held: facts?.gpu,
  calls: facts?.calls,
  fallbacks: facts?.fallbacks,
  left: {
    waiting: view.lanes.main.waiting,
    active: view.lanes.main.active,
    handedOver: view.lanes.main.handedOver,
    failed: view.lanes.main.failed,
  },
});
await fleet.close();
await client.close();
const gone = once(worker, 'exit');
worker.kill('SIGTERM');
await gone;
await server.stop();
rmSync(folder, { recursive: true, force: true });
if (wrong > 0 || answered < jobs) process.exitCode = 1;
