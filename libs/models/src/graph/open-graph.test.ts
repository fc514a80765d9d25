// The built graph against plain loops on tiny models of every supported form, and models that are not what they claim.

import { mkdir, mkdtemp, open, readFile, readdir, rm, stat, truncate, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { StoredEmbedder, StoredModel } from '../store/stored-model.ts';
import { writeTinyModel, type TinyModelOptions } from '../store/tiny-model.ts';
import { GraphRunner, cosine } from '../testing/onnx-run.ts';
import { referenceVector } from '../testing/reference-bert.ts';
import { openTokenizer } from '../tokenizer/open-tokenizer.ts';
import { parseBertConfig } from './bert-config.ts';
import { CUDA_ONLY_KINDS, GRAPH_KINDS, type GraphKind } from './graph-kind.ts';
import { int8KindHere } from './int8-kind.ts';
import { digestProblem } from '../store/kept-digest.ts';
import { keptGraphs, openGraph } from './open-graph.ts';
import { Safetensors } from './safetensors.ts';
import { plainHead } from './sentence-head.ts';

/** Random weights are harder to quantize than trained ones. */
const LEAST_COSINE: Readonly<Record<GraphKind, number>> = {
  'fused-fp32': 1 - 1e-9,
  'fused-fp32-words16': 0.999999,
  'plain-fp32': 1 - 1e-9,
  'cuda-fp32': 1 - 1e-9,
  'fused-fp16': 0.99999,
  'plain-fp16': 0.99999,
  'cuda-bf16': 0.999,
  int8: 0.99,
  'int8-unsigned': 0.99,
};
/** Signed codes in whole numbers are for processors with VNNI: elsewhere on x86 their products saturate. */
const hasSignedProducts = (await int8KindHere()) === 'int8';
if (!hasSignedProducts)
  console.log('the graph kind int8 is left out: this processor has no VNNI and runs int8-unsigned');
/** The CPU provider has no kernels for the CUDA kinds: bench/gpu compares those on a GPU. */
const RUNNABLE = GRAPH_KINDS.filter(
  (kind) => !CUDA_ONLY_KINDS.includes(kind) && (hasSignedProducts || kind !== 'int8'),
);
const FORMS_OF_POOLING = RUNNABLE.flatMap((kind) =>
  (['mean', 'cls'] as const).map((pooling) => [kind, pooling, LEAST_COSINE[kind]] as const),
);

const TEXTS = [
  'the cat and the dog',
  'a',
  '',
  'batch of text through the queue, token after token: most of the work is done before it is asked for',
  'Hello [MASK] 中文!',
];

let folder: string;
let cacheDir: string;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-graph-'));
  cacheDir = join(folder, 'cache');
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const tiny = (options: Partial<TinyModelOptions> = {}): Promise<StoredEmbedder> =>
  writeTinyModel(join(folder, 'model'), { seed: 1, ...options });

async function rowsOf(model: StoredModel): Promise<readonly (readonly number[])[]> {
  const tokenizer = await openTokenizer(model);
  return TEXTS.map((text) => [...tokenizer.encode(text).ids]);
}

/** The weights of a safetensors file under another type. */
async function narrowWeights(
  path: string,
  dtype: 'F16' | 'BF16',
  narrow: (values: Float32Array) => Uint16Array,
): Promise<void> {
  const file = await readFile(path);
  const headerBytes = Number(file.readBigUInt64LE(0));
  const header = JSON.parse(file.toString('utf8', 8, 8 + headerBytes)) as Record<
    string,
    { dtype: string; data_offsets: [number, number] }
  >;
  for (const tensor of Object.values(header))
    Object.assign(tensor, { dtype, data_offsets: tensor.data_offsets.map((offset) => offset / 2) });
  const text = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  const values = new Float32Array(file.buffer.slice(file.byteOffset + 8 + headerBytes, file.byteOffset + file.length));
  await writeFile(path, Buffer.concat([length, text, new Uint8Array(narrow(values).buffer)]));
}

describe('vectors of the graph', () => {
  test.each<[string, Partial<TinyModelOptions>]>([
    ['mean pooling', {}],
    ['the first token', { pooling: 'cls' }],
    ['one layer of four heads', { layers: 1, heads: 4, hidden: 64 }],
    ['names that begin with "bert."', { prefix: 'bert.' }],
    ['names that begin with "model."', { prefix: 'model.', pooling: 'cls' }],
  ])('are those of the formulas: %s', async (_, options) => {
    const model = await tiny(options);
    const runner = await GraphRunner.open(await openGraph(model, { cacheDir }), model);
    const config = parseBertConfig(await readFile(join(model.folder, 'config.json'), 'utf8'), 'config.json');
    const rows = await rowsOf(model);
    const found = await runner.run(rows);
    await Safetensors.use(join(model.folder, 'model.safetensors'), async (weights) => {
      for (const [at, ids] of rows.entries()) {
        const expected = await referenceVector(config, weights, options.prefix ?? '', ids, options.pooling ?? 'mean');
        expect(Math.max(...expected.map((value, k) => Math.abs(value - found[at]![k]!)))).toBeLessThan(2e-6);
      }
    });
    await runner.release();
  });

  test.each(FORMS_OF_POOLING)(
    'are those of fp32 from every other kind of graph: %s, %s',
    async (kind, pooling, least) => {
      const model = await tiny({ pooling });
      const rows = await rowsOf(model);
      const [full, other] = [
        await GraphRunner.open(await openGraph(model, { cacheDir }), model),
        await GraphRunner.open(await openGraph(model, { cacheDir, kind }), model),
      ];
      const [expected, found] = [await full.run(rows), await other.run(rows)];
      for (const at of rows.keys()) expect(cosine(found[at]!, expected[at]!)).toBeGreaterThan(least);
      await Promise.all([full.release(), other.release()]);
    },
  );

  test.runIf(hasSignedProducts)('are the same to the bit from both forms of int8', async () => {
    const model = await tiny();
    const rows = await rowsOf(model);
    const [signed, unsigned] = await Promise.all(
      (['int8', 'int8-unsigned'] as const).map(async (kind) =>
        GraphRunner.open(await openGraph(model, { cacheDir, kind }), model),
      ),
    );
    expect(await unsigned!.run(rows)).toEqual(await signed!.run(rows));
    await Promise.all([signed!.release(), unsigned!.release()]);
  });

  test.each(RUNNABLE)('do not depend on the other rows of a run: %s', async (kind) => {
    const model = await tiny();
    const runner = await GraphRunner.open(await openGraph(model, { cacheDir, kind }), model);
    const rows = await rowsOf(model);
    const together = await runner.run(rows);
    for (const [at, row] of rows.entries())
      expect(cosine(together[at]!, (await runner.run([row]))[0]!)).toBeGreaterThan(0.9999999);
    await runner.release();
  });

  test.each<['F16' | 'BF16', (values: Float32Array) => Uint16Array, number]>([
    ['F16', (values) => Uint16Array.from(values, roundToHalf), 0.99999],
    ['BF16', (values) => Uint16Array.from(new Uint32Array(values.buffer), (bits) => bits >>> 16), 0.999],
  ])('are nearly the same from weights stored as %s', async (dtype, narrow, least) => {
    const model = await tiny();
    const rows = await rowsOf(model);
    const full = await GraphRunner.open(await openGraph(model, { cacheDir }), model);
    const expected = await full.run(rows);
    await narrowWeights(join(model.folder, 'model.safetensors'), dtype, narrow);
    const narrowed = { ...model, weightsSha256: 'f'.repeat(64) };
    const runner = await GraphRunner.open(await openGraph(narrowed, { cacheDir }), model);
    const found = await runner.run(rows);
    for (const at of rows.keys()) expect(cosine(found[at]!, expected[at]!)).toBeGreaterThan(least);
    await Promise.all([full.release(), runner.release()]);
  });
});

/** Good enough for |x| between 2⁻¹⁴ and 2; smaller values become 0. */
function roundToHalf(value: number): number {
  const size = Math.abs(value);
  if (size < 2 ** -14) return 0;
  const exponent = Math.floor(Math.log2(size));
  return ((value < 0 ? 1 : 0) << 15) | (((exponent + 15) << 10) + Math.round((size / 2 ** exponent - 1) * 1024));
}

describe('the graph file', () => {
  test('is built once, also by two at a time, and found again', async () => {
    const model = await tiny();
    const [first, second] = await Promise.all([openGraph(model, { cacheDir }), openGraph(model, { cacheDir })]);
    expect(second).toBe(first);
    const { mtimeMs } = await open(first).then(async (file) => file.stat().finally(() => file.close()));
    expect(await openGraph(model, { cacheDir })).toBe(first);
    expect((await open(first).then(async (file) => file.stat().finally(() => file.close()))).mtimeMs).toBe(mtimeMs);
    expect(await readdir(join(cacheDir, 'graphs'))).toEqual([basename(first), `${basename(first)}.sha256`]);
  });

  test('is another one for other weights, another config, another pooling, another kind', async () => {
    const model = await tiny();
    const paths = new Set([await openGraph(model, { cacheDir })]);
    paths.add(await openGraph({ ...model, head: plainHead('cls') }, { cacheDir }));
    paths.add(await openGraph({ ...model, weightsSha256: '0'.repeat(64) }, { cacheDir }));
    paths.add(await openGraph(model, { cacheDir, kind: 'fused-fp16' }));
    const config = join(model.folder, 'config.json');
    await writeFile(config, (await readFile(config, 'utf8')).replace('1e-12', '1e-5'));
    paths.add(await openGraph(model, { cacheDir }));
    expect(paths.size).toBe(5);
  });
});

async function changeConfig(change: (json: Record<string, unknown>) => void): Promise<void> {
  const path = join(folder, 'model', 'config.json');
  const json = JSON.parse(await readFile(path, 'utf8')) as Record<string, unknown>;
  change(json);
  await writeFile(path, JSON.stringify(json));
}

async function changeHeader(change: (text: string) => string): Promise<void> {
  const path = join(folder, 'model', 'model.safetensors');
  const file = await readFile(path);
  const end = 8 + Number(file.readBigUInt64LE(0));
  const text = Buffer.from(change(file.toString('utf8', 8, end)));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(text.length));
  await writeFile(path, Buffer.concat([length, text, file.subarray(end)]));
}

