// Models of a hub on this machine: what is fetched and what is left, how a pull goes on after it was cut or killed, what
// each refusal says, and who sees the token.

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { SmallDisk } from '@shoal/fetch/testing';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { openGraph } from '../graph/open-graph.ts';
import { listModels, openHubModel, openModel, pullModel, verifyModel } from '../store/model-store.ts';
import { removeModel } from '../store/remove-model.ts';
import type { StoredModel } from '../store/stored-model.ts';
import { writeTinyModel } from '../store/tiny-model.ts';
import { HubServer, refuse, sha256 } from '../testing/hub-server.ts';
import { madeModel } from '../testing/made-models.ts';
import { knownHubModel } from './known-hub-models.ts';

const NAME = 'Some-Org/Tiny_Model.v1';
const STORED = 'some-org--tiny-model-v1';
const TOKEN = 'hf_SecretOfThisTest';
const CARD = '---\nlicense: mit\n---\n# A tiny model\n';
/** Nothing of these may be asked for. */
const OTHERS = {
  'pytorch_model.bin': 'a pickle',
  'tf_model.h5': 'another framework',
  'onnx/model.onnx': 'a graph of the same model',
  'modeling_tiny.py': 'import os',
  'run.sh': 'rm -rf /',
  'openvino/openvino_model.xml': '<xml/>',
};

let folder: string;
let cacheDir: string;
let hub: HubServer;
let files: Record<string, Buffer>;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-hub-'));
  cacheDir = join(folder, 'cache');
  await mkdir(cacheDir);
  hub = await HubServer.start();
  files = await tinyFiles(7);
});
afterEach(async () => {
  await hub.stop();
  await rm(folder, { recursive: true, force: true });
});

async function tinyFiles(seed: number): Promise<Record<string, Buffer>> {
  const made = join(folder, `made-${seed}`);
  await writeTinyModel(made, { seed, pooling: 'cls' });
  return filesIn(made);
}

async function filesIn(made: string): Promise<Record<string, Buffer>> {
  const found: Record<string, Buffer> = {};
  for (const entry of await readdir(made, { recursive: true, withFileTypes: true }))
    if (entry.isFile()) {
      const path = join(entry.parentPath, entry.name);
      found[path.slice(made.length + 1)] = await readFile(path);
    }
  return found;
}

/** The same tensors in two files, and which has which. */
function split(weights: Buffer): { readonly shards: Record<string, Buffer>; readonly map: Record<string, string> } {
  const length = Number(weights.readBigUInt64LE());
  const header = JSON.parse(weights.subarray(8, 8 + length).toString()) as Record<
    string,
    { readonly data_offsets: [number, number] }
  >;
  const shards: Record<string, Buffer> = {};
  const map: Record<string, string> = {};
  const tensors = Object.entries(header).filter(([name]) => name !== '__metadata__');
  for (const [at, own] of [tensors.slice(0, 10), tensors.slice(10)].entries()) {
    const file = `model-0000${at + 1}-of-00002.safetensors`;
    let end = 0;
    const placed = own.map(([name, tensor]) => {
      const [from, to] = tensor.data_offsets;
      map[name] = file;
      end += to - from;
      return [name, { ...tensor, data_offsets: [end - (to - from), end] }] as const;
    });
    const text = Buffer.from(JSON.stringify(Object.fromEntries(placed)));
    const size = Buffer.alloc(8);
    size.writeBigUInt64LE(BigInt(text.length));
    const bodies = own.map(
      ([
        ,
        {
          data_offsets: [from, to],
        },
      ]) => weights.subarray(8 + length + from, 8 + length + to),
    );
    shards[file] = Buffer.concat([size, text, ...bodies]);
  }
  return { shards, map };
}

type Options = Parameters<typeof pullModel>[1];

function options(environment: Record<string, string> = {}, more: Partial<Options> = {}): Options {
  return {
    cacheDir,
    environment: { HOME: folder, HF_ENDPOINT: hub.endpoint, ...environment },
    prove: async ({ dims }: StoredModel) => ({ ids: [1, 2], vector: new Float32Array(dims).fill(dims ** -0.5) }),
    retries: { attempts: 3, firstDelayMs: 1, longestWaitMs: 2_000 },
    ...more,
  };
}

