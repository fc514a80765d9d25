// Models of the hub from the command line, against a hub on this machine: pulled, shown, used, taken away; and a pull
// that was killed.

import { mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeTinyModel } from '@shoal/models';
import { HubServer, madeModel } from '@shoal/models/testing';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { Sandbox, says, type Result } from '../testing/shoal-process.ts';

const NAME = 'Some-Org/Tiny_Model.v1';
const STORED = 'some-org--tiny-model-v1';
const TOKEN = 'hf_SecretOfThisTest';

let hub: HubServer;
let commit: string;
let files: Record<string, Buffer>;
let made: string;
const sandbox = new Sandbox();

beforeAll(async () => {
  hub = await HubServer.start();
  made = mkdtempSync(join(tmpdir(), 'shoal-made-'));
  await writeTinyModel(made, { seed: 7 });
  files = filesIn(made);
  commit = hub.publish(
    NAME,
    { ...files, 'pytorch_model.bin': 'a pickle' },
    {
      cardData: { license: 'mit' },
      readers: [TOKEN],
    },
  );
});
afterAll(async () => {
  await hub.stop();
  sandbox.remove();
  rmSync(made, { recursive: true, force: true });
});

const online = (): Record<string, string> => ({ HF_ENDPOINT: hub.endpoint, HF_TOKEN: TOKEN });
const offline = { HF_ENDPOINT: 'http://127.0.0.1:9', HF_HUB_OFFLINE: '1' };

function expectNoToken({ stdout, stderr }: Result): void {
  expect(`${stdout}${stderr}`).not.toMatch(new RegExp(`${TOKEN}|secret-signature`));
}

test('a pull that is killed goes on, and the model is shown, served, verified and taken away by its name', async () => {
  hub.delayMs = 60;
  const running = sandbox.start(['model', 'pull', NAME], { environment: online() });
  await expect.poll(() => hub.seen.some(({ host }) => host === 'cdn'), { timeout: 60_000, interval: 5 }).toBe(true);
  await expect.poll(() => partBytes(), { timeout: 60_000, interval: 5 }).toBeGreaterThan(4_000);
  running.child.kill('SIGKILL');
  await running.ended;
  hub.delayMs = 0;
  hub.seen.length = 0;
  const pulled = await sandbox.run(['model', 'pull', NAME], {
    environment: { ...online(), SHOAL_LOG_LEVEL: 'debug' },
  });
  expect(pulled).toMatchObject({ code: 0 });
  expect(pulled.stderr).toMatch(new RegExp(`fetching ${NAME}@${commit.slice(0, 12)} \\(1 MB; licence mit\\), once`));
  expect(pulled.stderr).toMatch(
    new RegExp(`32 dimensions \\(.*\\), .*rows of up to 256 tokens, licence mit; use it with --model ${NAME}`),
  );
  expect(hub.seen.filter(({ host }) => host === 'cdn').map(({ headers }) => headers.range)).toEqual([
    expect.stringMatching(/^bytes=[1-9]\d*-$/),
  ]);
  expectNoToken(pulled);

  const shown = await sandbox.run(['model', 'show', NAME, '--json'], { environment: offline });
  const details = JSON.parse(shown.stdout) as { folder: string };
  expect(details).toMatchObject({
    name: STORED,
    queue: `embed-${STORED}`,
    licence: 'mit',
    dims: 32,
    architecture: 'bert',
    tokenizer: 'WordPiece',
    hasCanary: true,
    hub: { repository: NAME, commit, asked: 'main', licence: 'mit' },
  });
  expect(readFileSync(join(details.folder, 'model.safetensors'))).toEqual(files['model.safetensors']);
  const text = await sandbox.run(['model', 'show', STORED], { environment: offline });
  expect(text.stdout).toMatch(new RegExp(`from +${NAME}@${commit} \\(main when it was pulled\\)`));
  expect(text.stdout).toMatch(/memory +[\d,]+ weights: 1 MB in fp32/);

  const embedded = await sandbox.run(['embed', '-', '-o', 'out.jsonl', '--model', NAME], {
    input: 'one text\nanother\n',
    environment: offline,
  });
  expect(embedded).toMatchObject({ code: 0 });
  expect(embedded.stderr).toContain(`embed-${STORED}`);
  const rows = readFileSync(sandbox.path('out.jsonl'), 'utf8').trim().split('\n');
  expect(rows).toHaveLength(2);
  const listed = await sandbox.run(['model', 'list'], { environment: offline });
  expect(listed.stdout).toMatch(new RegExp(`${STORED} .* in the cache .* mit\\n +from ${NAME}@${commit}`));

  const removed = await sandbox.run(['model', 'rm', NAME]);
  expect(removed).toMatchObject({ code: 0 });
  expect(removed.stderr).toMatch(
    new RegExp(`${STORED} is gone, \\d+ MB are free: .*models/${STORED}, .*graphs/${STORED}-`),
  );
  expect(readdirSync(join(sandbox.cacheDir, 'graphs'))).toEqual([]);
  const gone = await sandbox.run(['embed', '-', '--model', NAME], { input: 'a\n', environment: offline });
  expect(gone.code).toBe(1);
  expect(gone.stderr).toMatch(/HF_HUB_OFFLINE keeps the hub out/);
}, 240_000);

const isNightly = process.env['SHOAL_TEST_NIGHTLY'] !== undefined;
if (!isNightly)
  console.warn('forms of a pulled model are served at night (npm run test:nightly); derived-model.test.ts makes some');

