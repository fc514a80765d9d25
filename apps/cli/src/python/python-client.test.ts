// The Python client (clients/python) against a real queue server and worker processes: its own tests, run by the
// interpreter of a virtual environment, and vectors that have the bits of those that the SDK gives. By day
// with a small model and where the environment is there already; at night all of it, with an outage of the server, a
// reranker, a collection, other people's bullmq, strict types, and a wheel in an empty environment.

import { execFile, fork, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ShoalClient } from '@shoal/client';
import type { OutputDtype } from '@shoal/contract';
import { cacheFolder } from '@shoal/core';
import { programOf } from '@shoal/core/testing';
import { importModel, openModel, type StoredModel } from '@shoal/models';
import { madeModel } from '@shoal/models/testing';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createCollection, graphFromEdges, saveGraph } from '@shoal/similarity';
import { installPython, pythonOf } from './python-venv.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
const testCacheDir = cacheFolder(process.env['SHOAL_CACHE_DIR']);
const CLIENT = fileURLToPath(new URL('../../../../clients/python', import.meta.url));
const TEXTS = JSON.parse(
  readFileSync(new URL('../../../../libs/models/fixtures/texts.json', import.meta.url), 'utf8'),
) as string[];
const DTYPES: readonly OutputDtype[] = ['f32', 'f16', 'i8', 'binary'];
const MODEL = isNightly ? 'minilm' : 'tiny-random';
const RERANKER = 'made-reranker';
const DOWN_MS = 5_000;

let python = pythonOf(testCacheDir) ?? '';
if (python === '' && !isNightly)
  console.warn(
    'the Python client is not tried: its environment is made by npm run test:nightly, and kept in the cache',
  );
const canRun = isNightly || python !== '';

const folder = mkdtempSync(join(tmpdir(), 'shoal-python-'));
const workers: ChildProcess[] = [];
let server: TestServer;
let model: StoredModel;
let told: Readonly<Record<string, unknown>>;

beforeAll(async () => {
  if (!canRun) return;
  if (isNightly) python = await installPython(testCacheDir);
  server = await startTestServer({ topology: 'single' });
  model = await openModel(MODEL, { cacheDir: testCacheDir });
  await startWorker({ SHOAL_MODEL: MODEL, SHOAL_CACHE_DIR: testCacheDir });
  const texts = TEXTS.filter((text) => text.length > 0 && text.length < 300).slice(0, 40);
  writeFileSync(join(folder, 'texts.json'), JSON.stringify(texts));
  await writeExpected(texts);
  told = { url: server.url, model: `${MODEL}@${model.revision}`, folder };
}, 900_000);

afterAll(async () => {
  for (const worker of workers) {
    const gone = once(worker, 'exit');
    worker.kill('SIGTERM');
    await gone;
  }
  await server?.stop();
  rmSync(folder, { recursive: true, force: true });
});

