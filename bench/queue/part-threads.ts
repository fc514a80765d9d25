// What a row of a part costs each thread of the executor, on a simulated device that is never the limit: the ragged corpus
// as lines of JSON or as Parquet with all its columns, in parts, through `shoal embed IN -o OUT/`. One H200 takes a
// ragged text in 5.5 µs, so a thread that needs more than that a row, and is the only one of its kind, is the limit.
//
//   node --conditions=@shoal/source bench/queue/part-threads.ts [--format jsonl|parquet] [--copies 4] [--part-copies 1]
//     [--tokens-per-ms 100000] [--threads 2] [--profile FOLDER]
//
// Prints one JSON line: µs of CPU a row for the main thread and for the others by their kind, from the first row to the
// last, and texts/s. --profile: CPU profiles of all threads go there. Linux only: it reads /proc.

import { fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { cacheFolder } from '@shoal/core';
import { programOf } from '@shoal/core/testing';
import { openModel } from '@shoal/models';
import { startTestServer } from '@shoal/queue/testing';
import { openEncoder } from '../../apps/cli/src/output/row-encoder.ts';
import { readArguments } from '../rig/arguments.ts';
import { childrenOf } from '../rig/processes.ts';
import { raggedCorpus } from '../rig/ragged-corpus.ts';

const args = readArguments(import.meta.url, {
  format: { type: 'string', default: 'jsonl' },
  copies: { type: 'string', default: '4' },
  'part-copies': { type: 'string', default: '1' },
  'tokens-per-ms': { type: 'string', default: '100000' },
  threads: { type: 'string', default: '2' },
  profile: { type: 'string', default: '' },
});
const MODEL = 'minilm';
const TEXTS = 25_600;
const METRICS_PORT = 19_474;
const cacheDir = cacheFolder(process.env['SHOAL_CACHE_DIR']);
const folder = mkdtempSync(join(tmpdir(), 'shoal-part-threads-'));

async function writeInput(): Promise<string> {
  const { folder: model } = await openModel(MODEL, { cacheDir });
  const texts = raggedCorpus(join(model, 'tokenizer.json'), TEXTS).map(({ text }) => text);
  const path = join(folder, `in.${args.format}`);
  if (args.format === 'jsonl') {
    const lines = texts.map((text) => `${JSON.stringify({ text })}\n`).join('');
    for (let copy = 0; copy < Number(args.copies); copy++) writeFileSync(path, lines, { flag: 'a' });
    return path;
  }
  const encoder = await openEncoder({ format: 'parquet', dims: 1, hasIds: true, withText: true, vectorField: 'old' });
  writeFileSync(path, encoder.head(0));
  for (let copy = 0; copy < Number(args.copies); copy++) {
    const records = texts.map((text, row) => ({ id: `r${copy * TEXTS + row}`, text, index: copy * TEXTS + row }));
    const block = { records, dims: 1, vectors: new Float32Array(TEXTS), position: (copy + 1) * TEXTS };
    for await (const { bytes } of encoder.encode(block)) writeFileSync(path, bytes, { flag: 'a' });
  }
  for await (const { bytes } of encoder.flush()) writeFileSync(path, bytes, { flag: 'a' });
  writeFileSync(path, encoder.tail(), { flag: 'a' });
  return path;
}

/** ms of CPU of each thread, by its number, with its name. */
function threadsOf(pid: number): Map<string, number> {
  return new Map(
    readdirSync(`/proc/${pid}/task`).map((thread) => {
      const read = (file: string): string => readFileSync(`/proc/${pid}/task/${thread}/${file}`, 'utf8');
      const name = Number(thread) === pid ? 'main' : read('comm').trim();
      return [`${name}:${thread}`, Number(read('schedstat').split(' ')[0]) / 1e6];
    }),
  );
}

async function rowsNow(): Promise<number> {
  const text = await (await fetch(`http://127.0.0.1:${METRICS_PORT}/metrics`)).text();
  return [...text.matchAll(/^shoal_part_rows_total\{?[^ ]* (\S+)$/gm)].reduce((sum, [, rows]) => sum + Number(rows), 0);
}

const input = await writeInput();
const out = join(folder, 'out');
mkdirSync(out);
const server = await startTestServer({ topology: 'single' });
try {
  const environment = {
    ...process.env,
    SHOAL_REDIS_URL: server.url,
    SHOAL_CACHE_DIR: cacheDir,
    SHOAL_MODEL: MODEL,
    SHOAL_LOG_LEVEL: 'warn',
  };
  const { main, execArgv } = programOf('gpu-worker');
  const worker = fork(main, [], {
    execArgv: [...execArgv],
    env: {
      ...environment,
      SHOAL_DEVICE: `sim:${args['tokens-per-ms']}`,
      SHOAL_SIM_SERVES: 'model',
      SHOAL_MAX_TOKENS: '512',
      SHOAL_MAX_PADDED_TOKENS: '65536',
      SHOAL_MAX_ROWS: '16384',
      SHOAL_POOL_TOKENS: String(16_384 * 80),
      SHOAL_PART_FOLDERS: folder,
      SHOAL_METRICS_PORT: String(METRICS_PORT),
      SHOAL_TOKENIZER_THREADS: args.threads,
      ...(args.profile !== '' && { NODE_OPTIONS: `--cpu-prof --cpu-prof-dir=${args.profile}` }),
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  await once(worker, 'message');
  const [executor] = childrenOf(worker.pid!);
  const cli = programOf('cli');
  const words = ['embed', input, '-o', `${out}/`, '--part-rows', `${Number(args['part-copies']) * TEXTS}`, '--json'];
  const command = spawn(process.execPath, [...cli.execArgv, cli.main, ...words], {
    env: environment,
    stdio: ['ignore', 'ignore', 2],
  });
  const ended = once(command, 'close');
  while ((await rowsNow()) === 0 && command.exitCode === null) await sleep(20);
  const [before, startedMs, first] = [threadsOf(executor!), performance.now(), await rowsNow()];
  const all = Number(args.copies) * TEXTS;
  const seen = new Map<string, number>();
  let rows = first;
  while (rows < all && command.exitCode === null) {
    await sleep(20);
    rows = await rowsNow();
    for (const [thread, ms] of threadsOf(executor!)) seen.set(thread, ms);
  }
  const ms = performance.now() - startedMs;
  const [code] = (await ended) as [number | null];
  if (code !== 0 || rows !== all) throw new Error(`shoal embed ended with ${String(code)} after ${rows} rows`);
  const threads = [...seen]
    .map(([thread, cpu]) => ({ thread, us: (1_000 * (cpu - (before.get(thread) ?? 0))) / (rows - first) }))
    .filter(({ us }) => us > 0.05)
    .toSorted((a, b) => b.us - a.us);
  const list = JSON.parse(readFileSync(join(out, 'part.manifest.json'), 'utf8')).list as { sha256: string }[];
  process.stdout.write(
    `${JSON.stringify({
      bench: 'part-threads',
      format: args.format,
      rows: all,
      textsPerSecond: Math.round((1_000 * (rows - first)) / ms),
      microsPerRow: threads.map(({ thread, us }) => `${thread.split(':')[0]} ${us.toFixed(2)}`),
      sha256: list.map(({ sha256 }) => sha256.slice(0, 8)).join(' '),
    })}\n`,
  );
  const gone = once(worker, 'exit');
  worker.kill('SIGTERM');
  await gone;
} finally {
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
}
