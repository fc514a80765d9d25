// Files as jobs on one GPU or several: the ragged corpus again and again as lines of JSON, cut into parts; a worker for
// each GPU reads, tokenizes, runs and writes them by itself, `shoal embed` only asks. Rows are counted by windows, by what
// the workers' metrics say; then every object is there with its rows, and those of the first are the vectors of a run of the
// bare engine, whose rate stands beside: the same texts as token ids, through the native encoder alone, on each GPU.
//
//   parts.ts [--device gpu:0] [--devices 1] [--copies 128] [--part-copies 4] [--windows 3] [--seconds 6] [--warm 5] [--threads 16]
//       [--label text] [--small]

import { fork, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { asyncBufferFromFile, parquetReadObjects } from 'hyparquet';
import { programOf } from '@shoal/core/testing';
import { tuning } from '@shoal/private-server';
import { startTestServer } from '@shoal/queue/testing';
import { childrenOf, processCpuMs } from '../rig/processes.ts';
import { leastCosine } from '../similarity/cosine.ts';
import {
  MAX_TOKENS,
  cacheDir,
  device,
  devicesFrom,
  isSmall,
  median,
  openCorpus,
  openSide,
  partArguments,
  provider,
  round,
  row,
  runBatches,
  scratch,
  sortedBatches,
  type Corpus,
} from './kit.ts';

const values = partArguments(import.meta.url, {
  devices: { type: 'string' },
  copies: { type: 'string', default: '128' },
  'part-copies': { type: 'string', default: '4' },
  windows: { type: 'string', default: '3' },
  seconds: { type: 'string', default: '6' },
  warm: { type: 'string', default: '5' },
  threads: { type: 'string', default: '16' },
  label: { type: 'string', default: '' },
});
const COPIES = isSmall ? 8 : Number(values.copies);
const SECONDS = isSmall ? 0.2 : Number(values.seconds);
const LEAST_COSINE = 0.9999;
/** Padded tokens of a run, and rows at most: what the worker takes on an H200 by itself. */
const BUDGET = isSmall ? 2_048 : 65_536;
const METRICS_PORT = 19_473;
const devices = devicesFrom(device, values.devices);

interface Manifest {
  readonly rows: number;
  readonly tokens: number;
  readonly list: readonly { readonly name: string; readonly rows: number; readonly bytes: number }[];
}

const corpus = await openCorpus();
const bare = await bareEngines(corpus);
const folder = mkdtempSync(join(scratch, 'shoal-bench-parts-'));
const server = await startTestServer({ appendFsync: 'everysec', args: tuning() });
try {
  await measure();
} finally {
  await server.stop();
  rmSync(folder, { recursive: true, force: true });
}

async function measure(): Promise<void> {
  const input = join(folder, 'in.jsonl');
  const lines = Buffer.from(corpus.texts.map((text) => `${JSON.stringify({ text })}\n`).join(''));
  for (let at = 0; at < COPIES; at++) writeFileSync(input, lines, { flag: 'a' });
  const { main, execArgv } = programOf(provider === 'cpu' ? 'cpu-worker' : 'gpu-worker');
  const environment = {
    ...process.env,
    SHOAL_REDIS_URL: server.url,
    SHOAL_CACHE_DIR: cacheDir,
    SHOAL_MODEL: 'minilm',
    SHOAL_MAX_TOKENS: `${MAX_TOKENS}`,
    SHOAL_LOG_LEVEL: 'warn',
  };
  const workers = devices.map((one, at) =>
    fork(main, [], {
      execArgv: [...execArgv],
      env: {
        ...environment,
        ...(provider === 'cpu' ? {} : { SHOAL_DEVICE: one }),
        SHOAL_PART_FOLDERS: folder,
        SHOAL_METRICS_PORT: `${METRICS_PORT + at}`,
        SHOAL_TOKENIZER_THREADS: isSmall ? '1' : values.threads,
      },
      stdio: ['ignore', 2, 2, 'ipc'],
    }),
  );
  await Promise.all(workers.map(ready));
  const out = join(folder, 'out');
  mkdirSync(out);
  const cli = programOf('cli');
  const partRows = `${Number(values['part-copies']) * corpus.texts.length}`;
  const startedMs = performance.now();
  const command = spawn(
    process.execPath,
    [...cli.execArgv, cli.main, 'embed', input, '-o', `${out}/`, '--part-rows', partRows, '--json'],
    { env: environment, stdio: ['ignore', 'ignore', 2] },
  );
  const ended = once(command, 'close');
  const windows = await countWindows(
    ended,
    workers.map(({ pid }) => pid!),
  );
  const [code] = (await ended) as [number | null];
  const seconds = (performance.now() - startedMs) / 1_000;
  if (code !== 0) throw new Error(`shoal embed ended with ${String(code)}`);
  await Promise.all(workers.map(stop));
  const manifest = JSON.parse(readFileSync(join(out, 'part.manifest.json'), 'utf8')) as Manifest;
  const checked = await check(out, manifest);
  row({
    part: 'parts',
    label: values.label,
    device: devices.join(','),
    texts: manifest.rows,
    parts: manifest.list.length,
    ...windows,
    seconds: round(seconds, 1),
    overallTextsPerSecond: round(manifest.rows / seconds),
    bareTextsPerSecond: bare.textsPerSecond,
    bareRaw: bare.raw,
    toBare: round(windows.textsPerSecond / bare.textsPerSecond, 3),
    ...checked,
  });
}

async function ready(worker: ChildProcess): Promise<void> {
  const [said] = (await once(worker, 'message')) as [{ kind: string; failure?: { message: string } }];
  if (said.kind !== 'ready') throw new Error(said.failure?.message ?? 'the worker did not start');
}

async function stop(worker: ChildProcess): Promise<void> {
  const gone = once(worker, 'exit');
  worker.kill('SIGTERM');
  await gone;
}

/** On each device by itself, one after the other: the sum of their texts/s, and the vectors of the first. */
async function bareEngines(of: Corpus) {
  const engines = [];
  for (const one of devices) engines.push(await bareEngine(of, one));
  const [{ vectors, dims }] = engines as [(typeof engines)[number]];
  const textsPerSecond = engines.reduce((sum, { raw }) => sum + median(raw), 0);
  return { vectors, dims, raw: engines.flatMap(({ raw }) => raw), textsPerSecond };
}

/** The native encoder alone with the corpus, two lanes, one run queued behind each: texts/s, and its vectors. */
async function bareEngine({ model, rows }: Corpus, on: string) {
  const backend = await openSide(model, 'native', { on, sessions: 2, slotRows: 32_768, slotTokens: 4 * BUDGET });
  const batches = sortedBatches(rows, BUDGET);
  const vectors = await runBatches(backend, 2, rows, batches); // warms up, too
  const raw: number[] = [];
  for (let window = 0; window < 3; window++) {
    const startedMs = performance.now();
    let rounds = 0;
    do {
      await runBatches(backend, 2, rows, batches);
      rounds++;
    } while (performance.now() - startedMs < 500 * SECONDS);
    raw.push(round((1_000 * rounds * rows.length) / (performance.now() - startedMs)));
  }
  await backend.stop();
  return { vectors, dims: backend.dims, raw };
}

/** Rows a second while the command runs, and what was busy then: the server, all claimers, all executors. */
async function countWindows(ended: Promise<unknown>, claimers: readonly number[]) {
  const executors = claimers.flatMap(childrenOf);
  const over = new AbortController();
  void ended.then(() => over.abort());
  while (!over.signal.aborted && (await rowsNow()) === 0) await sleep(50);
  await Promise.race([sleep(isSmall ? 0 : 1_000 * Number(values.warm)), ended]);
  const cpu = (): number[] =>
    [[server.pid], claimers, executors].map((pids) => pids.reduce((sum, pid) => sum + processCpuMs(pid), 0));
  const raw: number[] = [];
  const busy: number[][] = [];
  for (let window = 0; window < Number(values.windows) && !over.signal.aborted; window++) {
    const [before, cpuBefore, startedMs] = [await rowsNow(), cpu(), performance.now()];
    await Promise.race([sleep(1_000 * SECONDS), ended]);
    if (over.signal.aborted) break;
    const ms = performance.now() - startedMs;
    raw.push(round((1_000 * ((await rowsNow()) - before)) / ms));
    busy.push(cpu().map((cpuMs, at) => round((100 * (cpuMs - cpuBefore[at]!)) / ms, 1)));
  }
  const of = (at: number): number => median(busy.map((one) => one[at]!));
  return { raw, textsPerSecond: median(raw), cpuPercent: { server: of(0), claimer: of(1), executor: of(2) } };
}

async function rowsNow(): Promise<number> {
  const pages = await Promise.all(
    devices.map(async (_, at) => (await fetch(`http://127.0.0.1:${METRICS_PORT + at}/metrics`)).text()),
  );
  return [...pages.join('\n').matchAll(/^shoal_part_rows_total\{?[^ ]* (\S+)$/gm)].reduce(
    (sum, [, count]) => sum + Number(count),
    0,
  );
}

/** Every object has the rows that the manifest says, and those of the first are right, each in its place. */
async function check(out: string, { rows: told, list }: Manifest) {
  if (told !== COPIES * corpus.texts.length) throw new Error(`the manifest has ${told} rows`);
  for (const { name, bytes } of list)
    if (statSync(join(out, name)).size !== bytes) throw new Error(`${name} has other bytes than the manifest says`);
  const file = await asyncBufferFromFile(join(out, list[0]!.name));
  const rowEnd = Math.min(list[0]!.rows, isSmall ? 96 : 32_768);
  const found = (await parquetReadObjects({ file, rowEnd })) as {
    readonly index: number;
    readonly embedding: number[];
  }[];
  let least = 1;
  for (const [at, { index, embedding }] of found.entries()) {
    if (Number(index) !== at) throw new Error(`row ${at} of ${list[0]!.name} says that it is ${index}`);
    const place = (at % corpus.texts.length) * bare.dims;
    const cosine = leastCosine(
      Float32Array.from(embedding),
      bare.vectors.subarray(place, place + bare.dims),
      bare.dims,
    );
    least = Math.min(least, cosine);
  }
  if (!(found.length === rowEnd && least >= LEAST_COSINE))
    throw new Error(`${found.length} rows were read of ${rowEnd}, least cosine ${least}`);
  return { checkedRows: found.length, leastCosine: round(least, 7) };
}