/** Tells the server how much of the weights has arrived, which comes last. */
function cutting(more: Partial<Options> = {}): Partial<Options> {
  const whole = files['model.safetensors']!.length;
  return { ...more, onProgress: (bytes, total) => hub.cutAt(bytes - (total ?? Infinity) + whole) };
}

const refusal = (code: string, message: RegExp): unknown =>
  expect.objectContaining({ code, message: expect.stringMatching(message) as unknown });

/** Models of the store, and whatever unfinished pulls have left. */
async function stored(): Promise<readonly string[]> {
  const models = join(cacheDir, 'models');
  return (await readdir(models, { recursive: true }).catch(() => [])).filter((path) => !path.endsWith('.lock')).sort();
}

const asked = (host: 'hub' | 'cdn'): readonly string[] =>
  hub.seen.filter((request) => request.host === host).map(({ url }) => url);

describe('a pull', () => {
  test('takes the files of the model at one commit, and stores it as an import would', async () => {
    const commit = hub.publish(NAME, { ...OTHERS, ...files, 'README.md': CARD }, { cardData: { license: 'mit' } });
    const seen: number[] = [];
    const started: unknown[] = [];
    const model = await pullModel(
      NAME,
      options({}, { onProgress: (bytes) => seen.push(bytes), onStart: (facts) => started.push(facts) }),
    );
    expect(model).toMatchObject({ name: STORED, dims: 32, head: { poolings: ['cls'] }, licence: 'mit' });
    expect(await readFile(join(model.folder, 'model.safetensors'))).toEqual(files['model.safetensors']);
    for (const path of Object.keys(OTHERS)) expect(hub.seen.some(({ url }) => url.includes(path))).toBe(false);
    const resolved = asked('hub').filter((url) => url.includes('/resolve/'));
    expect(resolved.every((url) => url.includes(`/resolve/${commit}/`))).toBe(true);
    const taken: Record<string, Buffer> = { ...files, 'README.md': Buffer.from(CARD) };
    const bytes = resolved.reduce((sum, url) => sum + (taken[url.split(`/${commit}/`)[1]!]?.length ?? NaN), 0);
    expect(started).toEqual([expect.objectContaining({ repository: NAME, commit, licence: 'mit', bytes })]);
    expect(seen.at(-1)).toBe(bytes);
    expect(seen.toSorted((a, b) => a - b)).toEqual(seen);
    expect(await stored()).not.toContain('.pull');
    expect((await listModels({ cacheDir })).find(({ name }) => name === STORED)).toMatchObject({
      hub: `${NAME}@${commit}`,
      isStored: true,
    });
    expect((await verifyModel(NAME, { cacheDir })).files.map(({ path }) => path)).toContain('model.safetensors');
  });

  test('is of the commit from then on: nothing asks the hub again, offline or not, until an update is wanted', async () => {
    const first = hub.publish(NAME, files);
    const model = await pullModel(NAME, options());
    const second = hub.publish(NAME, await tinyFiles(8), { revisions: { v1: first } });
    hub.seen.length = 0;
    expect(await openModel(NAME, options({ HF_HUB_OFFLINE: '1' }))).toEqual(model);
    expect(await openModel(NAME.toLowerCase(), options())).toEqual(model);
    expect(await openModel(`${NAME}@${first.slice(0, 8)}`, options())).toEqual(model);
    expect(await openModel(STORED, options())).toEqual(model);
    expect(await pullModel(NAME, options())).toEqual(model);
    await expect(openModel(`${NAME}@${second}`, options())).rejects.toEqual(
      refusal('MODEL_UNAVAILABLE', new RegExp(`commit ${first} \\(main when .*--update replaces it`)),
    );
    expect(hub.seen).toEqual([]);
    const updated = await pullModel(NAME, options({}, { update: true }));
    expect(updated.revision).not.toBe(model.revision);
    expect(await openModel(`${NAME}@${second}`, options())).toEqual(updated);
    expect(await pullModel(`${NAME}@v1`, options({}, { name: 'the-old-one' }))).toMatchObject({
      name: 'the-old-one',
      revision: model.revision,
    });
    expect((await openModel(`${NAME}@v1`, options())).name).toBe('the-old-one');
  });

  test('in shards of which one is not there is refused before any is fetched', async () => {
    const { 'model.safetensors': weights, ...rest } = files;
    const index = {
      metadata: {},
      weight_map: { a: 'model-00001-of-00002.safetensors', b: 'model-00002-of-00002.safetensors' },
    };
    hub.publish(NAME, {
      ...rest,
      'model.safetensors.index.json': JSON.stringify(index),
      'model-00001-of-00002.safetensors': weights!.subarray(0, 1_000),
    });
    await expect(pullModel(NAME, options())).rejects.toEqual(
      refusal('MODEL_CORRUPT', /index\.json names model-00002-of-00002\.safetensors, which is not there/),
    );
    expect(asked('cdn')).toEqual([]);
  });

  test('in shards is the model that it is in one file', async () => {
    hub.publish(NAME, files);
    const whole = await pullModel(NAME, options());
    const { 'model.safetensors': weights, ...rest } = files;
    const { shards, map } = split(weights!);
    const index = JSON.stringify({ metadata: {}, weight_map: map });
    hub.publish('Some-Org/in-shards', { ...rest, ...shards, 'model.safetensors.index.json': index });
    const model = await pullModel('Some-Org/in-shards', options());
    const graphs = await Promise.all([whole, model].map((each) => openGraph(each, { cacheDir })));
    const [expected, found] = await Promise.all(graphs.map((path) => readFile(path)));
    expect(found).toEqual(expected);
  });

  test('a model with adapters is refused before its weights, with how to name one task of it', async () => {
    const authors = { lora_adaptations: ['query', 'match'], load_trained_adapters: true, lora_rank: 4, lora_alpha: 1 };
    const config = JSON.stringify({ model_type: 'xlm-roberta', position_embedding_type: 'rotary', ...authors });
    hub.publish(NAME, { ...files, 'config.json': config, 'onnx/model.onnx': 'a graph that takes a task' });
    await expect(pullModel(NAME, options())).rejects.toEqual(
      refusal(
        'USAGE',
        /config\.json has an adapter for each of query, match: name one with --task, or take --task none/,
      ),
    );
    expect(hub.seen.filter(({ host }) => host === 'cdn')).toEqual([]);
  });

  test.each(['static-wordpiece', 'static-unigram', 'static-embedding'])(
    'of a static model takes its tensors, whatever graph lies beside them: %s',
    async (name) => {
      const { dims } = await madeModel(name, join(folder, name));
      hub.publish(NAME, { ...(await filesIn(join(folder, name))), 'onnx/model.onnx': 'no graph' });
      const model = await pullModel(NAME, options());
      expect(model).toMatchObject({ name: STORED, dims, graphKind: 'fused-fp32', staticTexts: {} });
      expect(hub.seen.some(({ url }) => url.includes('onnx'))).toBe(false);
    },
  );

  test('of a static model with a key that nobody knows is refused before its table', async () => {
    await madeModel('static-wordpiece', join(folder, 'static'));
    const static0 = await filesIn(join(folder, 'static'));
    const config = JSON.stringify({ ...JSON.parse(static0['config.json']!.toString()), subword_power: 3 });
    hub.publish(NAME, { ...static0, 'config.json': config });
    await expect(pullModel(NAME, options())).rejects.toEqual(refusal('MODEL_CORRUPT', /"subword_power" is 3/));
    expect(hub.seen.some(({ url }) => url.includes('model.safetensors'))).toBe(false);
  });

  test('of an unknown architecture takes the graph, where there is one', async () => {
    const config = files['config.json']!.toString().replace('"bert"', '"of-next-year"');
    hub.publish(NAME, { ...files, 'config.json': config });
    await expect(pullModel(NAME, options())).rejects.toEqual(
      refusal('MODEL_CORRUPT', /config\.json.*of-next-year.*It has no ONNX graph/s),
    );
    hub.publish(NAME, { ...files, 'config.json': config, 'onnx/model.onnx': 'no graph', 'onnx/model_int8.onnx': 'x' });
    await expect(pullModel(NAME, options())).rejects.toThrow(/onnx\/model\.onnx/);
    expect(asked('cdn').map((url) => decodeURIComponent(url.split('?')[0]!))).toEqual([
      expect.stringMatching(/onnx\/model\.onnx$/),
    ]);
    expect(await stored()).toEqual([]);
  });

  test('of a repository that was renamed is kept under the name that it has now', async () => {
    hub.publish('New-Org/Tiny', files);
    hub.renamed.set(NAME, 'New-Org/Tiny');
    const model = await pullModel(NAME, options());
    expect((await listModels({ cacheDir })).find(({ name }) => name === model.name)?.hub).toMatch(/^New-Org\/Tiny@/);
  });
});

