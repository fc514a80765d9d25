// The clients that people have, with their defaults, against the real HTTP server and minilm: each request ends with
// the vectors of sentence-transformers for those texts, or with an error that says what to do. Rerank clients the same,
// with a made cross-encoder and its scores. Runs at night alone: it installs other people's packages. The texts and what
// sentence-transformers says of them are the fixtures of libs/models.

import { fork, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { cacheFolder } from '@shoal/core';
import { programOf } from '@shoal/core/testing';
import { importModel, openModel, openTokenizer } from '@shoal/models';
import { madeModel, madeTexts, madeVectors } from '@shoal/models/testing';
import { startTestServer, type TestServer } from '@shoal/queue/testing';
import { createProducer, type Producer } from '../producer.ts';
import { producerOptions } from '../testing/producer-options.ts';
import { installClients, type Clients } from './install.ts';

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly) console.warn('foreign clients are installed and tried at night alone (npm run test:nightly)');

const FIXTURES = new URL('../../../../libs/models/fixtures/', import.meta.url);
const testCacheDir = cacheFolder(process.env['SHOAL_CACHE_DIR']);
const MODEL = 'minilm';
const DIMS = 384;
const LEAST_COSINE = 0.99999;
const RERANKER = 'made-reranker';
const RERANKER_FAMILY = 'cross-encoder-bert';
/** Of scores between 0 and 1. */
const MOST_DIFFERENCE = 1e-5;

interface Request {
  readonly client: string;
  readonly texts: readonly string[];
  readonly dimensions?: number;
  readonly model?: string;
}

type Answer =
  | { readonly vectors: readonly (readonly number[])[]; readonly error?: undefined }
  | { readonly error: { readonly status: number | null; readonly message: string }; readonly vectors?: undefined };

const JAVASCRIPT = ['openai (npm)', 'LangChain (JavaScript)', 'AI SDK, OpenAI', 'AI SDK, compatible'];
const PYTHON = [
  'openai (PyPI)',
  'LangChain (Python)',
  'LangChain (Python), texts',
  'LangChain (Python), TEI',
  'LlamaIndex',
  'LlamaIndex, like',
  'LiteLLM',
];
const RERANKING = [
  'cohere (PyPI), ClientV2',
  'cohere (PyPI), Client',
  'LangChain, Cohere',
  'LlamaIndex, Cohere',
  'LlamaIndex, Jina',
  'LlamaIndex, TEI',
];
/** These send no model: the one that is served answers. */
const NAME_NO_MODEL = ['LlamaIndex, TEI', 'LangChain (Python), TEI'];
/** These have no option for dimensions among their defaults. */
const WITHOUT_DIMENSIONS = ['AI SDK, OpenAI', 'AI SDK, compatible', 'LangChain (Python), TEI'];
/** It sends the ids of OpenAI's tokenizer. */
const SENDS_FOREIGN_IDS = 'LangChain (Python)';

let texts: readonly string[] = [];
let expected: Float32Array;
let server: TestServer;
let rerankerFolder: string;
const workers: ChildProcess[] = [];
let producer: Producer;
let clients: Clients;

beforeAll(async () => {
  if (!isNightly) return;
  texts = JSON.parse(await readFile(new URL('texts.json', FIXTURES), 'utf8')) as string[];
  expected = new Float32Array(Uint8Array.from(await readFile(new URL('vectors.f32', FIXTURES))).buffer);
  clients = await installClients(testCacheDir);
  server = await startTestServer();
  rerankerFolder = await mkdtemp(join(tmpdir(), 'shoal-clients-'));
  await madeModel(RERANKER_FAMILY, join(rerankerFolder, 'model'));
  await importModel(join(rerankerFolder, 'model'), { cacheDir: rerankerFolder, name: RERANKER });
  await startWorker(MODEL, testCacheDir);
  await startWorker(RERANKER, rerankerFolder);
  const model = await openModel(MODEL, { cacheDir: testCacheDir });
  producer = await createProducer(
    producerOptions({
      redisUrl: server.url,
      model,
      tokenizer: await openTokenizer(model),
      requestTimeoutMs: 60_000,
    }),
  );
}, 900_000);
afterAll(async () => {
  await producer?.stop();
  for (const worker of workers) {
    const gone = once(worker, 'exit');
    worker.kill('SIGTERM');
    await gone;
  }
  await server?.stop();
  if (rerankerFolder !== undefined) await rm(rerankerFolder, { recursive: true, force: true });
});

