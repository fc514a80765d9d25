// What a row of a part costs each thread of the executor: the ragged corpus as lines of JSON, or as Parquet with ids and
// texts, in parts of all its texts. The simulated device is slow enough for its micro-batches to be full, as those of a
// GPU are, because small ones cost more a row. One H200 takes a ragged text in 5.5 µs, so a thread that needs more than
// that a row, and is the only one of its kind, is the limit there.
//
//   node --conditions=@shoal/source bench/queue/part-threads.ts [--format jsonl|parquet] [--parts 4] [--tokens-per-ms 700]
//     [--threads 2] [--profile FOLDER]
//
// Prints one JSON line: µs of CPU a row, of the main thread and of the others, from the first row that was written to the
// last, texts/s, the executor's memory in each quarter of that, and digests of the objects. --profile: CPU profiles of all
// threads go there. Linux only: it reads /proc.

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { PART_JOB, partId, partJobData, partsQueue, type Part } from '@shoal/contract';
import { cacheFolder } from '@shoal/core';
import { programOf } from '@shoal/core/testing';
import { openModel, type StoredModel } from '@shoal/models';
import { JobProducer } from '@shoal/queue';
import { startTestServer } from '@shoal/queue/testing';
import { openEncoder } from '../../apps/cli/src/output/row-encoder.ts';
import { readArguments } from '../rig/arguments.ts';
import { childrenOf, residentMegabytes } from '../rig/processes.ts';
import { raggedCorpus } from '../rig/ragged-corpus.ts';

const args = readArguments(import.meta.url, {
  format: { type: 'string', default: 'jsonl' },
  parts: { type: 'string', default: '4' },
  'tokens-per-ms': { type: 'string', default: '700' },
  threads: { type: 'string', default: '2' },
  profile: { type: 'string', default: '' },
});
const MODEL = 'minilm';
const SERVED = `${MODEL}-sim`;
/** Twelve row groups of the encoder. */
const TEXTS = 24_576;
const GROUPS = 12;
const PARTS = Number(args.parts);
const METRICS_PORT = 19_474;
const cacheDir = cacheFolder(process.env['SHOAL_CACHE_DIR']);
const folder = mkdtempSync(join(tmpdir(), 'shoal-part-threads-'));

const input = join(folder, `in.${args.format}`);

/** The parts of the file that it writes. */
async function writeInput(model: StoredModel): Promise<Part[]> {
  const texts = raggedCorpus(join(model.folder, 'tokenizer.json'), TEXTS).map(({ text }) => text);
  const write = (bytes: Buffer): void => writeFileSync(input, bytes, { flag: 'a' });
  const lines = Buffer.from(texts.map((text) => `${JSON.stringify({ text })}\n`).join(''));
  if (args.format === 'jsonl') for (let part = 0; part < PARTS; part++) write(lines);
  else await writeGroups(texts, write);
  const { size, mtimeMs } = statSync(input);
  return Array.from({ length: PARTS }, (_, number) => ({
    run: '0'.repeat(16),
    number,
    of: PARTS,
    source: { kind: 'file', path: input, bytes: size, modifiedMs: mtimeMs },
    format: args.format === 'jsonl' ? 'jsonl' : 'parquet',
    range:
      args.format === 'jsonl'
        ? {
            kind: 'bytes',
            from: number * lines.length,
            to: (number + 1) * lines.length,
            firstLine: 1 + number * TEXTS,
            lines: TEXTS,
          }
        : { kind: 'groups', from: number * GROUPS, to: (number + 1) * GROUPS, firstRow: number * TEXTS, rows: TEXTS },
    onError: 'fail',
    output: {
      kind: 'folder',
      folder,
      stem: 'part',
      format: 'parquet',
      dtype: 'f32',
      hasIds: false,
      carries: args.format === 'parquet',
    },
    model: { name: `${SERVED}@${model.revision}`, truncate: 'end' },
  }));
}

async function writeGroups(texts: readonly string[], write: (bytes: Buffer) => void): Promise<void> {
  const encoder = await openEncoder({ format: 'parquet', dims: 1, hasIds: true, withText: true, vectorField: 'old' });
  write(encoder.head(0));
  for (let part = 0; part < PARTS; part++) {
    const records = texts.map((text, row) => ({ id: `r${part * TEXTS + row}`, text, index: part * TEXTS + row }));
    const block = { records, dims: 1, vectors: new Float32Array(TEXTS), position: (part + 1) * TEXTS };
    for await (const { bytes } of encoder.encode(block)) write(bytes);
  }
  for await (const { bytes } of encoder.flush()) write(bytes);
  write(encoder.tail());
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

/** The most in each quarter of the run. */
function quarters(samples: readonly number[]): number[] {
  const quarter = Math.ceil(samples.length / 4);
  return [0, 1, 2, 3].map((at) => Math.round(Math.max(...samples.slice(at * quarter, (at + 1) * quarter))));
}

const model = await openModel(MODEL, { cacheDir });
const parts = await writeInput(model);
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
      SHOAL_MAX_TOKENS: '512',
      SHOAL_MAX_PADDED_TOKENS: '65536',
      SHOAL_MAX_ROWS: '16384',
      SHOAL_POOL_TOKENS: String(16_384 * 80),
      SHOAL_PART_FOLDERS: folder,
      SHOAL_METRICS_PORT: String(METRICS_PORT),
      SHOAL_TOKENIZER_THREADS: args.threads,
      ...(args.profile !== '' && { NODE_OPTIONS: `--cpu-prof --cpu-prof-interval=300 --cpu-prof-dir=${args.profile}` }),
    },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  await once(worker, 'message');
  const [executor] = childrenOf(worker.pid!);
  const producer = await JobProducer.connect({ redisUrl: server.url, queue: partsQueue(SERVED) });
  await producer.add(
    parts.map((part) => ({ jobId: partId(part), name: PART_JOB, data: partJobData(part), mayLieBeside: false })),
  );
  await producer.close();
  while ((await rowsNow()) === 0) await sleep(20);
  const [before, startedMs, first] = [threadsOf(executor!), performance.now(), await rowsNow()];
  const seen = new Map<string, number>();
  const megabytes: number[] = [];
  let rows = first;
  while (rows < PARTS * TEXTS) {
    await sleep(100);
    rows = await rowsNow();
    for (const [thread, ms] of threadsOf(executor!)) seen.set(thread, ms);
    megabytes.push(residentMegabytes(executor!));
  }
  const ms = performance.now() - startedMs;
  const threads = [...seen]
    .map(([thread, cpu]) => ({ thread, us: (1_000 * (cpu - (before.get(thread) ?? 0))) / (rows - first) }))
    .filter(({ us }) => us > 0.05)
    .toSorted((a, b) => b.us - a.us);
  const manifest = join(folder, 'part.manifest.json');
  while (!existsSync(manifest)) await sleep(20);
  const list = JSON.parse(readFileSync(manifest, 'utf8')).list as { sha256: string }[];
  process.stdout.write(
    `${JSON.stringify({
      bench: 'part-threads',
      format: args.format,
      rows,
      textsPerSecond: Math.round((1_000 * (rows - first)) / ms),
      microsPerRow: threads.map(({ thread, us }) => `${thread.split(':')[0]} ${us.toFixed(2)}`),
      megabytes: quarters(megabytes),
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