describe('a repository of the table', () => {
  const E5 = 'intfloat/e5-small-v2';
  const known = knownHubModel(E5)!;

  test('is taken at the commit that stands there, with the prompts of its authors where its files name none', async () => {
    const old = hub.publish(E5, files);
    hub.publish(E5, await tinyFiles(8), { revisions: { [known.commit!]: old } });
    const { model, notes } = await openHubModel(E5, options());
    expect(model.prompts).toEqual({ query: 'query: ', passage: 'passage: ' });
    expect(notes.join()).toMatch(/its files name no prompts; .*--prompt query is "query: " and --prompt passage/);
    expect(await readFile(join(model.folder, 'model.safetensors'))).toEqual(files['model.safetensors']);
    const updated = await openHubModel(E5, options({}, { update: true }));
    expect(updated.model.revision).not.toBe(model.revision);
  });

  test('keeps the prompts that its files name', async () => {
    const own = JSON.stringify({ prompts: { query: 'Q: ', document: 'D: ' } });
    const commit = hub.publish(E5, { ...files, 'config_sentence_transformers.json': own });
    hub.publish(E5, files, { revisions: { [known.commit!]: commit } });
    expect((await openHubModel(E5, options())).model.prompts).toMatchObject({ query: 'Q: ' });
  });

  test('is taken at main, which is said, where its commit has no weights that can be read', async () => {
    const { 'model.safetensors': _weights, ...rest } = files;
    const old = hub.publish(E5, { ...rest, 'pytorch_model.bin': 'a pickle' });
    const main = hub.publish(E5, files, { revisions: { [known.commit!]: old } });
    const { model, notes } = await openHubModel(E5, options());
    expect(notes[0]).toMatch(
      /the commit that Shoal knows, dca8b1a9dae0, has no weights that can be read: main is taken/,
    );
    expect((await listModels({ cacheDir })).find(({ name }) => name === model.name)?.hub).toBe(`${E5}@${main}`);
    await expect(pullModel(`${E5}@${known.commit}`, options({}, { force: true }))).rejects.toEqual(
      refusal('MODEL_UNAVAILABLE', /only pytorch_model\.bin/),
    );
    expect((await openModel(E5, options())).revision).toBe(model.revision); // what was there stays
  });
});