const flipUnseen = async (path: string): Promise<void> => {
  const bytes = await readFile(path);
  bytes[bytes.length - 100]! ^= 1;
  const { atime, mtime } = await stat(path);
  await writeFile(path, bytes);
  await utimes(path, atime, mtime); // as whoever does not want it to be seen would
};

describe('a graph of the cache that is not what was built', () => {
  test.each<[string, (path: string) => Promise<unknown>, RegExp]>([
    ['one bit flipped, its time put back', flipUnseen, /has sha256 \w+ instead of \w+/],
    ['cut off', (path) => truncate(path, 1_000), /has 1000 bytes instead of/],
    ['without a digest', (path) => rm(`${path}.sha256`), /has no digest beside it/],
    ['with a damaged digest', (path) => writeFile(`${path}.sha256`, '{'), /has a damaged digest beside it/],
  ])('%s, is built again and said', async (_, change, reason) => {
    const model = await tiny();
    const path = await openGraph(model, { cacheDir });
    const whole = await readFile(path);
    await change(path);
    expect((await keptGraphs(model.name, cacheDir)).map(({ problem }) => problem)).toEqual([
      expect.stringMatching(reason),
    ]);
    const said: unknown[] = [];
    const log = { warn: (fields: object) => void said.push(Reflect.get(fields, 'reason')) };
    expect(await openGraph(model, { cacheDir, log })).toBe(path);
    expect(said).toEqual([expect.stringMatching(reason)]);
    expect(await readFile(path)).toEqual(whole);
    expect(await keptGraphs(model.name, cacheDir)).toEqual([{ path, bytes: whole.length }]);
    await openGraph(model, { cacheDir, log });
    expect(said).toHaveLength(1);
  });

  test('a copy of the cache is hashed once and then believed', async () => {
    const model = await tiny();
    const path = await openGraph(model, { cacheDir });
    await utimes(path, new Date(1), new Date(1));
    const before = await readFile(`${path}.sha256`, 'utf8');
    expect(await digestProblem(path)).toBeUndefined();
    expect(await readFile(`${path}.sha256`, 'utf8')).not.toBe(before);
  });
});

