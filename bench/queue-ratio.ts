// How much of the bare engine's speed is left when every text goes through the queue. Both sides run the same graph, the same
// token ids, pool and budget on the same texts, alternately; the vectors are compared before anything is timed.
//
//   node --conditions=@shoal/source bench/queue-ratio.ts [--texts 1000] [--rounds 3] [--job-texts 64] [--threads N] [--model minilm]
//
// Prints one JSON line: texts/s of each round and side, median ratio, padding efficiency, peak memory.

import { fork, type ChildProcess } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { availableParallelism, cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { ShoalClient } from '@shoal/client';
import { Pool, cacheFolder, resolveSettings, type Tokenizer } from '@shoal/core';
import { OrtBackend } from '@shoal/inference';
import { openGraph, openModel, openTokenizer, type StoredModel } from '@shoal/models';
import { parseMetrics } from '@shoal/ops/testing';
import { startTestServer } from '@shoal/queue/testing';
import { leastCosine } from './cosine.ts';
import { raggedCorpus } from './ragged-corpus.ts';

const { values: args } = parseArgs({
  options: {
    texts: { type: 'string', default: '1000' },
    rounds: { type: 'string', default: '3' },
    'job-texts': { type: 'string', default: '64' },
    threads: { type: 'string', default: String(availableParallelism()) },
    model: { type: 'string', default: 'minilm' },
  },
});
const threads = Number(args.threads);
const settings = resolveSettings({ environment: process.env });
const cacheDir = cacheFolder(settings.cacheDir);
const MAX_TOKENS = 512;
/** Of the worker's own metrics, on loopback. */
const METRICS_PORT = 20_000 + (process.pid % 20_000);

interface Side {
  readonly seconds: number;
  readonly vectors: Float32Array;
  readonly paddingEfficiency?: number;
}

/** The engine alone: all rows in one pool, batches cut by the worker's own rules, two queued at the device. */
async function runBare(backend: OrtBackend, rows: readonly ArrayLike<number>[]): Promise<Side> {
  const vectors = new Float32Array(rows.length * backend.dims);
  const startedMs = performance.now();
  const pool = new Pool<{ ids: ArrayLike<number>; index: number; tokens: number; enteredMs: number }>();
  for (const [index, ids] of rows.entries()) pool.add({ ids, index, tokens: ids.length, enteredMs: 0 });
  let real = 0;
  let padded = 0;
  const lane = async (): Promise<void> => {
    for (;;) {
      const batch = pool.cut({ ...settings, maxRowAgeMs: Infinity }, 0);
      if (batch === undefined) return;
      const slot = backend.lend()!;
      const { width } = batch;
      slot.ids.fill(0, 0, batch.rows.length * width);
      for (const [i, row] of batch.rows.entries()) {
        slot.ids.set(row.ids, i * width);
        slot.lengths[i] = row.tokens;
        real += row.tokens;
      }
      padded += batch.rows.length * width;
      const result = await backend.run(slot, { rows: batch.rows.length, width });
      if (!result.ok) throw new Error(result.outOfVram.message);
      for (const [i, row] of batch.rows.entries()) vectors.set(slot.embeddings.subarray(i * backend.dims, (i + 1) * backend.dims), row.index * backend.dims);
      backend.giveBack(slot);
    }
  };
  await Promise.all([lane(), lane()]);
  return { seconds: (performance.now() - startedMs) / 1000, vectors, paddingEfficiency: real / padded };
}

async function runQueued(client: ShoalClient, texts: readonly string[], dims: number): Promise<Side> {
  const vectors = new Float32Array(texts.length * dims);
  const startedMs = performance.now();
  for await (const block of client.embedStream(texts.map((text) => ({ text })))) {
    if (block.kind === 'skipped') throw block.error;
    vectors.set(block.vectors, block.first * dims);
  }
  return { seconds: (performance.now() - startedMs) / 1000, vectors };
}

function startWorker(redisUrl: string): Promise<ChildProcess> {
  const main = fileURLToPath(new URL('../apps/cpu-worker/src/main.ts', import.meta.url));
  const child = fork(main, [], {
    env: { ...process.env, SHOAL_REDIS_URL: redisUrl, SHOAL_MODEL: args.model, SHOAL_MAX_TOKENS: String(MAX_TOKENS), SHOAL_THREADS: String(threads), SHOAL_LOG_LEVEL: 'warn', SHOAL_METRICS_PORT: String(METRICS_PORT) },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  return new Promise((resolve, reject) => {
    child.once('message', (message: { kind: string; failure?: { message: string } }) => (message.kind === 'ready' ? resolve(child) : reject(new Error(message.failure?.message))));
    child.once('exit', (code) => reject(new Error(`worker exit ${code}`)));
  });
}

/** Real ÷ padded tokens of everything the worker has run, from its metrics. */
async function workerPaddingEfficiency(): Promise<number> {
  const metrics = parseMetrics(await (await fetch(`http://127.0.0.1:${METRICS_PORT}/metrics`)).text());
  return metrics.value('shoal_tokens_total', { kind: 'real' })! / metrics.value('shoal_tokens_total', { kind: 'padded' })!;
}

/** The one child of a worker, on Linux. */
function executorOf(workerPid: number): number {
  return Number(readFileSync(`/proc/${workerPid}/task/${workerPid}/children`, 'utf8').trim().split(' ')[0]);
}

/** Peak resident memory of a process, MB; NaN where the system does not tell. */
function peakMegabytes(pid: number): number {
  try {
    return Math.round(Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) / 1024);
  } catch {
    return Number.NaN;
  }
}

const median = (numbers: readonly number[]): number => numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)]!;