describe('a stored model that was damaged', () => {
  test('is found by verify, and fetched again by either of its names', async () => {
    hub.publish(NAME, files);
    const model = await pullModel(NAME, options());
    for (const name of [NAME, STORED]) {
      await writeFile(join(model.folder, 'model.safetensors'), files['model.safetensors']!.fill(1, 1_000, 1_004));
      await expect(verifyModel(name, { cacheDir })).rejects.toEqual(
        refusal('MODEL_CORRUPT', /model\.safetensors has sha256 .*shoal model pull some-org--tiny-model-v1 --force/s),
      );
      files = await tinyFiles(7);
      expect(await pullModel(name, options({}, { force: true }))).toEqual(model);
      await verifyModel(name, { cacheDir });
    }
  });
});

describe('taken away', () => {
  test('is all of a model: files, graphs, and what a pull has begun', async () => {
    hub.publish(NAME, files);
    const model = await pullModel(NAME, options());
    await openGraph(model, { cacheDir });
    const begun = join(cacheDir, 'models', '.pull', `${STORED}@${'0'.repeat(40)}`);
    await mkdir(begun, { recursive: true });
    const graphs = await readdir(join(cacheDir, 'graphs'));
    expect(graphs.length).toBeGreaterThan(1);
    await writeFile(join(cacheDir, 'graphs', `${STORED}-other-fused-fp32-0123456789abcdef.onnx`), ''); // of another name
    const removed = await removeModel(NAME, { cacheDir });
    expect(removed).toMatchObject({ name: STORED, alsoGone: [] });
    expect(removed.freedBytes).toBeGreaterThan(2 * files['model.safetensors']!.length);
    expect(await stored()).toEqual(['.pull']);
    expect(await readdir(join(cacheDir, 'graphs'))).toEqual([`${STORED}-other-fused-fp32-0123456789abcdef.onnx`]);
    await expect(removeModel(NAME, { cacheDir })).rejects.toEqual(refusal('MODEL_UNAVAILABLE', /is not in/));
    await expect(removeModel('minilm', { cacheDir })).rejects.toEqual(
      refusal('MODEL_UNAVAILABLE', /nothing of minilm is stored/),
    );
  });

  test('is a generated model too, and one that is shared is not', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const readOnly = { cacheDir, modelsReadOnly: true };
    await expect(removeModel('tiny-random', readOnly)).rejects.toEqual(refusal('FILE_UNWRITABLE', /modelsReadOnly/));
    expect((await removeModel('tiny-random', { cacheDir })).paths).toEqual([dirname(model.folder)]);
    expect(existsSync(model.folder)).toBe(false);
  });
});