async function startWorker(settings: Readonly<Record<string, string>>): Promise<ChildProcess> {
  const { main, execArgv } = programOf('cpu-worker');
  const child = fork(main, [], {
    execArgv: [...execArgv],
    env: { ...process.env, SHOAL_REDIS_URL: server.url, SHOAL_LOG_LEVEL: 'error', ...settings },
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  workers.push(child);
  const [report]: unknown[] = await once(child, 'message');
  expect(report).toMatchObject({ kind: 'ready' });
  return child;
}

/** As the SDK gives them: in each form, and as f32; and a request that it submitted. */
async function writeExpected(texts: readonly string[]): Promise<void> {
  const client = await ShoalClient.connect({ redisUrl: server.url, model: MODEL });
  for (const dtype of DTYPES) {
    const found = await client.embed(texts, { output: { dtype } });
    write(dtype, found.vectors);
    write(`${dtype}-wide`, found.toFloat32());
    if (found.scales !== undefined) write('scales', found.scales);
  }
  await client.submit(texts.slice(0, 3), { jobId: 'by-the-sdk' });
  await client.close();
}

function write(name: string, { buffer, byteOffset, byteLength }: ArrayBufferView): void {
  writeFileSync(join(folder, `${name}.bin`), new Uint8Array(buffer, byteOffset, byteLength));
}

/** What the program said on standard error; rejects with it where it failed. */
async function run(args: readonly string[], more: Readonly<Record<string, unknown>> = {}): Promise<string> {
  const { stderr } = await promisify(execFile)(python, args, {
    cwd: CLIENT,
    env: { ...process.env, ...environment(more) },
    maxBuffer: 1 << 24,
    timeout: isNightly ? 900_000 : 170_000,
  });
  return stderr;
}

/** Lets `happen` what is to happen when the program says that some of its calls are done. What it said, and its exit code. */
async function runThrough(
  program: string,
  more: Readonly<Record<string, unknown>>,
  happen: () => Promise<void>,
): Promise<readonly [lines: readonly string[], code: unknown]> {
  const child = spawn(python, [program], {
    cwd: CLIENT,
    env: { ...process.env, ...environment(more) },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const lines: string[] = [];
  const exit = once(child, 'exit');
  for await (const line of createInterface({ input: child.stdout })) {
    lines.push(line);
    if (line === 'some are done') await happen();
  }
  return [lines, (await exit)[0]];
}

function environment(more: Readonly<Record<string, unknown>>): Readonly<Record<string, string>> {
  return {
    PYTHONPATH: join(CLIENT, 'src'),
    PYTHONDONTWRITEBYTECODE: '1',
    PYTHONWARNINGS: 'error::ResourceWarning',
    SHOAL_TEST: JSON.stringify({ ...told, ...more }),
  };
}

describe.skipIf(!canRun)('the Python client', () => {
  test('its own tests pass, with vectors of the same bits as those of the SDK', async () => {
    expect(await run(['-m', 'unittest', 'tests/test_formats.py', 'tests/test_live.py'])).toMatch(/Ran \d+ tests[^]*OK/);
  });
});

describe.skipIf(!isNightly)('the Python client, at night', () => {
  test('1,000 calls at once all get their rows, through an outage of the server', async () => {
    const said = await runThrough('tests/outage.py', {}, async () => {
      await server.kill9();
      await sleep(DOWN_MS);
      await server.restart();
    });
    expect(said).toEqual([['some are done', '1000 of 1000 right'], 0]);
  });

  test('reranks, searches, and reads what the bullmq of PyPI asked for', async () => {
    const source = join(folder, 'reranker');
    const cacheDir = join(folder, 'cache');
    await madeModel('cross-encoder-bert', source);
    await importModel(source, { cacheDir, name: RERANKER });
    const dims = 48;
    const vectors = Float32Array.from({ length: 500 * dims }, (_, at) => Math.sin(at * at));
    const names = Array.from({ length: 500 }, (_, row) => `row ${row}`);
    await createCollection(join(cacheDir, 'collections'), 'docs', [{ dims, vectors, names }]);
    writeFileSync(join(folder, 'rows.bin'), new Uint8Array(vectors.buffer));
    const others = { SHOAL_CACHE_DIR: cacheDir, SHOAL_THREADS: '1' };
    await startWorker({ ...others, SHOAL_MODEL: RERANKER });
    const edges = { from: Uint32Array.of(0, 1, 2), to: Uint32Array.of(1, 2, 3), weight: Float32Array.of(1, 1, 0.5) };
    await saveGraph(join(cacheDir, 'collections'), 'links', graphFromEdges(edges));
    await startWorker({ ...others, SHOAL_KIND: 'similarity' });
    const client = await ShoalClient.connect({ redisUrl: server.url, model: MODEL });
    const reached = await client.spread('links', [[0], [[1, 4]]], { k: 3, steps: 2, decay: 0.5 });
    const spread = {
      ids: reached.map(({ ids }) => Array.from(ids, Number)),
      scores: reached.map(({ scores }) => [...scores]),
    };
    const documents = TEXTS.filter((text) => text.length > 0 && text.length < 200).slice(0, 70);
    const { scores, ranked } = await client.rerank({ model: RERANKER, query: 'the sea at night', documents, topN: 5 });
    await client.submitRerank({ model: RERANKER, query: 'the sea at night', documents, jobId: 'asked-by-the-sdk' });
    await client.close();
    const expected = { documents, scores: [...scores], ranked };
    const said = await run(['-m', 'unittest', 'tests/test_night.py'], { reranker: RERANKER, dims, expected, spread });
    expect(said).toMatch(/Ran \d+ tests[^]*OK/);
  });

  test.each(['sentinel', 'cluster'] as const)('finds the new server after a failover: %s', async (topology) => {
    const many = await startTestServer({ topology });
    const worker = await startWorker({ SHOAL_MODEL: MODEL, SHOAL_CACHE_DIR: testCacheDir, SHOAL_REDIS_URL: many.url });
    const said = await runThrough('tests/topology.py', { url: many.url }, async () => {
      await many.kill9();
      await many.restart(); // as a follower of the one that took over
    });
    expect(said).toEqual([['some are done', '60 of 60 right'], 0]);
    const gone = once(worker, 'exit');
    worker.kill('SIGTERM');
    await gone;
    workers.splice(workers.indexOf(worker), 1);
    await many.stop();
  });

  test('its types are strict, and its examples run from a wheel in an empty environment', async () => {
    const copy = join(folder, 'client');
    cpSync(CLIENT, copy, { recursive: true });
    await run(['-m', 'mypy', '--cache-dir', join(folder, 'mypy')]);
    await run(['-m', 'build', '--no-isolation', '--outdir', join(folder, 'made'), copy]);
    const made = readdirSync(join(folder, 'made')).toSorted();
    expect(made).toEqual(['shoal-0.1.0-py3-none-any.whl', 'shoal-0.1.0.tar.gz']);
    const empty = join(folder, 'empty');
    await run(['-m', 'venv', empty]);
    const own = join(empty, 'bin/python');
    const wheel = join(folder, 'made', made[0]!);
    await promisify(execFile)(own, ['-m', 'pip', 'install', '--quiet', wheel, 'pyarrow==26.0.1'], { timeout: 600_000 });
    const readme = readFileSync(join(CLIENT, 'README.md'), 'utf8');
    const [, program] = /```python\n([^]*?)```/.exec(readme)!;
    writeFileSync(join(folder, 'readme.py'), program!);
    const env = { ...process.env, REDIS_URL: server.url };
    const ran = await promisify(execFile)(own, [join(folder, 'readme.py')], { env, cwd: folder });
    expect(ran.stdout).toMatch(/^\(2, 384\) float32 minilm@[0-9a-f]{12}\n/);
    const column = await promisify(execFile)(own, [join(CLIENT, 'examples/embed_column.py')], { env, cwd: folder });
    expect(column.stdout).toBe('2000 texts, 384 dimensions: vectors.npy\n');
  });
});
