// One text at a time, warm: the run alone for each kind of graph and for the native encoder, then the way through queue
// and worker and back, as a person waiting at a prompt has it.
//
//   one-text.ts [--device gpu:0] [--small]

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { ShoalClient } from '@shoal/client';
import type { InferenceBackend } from '@shoal/core';
import { openModel, openTokenizer } from '@shoal/models';
import { startTestServer } from '@shoal/queue/testing';
import {
  MAX_TOKENS,
  cacheDir,
  device,
  isSmall,
  median,
  openSide,
  partArguments,
  quantile,
  round,
  row,
  type Side,
} from './kit.ts';

partArguments(import.meta.url, {});
const TEXT = 'How long does a claim last when nobody renews it?'; // 13 tokens
const model = await openModel('minilm', { cacheDir });
const tokenizer = await openTokenizer(model, { maxTokens: MAX_TOKENS });
for (const kind of (isSmall ? ['fused-fp16', 'native'] : ['fused-fp16', 'cuda-fp32', 'native']) as readonly Side[]) {
  try {
    row({ part: 'one-text', kind, ...(await bareRun(kind)) });
  } catch (error) {
    row({ part: 'one-text', kind, failed: error instanceof Error ? error.message : String(error) });
  }
}
row({ part: 'one-text', through: 'queue', ...(await throughQueue()) });
process.exit(0);

async function bareRun(kind: Side): Promise<object> {
  const backend = await openSide(model, kind, { slotRows: 64, slotTokens: 8192 });
  try {
    return await timed(backend);
  } finally {
    await backend.stop(); // the next kind would run beside it, and beside host memory that it has locked
  }
}

async function timed(backend: InferenceBackend): Promise<object> {
  const { ids } = tokenizer.encode(TEXT);
  const times: number[] = [];
  for (let at = 0; at < (isSmall ? 5 : 500); at++) {
    const slot = backend.lend()!;
    slot.ids.fill(0, 0, 16);
    slot.ids.set(ids);
    slot.lengths[0] = ids.length;
    const result = await backend.run(slot, { rows: 1, width: 16 });
    if (!result.ok) throw new Error(result.outOfVram.message);
    if (at >= (isSmall ? 1 : 50)) times.push(result.runMs);
    backend.giveBack(slot);
  }
  return {
    tokens: ids.length,
    runs: times.length,
    runMs: { p50: round(median(times), 3), p99: round(quantile(times, 0.99), 3), least: round(Math.min(...times), 3) },
  };
}

async function throughQueue(): Promise<object> {
  const server = await startTestServer({ appendFsync: 'everysec' });
  const worker = fork(fileURLToPath(new URL('../../apps/gpu-worker/src/main.ts', import.meta.url)), [], {
    env: {
      ...process.env,
      SHOAL_REDIS_URL: server.url,
      SHOAL_DEVICE: device,
      SHOAL_MODEL: 'minilm',
      SHOAL_MAX_TOKENS: String(MAX_TOKENS),
      SHOAL_LOG_LEVEL: 'warn',
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  const [report] = (await once(worker, 'message')) as [
    { kind: string; device: string; precision: string; failure?: { message: string } },
  ];
  if (report.kind !== 'ready') throw new Error(report.failure?.message);
  const client = await ShoalClient.connect({ redisUrl: server.url, model, tokenizer });
  const times: number[] = [];
  for (let at = 0; at < (isSmall ? 5 : 1000); at++) {
    const startedMs = performance.now();
    const { rows } = await client.embed([`${TEXT} ${at}`]);
    if (rows !== 1) throw new Error(`${rows} rows`);
    if (at >= (isSmall ? 1 : 100)) times.push(performance.now() - startedMs);
  }
  await client.close();
  const gone = once(worker, 'exit');
  worker.kill('SIGTERM');
  await gone;
  await server.stop();
  return {
    device: report.device,
    precision: report.precision,
    texts: times.length,
    ms: {
      p50: round(median(times), 2),
      p90: round(quantile(times, 0.9), 2),
      p99: round(quantile(times, 0.99), 2),
      most: round(Math.max(...times), 2),
    },
  };
}