describe('going on', () => {
  test('a connection that breaks off is taken up at the byte where it broke', async () => {
    const commit = hub.publish(NAME, files);
    const whole = files['model.safetensors']!.length;
    hub.cuts = [4_096, 8_192, 0, 0];
    const waits: string[] = [];
    const model = await pullModel(NAME, options({}, cutting({ onWait: (why) => waits.push(why) })));
    expect(await readFile(join(model.folder, 'model.safetensors'))).toEqual(files['model.safetensors']);
    const ranges = hub.seen.filter(({ host }) => host === 'cdn').map(({ headers }) => headers.range);
    expect(ranges).toEqual([undefined, 'bytes=4096-', 'bytes=12288-', 'bytes=12288-', 'bytes=12288-']);
    expect(waits).toHaveLength(4);
    expect(whole).toBeGreaterThan(20_000);
    expect(commit).toHaveLength(40);
  });

  test('one that brings nothing forward is given up, and the next pull goes on with what is there', async () => {
    hub.publish(NAME, files);
    hub.cuts = [8_192, 0, 0, 0, 0, 0];
    await expect(pullModel(NAME, options({}, cutting()))).rejects.toThrow(
      /broke off|cannot be reached|terminated|closed/,
    );
    expect((await stored()).some((path) => path.endsWith('model.safetensors.part'))).toBe(true);
    hub.cuts = [];
    hub.seen.length = 0;
    await pullModel(NAME, options());
    expect(hub.seen.find(({ host }) => host === 'cdn')?.headers.range).toBe('bytes=8192-');
    expect(await stored()).not.toContain('.pull');
  });

  test('what an earlier run left damaged is fetched anew', async () => {
    const commit = hub.publish(NAME, files);
    const pulling = join(cacheDir, 'models', '.pull', `${STORED}@${commit}`);
    await mkdir(pulling, { recursive: true });
    await writeFile(join(pulling, 'model.safetensors.part'), Buffer.alloc(5_000, 1));
    await writeFile(join(pulling, 'tokenizer.json'), files['tokenizer.json']!.subarray(1));
    const model = await pullModel(NAME, options());
    expect(await readFile(join(model.folder, 'model.safetensors'))).toEqual(files['model.safetensors']);
  });

  test('a process that was killed while it fetched loses nothing: the next ends with the same bytes', async () => {
    hub.publish(NAME, files);
    hub.delayMs = 30;
    const child = fork(new URL('../testing/pull-main.ts', import.meta.url), [NAME], {
      execArgv: ['--conditions=@shoal/source'],
      env: { ...process.env, HOME: folder, HF_ENDPOINT: hub.endpoint, SHOAL_CACHE_DIR: cacheDir },
    });
    const ended = once(child, 'exit');
    await once(child, 'message'); // some of the weights have arrived
    child.kill('SIGKILL');
    expect((await ended)[1]).toBe('SIGKILL');
    expect((await stored()).some((path) => path.endsWith('model.safetensors.part'))).toBe(true);
    expect((await listModels({ cacheDir })).some(({ name }) => name === STORED)).toBe(false);
    hub.delayMs = 0;
    hub.seen.length = 0;
    const model = await pullModel(NAME, options());
    expect(await readFile(join(model.folder, 'model.safetensors'))).toEqual(files['model.safetensors']);
    expect(hub.seen.find(({ host }) => host === 'cdn')?.headers.range).toMatch(/^bytes=[1-9]\d*-$/);
    expect(await stored()).not.toContain('.pull');
  });

  test('a hub that has too much to do is asked again, and one that asks for too long a wait is not', async () => {
    hub.publish(NAME, files);
    let refused = 0;
    hub.fault = (seen, response) => {
      if (!seen.url.includes('/resolve/') || refused++ >= 4) return false;
      if (refused % 2 === 0) refuse(response, 503, undefined);
      else refuse(response, 429, undefined, { 'retry-after': '0' });
      return true;
    };
    await pullModel(NAME, options({}, { retries: { attempts: 9, firstDelayMs: 1, longestWaitMs: 100 } }));
    hub.fault = (_, response) => {
      refuse(response, 429, undefined, { 'retry-after': '3600' });
      return true;
    };
    await expect(pullModel(NAME, options({}, { force: true }))).rejects.toThrow(/HTTP 429/);
    expect((await openModel(NAME, options())).name).toBe(STORED); // what was there stays
  });
});

