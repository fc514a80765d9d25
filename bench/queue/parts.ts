// Files as jobs (docs/decisions/parts.md): Parquet of many rows through `shoal embed IN/ -o OUT/`, with workers on simulated
// devices, first undisturbed and then with one of them killed by SIGKILL every few seconds. Each row has to be there once,
// and every object the same to the byte as without kills; the rows of the first object have the vectors that jobs give them
// (`-o FILE`). Beside that: texts/s, the CPU of the queue server, and the memory
// of the command and of the workers in the first and in the last quarter of the run.
//
//   node --conditions=@shoal/source bench/queue/parts.ts [--rows 100000] [--workers 2] [--part-rows 16384]
//     [--tokens-per-ms 400] [--kill-every 10] [--s3 moto|versitygw] [--record]
//
// --s3: out of a bucket and into it, of a server on this machine: moto of PyPI, or versitygw where it is on the PATH (it keeps
// objects as files; go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 builds it).
//
// With SHOAL_TEST_PROGRAMS=dist the programs are those of the build. Texts are short and come again every thousand rows,
// ids do not. Prints one JSON line; exit 1 where a row is missing, double, or another. Linux only: it reads /proc.

import { spawn, fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import {
  createReadStream,
  createWriteStream,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { gunzipSync } from 'node:zlib';
import { asyncBufferFromFile, parquetReadObjects, type AsyncBuffer } from 'hyparquet';
import { programOf } from '@shoal/core/testing';
import { S3Bucket, gathered } from '@shoal/fetch/s3';
import { startS3Server, startTestServer, type TestServer } from '@shoal/queue/testing';
import { openEncoder } from '../../apps/cli/src/output/row-encoder.ts';
import { readArguments } from '../rig/arguments.ts';
import { childrenOf, processCpuMs, residentMegabytes } from '../rig/processes.ts';
import { record } from '../rig/record.ts';
import { startVersity } from '../rig/versity.ts';

const args = readArguments(import.meta.url, {
  rows: { type: 'string', default: '100000' },
  workers: { type: 'string', default: '2' },
  'part-rows': { type: 'string', default: '16384' },
  'tokens-per-ms': { type: 'string', default: '400' },
  'kill-every': { type: 'string', default: '10' },
  s3: { type: 'string', default: '' },
  record: { type: 'boolean', default: false },
});
const ROWS = Number(args.rows);
const WORKERS = Number(args.workers);
const ROWS_A_FILE = 1_000_000;
const WORDS = ['the', 'queue', 'keeps', 'every', 'job', 'until', 'one', 'worker', 'has', 'done', 'it', 'once'];
const MOST_SERVER_PERCENT = 5;
const BUCKET = 'shoal-bench';
const compressors = { GZIP: (bytes: Uint8Array): Uint8Array => gunzipSync(bytes) };

const folder = mkdtempSync(join(tmpdir(), 'shoal-bench-parts-'));
const cacheDir = join(folder, 'cache');
const input = join(folder, 'in');

function recordAt(row: number): { readonly id: string; readonly text: string; readonly index: number } {
  const kind = row % 1_000;
  const words = Array.from({ length: 3 + (kind % 17) }, (_, at) => WORDS[(kind * 7 + at * 5) % WORDS.length]);
  return { id: `r${row}`, text: `${kind} ${words.join(' ')}`, index: row };
}

/** Where the input lies and the objects go, by names of folders. */
interface Place {
  /** As the command has it. */
  nameOf(folder: string): string;
  /** A file of the input that was written. */
  take(path: string): Promise<void>;
  read(folder: string, name: string): Promise<string>;
  open(folder: string, name: string): Promise<AsyncBuffer>;
  /** What lies there. */
  names(folder: string): Promise<readonly string[]>;
  stop(): Promise<void>;
}

const inFolders: Place = {
  nameOf: (name) => join(folder, name),
  take: async () => undefined,
  read: async (...names) => readFileSync(join(folder, ...names), 'utf8'),
  open: (...names) => asyncBufferFromFile(join(folder, ...names)),
  names: async (name) => readdirSync(join(folder, name)),
  stop: async () => undefined,
};

async function inBucket(): Promise<Place> {
  const server = args.s3 === 'moto' ? await startS3Server() : await startVersity(join(folder, 'objects'));
  Object.assign(process.env, server.credentials, { AWS_ENDPOINT_URL_S3: server.endpoint, TMPDIR: folder });
  const bucket = await S3Bucket.open(BUCKET);
  await server.makeBucket(BUCKET);
  const get = async (key: string, from?: number, end?: number): Promise<Buffer> =>
    gathered(
      (await bucket.get(key, { ...(from !== undefined && { from }), ...(end !== undefined && { end }) }))!.pieces,
    );
  return {
    nameOf: (name) => `s3://${BUCKET}/${name}`,
    async take(path) {
      await bucket.putFile(`in/${basename(path)}`, () => createReadStream(path), statSync(path).size);
      rmSync(path);
    },
    read: async (name, file) => String(await get(`${name}/${file}`)),
    async open(name, file) {
      const key = `${name}/${file}`;
      const byteLength = (await bucket.head(key))!.bytes;
      return {
        byteLength,
        async slice(start, end = byteLength) {
          const bytes = await get(key, start, end);
          return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length) as ArrayBuffer;
        },
      };
    },
    async names(name) {
      const names: string[] = [];
      for await (const one of bucket.names(`${name}/`, undefined, { isDeep: true })) names.push(one);
      return names;
    },
    async stop() {
      bucket.close();
      await server.stop();
    },
  };
}

async function writeFiles(): Promise<void> {
  mkdirSync(input);
  for (let from = 0; from < ROWS; from += ROWS_A_FILE) {
    const path = join(input, `in-${String(from).padStart(10, '0')}.parquet`);
    await writeFile(path, from, Math.min(ROWS, from + ROWS_A_FILE));
    await place.take(path);
  }
}

/** Columns id, text and one of numbers, which go along. */
async function writeFile(path: string, from: number, to: number): Promise<void> {
  const encoder = await openEncoder({ format: 'parquet', dims: 1, hasIds: true, withText: true, vectorField: 'old' });
  const file = createWriteStream(path);
  const write = async (bytes: Buffer): Promise<void> => {
    if (!file.write(bytes)) await once(file, 'drain');
  };
  await write(encoder.head(0));
  for (let at = from; at < to; at += 8_192) {
    const records = Array.from({ length: Math.min(8_192, to - at) }, (_, row) => recordAt(at + row));
    const vectors = Float32Array.from(records, ({ index }) => index);
    for await (const { bytes } of encoder.encode({ records, dims: 1, vectors, position: at - from + records.length }))
      await write(bytes);
  }
  for await (const { bytes } of encoder.flush()) await write(bytes);
  file.end(encoder.tail());
  await once(file, 'finish');
}

/** A worker that is started again when it was killed. */
class KeptWorker {
  private readonly server: TestServer;
  private child: ChildProcess | undefined;
  private isStopping = false;

  constructor(server: TestServer) {
    this.server = server;
  }

  /** Ready when it resolves. */
  async start(): Promise<void> {
    const { main, execArgv } = programOf('gpu-worker');
    const child = fork(main, [], {
      execArgv: [...execArgv],
      env: {
        ...process.env,
        SHOAL_REDIS_URL: this.server.url,
        SHOAL_CACHE_DIR: cacheDir,
        SHOAL_MODEL: 'tiny-random',
        SHOAL_DEVICE: `sim:${args['tokens-per-ms']}`,
        SHOAL_SIM_SERVES: 'model',
        SHOAL_PART_FOLDERS: args.s3 === '' ? folder : `s3://${BUCKET}`,
        SHOAL_LEASE_MS: '5000',
        SHOAL_STALLED_CHECK_MS: '1000',
        SHOAL_LOG_LEVEL: 'error',
        SHOAL_METRICS_PORT: '0',
        SHOAL_TOKENIZER_THREADS: '1',
      },
      stdio: ['ignore', 2, 2, 'ipc'],
    });
    this.child = child;
    child.once('exit', (_code, signal) => {
      if (signal === 'SIGKILL' && !this.isStopping) void this.start();
    });
    const ended = once(child, 'exit').then(([code, signal]: unknown[]) => {
      if (signal === 'SIGKILL') return [{ kind: 'killed' }];
      throw new Error(`a worker ended with ${String(code)}`);
    });
    ended.catch(() => undefined);
    const [message] = (await Promise.race([once(child, 'message'), ended])) as [{ kind: string; failure?: Error }];
    if (message.kind === 'failed') throw new Error(message.failure?.message ?? 'a worker did not start');
  }

  kill(): void {
    this.child?.kill('SIGKILL');
  }

  /** MiB of it and of its executor. */
  get megabytes(): number {
    const { pid } = this.child!;
    return pid === undefined ? 0 : [pid, ...childrenOf(pid)].reduce((sum, one) => sum + residentMegabytes(one), 0);
  }

  async stop(): Promise<void> {
    this.isStopping = true;
    const { child } = this;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const gone = once(child, 'exit');
    child.kill('SIGTERM');
    await gone;
  }
}

interface Sample {
  readonly command: number;
  /** Of the largest worker. */
  readonly worker: number;
}

interface Ran {
  readonly seconds: number;
  readonly kills: number;
  readonly serverPercent: number;
  readonly samples: readonly Sample[];
  readonly manifest: Manifest;
}

interface Manifest {
  readonly rows: number;
  readonly list: readonly { readonly name: string; readonly rows: number; readonly sha256: string }[];
}

function embed(server: TestServer, words: readonly string[]): ChildProcess {
  const { main, execArgv } = programOf('cli');
  return spawn(process.execPath, [...execArgv, main, 'embed', ...words, '--json'], {
    env: { ...process.env, SHOAL_REDIS_URL: server.url, SHOAL_CACHE_DIR: cacheDir, SHOAL_MODEL: 'tiny-random' },
    stdio: ['ignore', 'ignore', 'inherit'],
  });
}

/** The whole of it once, with a worker killed now and then or none. */
async function run(server: TestServer, workers: readonly KeptWorker[], out: string, isKilled: boolean): Promise<Ran> {
  const begunMs = performance.now();
  const cpuBeforeMs = processCpuMs(server.pid);
  const command = embed(server, [
    `${place.nameOf('in')}/`,
    '-o',
    `${place.nameOf(out)}/`,
    '--part-rows',
    args['part-rows'],
  ]);
  const ended = once(command, 'close');
  const samples: Sample[] = [];
  let kills = 0;
  let killedMs = performance.now();
  while (command.exitCode === null && command.signalCode === null) {
    samples.push({
      command: residentMegabytes(command.pid!),
      worker: Math.max(...workers.map(({ megabytes }) => megabytes)),
    });
    if (isKilled && performance.now() - killedMs > 1_000 * Number(args['kill-every'])) {
      workers[kills++ % workers.length]!.kill();
      killedMs = performance.now();
    }
    await Promise.race([sleep(500), ended]);
  }
  const [code] = (await ended) as [number | null];
  if (code !== 0) throw new Error(`shoal embed ended with ${String(code)}`);
  const ms = performance.now() - begunMs;
  return {
    seconds: ms / 1_000,
    kills,
    serverPercent: (100 * (processCpuMs(server.pid) - cpuBeforeMs)) / ms,
    samples,
    manifest: JSON.parse(await place.read(out, 'part.manifest.json')) as Manifest,
  };
}

/** Rows that are missing, and such that are there again. */
async function countRows(
  out: string,
  { list }: Manifest,
): Promise<{ readonly missing: number; readonly twice: number }> {
  const seen = new Uint8Array(ROWS);
  let [found, twice] = [0, 0];
  for (const { name } of list) {
    const file = await place.open(out, name);
    for (const { id } of await parquetReadObjects({ file, compressors, columns: ['id'] })) {
      const row = Number(String(id).slice(1));
      if (seen[row]! > 0) twice++;
      else found++;
      seen[row] = 1;
    }
  }
  return { missing: ROWS - found, twice };
}

/** Whether rows of the first object are those that the same texts become by jobs. */
async function isAsByJobs(server: TestServer, out: string, { list }: Manifest): Promise<boolean> {
  const [first] = list;
  const few = join(folder, 'few.jsonl');
  const rows = Math.min(first!.rows, 4_096);
  writeFileSync(few, Array.from({ length: rows }, (_, row) => `${JSON.stringify(recordAt(row))}\n`).join(''));
  const [code] = (await once(embed(server, [few, '-o', `${few}.parquet`]), 'close')) as [number | null];
  if (code !== 0) throw new Error(`shoal embed ended with ${String(code)}`);
  const columns = ['id', 'embedding'];
  const [parts, jobs] = await Promise.all(
    [place.open(out, first!.name), asyncBufferFromFile(`${few}.parquet`)].map(async (file) =>
      parquetReadObjects({ file: await file, compressors, columns, rowStart: 0, rowEnd: rows }),
    ),
  );
  return isDeepStrictEqual(parts, jobs);
}

/** Largest memory of a role in the first and in the last quarter of a run. */
function quarters(samples: readonly Sample[], of: keyof Sample): readonly [first: number, last: number] {
  const quarter = Math.max(1, Math.floor(samples.length / 4));
  const most = (some: readonly Sample[]): number => Math.round(Math.max(...some.map((one) => one[of])));
  return [most(samples.slice(0, quarter)), most(samples.slice(-quarter - 1))];
}

function hundredths(value: number): number {
  return Math.round(100 * value) / 100;
}

const place = args.s3 === '' ? inFolders : await inBucket();
const server = await startTestServer({ topology: 'single' });
const workers = Array.from({ length: WORKERS }, () => new KeptWorker(server));
try {
  await writeFiles();
  for (const worker of workers) await worker.start();
  const [calm, killed] = ['calm', 'killed'];
  const alone = await run(server, workers, calm, false);
  const under = await run(server, workers, killed, true);
  const digests = ({ list }: Manifest): string =>
    JSON.stringify(list.map(({ name, rows, sha256 }) => [name, rows, sha256]));
  const isSame = digests(alone.manifest) === digests(under.manifest);
  const isAsJobs = await isAsByJobs(server, killed, under.manifest);
  const { missing, twice } = await countRows(killed, under.manifest);
  // nothing but objects and the manifest
  const left = (await place.names(killed)).length - under.manifest.list.length - 1;
  const [commandFirst, commandLast] = quarters(alone.samples, 'command');
  const [workerFirst, workerLast] = quarters(alone.samples, 'worker');
  const figures = {
    rows: ROWS,
    parts: alone.manifest.list.length,
    kills: under.kills,
    rows_missing: missing,
    rows_twice: twice,
    objects_left: left,
    objects_same: isSame ? 1 : 0,
    vectors_as_by_jobs: isAsJobs ? 1 : 0,
    texts_per_s: Math.round(ROWS / alone.seconds),
    texts_per_s_killed: Math.round(ROWS / under.seconds),
    server_cpu_percent: hundredths(alone.serverPercent),
    server_cpu_percent_killed: hundredths(under.serverPercent),
    command_mb_first: commandFirst,
    command_mb_last: commandLast,
    worker_mb_first: workerFirst,
    worker_mb_last: workerLast,
  };
  process.stdout.write(`${JSON.stringify({ bench: 'parts', ...figures })}\n`);
  record({
    bench: 'parts',
    case: `${ROWS} rows of Parquet${args.s3 === '' ? '' : ` through a bucket of ${args.s3}`}, ${WORKERS} workers of ${args['tokens-per-ms']} tokens/ms, one killed every ${args['kill-every']} s`,
    figures,
    bar: { figure: 'server_cpu_percent', at_most: MOST_SERVER_PERCENT },
  });
  if (missing + twice + left > 0 || !isSame || !isAsJobs) process.exitCode = 1;
} finally {
  for (const worker of workers) await worker.stop();
  await server.stop();
  await place.stop();
  rmSync(folder, { recursive: true, force: true });
}
