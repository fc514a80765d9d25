// A long file through `shoal embed`, from its first line to its last: a JSONL of 1,000,000 rows, the model tiny-random
// (so that the path is measured and not the model), a private queue server and a worker that the command starts itself.
// Samples the resident memory of every process each second; then does the run again, kills it with SIGKILL half-way,
// resumes it, and compares the two files. With --form parquet the input is Parquet as well, whose columns go along; --input
// takes one that somebody made, for example of a single row group by pyarrow, with columns id and text.
//
//   node --conditions=@shoal/source bench/queue/long-file.ts [--rows 1000000] [--form npy|arrow|jsonl|parquet] [--input FILE]
//     [--quiet-only]
//
// Prints one JSON line: texts/s, for each process the mean memory of the second and of the last quarter of the run and
// their ratio, the server's log of jobs on disk, and what the comparison found. Linux only: it reads /proc.

import { createHash } from 'node:crypto';
import {
  copyFileSync,
  createReadStream,
  createWriteStream,
  existsSync,
  readFileSync,
  readdirSync,
  statSync,
} from 'node:fs';
import { once } from 'node:events';
import { connect } from 'node:net';
import { availableParallelism, cpus } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { asyncBufferFromFile, parquetMetadataAsync, parquetReadObjects } from 'hyparquet';
import { gunzipSync } from 'node:zlib';
import { readArguments } from '../rig/arguments.ts';
import { openEncoder } from '../../apps/cli/src/output/row-encoder.ts';
import { Sandbox, type Running } from '../../apps/cli/src/testing/shoal-process.ts';

const args = readArguments(import.meta.url, {
  rows: { type: 'string', default: '1000000' },
  form: { type: 'string', default: 'npy' },
  input: { type: 'string' },
  'quiet-only': { type: 'boolean', default: false },
});
const ROWS = Number(args.rows);
const IS_PARQUET = args.form === 'parquet';
const INPUT = IS_PARQUET ? 'long.parquet' : 'long.jsonl';
const DIMS = 32;
/** Of a job, as `shoal embed` cuts them. */
const JOB_TEXTS = 64;
const NPY_HEADER_BYTES = 128;
const WORDS = readFileSync(new URL('../../GLOSSARY.md', import.meta.url), 'utf8')
  .split(/[^A-Za-z]+/)
  .filter((word) => word.length > 2);

/** Texts that all differ, of 4 to 20 words. */
function recordAt(row: number): { readonly id: string; readonly text: string } {
  const words = Array.from({ length: 3 + (row % 17) }, (_, at) => WORDS[(row * 7 + at * 31) % WORDS.length]);
  return { id: `doc-${row}`, text: `${row} ${words.join(' ')}` };
}

const line = (row: number): string => `${JSON.stringify(recordAt(row))}\n`;

/** Columns id, text, and old, a list of three numbers. */
async function writeParquet(path: string): Promise<void> {
  const encoder = await openEncoder({ format: 'parquet', dims: 3, hasIds: true, withText: true, vectorField: 'old' });
  const file = createWriteStream(path);
  const write = async (bytes: Buffer): Promise<void> => {
    if (!file.write(bytes)) await once(file, 'drain');
  };
  await write(encoder.head(0));
  for (let from = 0; from < ROWS; from += 10_000) {
    const count = Math.min(10_000, ROWS - from);
    const records = Array.from({ length: count }, (_, at) => ({ ...recordAt(from + at), index: from + at }));
    const vectors = Float32Array.from({ length: 3 * count }, (_, at) => 3 * from + at);
    for await (const { bytes } of encoder.encode({ records, dims: 3, vectors, position: from + count }))
      await write(bytes);
  }
  for await (const { bytes } of encoder.flush()) await write(bytes);
  file.end(encoder.tail());
  await once(file, 'finish');
}