describe('refused', () => {
  test.each([
    [
      'a repository that is not there',
      'No-Org/none',
      {},
      /not there, or not for you: look at the spelling of No-Org\/none.*set HF_TOKEN/,
    ],
    ['one that this token may not see', 'No-Org/none', { HF_TOKEN: TOKEN }, /the token of HF_TOKEN must be allowed/],
    ['a revision that is not there', `${NAME}@v9`, {}, /has no revision v9: http\S+\/commits\/main lists them/],
    [
      'a gated one without a token',
      'Gated/model',
      {},
      /agreed to their terms \(HTTP 401\)\. Agree on http\S+\/Gated\/model.*hf auth login/,
    ],
    [
      'a gated one with another’s token',
      'Gated/model',
      { HF_TOKEN: TOKEN },
      /HTTP 403.*the account of the token of HF_TOKEN/,
    ],
    ['anything, offline', NAME, { HF_HUB_OFFLINE: '1' }, /HF_HUB_OFFLINE keeps the hub out/],
    [
      'a hub that nobody runs',
      NAME,
      { HF_ENDPOINT: 'http://127.0.0.1:9' },
      /127\.0\.0\.1:9\S* cannot be reached from here/,
    ],
  ])('%s', async (_, name, environment, message) => {
    hub.publish(NAME, files);
    hub.publish('Gated/model', files, { gated: 'manual', readers: ['hf_other'] });
    const failure = await pullModel(name, options(environment)).catch((error: unknown) => error);
    expect(failure).toBeInstanceOf(ShoalError);
    expect((failure as Error).message).toMatch(message);
    expect((failure as Error).message).not.toContain(TOKEN);
    expect(await stored()).toEqual([]);
  });

  test('a file with other bytes than its list names, and nothing of it stays', async () => {
    hub.publish(NAME, files);
    hub.fault = (seen, response) => {
      if (!seen.url.endsWith('/tokenizer.json')) return false;
      response.end(Buffer.alloc(files['tokenizer.json']!.length, 32));
      return true;
    };
    await expect(pullModel(NAME, options())).rejects.toThrow(/tokenizer\.json.*git-sha1 should be/);
    hub.fault = (seen, response) => {
      if (seen.host !== 'cdn') return false;
      response.end(Buffer.alloc(files['model.safetensors']!.length, 7));
      return true;
    };
    await expect(pullModel(NAME, options())).rejects.toThrow(
      new RegExp(`sha256 should be ${sha256(files['model.safetensors']!)} and is .*Nothing was kept of it`),
    );
    expect((await stored()).some((path) => /model\.safetensors/.test(path))).toBe(false);
  });

  test('a hub that says two things of one file, before its bytes are read', async () => {
    hub.publish(NAME, files);
    hub.fault = (seen, response) => {
      if (seen.host === 'cdn') response.end('anything');
      else if (!seen.url.endsWith('/model.safetensors')) return false;
      else response.writeHead(302, { location: `${hub.cdn}/x`, 'x-linked-etag': `"${'0'.repeat(64)}"` }).end();
      return true;
    };
    await expect(pullModel(NAME, options())).rejects.toEqual(
      refusal('MODEL_CORRUPT', /contradicts itself about model\.safetensors: its list says sha256/),
    );
  });

  test.each([
    ['pickles alone', { 'pytorch_model.bin': 'a pickle' }, /only pytorch_model\.bin\. Pickles \(\.bin\) run code/],
    ['no weights', {}, /but no weights at all/],
  ])('a repository with %s, before anything large is fetched', async (_, more, message) => {
    const { 'model.safetensors': _weights, ...rest } = files;
    hub.publish(NAME, { ...rest, ...more });
    await expect(pullModel(NAME, options())).rejects.toEqual(refusal('MODEL_UNAVAILABLE', message));
    expect(asked('cdn')).toEqual([]);
    expect(await stored()).toEqual([]);
  });

  test('what its small files show to be no embedder, before anything large is fetched', async () => {
    const config = {
      ...(JSON.parse(files['config.json']!.toString()) as object),
      architectures: ['BertForTokenClassification'],
    };
    hub.publish(NAME, { ...files, 'config.json': JSON.stringify(config) });
    await expect(pullModel(NAME, options())).rejects.toEqual(
      refusal('MODEL_CORRUPT', new RegExp(`^${NAME}@\\w{12}/config\\.json: .*BertForTokenClassification`)),
    );
    const { 'tokenizer.json': _tokenizer, ...rest } = files;
    hub.publish(NAME, rest);
    await expect(pullModel(NAME, options())).rejects.toEqual(
      refusal('MODEL_CORRUPT', new RegExp(`^${NAME}@\\w{12} has no tokenizer\\.json`)),
    );
    expect(asked('cdn')).toEqual([]);
    expect(await stored()).toEqual([]);
  });

  test('two names of the hub that give one name in the store, and so one queue', async () => {
    hub.publish('org/a.b', files);
    hub.publish('org/a-b', await tinyFiles(8));
    const first = await pullModel('org/a.b', options());
    await expect(openModel('org/a-b', options())).rejects.toEqual(
      refusal('USAGE', /org\/a-b would be called org--a-b, and so would its queue, but that is org\/a\.b of the hub/),
    );
    await expect(openModel('org/a-b', options({}, { allowFetch: false } as object))).rejects.toEqual(
      refusal('MODEL_UNAVAILABLE', /org\/a-b is not in/),
    );
    const second = await pullModel('org/a-b', options({}, { name: 'the-other' }));
    expect(await openModel('org/a.b', options())).toEqual(first);
    expect(await openModel('org/a-b', options())).toEqual(second);
  });

  test.each(['org/name/more', 'org/na--me', 'or..g/name', 'org/-name', 'org/name@', 'org/name@../x', 'org/na me'])(
    'what is no name: %s',
    async (name) => {
      await expect(pullModel(name, options())).rejects.toEqual(refusal('USAGE', /no name of the hub|no revision of/));
      expect(hub.seen).toEqual([]);
    },
  );

  test.each(['http://user:secret@host', 'ftp://host', 'nonsense', 'http://host/?token=secret'])(
    'an address of a hub that is none, without repeating it: %s',
    async (HF_ENDPOINT) => {
      const failure = await pullModel(NAME, options({ HF_ENDPOINT })).catch((error: unknown) => error);
      expect(failure).toEqual(refusal('CONFIG_INVALID', /HF_ENDPOINT is not the address of a hub/));
      expect((failure as Error).message).not.toContain('secret');
    },
  );

  test('what does not fit on the disk, before it is fetched', async ({ skip }) => {
    const disk = SmallDisk.make(Math.ceil(1.5 * files['model.safetensors']!.length));
    if (typeof disk === 'string') return skip(disk);
    try {
      hub.publish(NAME, files);
      await expect(pullModel(NAME, { ...options(), cacheDir: disk.folder })).rejects.toEqual(
        refusal('FILE_UNWRITABLE', /needs \d+ MB in .*to fetch, .*for the graph made of it\), and \d+ MB are free/),
      );
      expect(asked('cdn')).toEqual([]);
    } finally {
      disk.remove();
    }
  });
});

