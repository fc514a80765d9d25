// Every file of this folder, as its first lines say to run it, on a real queue server with a real worker and minilm.
// By day those that need nothing but this project; at night those as well that need other people's packages
// (apps/producer/src/clients/clients.json), beside an HTTP server. A file that no test runs fails.

import { execFile, fork, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { extname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { cacheFolder } from '@shoal/core';
import { programOf, testsRunBuild, type AppName } from '@shoal/core/testing';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { PostgresServer } from '../apps/cli/src/testing/postgres-server.ts';
import { installClients, type Clients } from '../apps/producer/src/clients/install.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('examples with packages of others are run at night alone (npm run test:nightly)');

const HERE = import.meta.dirname;
const cacheDir = cacheFolder(process.env['SHOAL_CACHE_DIR']);
const folder = mkdtempSync(join(tmpdir(), 'shoal-examples-'));
const CONDITIONS = testsRunBuild ? [] : ['--conditions=@shoal/source'];
/** The invoice comes first, whoever asks when one has to pay. */
const RANKED = /^0\.\d{3} Invoices are due within thirty days\.\n0\.\d{3} The ship|^0\.\d{3} Invoices.*\n-?0\.\d{3} /;

let server: TestServer;
let clients: Clients;
let environment: NodeJS.ProcessEnv;
const services: ChildProcess[] = [];
const ran = new Set<string>();

beforeAll(async () => {
  if (isNightly) clients = await installClients(cacheDir);
  server = await startTestServer();
  const PYTHONPATH = join(HERE, '../clients/python/src');
  environment = { ...process.env, REDIS_URL: server.url, SHOAL_MODEL: 'minilm', PYTHONPATH };
  await start('cpu-worker');
  if (!isNightly) return;
  environment['SHOAL_URL'] = await start('producer');
  Object.assign(environment, { TIKTOKEN_CACHE_DIR: clients.tiktoken, LITELLM_LOCAL_MODEL_COST_MAP: 'True' });
  putBeside(clients);
}, 900_000);
afterAll(async () => {
  for (const service of services) {
    const gone = once(service, 'exit');
    if (service.kill('SIGTERM')) await gone;
  }
  await server?.stop();
  rmSync(folder, { recursive: true, force: true });
});

/** Its address, where it has one. */
async function start(app: AppName): Promise<string | undefined> {
  const { main, execArgv } = programOf(app);
  const child = fork(main, [], {
    execArgv: [...execArgv],
    env: {
      ...process.env,
      SHOAL_REDIS_URL: server.url,
      SHOAL_MODEL: 'minilm',
      SHOAL_HTTP_PORT: '0',
      SHOAL_CACHE_DIR: cacheDir,
    },
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  services.push(child);
  const [report] = (await once(child, 'message')) as [{ readonly kind: string; readonly url?: string }];
  expect(report).toMatchObject({ kind: 'ready' });
  return report.url;
}

/** Node looks for packages from where a file lies: the examples go to the packages of others, ours are linked there. */
function putBeside({ folder: theirs }: Clients): void {
  const modules = join(folder, 'node_modules');
  mkdirSync(modules);
  for (const name of readdirSync(join(theirs, 'node_modules')))
    symlinkSync(join(theirs, 'node_modules', name), join(modules, name));
  for (const name of ['@shoal', 'bullmq', 'ioredis'])
    symlinkSync(join(HERE, '../node_modules', name), join(modules, name));
  for (const name of readdirSync(HERE))
    if (/\.(mjs|py|sh)$/.test(name)) copyFileSync(join(HERE, name), join(folder, name));
}

function pathOf(name: string): string {
  ran.add(name);
  return join(isNightly ? folder : HERE, name);
}

/** What an example prints. Rejects when it fails. */
async function run(name: string, ...args: string[]): Promise<{ readonly stdout: string; readonly stderr: string }> {
  const [program, ...before] =
    extname(name) === '.py' ? [clients.python] : extname(name) === '.sh' ? ['sh'] : [process.execPath, ...CONDITIONS];
  const options = { env: environment, timeout: 120_000, cwd: folder };
  return promisify(execFile)(program!, [...before, pathOf(name), ...args], options);
}

function write(name: string, text: string): string {
  writeFileSync(join(folder, name), text);
  return join(folder, name);
}

/** What `shoal embed` makes of three texts: ids r0, r1 and r2. */
async function embeddedRows(): Promise<string> {
  const lines = ['The ship left.', 'Invoices are due within thirty days.', 'The vessel sailed.'];
  const records = lines.map((text, at) => `${JSON.stringify({ id: `r${at}`, text })}\n`).join('');
  const { main, execArgv } = programOf('cli');
  const shoal = [process.execPath, ...execArgv, main].join(' ');
  const [jsonl, parquet] = [write('rows.jsonl', records), join(folder, 'rows.parquet')];
  Object.assign(environment, { SHOAL: shoal, SHOAL_CACHE_DIR: cacheDir });
  const env = environment;
  await promisify(execFile)('sh', ['-c', `${shoal} embed "${jsonl}" --with-text -o "${parquet}"`], { env });
  return parquet;
}

test('node-sdk ranks texts by a question', async () => {
  expect((await run('node-sdk.mjs')).stdout).toMatch(RANKED);
});

test('next-route answers vectors of length 1, and what is no list of texts with 400', async () => {
  Object.assign(process.env, { REDIS_URL: server.url, SHOAL_MODEL: 'minilm' });
  const route = (await import(pathOf('next-route.mjs'))) as {
    readonly POST: (request: Request) => Promise<Response>;
    readonly close: () => Promise<void>;
  };
  // Next refuses `runtime` and its like where cacheComponents is on, as in new apps
  expect(Object.keys(route).toSorted()).toEqual(['POST', 'close']);
  const post = (body: string): Promise<Response> =>
    route.POST(new Request('http://localhost/api/embed', { method: 'POST', body }));
  try {
    const { embeddings } = (await (await post('{"texts": ["hello", "world"]}')).json()) as { embeddings: number[][] };
    expect(embeddings.map((vector) => Number(Math.hypot(...vector).toFixed(4)))).toEqual([1, 1]);
    for (const body of ['', '{}', '{"texts": []}', '{"texts": [1]}']) expect((await post(body)).status).toBe(400);
    const long = await post(JSON.stringify({ texts: ['word '.repeat(1_000)] }));
    expect([long.status, await long.json()]).toEqual([413, expect.objectContaining({ code: 'INPUT_TOO_LONG' })]);
  } finally {
    await route.close();
  }
});

test('rag-folder puts the passage into the prompt that answers the question', async () => {
  mkdirSync(join(folder, 'notes'));
  write('notes/bills.md', '# Bills\n\nInvoices are due within thirty days.\n\nReminders are sent twice.\n');
  write('notes/sea.txt', 'The ship left the harbour at dawn.\n\nGulls followed it.\n');
  const { stdout } = await run('rag-folder.mjs', join(folder, 'notes'), 'when do I have to pay?', '1');
  expect(stdout).toMatch(
    /\n\[bills\.md, 0\.\d{3}\]\n# Bills\nInvoices are due within thirty days\.\n\nQuestion: when do/,
  );
});

test('deduplicate leaves out what was nearly said before, and says so', async () => {
  const lines = [
    'Invoices are due within 30 days.',
    'The ship left.',
    'Invoices are due within thirty days.',
    'The ship left.',
  ];
  const { stdout, stderr } = await run('deduplicate.mjs', write('lines.txt', `${lines.join('\n')}\n`));
  expect(stdout).toBe('Invoices are due within 30 days.\nThe ship left.\n');
  expect(stderr).toMatch(
    /^left out: Invoices are due within thirty days\. \(like: Invoices are due within 30 days\.\)$/m,
  );
});

test('plain-bullmq.mjs gets three rows', async () => {
  expect((await run('plain-bullmq.mjs')).stdout).toMatch(/^3 rows of 384 dimensions from minilm@/);
});

describe.runIf(isNightly)('with packages of others, or over HTTP', () => {
  const VECTORS = /0: 384 dimensions, .*\n1: 384 dimensions, /;

  test.each([
    ['openai-npm.mjs', /^served: minilm\n[\s\S]*0: 384 dimensions, .*\n1: 384 dimensions, .*\n\d+ tokens\n$/],
    ['openai_pypi.py', /^served: minilm\n[\s\S]*0: 384 dimensions, .*\n1: 384 dimensions, .*\n\d+ tokens\n$/],
    ['langchain-js.mjs', RANKED],
    ['langchain_python.py', /^with its defaults: .*check_embedding_ctx_length.*\n0\.\d{3} Invoices/],
    ['llamaindex.py', RANKED],
    ['litellm_embedding.py', VECTORS],
    ['ai-sdk.mjs', RANKED],
    ['plain_bullmq.py', /^3 rows of 384 dimensions from minilm@/],
    ['python_client.py', /^0\.\d{3} Invoices[\s\S]*\(3, 384\) completed\n$/],
  ])('%s', async (name, printed) => {
    expect((await run(name)).stdout).toMatch(printed);
  });

  test('batches.sh prints each answer under its custom_id, also that of a line that is refused', async () => {
    const { stdout, stderr } = await run('batches.sh');
    const lines = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as { custom_id: string; response: { status_code: number } });
    expect(lines.map((line) => [line.custom_id, line.response.status_code])).toEqual([
      ['ship', 200],
      ['bill', 200],
      ['empty', 400],
    ]);
    expect(stderr).toMatch(/batch_\S+: completed\n$/);
  });

  test('parquet-pgvector.sh fills a table, and finds the row nearest to another', async () => {
    const postgres = new PostgresServer();
    try {
      await postgres.open();
      const parquet = await embeddedRows();
      environment['PATH'] = `${postgres.programs}:${environment['PATH']}`;
      const { stdout } = await run('parquet-pgvector.sh', parquet, `${postgres.url}/docs`, 'r0');
      expect(stdout).toMatch(/r2\s*\|\s*The vessel sailed\.[\s\S]*r1/);
    } finally {
      await postgres.close();
    }
  });

  test('parquet_lancedb.py fills a table, has each row once when it runs again, and finds the nearest', async () => {
    const parquet = await embeddedRows();
    for (let times = 0; times < 2; times++) {
      const { stdout } = await run('parquet_lancedb.py', parquet, 'r0');
      expect(stdout).toMatch(/^3 rows\n0\.000 r0 The ship left\.\n\d\.\d{3} r2 The vessel sailed\.\n\d\.\d{3} r1 /);
    }
  });

  test('express answers over HTTP, and ends on SIGTERM', async () => {
    const child = spawn(process.execPath, [...CONDITIONS, pathOf('express.mjs')], {
      env: { ...environment, PORT: '0' },
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const ended = once(child, 'exit');
    for await (const url of createInterface({ input: child.stdout })) {
      const body = JSON.stringify({ query: 'when do I have to pay?', texts: ['The ship left.', 'Invoices are due.'] });
      const headers = { 'content-type': 'application/json' };
      const answer = await fetch(`${url}/similar`, { method: 'POST', headers, body });
      expect(await answer.json()).toMatchObject({ data: [{ text: 'Invoices are due.' }, { text: 'The ship left.' }] });
      expect((await fetch(`${url}/similar`, { method: 'POST', headers, body: '{}' })).status).toBe(400);
      child.kill('SIGTERM');
    }
    expect(await ended).toEqual([0, null]);
  });

  test('no file here is left out', () => {
    const files = readdirSync(HERE).filter((name) => /\.(mjs|py|sh)$/.test(name));
    expect([...ran].toSorted()).toEqual(files.toSorted());
  });
});
