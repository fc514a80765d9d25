// What dividing a CPU worker's threads among sessions does for those who use it, through the queue: bulk texts per
// second, and how long one text takes, short and long, alone and beside bulk work. Each number of sessions has a
// server, worker and client of its own, one after the other; vectors are compared with the first ones'.
//
//   node --conditions=@shoal/source bench/device/cpu-worker.ts [--texts 1000] [--sessions 1,8] [--threads N]
//   [--singles 30] [--rounds 2] [--model minilm]
//
// Prints one JSON line for each: texts/s of the rounds, p50 and p95 of single texts in milliseconds, memory of the
// executor at the end.

import { availableParallelism, cpus } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ShoalClient } from '@shoal/client';
import { openModel } from '@shoal/models';
import { readArguments } from '../rig/arguments.ts';
import { leastCosine } from '../similarity/cosine.ts';
import { childrenOf, residentMegabytes } from '../rig/processes.ts';
import { raggedCorpus, randomFrom } from '../rig/ragged-corpus.ts';
import { percentile } from '../rig/rig.ts';
import { cacheDir, openQueued, type Side } from '../rig/sides.ts';

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
const corpus = raggedCorpus(join(model.folder, 'tokenizer.json'), Number(args.texts));
const texts = corpus.map(({ text }) => text);
const words = texts.flatMap((text) => text.split(' '));
const random = randomFrom(1);
let first: Float32Array | undefined;

for (const sessions of args.sessions.split(',')) {
  const side = await openQueued(`${sessions} sessions`, args.model, Number(args.threads), 64, {
    SHOAL_DEVICE_SESSIONS: sessions,
  });
  const { client, worker } = side;
  try {
    const vectors = await side.run(texts); // warms it
    first ??= vectors;
    const least = leastCosine(first, vectors, model.dims);
    if (!(least >= LEAST_COSINE)) throw new Error(`${sessions} sessions give other vectors: least cosine ${least}`);
    const alone = { short: await singles(client, SHORT_TOKENS), long: await singles(client, LONG_TOKENS) };
    const rates: number[] = [];
    for (let round = 0; round < Number(args.rounds); round++) {
      const startedMs = performance.now();
      await side.run(texts);
      rates.push(Math.round((texts.length / (performance.now() - startedMs)) * 10_000) / 10);
    }
    const stop = new AbortController();
    const bulk = keepBusy(side, stop.signal);
    await sleep(500);
    const beside = { short: await singles(client, SHORT_TOKENS), long: await singles(client, LONG_TOKENS) };
    stop.abort();
    await bulk;
    const [executor] = childrenOf(worker.pid!);
    const found = {
      bench: 'cpu-worker',
      cpu: cpus()[0]?.model,
      threads: Number(args.threads),
      sessions: Number(sessions),
      textsPerSecond: rates,
      alone,
      beside,
      leastCosine: least,
      executorMegabytes: Math.round(residentMegabytes(executor!)),
    };
    process.stdout.write(`${JSON.stringify(found)}\n`);
  } finally {
    await side.close();
  }
}

async function keepBusy(side: Side, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) await side.run(texts);
}

/** Each is another text, so that nothing was computed before. */
async function singles(client: ShoalClient, tokens: number): Promise<{ readonly p50: number; readonly p95: number }> {
  const ms: number[] = [];
  for (let i = 0; i < Number(args.singles); i++) {
    const from = Math.floor(random() * (words.length - tokens));
    const text = words.slice(from, from + tokens - 2).join(' ');
    const startedMs = performance.now();
    await client.embed([text], { class: 'interactive' });
    ms.push(performance.now() - startedMs);
    await sleep(PAUSE_MS);
  }
  const of = (part: number): number => Math.round(percentile(ms, part) * 10) / 10;
  return { p50: of(0.5), p95: of(0.95) };
}
