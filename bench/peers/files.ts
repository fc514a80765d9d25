// Files as jobs beside Daft with sentence-transformers, on the CPU: the same Parquet file of ragged texts to Parquet with all
// columns and the vectors, alternately, on the same cores, with so many threads each. Ours is `shoal embed IN -o OUT/`,
// whose time counts from the start of the command to its end; Daft's program stands ready with its model loaded, as
// our worker does. The rows and vectors of a first run of each are compared before the clock starts.
//
//   python3 -m venv VENV && VENV/bin/pip install daft sentence-transformers        # 5.8 GB
//   node --conditions=@shoal/source bench/peers/files.ts [--python VENV/bin/python] [--folder DIR] [--texts 2000]
//       [--rounds 3] [--threads 2] [--record]
//
// --folder: the model's files for Daft's side; default the copy in the cache. Without --python ours alone.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { cpus, loadavg, tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { gunzipSync } from 'node:zlib';
import { asyncBufferFromFile, parquetReadObjects } from 'hyparquet';
import { median } from '@shoal/core/base';
import { programOf } from '@shoal/core/testing';
import { openModel } from '@shoal/models';
import { startTestServer } from '@shoal/queue/testing';
import { openEncoder } from '../../apps/cli/src/output/row-encoder.ts';
import { readArguments } from '../rig/arguments.ts';
import { raggedCorpus } from '../rig/ragged-corpus.ts';
import { record } from '../rig/record.ts';
import { MAX_TOKENS, cacheDir, startWorker, stopWorker } from '../rig/sides.ts';
import { leastCosine } from '../similarity/cosine.ts';

const args = readArguments(import.meta.url, {
  python: { type: 'string' },
  folder: { type: 'string' },
  texts: { type: 'string', default: '2000' },
  rounds: { type: 'string', default: '3' },
  threads: { type: 'string', default: '2' },
  record: { type: 'boolean', default: false },
});
const [count, rounds, threads] = [Number(args.texts), Number(args.rounds), Number(args.threads)];
const LEAST_COSINE = 0.99999;
const loadBefore = loadavg()[0]!;
const folder = mkdtempSync(join(tmpdir(), 'shoal-peer-files-'));
const input = join(folder, 'in.parquet');

interface FileSide {
  readonly name: string;
  readonly versions?: unknown;
  /** Embeds the file into a new folder: seconds. */
  run(out: string): Promise<number>;
  close(): Promise<void>;
}

const model = await openModel('minilm', { cacheDir });
await writeInput(raggedCorpus(join(model.folder, 'tokenizer.json'), count).map(({ text }) => text));
const sides: FileSide[] = [];
try {
  sides.push(await openShoal());
  if (args.python !== undefined) sides.push(await openDaft(args.python));
  const checked = await check();
  const rates = new Map(sides.map(({ name }): [string, number[]] => [name, []]));
  for (let round = 0; round < rounds; round++)
    for (const { name, run } of round % 2 === 0 ? sides : sides.toReversed())
      rates.get(name)!.push(Math.round((10 * count) / (await run(join(folder, `${name}-${round}`)))) / 10);
  const [shoal, daft] = [...rates.values()].map(median);
  const figures = {
    texts: count,
    shoal_texts_per_s: shoal!,
    ...(daft !== undefined && {
      daft_texts_per_s: daft,
      shoal_to_daft: Number((shoal! / daft).toFixed(3)),
      least_cosine: checked,
    }),
  };
  const row = record({
    bench: 'peers',
    case: `files as jobs: minilm, Parquet to Parquet, ${threads} threads`,
    figures,
  });
  const facts = { cpu: cpus()[0]?.model, loadBefore, versions: sides.map(({ versions }) => versions), raw: [...rates] };
  process.stdout.write(`${JSON.stringify({ ...row, ...facts })}\n`);
} finally {
  for (const side of sides) await side.close();
  rmSync(folder, { recursive: true, force: true });
}