describe('a model that is not what it claims is refused by name, and no graph is kept', () => {
  test.each<[string, () => Promise<void>, RegExp]>([
    [
      'weights cut off',
      () => truncate(join(folder, 'model', 'model.safetensors'), 120_000),
      /model\.safetensors: the file is cut off inside tensor encoder\.layer\.0/,
    ],
    [
      'weights missing',
      () => rm(join(folder, 'model', 'model.safetensors')),
      /model\.safetensors belongs to the model and cannot be read/,
    ],
    [
      'header of 4 GB',
      async () => {
        const file = await open(join(folder, 'model', 'model.safetensors'), 'r+');
        await file.write(Buffer.from([0, 0, 0, 0, 1, 0, 0, 0]), 0, 8, 0);
        await file.close();
      },
      /header claims 4294967296 bytes/,
    ],
    [
      'tensor missing',
      () =>
        changeHeader((text) => text.replace('encoder.layer.1.output.dense.bias', 'encoder.layer.1.output.dense.bios')),
      /tensor encoder\.layer\.1\.output\.dense\.bias is missing/,
    ],
    [
      'no word table',
      () => changeHeader((text) => text.replace('word_embeddings', 'wort_embeddings')),
      /tensor embeddings\.word_embeddings\.weight is missing/,
    ],
    [
      'wrong shape',
      () =>
        changeConfig((json) => {
          json['intermediate_size'] = 128;
        }),
      /tensor encoder\.layer\.0\.intermediate\.dense\.weight should have the shape \[128, 32\] and has \[64, 32\]/,
    ],
    [
      'more layers than the config says',
      () =>
        changeConfig((json) => {
          json['num_hidden_layers'] = 1;
        }),
      /tensor encoder\.layer\.1\.\S+ has no place in the model/,
    ],
    [
      'fewer layers than the config says',
      () =>
        changeConfig((json) => {
          json['num_hidden_layers'] = 3;
        }),
      /tensor encoder\.layer\.2\.\S+ is missing/,
    ],
    [
      'another architecture',
      () =>
        changeConfig((json) => {
          json['model_type'] = 'deberta-v2';
        }),
      /config\.json: "model_type" is "deberta-v2": only "bert"/,
    ],
    [
      'another activation',
      () =>
        changeConfig((json) => {
          json['hidden_act'] = 'quick_gelu';
        }),
      /"hidden_act" is "quick_gelu": only "gelu"/,
    ],
    [
      'relative positions',
      () =>
        changeConfig((json) => {
          json['position_embedding_type'] = 'relative_key';
        }),
      /"position_embedding_type" is "relative_key": only "absolute"/,
    ],
    [
      'a decoder',
      () =>
        changeConfig((json) => {
          json['is_decoder'] = true;
        }),
      /"is_decoder" is true: only encoders/,
    ],
    [
      'heads that do not share',
      () =>
        changeConfig((json) => {
          json['num_attention_heads'] = 5;
        }),
      /hidden_size 32 cannot be shared by 5 heads/,
    ],
    [
      'a config without sizes, which then are those of transformers',
      () =>
        changeConfig((json) => {
          delete json['hidden_size'];
        }),
      /should have the shape \[\d+, 768\] and has \[\d+, 32\]/,
    ],
    [
      'a config that is not JSON',
      () => writeFile(join(folder, 'model', 'config.json'), '{'),
      /config\.json is not JSON/,
    ],
  ])('%s', async (_, damage, message) => {
    const model = await tiny();
    await damage();
    await expect(openGraph(model, { cacheDir })).rejects.toMatchObject({
      code: 'MODEL_CORRUPT',
      message: expect.stringMatching(message) as string,
    });
    await mkdir(join(cacheDir, 'graphs'), { recursive: true });
    expect(await readdir(join(cacheDir, 'graphs'))).toEqual([]);
  });
});