async function writeInput(path: string): Promise<void> {
  if (args.input !== undefined) return copyFileSync(args.input, path);
  if (IS_PARQUET) return writeParquet(path);
  const file = createWriteStream(path);
  for (let from = 0; from < ROWS; from += 10_000) {
    const block = Array.from({ length: Math.min(10_000, ROWS - from) }, (_, at) => line(from + at)).join('');
    if (!file.write(block)) await once(file, 'drain');
  }
  file.end();
  await once(file, 'finish');
}

const ROLES = {
  executor: 'executor-main',
  worker: 'cpu-worker',
  server: /(valkey|redis)-server [^ ]*:0|unixsocket/,
  supervisor: 'supervisor-main',
  command: 'main.ts embed',
} as const;
type Role = keyof typeof ROLES;

interface Sample {
  readonly kilobytes: Readonly<Partial<Record<Role, number>>>;
  /** Size of the server's log of jobs. */
  readonly logBytes: number;
  /** Keys in the server: what its memory goes into. */
  readonly keys: number | undefined;
}

async function sample(box: Sandbox): Promise<Sample> {
  const kilobytes: Partial<Record<Role, number>> = {};
  for (const { pid, command } of box.processes()) {
    const role = (Object.keys(ROLES) as Role[]).find((name) => command.search(ROLES[name]) !== -1);
    if (role !== undefined) kilobytes[role] = Math.max(kilobytes[role] ?? 0, residentKilobytes(pid));
  }
  return {
    kilobytes,
    logBytes: folderBytes(join(box.cacheDir, 'server', 'data')),
    keys: await countKeys(join(box.cacheDir, 'server', 'queue.sock')),
  };
}

async function countKeys(path: string): Promise<number | undefined> {
  const socket = connect(path);
  try {
    socket.write('DBSIZE\r\n');
    const [reply] = (await once(socket, 'data', { signal: AbortSignal.timeout(500) })) as [Buffer];
    return Number(/^:(\d+)/.exec(reply.toString())?.[1]);
  } catch {
    return undefined; // not there yet, or not any more
  } finally {
    socket.destroy();
  }
}

function residentKilobytes(pid: number): number {
  try {
    return Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0);
  } catch {
    return 0; // gone meanwhile
  }
}

function folderBytes(folder: string): number {
  if (!existsSync(folder)) return 0;
  return readdirSync(folder, { recursive: true, withFileTypes: true }).reduce((sum, entry) => {
    const facts = entry.isFile() ? statSync(join(entry.parentPath, entry.name), { throwIfNoEntry: false }) : undefined;
    return sum + (facts?.size ?? 0);
  }, 0);
}

/** Samples until the run ends. */
async function watchMemory(box: Sandbox, running: Running): Promise<readonly Sample[]> {
  const samples: Sample[] = [];
  const intervalMs = Math.max(50, Math.min(1_000, ROWS / 1_000)); // a short run has samples too
  while (running.child.exitCode === null && running.child.signalCode === null) {
    samples.push(await sample(box));
    await sleep(intervalMs);
  }
  return samples;
}

/**
 * Keys and memory of the server over the run: headers of results stay for five minutes, so that both grow for as long
 * and no longer.
 */
function serverByTenth(samples: readonly Sample[]): readonly string[] {
  return Array.from({ length: 10 }, (_, at) => {
    const tenth = samples.slice(Math.floor((samples.length * at) / 10), Math.floor((samples.length * (at + 1)) / 10));
    return (
      `${round(mean(tenth.flatMap(({ keys }) => keys ?? [])))} keys, ` +
      `${round(mean(tenth.flatMap(({ kilobytes }) => kilobytes.server ?? [])) / 1024)} MB`
    );
  });
}

function quarter(samples: readonly Sample[], which: 1 | 3): readonly Sample[] {
  return samples.slice(Math.floor((samples.length * which) / 4), Math.floor((samples.length * (which + 1)) / 4));
}

