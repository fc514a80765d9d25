// How much of the bare engine's speed is left when every text goes through the queue. Both sides run the same graph,
// the same token ids, pool and budget on the same texts, alternately; the vectors are compared before anything is
// timed.
//
//   node --conditions=@shoal/source bench/queue/queue-ratio.ts [--texts 1000] [--rounds 3] [--job-texts 64]
//   [--threads N] [--model minilm]
//
// Prints one JSON line: texts/s of each round and side, median ratio, padding efficiency, peak memory.

import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { availableParallelism, cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { median } from '@shoal/core/base';
import { ShoalClient } from '@shoal/client';
import { openModel, openTokenizer } from '@shoal/models';
import { parseMetrics } from '@shoal/ops/testing';
import { startTestServer } from '@shoal/queue/testing';
import { readArguments } from '../rig/arguments.ts';
import { leastCosine } from '../similarity/cosine.ts';
import { raggedCorpus } from '../rig/ragged-corpus.ts';
import { MAX_TOKENS, cacheDir, openBackend, runRows, runStream, startWorker, stopWorker } from '../rig/sides.ts';

const args = readArguments(import.meta.url, {
  texts: { type: 'string', default: '1000' },
  rounds: { type: 'string', default: '3' },
  'job-texts': { type: 'string', default: '64' },
  threads: { type: 'string', default: String(availableParallelism()) },
  model: { type: 'string', default: 'minilm' },
});
const threads = Number(args.threads);
/** Of the worker's own metrics, on loopback. */
const METRICS_PORT = 20_000 + (process.pid % 20_000);

async function secondsOf(work: () => Promise<unknown>): Promise<number> {
  const startedMs = performance.now();
  await work();
  return (performance.now() - startedMs) / 1000;
}

/** Real ÷ padded tokens of everything the worker has run, from its metrics. */
async function workerPaddingEfficiency(): Promise<number> {
  const metrics = parseMetrics(await (await fetch(`http://127.0.0.1:${METRICS_PORT}/metrics`)).text());
  return (
    metrics.value('shoal_tokens_total', { kind: 'real' })! / metrics.value('shoal_tokens_total', { kind: 'padded' })!
  );
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

const folder = mkdtempSync(join(tmpdir(), 'shoal-bench-'));
const model = await openModel(args.model, { cacheDir });
const tokenizer = await openTokenizer(model, { maxTokens: MAX_TOKENS });
const corpus = raggedCorpus(join(model.folder, 'tokenizer.json'), Number(args.texts));
const texts = corpus.map(({ text }) => text);
const rows = texts.map((text) => tokenizer.encode(text).ids);
const server = await startTestServer({ args: ['--appendonly', 'yes', '--appendfsync', 'everysec', '--dir', folder] });
const worker = await startWorker(server.url, args.model, threads, { SHOAL_METRICS_PORT: String(METRICS_PORT) });
const client = await ShoalClient.connect({
  redisUrl: server.url,
  model,
  tokenizer,
  jobTexts: Number(args['job-texts']),
});
const backend = await openBackend(model, threads);
try {
  const first = [await runRows(backend, rows), await runStream(client, texts, model.dims)] as const; // warms both sides
  const leastCos = leastCosine(first[0].vectors, first[1], model.dims);
  if (!(leastCos >= 0.999999)) throw new Error(`the two sides disagree: least cosine ${leastCos}`);
  const bare: number[] = [];
  const queued: number[] = [];
  for (let round = 0; round < Number(args.rounds); round++) {
    const sides = [
      async () => void bare.push(texts.length / (await secondsOf(() => runRows(backend, rows)))),
      async () => void queued.push(texts.length / (await secondsOf(() => runStream(client, texts, model.dims)))),
    ];
    for (const side of round % 2 === 0 ? sides : sides.toReversed()) await side();
  }
  const tokens = corpus.reduce((sum, text) => sum + text.tokens, 0);
  process.stdout.write(
    `${JSON.stringify({
      bench: 'queue-ratio',
      cpu: cpus()[0]?.model,
      threads,
      texts: texts.length,
      meanTokens: Math.round(tokens / texts.length),
      jobTexts: Number(args['job-texts']),
      bareTextsPerSecond: bare.map(Math.round),
      queuedTextsPerSecond: queued.map(Math.round),
      ratio: Number((median(queued) / median(bare)).toFixed(3)),
      leastCosine: Number(leastCos.toFixed(9)),
      barePaddingEfficiency: Number(first[0].paddingEfficiency.toFixed(3)),
      queuedPaddingEfficiency: Number((await workerPaddingEfficiency()).toFixed(3)),
      peakMegabytes: {
        claimer: peakMegabytes(worker.pid!),
        executor: peakMegabytes(executorOf(worker.pid!)),
        server: peakMegabytes(server.pid),
        client: peakMegabytes(process.pid),
      },
    })}\n`,
  );
} finally {
  await client.close();
  await backend.stop();
  await stopWorker(worker);
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
}