/** Columns id and text. */
async function writeInput(texts: readonly string[]): Promise<void> {
  const encoder = await openEncoder({ format: 'parquet', dims: 1, hasIds: true, withText: true, vectorField: 'old' });
  const records = texts.map((text, index) => ({ id: `r${index}`, text, index }));
  const file = createWriteStream(input);
  file.write(encoder.head(0));
  const block = { records, dims: 1, vectors: new Float32Array(texts.length), position: texts.length };
  for await (const { bytes } of encoder.encode(block)) file.write(bytes);
  for await (const { bytes } of encoder.flush()) file.write(bytes);
  file.end(encoder.tail());
  await once(file, 'finish');
}

/** The least cosine of a row's two vectors. Throws where a row is missing or the texts differ. */
async function check(): Promise<number> {
  const found: Float32Array[] = [];
  for (const { name, run } of sides) {
    const out = join(folder, `${name}-first`);
    await run(out);
    found.push(await readVectors(out));
  }
  const least = leastCosine(found[0]!, found.at(-1)!, model.dims);
  if (!(least >= LEAST_COSINE)) throw new Error(`the vectors differ: the least cosine is ${least}`);
  return Number(least.toFixed(6));
}

async function readVectors(out: string): Promise<Float32Array> {
  const vectors = new Float32Array(count * model.dims);
  const seen = new Set<number>();
  for (const name of readdirSync(out).filter((one) => one.endsWith('.parquet'))) {
    const rows = await parquetReadObjects({
      file: await asyncBufferFromFile(join(out, name)),
      compressors: { GZIP: (bytes) => gunzipSync(bytes) },
      columns: ['id', 'embedding'],
    });
    for (const { id, embedding } of rows) {
      const row = Number(String(id).slice(1));
      seen.add(row);
      vectors.set(embedding as number[], row * model.dims);
    }
  }
  if (seen.size !== count) throw new Error(`${out} has ${seen.size} of ${count} rows`);
  return vectors;
}

async function openShoal(): Promise<FileSide> {
  const server = await startTestServer({ appendFsync: 'everysec' });
  const worker = await startWorker(server.url, 'minilm', threads, { SHOAL_PART_FOLDERS: folder });
  const { main, execArgv } = programOf('cli');
  const env = { ...process.env, SHOAL_REDIS_URL: server.url, SHOAL_MODEL: 'minilm', SHOAL_CACHE_DIR: cacheDir };
  const run = async (out: string): Promise<number> => {
    const startedMs = performance.now();
    const command = spawn(process.execPath, [...execArgv, main, 'embed', input, '-o', `${out}/`, '--json'], {
      env,
      stdio: ['ignore', 'ignore', 'inherit'],
    });
    const [code] = (await once(command, 'close')) as [number | null];
    if (code !== 0) throw new Error(`shoal embed ended with ${String(code)}`);
    return (performance.now() - startedMs) / 1_000;
  };
  const close = async (): Promise<void> => {
    await stopWorker(worker);
    await server.stop();
  };
  return { name: 'shoal', run, close };
}

async function openDaft(python: string): Promise<FileSide> {
  const child = spawn(python, [fileURLToPath(new URL('daft_files.py', import.meta.url))], {
    stdio: ['pipe', 'pipe', 'inherit'],
    env: { ...process.env, HF_HUB_OFFLINE: '1' },
  });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const answer = async (): Promise<{ readonly versions?: unknown; readonly seconds?: number }> => {
    const { value, done } = await lines.next();
    if (done === true) throw new Error('the program of Daft ended');
    return JSON.parse(value) as { versions?: unknown; seconds?: number };
  };
  const request = { model: resolve(args.folder ?? model.folder), threads, maxTokens: MAX_TOKENS, input, rows: count };
  child.stdin.write(`${JSON.stringify(request)}\n`);
  const { versions } = await answer();
  const run = async (out: string): Promise<number> => {
    child.stdin.write(`${out}\n`);
    return (await answer()).seconds!;
  };
  const close = async (): Promise<void> => {
    child.stdin.end();
    await once(child, 'close');
  };
  return { name: 'daft', versions, run, close };
}