test.runIf(isNightly)(
  'int8 and f16 forms are made beside their model, say how near they come, and serve queues of their own',
  async () => {
    const quantized = await sandbox.run(['model', 'pull', NAME, '--dtype', 'int8'], { environment: online() });
    expect(quantized).toMatchObject({ code: 0 });
    expect(quantized.stderr).toMatch(
      new RegExp(`making ${STORED}-int8: 648 texts run through ${STORED} on this CPU, once`),
    );
    expect(quantized.stderr).toMatch(
      /mean cosine to it 0\.9\d+, least 0\.99\d+, recall@10 0\.\d+ over 450 passages; use it/,
    );
    expectNoToken(quantized);
    const again = await sandbox.run(['model', 'pull', NAME, '--dtype', 'int8', '--json'], { environment: offline });
    const { int8 } = JSON.parse(again.stdout) as { int8: { name: string; leastCosine: number } };
    expect(int8).toMatchObject({ name: `${STORED}-int8`, base: STORED, passages: 450 });
    const shown = await sandbox.run(['model', 'show', int8.name]);
    expect(shown.stdout).toMatch(new RegExp(`int8 of +${STORED}@.* least ${int8.leastCosine}, recall@10`));
    expect(shown.stdout).toMatch(/memory +[\d,]+ weights: 1 MB in whole numbers of 8 bits/);
    const embedded = await sandbox.run(['embed', '-', '-o', 'int8.jsonl', '--model', int8.name], {
      input: 'one text\n',
    });
    expect(embedded).toMatchObject({ code: 0 });
    expect(embedded.stderr).toContain(`embed-${STORED}-int8`);
    const halved = await sandbox.run(['model', 'pull', NAME, '--dtype', 'f16', '--json'], { environment: offline });
    const { f16 } = JSON.parse(halved.stdout) as { f16: { name: string; leastCosine: number } };
    expect(f16).toMatchObject({ name: `${STORED}-f16`, base: STORED, passages: 450 });
    expect(f16.leastCosine).toBeGreaterThanOrEqual(0.9999);
    expect((await sandbox.run(['model', 'show', f16.name])).stdout).toMatch(
      new RegExp(`f16 of +${STORED}@.* with its word table in fp16, .*\nmemory .*with the word table in fp16`),
    );
    const served = await sandbox.run(['embed', '-', '-o', 'f16.jsonl', '--model', f16.name], { input: 'one text\n' });
    expect(served).toMatchObject({ code: 0 });
    expect(served.stderr).toContain(`embed-${STORED}-f16`);
    for (const name of [int8.name, f16.name, STORED])
      expect(await sandbox.run(['model', 'rm', name])).toMatchObject({ code: 0 });
  },
  240_000,
);

test('a model that a worker serves is not taken away', async () => {
  const modelsDir = sandbox.path('models');
  const environment = { ...online(), SHOAL_MODELS_DIR: modelsDir, SHOAL_MODEL: NAME };
  const worker = sandbox.start(['worker', '--device', 'cpu'], { environment });
  await says(worker, 'serves some-org--tiny-model-v1@');
  const refused = await sandbox.run(['model', 'rm', NAME], { environment });
  expect(refused.code).toBe(2);
  expect(refused.stderr).toMatch(/is in use: a worker serves embed-some-org--tiny-model-v1 under \{shoal\}/);
  worker.child.kill('SIGTERM');
  expectNoToken(await worker.ended);
  expect(readdirSync(modelsDir)).toContain(STORED);
  expect((await sandbox.run(['model', 'rm', NAME, '--json'], { environment })).code).toBe(0);
  expect(readdirSync(modelsDir)).not.toContain(STORED);
}, 240_000);

test('a reranker is pulled and said to be one, and what embeds refuses it with what to do', async () => {
  const folder = join(made, 'reranker');
  await madeModel('cross-encoder-bert', folder);
  hub.publish('Some-Org/Ranker', filesIn(folder), { cardData: { license: 'mit' } });
  const pulled = await sandbox.run(['model', 'pull', 'Some-Org/Ranker'], { environment: online() });
  expect(pulled).toMatchObject({ code: 0 });
  expect(pulled.stderr).toMatch(/scores of pairs, between 0 and 1 \(sigmoid\), rows of up to 512 tokens, licence mit/);
  const shown = await sandbox.run(['model', 'show', 'Some-Org/Ranker', '--json'], { environment: offline });
  expect(JSON.parse(shown.stdout)).toMatchObject({
    kind: 'reranker',
    queue: 'rerank-some-org--ranker',
    head: { hasSigmoid: true },
    hasCanary: true,
  });
  const listed = await sandbox.run(['model', 'list'], { environment: offline });
  expect(listed.stdout).toMatch(/^some-org--ranker {2}reranker {2}/m);
  const environment = { ...offline, SHOAL_MODEL: 'Some-Org/Ranker' };
  const embedded = await sandbox.run(['embed', '-'], { input: 'a\n', environment });
  expect(embedded).toMatchObject({ code: 1, stderr: expect.stringMatching(/some-org--ranker is a reranker, which/) });
  const up = await sandbox.run(['up'], { environment });
  expect(up).toMatchObject({
    code: 2,
    stderr: expect.stringMatching(/start a worker for it, shoal worker --model some-org--ranker\./),
  });
}, 240_000);

function filesIn(folder: string): Record<string, Buffer> {
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  const paths = entries.map(({ parentPath, name }) => join(parentPath, name));
  return Object.fromEntries(paths.map((path) => [path.slice(folder.length + 1), readFileSync(path)]));
}

function partBytes(): number {
  const pulls = join(sandbox.cacheDir, 'models', '.pull');
  const part = join(pulls, `${STORED}@${commit}`, 'model.safetensors.part');
  try {
    return readFileSync(part).length;
  } catch {
    return 0;
  }
}