function memoryOf(samples: readonly Sample[], role: Role) {
  const [second, last] = ([1, 3] as const).map((which) =>
    mean(quarter(samples, which).flatMap(({ kilobytes }) => kilobytes[role] ?? [])),
  );
  const peak = Math.max(...samples.map(({ kilobytes }) => kilobytes[role] ?? 0));
  return {
    secondQuarterMb: round(second! / 1024),
    lastQuarterMb: round(last! / 1024),
    peakMb: round(peak / 1024),
    ratio: round(last! / second!, 2),
  };
}

const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;
const round = (value: number, places = 0): number => Number(value.toFixed(places));

async function embed(box: Sandbox, output: string, ...flags: string[]) {
  const startedMs = performance.now();
  const running = box.start(['embed', INPUT, '--id-field', 'id', '-o', output, ...flags]);
  const samples = await watchMemory(box, running);
  const { code, stderr } = await running.ended;
  if (code !== 0) throw new Error(`the run of ${output} failed:\n${stderr}`);
  return { samples, seconds: (performance.now() - startedMs) / 1_000, stderr };
}

/**
 * Kills the command when half of the rows are written, then goes on with them. The executor stops by itself before the
 * job in the middle and is let on for moments only: a fast machine ends short runs before anybody looks.
 */
async function embedKilled(box: Sandbox, output: string, bytes: number): Promise<number> {
  const middle = Math.ceil(ROWS / JOB_TEXTS / 2);
  const environment = { SHOAL_FAULT_POINT: `before-commit:SIGSTOP:${middle}` };
  const running = box.start(['embed', INPUT, '--id-field', 'id', '-o', output], { environment });
  const partial = box.path(`.${output}.shoal-partial`);
  while ((statSync(partial, { throwIfNoEntry: false })?.size ?? 0) < bytes / 2 || !hasSafeRows(`${partial}.json`)) {
    if (running.child.exitCode !== null) throw new Error(`the run to kill ended too early:\n${running.stderr()}`);
    for (const pid of stopped(box)) {
      process.kill(pid, 'SIGCONT');
      await sleep(2);
      process.kill(pid, 'SIGSTOP');
    }
    await sleep(20);
  }
  running.child.kill('SIGKILL');
  for (const pid of stopped(box)) process.kill(pid, 'SIGKILL');
  await running.ended;
  const { stderr } = await embed(box, output);
  return Number(/behind ([\d,]+) rows/.exec(stderr)?.[1]?.replaceAll(',', '') ?? 0);
}

/** Processes that a signal has stopped. */
function stopped(box: Sandbox): number[] {
  return box.processes().flatMap(({ pid }) => {
    try {
      return /^State:\tT/m.test(readFileSync(`/proc/${pid}/status`, 'utf8')) ? [pid] : [];
    } catch {
      return []; // gone meanwhile
    }
  });
}

function hasSafeRows(state: string): boolean {
  return /"rows": [1-9]/.test(readFileSync(state, 'utf8'));
}

async function sha256(path: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path)) hash.update(chunk as Buffer);
  return hash.digest('hex');
}

/** Every row of the .npy is there and has length 1. */
async function checkRows(path: string): Promise<void> {
  for await (const head of createReadStream(path, { end: NPY_HEADER_BYTES - 1 })) {
    if (!String(head).includes(`(${ROWS}, ${DIMS})`)) throw new Error(`${path} does not have ${ROWS} rows`);
  }
  let row = 0;
  for await (const chunk of createReadStream(path, { start: NPY_HEADER_BYTES, highWaterMark: 4 * DIMS * 1_024 })) {
    const bytes = chunk as Buffer;
    const values = new Float32Array(Uint8Array.from(bytes).buffer);
    for (let at = 0; at < values.length; at += DIMS, row++) {
      const length = Math.hypot(...values.subarray(at, at + DIMS));
      if (!(Math.abs(length - 1) < 1e-4)) throw new Error(`row ${row} has length ${length}`);
    }
  }
}