describe('the token', () => {
  test.each([
    ['HF_TOKEN', (): Record<string, string> => ({ HF_TOKEN: TOKEN })],
    ['the file of HF_TOKEN_PATH', () => ({ HF_TOKEN_PATH: join(folder, 'token') })],
    ['the file in HF_HOME', () => ({ HF_HOME: folder })],
  ])('of %s opens what is private, goes to the hub alone and stands nowhere', async (_, environment) => {
    await writeFile(join(folder, 'token'), `${TOKEN}\n`);
    hub.publish(NAME, files, { readers: [TOKEN] });
    const said: string[] = [];
    hub.cuts = [4_096];
    const model = await pullModel(NAME, options(environment(), cutting({ onWait: (why) => said.push(why) })));
    const [ours, others] = [
      hub.seen.filter(({ host }) => host === 'hub'),
      hub.seen.filter(({ host }) => host === 'cdn'),
    ];
    expect(ours.every(({ headers }) => headers.authorization === `Bearer ${TOKEN}`)).toBe(true);
    expect(others.length).toBeGreaterThan(1);
    expect(others.some(({ headers }) => JSON.stringify(headers).includes(TOKEN))).toBe(false);
    expect(said.join()).not.toMatch(/hf_Secret|secret-signature/);
    expect(said).toHaveLength(1);
    const kept = await readdir(cacheDir, { recursive: true, withFileTypes: true });
    const inFiles = kept.filter((entry) => entry.isFile()).map(({ parentPath, name }) => join(parentPath, name));
    expect(inFiles.some((path) => readFileSync(path).includes(TOKEN))).toBe(false);
    expect(inFiles).toContain(join(model.folder, 'import.json'));
  });
});