async function openBare(model: StoredModel, tokenizer: Tokenizer): Promise<OrtBackend> {
  return OrtBackend.open({
    graphPath: await openGraph(model, { cacheDir }), dims: model.dims, threads,
    slotRows: settings.maxRows, slotTokens: Math.max(settings.maxPaddedTokens, tokenizer.maxTokens),
  });
}

const folder = mkdtempSync(join(tmpdir(), 'shoal-bench-'));
const model = await openModel(args.model, { cacheDir });
const tokenizer = await openTokenizer(model, { maxTokens: MAX_TOKENS });
const corpus = raggedCorpus(join(model.folder, 'tokenizer.json'), Number(args.texts));
const texts = corpus.map(({ text }) => text);
const rows = texts.map((text) => tokenizer.encode(text).ids);
const server = await startTestServer({ args: ['--appendonly', 'yes', '--appendfsync', 'everysec', '--dir', folder] });
const worker = await startWorker(server.url);
const client = await ShoalClient.connect({ redisUrl: server.url, model, tokenizer, jobTexts: Number(args['job-texts']) });
const backend = await openBare(model, tokenizer);
try {
  const first = [await runBare(backend, rows), await runQueued(client, texts, model.dims)] as const; // warms both sides
  const leastCos = leastCosine(first[0].vectors, first[1].vectors, model.dims);
  if (!(leastCos >= 0.999999)) throw new Error(`the two sides disagree: least cosine ${leastCos}`);
  const bare: number[] = [];
  const queued: number[] = [];
  for (let round = 0; round < Number(args.rounds); round++) {
    const sides = [async () => void bare.push(texts.length / (await runBare(backend, rows)).seconds), async () => void queued.push(texts.length / (await runQueued(client, texts, model.dims)).seconds)];
    for (const side of round % 2 === 0 ? sides : sides.toReversed()) await side();
  }
  const tokens = corpus.reduce((sum, text) => sum + text.tokens, 0);
  process.stdout.write(`${JSON.stringify({
    bench: 'queue-ratio', cpu: cpus()[0]?.model, threads, texts: texts.length, meanTokens: Math.round(tokens / texts.length), jobTexts: Number(args['job-texts']),
    bareTextsPerSecond: bare.map(Math.round), queuedTextsPerSecond: queued.map(Math.round),
    ratio: Number((median(queued) / median(bare)).toFixed(3)), leastCosine: Number(leastCos.toFixed(9)), barePaddingEfficiency: Number(first[0].paddingEfficiency!.toFixed(3)), queuedPaddingEfficiency: Number((await workerPaddingEfficiency()).toFixed(3)),
    peakMegabytes: { claimer: peakMegabytes(worker.pid!), executor: peakMegabytes(executorOf(worker.pid!)), server: peakMegabytes(server.pid), client: peakMegabytes(process.pid) },
  })}\n`);
} finally {
  await client.close();
  await backend.stop();
  const exited = new Promise((resolve) => worker.once('exit', resolve));
  worker.kill('SIGTERM');
  await exited;
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
}
