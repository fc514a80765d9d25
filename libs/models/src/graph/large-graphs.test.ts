// Graphs whose values do not fit into one file, and weights that lie in several: forced at small sizes.

import { mkdir, mkdtemp, readFile, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { importModel } from '../store/import-model.ts';
import { openModel } from '../store/model-store.ts';
import { removeModel } from '../store/remove-model.ts';
import type { StoredModel } from '../store/stored-model.ts';
import { writeTinyModel } from '../store/tiny-model.ts';
import { GraphRunner } from '../testing/onnx-run.ts';
import { INDEX_FILE, WEIGHTS_FILE, useTensors } from './named-tensors.ts';
import { keptGraphs, openGraph } from './open-graph.ts';

let folder: string;
let cacheDir: string;
let model: StoredModel;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-large-'));
  cacheDir = join(folder, 'cache');
  model = await writeTinyModel(join(folder, 'model'), { seed: 1 });
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const ROWS = [
  [2, 40, 41, 42, 3],
  [2, 3],
];
async function vectorsOf(path: string): Promise<readonly Float32Array[]> {
  const runner = await GraphRunner.open(path, model);
  const vectors = await runner.run(ROWS);
  await runner.release();
  return vectors;
}

describe('a graph beyond the limit of one file', () => {
  const large = { maxGraphBytes: 40_000 };

  test('has its values beside it and gives the same vectors', async () => {
    const [whole, apart] = [
      await openGraph(model, { cacheDir: join(folder, 'other') }),
      await openGraph(model, { cacheDir, ...large }),
    ];
    expect((await stat(apart)).size).toBeLessThan(large.maxGraphBytes);
    const name = basename(apart);
    expect(await readdir(join(cacheDir, 'graphs'))).toEqual([
      name,
      `${name}.data`,
      `${name}.data.sha256`,
      `${name}.sha256`,
    ]);
    expect(await vectorsOf(apart)).toEqual(await vectorsOf(whole));
    const bytes = (await stat(apart)).size + (await stat(`${apart}.data`)).size;
    expect(await keptGraphs(model.name, cacheDir)).toEqual([{ path: apart, bytes }]);
  });

  test.each<[string, (data: string) => Promise<unknown>, RegExp]>([
    ['are lost', (data) => rm(data), /has lost its values/],
    ['are lost with their digest', (data) => Promise.all([rm(data), rm(`${data}.sha256`)]), /has lost its values/],
    ['are others', (data) => writeFile(data, 'no values'), /has its values in .*, which has 9 bytes instead of/],
  ])('is built again where its values %s', async (_, damage, reason) => {
    const path = await openGraph(model, { cacheDir, ...large });
    const before = await readFile(`${path}.data`);
    await damage(`${path}.data`);
    expect(await keptGraphs(model.name, cacheDir)).toMatchObject([
      { problem: expect.stringMatching(reason) as string },
    ]);
    const said: unknown[] = [];
    const log = { warn: (fields: object) => void said.push(Reflect.get(fields, 'reason')) };
    expect(await openGraph(model, { cacheDir, log, ...large })).toBe(path);
    expect(said).toEqual([expect.stringMatching(reason)]);
    expect(await readFile(`${path}.data`)).toEqual(before);
  });

  test('goes with its values when the model is removed', async () => {
    await importModel(model.folder, { cacheDir, name: 'large' });
    const imported = await openModel('large', { cacheDir });
    const path = await openGraph(imported, { cacheDir, ...large });
    const bytes = (await stat(path)).size + (await stat(`${path}.data`)).size;
    const { freedBytes } = await removeModel('large', { cacheDir });
    expect(freedBytes).toBeGreaterThan(bytes);
    expect(await readdir(join(cacheDir, 'graphs'))).toEqual([]);
  });

  test('is refused where even its nodes are too many', async () => {
    await expect(openGraph(model, { cacheDir, maxGraphBytes: 1000 })).rejects.toMatchObject({
      code: 'MODEL_CORRUPT',
      message: expect.stringMatching(/the graph would have \d+ bytes; its file ends at 1000/) as string,
    });
    expect(await readdir(join(cacheDir, 'graphs'))).toEqual([]);
  });
});

/** Cuts the model's file into two, each a whole safetensors file, and writes the index. */
async function shard(change: (map: Record<string, string>) => void = () => undefined): Promise<void> {
  const path = join(model.folder, WEIGHTS_FILE);
  const file = await readFile(path);
  const headerBytes = Number(file.readBigUInt64LE(0));
  const header = JSON.parse(file.toString('utf8', 8, 8 + headerBytes)) as Record<
    string,
    { dtype: string; shape: number[]; data_offsets: [number, number] }
  >;
  const names = Object.keys(header).filter((name) => name !== '__metadata__');
  const map: Record<string, string> = {};
  for (const half of [0, 1]) {
    const own = names.filter((_, at) => at % 2 === half);
    const pieces: Buffer[] = [];
    const fields: Record<string, unknown> = {};
    let end = 0;
    for (const name of own) {
      const { dtype, shape, data_offsets: offsets } = header[name]!;
      const values = file.subarray(8 + headerBytes + offsets[0], 8 + headerBytes + offsets[1]);
      fields[name] = { dtype, shape, data_offsets: [end, (end += values.length)] };
      pieces.push(values);
      map[name] = `model-0000${half + 1}-of-00002.safetensors`;
    }
    const text = Buffer.from(JSON.stringify(fields));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    await writeFile(
      join(model.folder, `model-0000${half + 1}-of-00002.safetensors`),
      Buffer.concat([length, text, ...pieces]),
    );
  }
  change(map);
  await rm(path);
  await writeFile(join(model.folder, INDEX_FILE), JSON.stringify({ metadata: {}, weight_map: map }));
}

describe('weights in several files', () => {
  test('give the graph that one file gives', async () => {
    const whole = await readFile(await openGraph(model, { cacheDir: join(folder, 'other') }));
    await shard();
    expect(await readFile(await openGraph(model, { cacheDir }))).toEqual(whole);
  });

  const name = 'encoder.layer.1.output.dense.bias';
  test.each<[string, (map: Record<string, string>) => void, RegExp]>([
    [
      'a tensor that the index leaves out',
      (map) => void delete map[name],
      /tensor encoder\.layer\.1\.output\.dense\.bias is in model-0000\d-of-00002\.safetensors, and the index does not/,
    ],
    [
      'a tensor that is in another file',
      (map) => {
        map[name] = map[name]!.includes('00001-of')
          ? 'model-00002-of-00002.safetensors'
          : 'model-00001-of-00002.safetensors';
      },
      /tensor encoder\.layer\.1\.output\.dense\.bias is not in model-0000\d-of-00002\.safetensors, as the index says/,
    ],
    [
      'a file that is not there',
      (map) => {
        map['more'] = 'model-00003-of-00003.safetensors';
      },
      /model-00003-of-00003\.safetensors belongs to the model and cannot be read/,
    ],
    [
      'a file that lies elsewhere',
      (map) => {
        map[name] = '../model-00001-of-00002.safetensors';
      },
      /is said to lie in "\.\.\/model-00001-of-00002\.safetensors", not in a file beside the index/,
    ],
    [
      'an index without tensors',
      (map) => {
        for (const key of Object.keys(map)) delete map[key];
      },
      /its weight_map names no tensor/,
    ],
  ])('are refused by name: %s', async (_, change, message) => {
    await shard(change);
    await mkdir(cacheDir, { recursive: true });
    await expect(useTensors(model.folder, async () => undefined)).rejects.toMatchObject({
      code: 'MODEL_CORRUPT',
      message: expect.stringMatching(message) as string,
    });
  });

  test('are refused where two hold one tensor', async () => {
    await shard();
    const [first, second] = ['00001', '00002'].map((part) => join(model.folder, `model-${part}-of-00002.safetensors`));
    await writeFile(second!, await readFile(first!));
    await expect(useTensors(model.folder, async () => undefined)).rejects.toMatchObject({ code: 'MODEL_CORRUPT' });
  });
});
