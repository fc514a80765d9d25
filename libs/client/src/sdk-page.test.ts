// docs/sdk.md is the first page that an application developer reads: every program on it runs as it stands, and says
// what it should, against a real queue server and stand-ins for the workers.

import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { Worker } from 'bullmq';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  DEFAULT_PREFIX,
  SIMILARITY_QUEUE,
  encodeRankings,
  encodeResult,
  keySpace,
  parseRerankJob,
  parseSimilarityJob,
  rerankQueue,
  mainQueue,
} from '@shoal/contract';
import { noLog, type WorkerFacts } from '@shoal/core';
import { WorkerPresence } from '@shoal/queue';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { QueueStandIn } from './testing/stand-in.ts';

const RERANKER = rerankQueue('my-reranker');
const keys = keySpace(DEFAULT_PREFIX);
const page = await readFile(new URL('../../../docs/sdk.md', import.meta.url), 'utf8');
const programs = [...page.matchAll(/^## (.*?)(?:: .*)?$|^```ts\n(import [\s\S]*?)^```$/gm)].reduce(
  ({ title, found }, [, heading, program]) =>
    program === undefined ? { title: heading!, found } : { title, found: [...found, [title, program] as const] },
  { title: 'The SDK', found: [] as (readonly [title: string, program: string])[] },
).found;

let server: TestServer;
let folder: string;
let redis: Redis;
let said: Promise<Map<string, string>> | undefined;
const closers: (() => Promise<unknown>)[] = [];

beforeAll(async () => {
  server = await startTestServer();
  redis = new Redis(server.url, { maxRetriesPerRequest: null });
  // in the package, so that packages are found as an application finds them
  const dist = new URL('../dist/', import.meta.url).pathname;
  await mkdir(dist, { recursive: true });
  folder = await mkdtemp(join(dist, 'sdk-page-'));
  const standIn = new QueueStandIn(mainQueue('minilm'), { url: server.url, prefix: DEFAULT_PREFIX });
  closers.push(() => standIn.close());
  await serve(mainQueue('minilm'), 'minilm@r1');
  await serve(RERANKER, 'my-reranker@r1');
  answer(RERANKER, async (jobId, name, data) => {
    const { rows } = parseRerankJob(jobId, name, data);
    const scores = Float32Array.from({ length: rows }, (_, at) => at);
    return { dtype: 'f32', rows, dims: 1, body: new Uint8Array(scores.buffer) } as const;
  });
  answer(SIMILARITY_QUEUE, async (jobId, name, data) => {
    const { rows } = parseSimilarityJob(jobId, name, data);
    const ranking = { ids: BigUint64Array.of(7n, 2n), scores: Float32Array.of(0.5, 0.25), names: ['x#1', 'y#2'] };
    return { dtype: 'ranking', rows, dims: 2, body: encodeRankings([ranking]) } as const;
  });
});

afterAll(async () => {
  for (const close of closers.toReversed()) await close();
  redis.disconnect();
  await server.stop();
  await rm(folder, { recursive: true, force: true });
});

async function serve(queue: string, model: string): Promise<void> {
  const told = { device: 'cpu', precision: 'fp32', host: 'h', pid: 1, lanes: ['main'], isDrained: false } as const;
  const load = { rates: {}, mix: {}, claims: 0, poolTokens: 0, tokensPerJob: 0 };
  const facts: WorkerFacts = { ...told, ...load, model, jobVersion: 2, prompts: ['none'] };
  const options = { redisUrl: server.url, prefix: DEFAULT_PREFIX, queue, workerId: queue, log: noLog };
  const presence = await WorkerPresence.connect({ ...options, facts: () => facts });
  await presence.start();
  closers.push(() => presence.stop());
}

interface Answer {
  readonly dtype: 'f32' | 'ranking';
  readonly rows: number;
  readonly dims: number;
  readonly body: Uint8Array;
}

function answer(queue: string, work: (jobId: string, name: string, data: unknown) => Promise<Answer>): void {
  const connection = new Redis(server.url, { maxRetriesPerRequest: null });
  const run = async (jobId: string, name: string, data: { readonly fingerprint: string }): Promise<object> => {
    const { body, ...facts } = await work(jobId, name, data);
    const key = keys.output(queue, jobId);
    await redis.set(key, encodeResult({ ...facts, fingerprint: data.fingerprint, isTruncated: false }, body));
    return { v: 1, key, collection: 'docs@3', model: 'minilm@r1', tokens: 1, truncated: 0 };
  };
  const worker = new Worker(queue, (job) => run(job.id!, job.name, job.data), { prefix: DEFAULT_PREFIX, connection });
  worker.on('completed', ({ id, data: { reply } }) => {
    void redis.publish(reply, JSON.stringify({ v: 1, queue, completed: [id] })).catch(() => undefined);
  });
  closers.push(async () => {
    await worker.close(true);
    connection.disconnect();
  });
}

const SAYS: Readonly<Record<string, RegExp>> = {
  'The SDK': /^2 8 16 8$/,
  embed: /^true Float32Array\(4\) \[[^\]]*\]\ntrue 2 16$/,
  embedMany: /^200$/,
  'Submit now, fetch later': /^order-4711\ntrue 2 true\ntrue minilm@r1 \{ userId: 5 \}$/,
  rerank: /^a field attracts iron true\nbuy shoes true$/,
  search: /^docs@3 7 x#1 0\.5\ndocs@3 2 y#2 0\.25$/,
  'Errors and cancellation': /^AbortError INTERRUPTED the user went away$/,
};

test('every verb of the page has a program', () => {
  expect(programs.map(([title]) => title)).toEqual(Object.keys(SAYS));
});

test.each(programs)('%s: the program runs and says what it should', async (title) => {
  said ??= runAll();
  expect((await said).get(title)).toMatch(SAYS[title]!);
});

/** One after the other in one process, for a process takes longer to start than most of them to run. */
async function runAll(): Promise<Map<string, string>> {
  const files = await Promise.all(
    programs.map(async ([title, program]) => {
      const file = join(folder, `${title.replaceAll(/\W+/g, '-')}.ts`);
      await writeFile(file, program);
      return file;
    }),
  );
  const runner = join(folder, 'run-all.ts');
  await writeFile(runner, files.map((file) => `await import(${JSON.stringify(file)}); console.log('\\f');`).join('\n'));
  const { stdout } = await promisify(execFile)(process.execPath, ['--conditions=@shoal/source', runner], {
    env: { ...process.env, REDIS_URL: server.url, NODE_NO_WARNINGS: '1', NO_COLOR: '1' },
  });
  const outputs = stdout.split('\f').map((text) => text.trim());
  return new Map(programs.map(([title], at) => [title, outputs[at] ?? '']));
}