/** Least cosine of rows in the same place. */
function leastCosine(a: string, b: string): number {
  const [x, y] = [a, b].map(
    (path) => new Float32Array(Uint8Array.from(readFileSync(path).subarray(NPY_HEADER_BYTES)).buffer),
  );
  let least = 1;
  for (let at = 0; at < x!.length; at += DIMS) {
    let dot = 0;
    for (let i = at; i < at + DIMS; i++) dot += x![i]! * y![i]!;
    least = Math.min(least, dot);
  }
  return least;
}

/** The same of Parquet files, whose other columns have to be the same. */
async function leastParquetCosine(a: string, b: string): Promise<number> {
  let least = 1;
  const files = await Promise.all([a, b].map((path) => asyncBufferFromFile(path)));
  for (let rowStart = 0; rowStart < ROWS; rowStart += 10_000) {
    const [x, y] = await Promise.all(
      files.map((file) =>
        parquetReadObjects({
          file,
          rowStart,
          rowEnd: rowStart + 10_000,
          compressors: { GZIP: (page) => gunzipSync(page) },
        }),
      ),
    );
    for (const [at, { embedding, ...others }] of x!.entries()) {
      const { embedding: other, ...same } = y![at]!;
      if (!isDeepStrictEqual(others, same)) throw new Error(`the columns of row ${rowStart + at} differ`);
      least = Math.min(
        least,
        embedding.reduce((sum: number, value: number, dim: number) => sum + value * other[dim], 0),
      );
    }
  }
  return least;
}

async function checkParquet(path: string): Promise<void> {
  const { num_rows: rows, schema } = await parquetMetadataAsync(await asyncBufferFromFile(path));
  const { num_rows: before, schema: old } = await parquetMetadataAsync(await asyncBufferFromFile(box.path(INPUT)));
  if (rows !== before || schema.length !== old.length + 3) throw new Error(`${path} has other rows or columns`);
}

/** What became of the run that was killed and resumed, against the quiet one. */
async function compareKilled(box: Sandbox) {
  const [quiet, killed] = [`quiet.${args.form}`, `killed.${args.form}`];
  const resumedBehind = await embedKilled(box, killed, statSync(box.path(quiet)).size);
  const [a, b] = await Promise.all([quiet, killed].map((name) => sha256(box.path(name))));
  const least =
    args.form === 'npy' || IS_PARQUET
      ? {
          leastCosine:
            a === b ? 1 : await (IS_PARQUET ? leastParquetCosine : leastCosine)(box.path(quiet), box.path(killed)),
        }
      : {};
  return { resumedBehind, sameBytes: a === b, ...least };
}

const box = new Sandbox();
try {
  await writeInput(box.path(INPUT));
  const { samples, seconds } = await embed(box, `quiet.${args.form}`);
  if (IS_PARQUET) await checkParquet(box.path('quiet.parquet'));
  if (args.form === 'npy') await checkRows(box.path('quiet.npy'));
  process.stdout.write(
    `${JSON.stringify({
      bench: 'long-file',
      cpu: cpus()[0]?.model,
      cores: availableParallelism(),
      rows: ROWS,
      form: args.form,
      inputMb: round(statSync(box.path(INPUT)).size / 1e6),
      seconds: round(seconds, 1),
      textsPerSecond: Math.round(ROWS / seconds),
      memory: Object.fromEntries(
        (['command', 'worker', 'executor', 'server', 'supervisor'] as const).map((role) => [
          role,
          memoryOf(samples, role),
        ]),
      ),
      serverLogMb: {
        secondQuarter: round(mean(quarter(samples, 1).map(({ logBytes }) => logBytes)) / 1e6),
        peak: round(Math.max(...samples.map(({ logBytes }) => logBytes)) / 1e6),
      },
      serverByTenth: serverByTenth(samples),
      ...(args['quiet-only'] ? {} : await compareKilled(box)),
    })}\n`,
  );
} finally {
  box.remove();
}