describe('a folder of models of its own', () => {
  test('is shared and read-only: models open, verify and list, and what would write says why', async () => {
    hub.publish(NAME, files);
    const modelsDir = join(folder, 'share');
    const model = await pullModel(NAME, options({}, { modelsDir }));
    expect(model.folder.startsWith(modelsDir)).toBe(true);
    expect(existsSync(join(cacheDir, 'models'))).toBe(false);
    await rm(join(model.folder, 'verified.json'));
    const before = await mtimes(modelsDir);
    const readOnly = { modelsDir, modelsReadOnly: true };
    expect(await openModel(NAME, options({}, readOnly))).toEqual(model);
    expect(await openModel(STORED, options({}, readOnly))).toEqual(model);
    expect(await pullModel(NAME, options({}, readOnly))).toEqual(model);
    await verifyModel(NAME, { cacheDir, ...readOnly });
    for (const what of ['minilm', 'Other/model'])
      await expect(pullModel(what, options({}, readOnly))).rejects.toEqual(
        refusal('FILE_UNWRITABLE', /only to be read \(modelsReadOnly\).*SHOAL_MODELS_DIR/),
      );
    expect(await mtimes(modelsDir)).toEqual(before);
    expect(await readdir(join(cacheDir, 'verified'))).toHaveLength(1);
  });

  test('is found to be read-only by itself', async ({ skip }) => {
    const disk = SmallDisk.make(4_000_000);
    if (typeof disk === 'string') return skip(disk);
    try {
      hub.publish(NAME, files);
      const modelsDir = join(disk.folder, 'models');
      const model = await pullModel(NAME, options({}, { modelsDir }));
      const view = join(disk.readOnlyView(), 'models');
      const seen = await openModel(NAME, options({}, { modelsDir: view }));
      expect({ ...seen, folder: '' }).toEqual({ ...model, folder: '' });
      await expect(pullModel(NAME, options({}, { modelsDir: view, force: true }))).rejects.toEqual(
        refusal('FILE_UNWRITABLE', /is read-only/),
      );
    } finally {
      disk.remove();
    }
  });
});

async function mtimes(of: string): Promise<Record<string, number>> {
  const times: Record<string, number> = {};
  for (const path of await readdir(of, { recursive: true })) times[path] = (await stat(join(of, path))).mtimeMs;
  return times;
}
