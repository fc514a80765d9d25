// What dividing a CPU worker's threads among sessions does for those who use it, through the queue: bulk texts per second, and how long one text takes, short
// and long, alone and beside bulk work. Each number of sessions has a server, worker and client of its own, one after the other; vectors are compared with
// the first ones'.
//
//   node --conditions=@shoal/source bench/cpu-worker.ts [--texts 1000] [--sessions 1,8] [--threads N] [--singles 30] [--rounds 2] [--model minilm]
//
// Prints one JSON line for each: texts/s of the rounds, p50 and p95 of single texts in milliseconds, peak memory of the executor.

import { mkdtempSync, rmSync } from 'node:fs';
import { availableParallelism, cpus, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { ShoalClient } from '@shoal/client';
import { openModel, openTokenizer } from '@shoal/models';
import { startTestServer } from '@shoal/queue/testing';
import { readArguments } from './arguments.ts';
import { leastCosine } from './cosine.ts';
import { childrenOf, residentMegabytes } from './processes.ts';
import { raggedCorpus } from './ragged-corpus.ts';
import { MAX_TOKENS, cacheDir, runStream, startWorker, stopWorker } from './sides.ts';

const args = readArguments(import.meta.url, {
  texts: { type: 'string', default: '1000' },
  sessions: { type: 'string', default: '1,8' },
  threads: { type: 'string', default: String(availableParallelism()) },
  singles: { type: 'string', default: '30' },
  rounds: { type: 'string', default: '2' },
  model: { type: 'string', default: 'minilm' },
});
const LEAST_COSINE = 0.9999;
const SHORT_TOKENS = 20;
const LONG_TOKENS = 400;
/** Between two single texts. */
const PAUSE_MS = 50;

const model = await openModel(args.model, { cacheDir });
const tokenizer = await openTokenizer(model, { maxTokens: MAX_TOKENS });
const corpus = raggedCorpus(join(model.folder, 'tokenizer.json'), Number(args.texts));
const texts = corpus.map(({ text }) => text);
const words = texts.flatMap((text) => text.split(' '));
let first: Float32Array | undefined;

for (const sessions of args.sessions.split(',')) {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-bench-'));
  const server = await startTestServer({ args: ['--appendonly', 'yes', '--appendfsync', 'everysec', '--dir', folder] });
  const worker = await startWorker(server.url, args.model, Number(args.threads), { SHOAL_DEVICE_SESSIONS: sessions });
  const client = await ShoalClient.connect({ redisUrl: server.url, model, tokenizer, jobTexts: 64 });
  try {
    const vectors = await runStream(client, texts, model.dims); // warms it
    first ??= vectors;
    const least = leastCosine(first, vectors, model.dims);
    if (!(least >= LEAST_COSINE)) throw new Error(`${sessions} sessions give other vectors: least cosine ${least}`);
    const alone = { short: await singles(client, SHORT_TOKENS), long: await singles(client, LONG_TOKENS) };
    const rates: number[] = [];
    for (let round = 0; round < Number(args.rounds); round++) {
      const startedMs = performance.now();
      await runStream(client, texts, model.dims);
      rates.push(Math.round((texts.length / (performance.now() - startedMs)) * 10_000) / 10);
    }
    const stop = new AbortController();
    const bulk = keepBusy(client, stop.signal);
    await sleep(500);
    const beside = { short: await singles(client, SHORT_TOKENS), long: await singles(client, LONG_TOKENS) };
    stop.abort();
    await bulk;
    const [executor] = childrenOf(worker.pid!);
    process.stdout.write(`${JSON.stringify({ bench: 'cpu-worker', cpu: cpus()[0]?.model, threads: Number(args.threads), sessions: Number(sessions), textsPerSecond: rates, alone, beside, leastCosine: least, executorMegabytes: Math.round(residentMegabytes(executor!)) })}\n`);
  } finally {
    await client.close();
    await stopWorker(worker);
    await server.stop();
    rmSync(folder, { recursive: true, force: true });
  }
}

async function keepBusy(client: ShoalClient, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) await runStream(client, texts, model.dims);
}

/** Each is another text, so that nothing was computed before. */
async function singles(client: ShoalClient, tokens: number): Promise<{ readonly p50: number; readonly p95: number }> {
  const ms: number[] = [];
  for (let i = 0; i < Number(args.singles); i++) {
    const from = Math.floor(Math.random() * (words.length - tokens));
    const text = words.slice(from, from + tokens - 2).join(' ');
    const startedMs = performance.now();
    await client.embed([text], { class: 'interactive' });
    ms.push(performance.now() - startedMs);
    await sleep(PAUSE_MS);
  }
  const sorted = ms.sort((a, b) => a - b);
  const at = (share: number): number => Math.round(sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]! * 10) / 10;
  return { p50: at(0.5), p95: at(0.95) };
}