async function startWorker(model: string, cacheDir: string): Promise<void> {
  const { main, execArgv } = programOf('cpu-worker');
  const child = fork(main, [], {
    execArgv: [...execArgv],
    env: { ...process.env, SHOAL_REDIS_URL: server.url, SHOAL_MODEL: model, SHOAL_CACHE_DIR: cacheDir },
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  workers.push(child);
  const [report]: unknown[] = await once(child, 'message');
  expect(report).toMatchObject({ kind: 'ready' });
}

interface Told {
  readonly url: string;
  readonly model: string;
  readonly requests: readonly object[];
}

/** What the script answers, one a request. */
async function ask<One>(program: string, script: string, told: Told): Promise<One[]> {
  const child = spawn(program, [fileURLToPath(new URL(script, import.meta.url))], {
    cwd: clients.folder,
    env: { ...process.env, TIKTOKEN_CACHE_DIR: clients.tiktoken, LITELLM_LOCAL_MODEL_COST_MAP: 'True' },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  child.stdin.end(JSON.stringify(told));
  const answers: One[] = [];
  for await (const line of createInterface({ input: child.stdout })) answers.push(JSON.parse(line) as One);
  expect(answers).toHaveLength(told.requests.length);
  return answers;
}

/** What sentence-transformers gives for a text of the fixture, cut to so many dimensions and of length 1. */
function reference(text: string, dimensions = DIMS): Float32Array {
  const at = texts.indexOf(text);
  expect(at, `"${text}" is a text of the fixture`).toBeGreaterThanOrEqual(0);
  const row = expected.subarray(at * DIMS, at * DIMS + dimensions);
  return row.map((value) => value / Math.hypot(...row));
}

/** "right", or what is wrong with the vectors. */
function judge({ texts: asked, dimensions = DIMS }: Request, vectors: readonly (readonly number[])[]): string {
  if (vectors.length !== asked.length) return `${vectors.length} vectors for ${asked.length} texts`;
  for (const [at, text] of asked.entries()) {
    const wanted = reference(text, dimensions);
    const found = vectors[at]!;
    if (found.length !== wanted.length) return `vector ${at} has ${found.length} values`;
    const cosine = found.reduce((sum, value, i) => sum + value * wanted[i]!, 0) / Math.hypot(...found);
    if (!(cosine >= LEAST_COSINE)) return `vector ${at} has the cosine ${cosine}`;
  }
  return 'right';
}

interface Case {
  readonly name: string;
  readonly pick: () => readonly string[];
  readonly dimensions?: number;
  readonly model?: string;
  /** What the error says where the request is to be refused. */
  readonly refusal?: RegExp;
}

const words = (text: string): number => text.split(' ').length;
const plainEnglish = (): string[] => texts.filter((text) => /^[A-Z][ -~]*$/.test(text) && words(text) > 3);

const CASES: readonly Case[] = [
  { name: 'two words', pick: () => ['hello world'] },
  { name: 'one sentence', pick: () => [plainEnglish().find((text) => words(text) > 8 && words(text) < 20)!] },
  {
    name: 'twenty texts',
    pick: () =>
      plainEnglish()
        .filter((text) => words(text) < 90)
        .slice(0, 20),
  },
  {
    name: 'other scripts',
    pick: () => texts.filter((text) => /[\u0370-\u1fff\u3000-\ud7ff]/.test(text) && text.length < 80).slice(0, 12),
  },
  { name: 'emoji', pick: () => ['👨‍👩‍👧‍👦 family 🇩🇪🇯🇵'] },
  { name: '128 dimensions', pick: () => ['hello world', 'naïve café résumé'], dimensions: 128 },
  { name: 'a long text', pick: () => [texts.find((text) => words(text) >= 600)!], refusal: /256.*truncate/s },
  { name: 'an empty text', pick: () => ['hello world', ''], refusal: /empty/ },
  { name: 'a model that is not served', pick: () => ['hello world'], model: 'e5-base', refusal: /minilm/ },
];

function requestsOf(names: readonly string[]): { readonly asked: Request; readonly of: Case }[] {
  return names.flatMap((client) =>
    CASES.filter(
      ({ dimensions, model }) =>
        (dimensions === undefined || !WITHOUT_DIMENSIONS.includes(client)) &&
        (model === undefined || !NAME_NO_MODEL.includes(client)),
    ).map((of) => ({
      of,
      asked: {
        client,
        texts: of.pick(),
        ...(of.dimensions !== undefined && { dimensions: of.dimensions }),
        ...(of.model !== undefined && { model: of.model }),
      },
    })),
  );
}

function verdictOf({ asked, of }: ReturnType<typeof requestsOf>[number], answer: Answer): string {
  if (answer.vectors !== undefined) return judge(asked, answer.vectors);
  const { status, message } = answer.error;
  if (status === null || status < 400 || status >= 500) return `status ${status}: ${message}`;
  const isForeign = asked.client === SENDS_FOREIGN_IDS && /check_embedding_ctx_length/.test(message);
  return isForeign || of.refusal?.test(message) === true ? 'refused' : `refused in other words: ${message}`;
}

describe.skipIf(!isNightly)('clients with their defaults get the right vectors or a clear error', () => {
  test.each([
    ['JavaScript', process.execPath, 'ask.mjs', JAVASCRIPT],
    ['Python', '', 'ask.py', PYTHON],
  ])(
    '%s',
    async (_, program, script, names) => {
      const requests = requestsOf(names);
      const answers = await ask<Answer>(program || clients.python, script, {
        url: `${producer.url}/v1`,
        model: MODEL,
        requests: requests.map(({ asked }) => asked),
      });
      const told = requests.map(({ asked, of }, at) => ({
        client: asked.client,
        case: of.name,
        verdict: verdictOf(requests[at]!, answers[at]!),
      }));
      const wanted = requests.map(({ asked, of }) => ({
        client: asked.client,
        case: of.name,
        verdict: of.refusal !== undefined || asked.client === SENDS_FOREIGN_IDS ? 'refused' : 'right',
      }));
      console.log(`${requests.length} requests: ${told.filter(({ verdict }) => verdict === 'right').length} right`);
      expect(told).toEqual(wanted);
    },
    600_000,
  );
});

interface RerankRequest {
  readonly client: string;
  readonly query: string;
  readonly documents: readonly string[];
  readonly model?: string;
}

type Scores = { readonly scores: readonly (number | null)[] } | { readonly error: string };

/** Where among its documents each request has the text whose score is known. */
const KNOWN_AT = 2;

/** Each text of the fixture with the one behind it, of which sentence-transformers said the score, among others. */
function rerankRequests(made: readonly string[], client: string): readonly RerankRequest[] {
  return [0, 1, 2, 3].map((at) => ({
    client,
    query: made[at]!,
    documents: [made[at + 4]!, made[at + 5]!, made[at + 1]!, made[at + 6]!],
  }));
}

/** "right", or what is wrong with the scores. `logit`: of sentence-transformers, before the sigmoid. */
function judgeScores(answer: Scores, { documents }: RerankRequest, logit: number): string {
  if ('error' in answer) return answer.error;
  const { scores } = answer;
  if (scores.length !== documents.length || scores.some((score) => !(score !== null && score >= 0 && score <= 1)))
    return `scores are ${JSON.stringify(scores)}`;
  const difference = Math.abs(scores[KNOWN_AT]! - 1 / (1 + Math.exp(-logit)));
  return difference <= MOST_DIFFERENCE ? 'right' : `a score differs by ${difference}`;
}

describe.skipIf(!isNightly)('rerank clients with their defaults', () => {
  test('get the right scores, and of a model that is not served the words of the error', async () => {
    const made = await madeTexts();
    const logits = await madeVectors(RERANKER_FAMILY, 'scores');
    const requests = RERANKING.flatMap((client) => rerankRequests(made, client));
    const strangers = RERANKING.filter((client) => !NAME_NO_MODEL.includes(client)).map((client) => ({
      ...rerankRequests(made, client)[0]!,
      model: 'strange',
    }));
    const told = { url: producer.url, model: RERANKER, requests: [...requests, ...strangers] };
    const answers = await ask<Scores>(clients.python, 'rerank.py', told);
    const verdicts = requests.map((asked, at) => ({
      client: asked.client,
      verdict: judgeScores(answers[at]!, asked, logits[made.indexOf(asked.query)]![0]!),
    }));
    expect(verdicts).toEqual(requests.map(({ client }) => ({ client, verdict: 'right' })));
    const refusals = answers.slice(requests.length);
    const refused = expect.stringMatching(/there is no reranker \\?"strange\\?" here; .*made-reranker/) as string;
    expect(refusals).toEqual(strangers.map(() => ({ error: refused })));
    console.log(`${told.requests.length} rerank requests: ${requests.length} right, ${refusals.length} refused`);
  }, 600_000);
});
