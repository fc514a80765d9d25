import { mkdtemp, readFile, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { openEncoder } from './row-encoder.ts';
import type { Block, RowForm } from '@shoal/worker/files/row-form';
import { FileWriter, StreamWriter, type FileWriterOptions } from './row-writer.ts';
import { readRunState, type RunState } from './run-state.ts';
import { checkTarget, existingShards, indexPath, shardTarget, type FileTarget } from './target.ts';

const FORM: RowForm = { format: 'jsonl', dims: 1, hasIds: false, withText: false };
const fresh: RunState = {
  v: 1,
  runId: 'run',
  request: { inputs: [], model: 'm@1', options: {} },
  rows: 0,
  position: 0,
  shard: 0,
  bytes: 0,
};

function block(from: number, to: number): Block {
  return {
    records: Array.from({ length: to - from }, (_, at) => ({ id: undefined, index: from + at, text: `t${from + at}` })),
    dims: 1,
    vectors: Float32Array.from({ length: to - from }, (_, at) => from + at),
    position: to,
  };
}

let folder: string;
let options: FileWriterOptions;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-writer-'));
  const target = await checkTarget(join(folder, 'out.jsonl'), []);
  if (target.kind !== 'file') throw new Error('expected a file target');
  options = { target, form: FORM, shardRows: 10 };
});
afterEach(() => rm(folder, { recursive: true }));

const visible = async () => (await readdir(folder)).filter((name) => !name.startsWith('.')).sort();
const indicesOf = async (shard: number) =>
  (await readFile(shardTarget(options.target, shard).path, 'utf8'))
    .trim()
    .split('\n')
    .map((line) => Number(/"index":(\d+)/.exec(line)?.[1]));
const through = (from: number, to: number) => Array.from({ length: to - from }, (_, at) => from + at);

/** All rows are there, in three files and once each; nothing else is. */
async function expectWhole(): Promise<void> {
  expect(await readdir(folder)).toEqual(['out-00000.jsonl', 'out-00001.jsonl', 'out-00002.jsonl', 'out.index.json']);
  expect(await Promise.all([0, 1, 2].map(indicesOf))).toEqual([through(0, 10), through(10, 20), through(20, 25)]);
  expect(JSON.parse(await readFile(indexPath(options.target), 'utf8'))).toEqual({
    model: 'm@1',
    rows: 25,
    dims: 1,
    format: 'jsonl',
    shards: [
      { file: 'out-00000.jsonl', rows: 10 },
      { file: 'out-00001.jsonl', rows: 10 },
      { file: 'out-00002.jsonl', rows: 5 },
    ],
  });
}

describe('shards', () => {
  test('appear one by one, each whole, and at the end an index of them', async () => {
    const writer = await FileWriter.create(options, fresh);
    await writer.write(block(0, 7));
    expect(await visible()).toEqual([]);
    await writer.write(block(7, 23));
    expect(await visible()).toEqual(['out-00000.jsonl', 'out-00001.jsonl']);
    await writer.write(block(23, 25));
    await writer.finish();
    await expectWhole();
  });

  test('are none too many when the rows fill the last of them, and one when there are no rows', async () => {
    const full = await FileWriter.create(options, fresh);
    await full.write(block(0, 20));
    await full.finish();
    expect(await visible()).toEqual(['out-00000.jsonl', 'out-00001.jsonl', 'out.index.json']);
    const empty = await FileWriter.create(
      {
        ...options,
        shardRows: 99,
        target: { ...options.target, path: join(folder, 'empty.npy') },
        form: { ...FORM, format: 'npy' },
      },
      fresh,
    );
    await empty.finish();
    expect(JSON.parse(await readFile(join(folder, 'empty.index.json'), 'utf8'))).toMatchObject({
      rows: 0,
      shards: [{ file: 'empty-00000.npy', rows: 0 }],
    });
  });

  test.each([3, 10, 13, 20, 24])('are gone on with behind row %i, whole ones untouched', async (rows) => {
    const first = await FileWriter.create(options, fresh);
    await first.write(block(0, rows));
    await first.abandon();
    const state = await readRunState(options.target.state);
    const second = await FileWriter.reopen(options, state!);
    expect(second!.state).toMatchObject({ rows, position: rows });
    await second!.write(block(rows, 25));
    await second!.finish();
    await expectWhole();
  });

  test('are gone on with when death came between the last rows of a shard and its name', async () => {
    const first = await FileWriter.create(options, fresh);
    await first.write(block(0, 20));
    // as it was a moment before
    await rename(shardTarget(options.target, 1).path, shardTarget(options.target, 1).partial);
    const second = await FileWriter.reopen(options, (await readRunState(options.target.state))!);
    await second!.write(block(20, 25));
    await second!.finish();
    await expectWhole();
  });

  test('are gone on with when death came between the last name and the index', async () => {
    const first = await FileWriter.create(options, fresh);
    await first.write(block(0, 25));
    await writeFile(`${indexPath(options.target)}.new`, 'half');
    await first.abandon();
    const second = await FileWriter.reopen(options, (await readRunState(options.target.state))!);
    await second!.finish();
    await expectWhole();
  });

  test('of other names are not theirs', async () => {
    for (const name of ['out-0001.jsonl', 'out-00003.npy', 'out-0000x.jsonl', 'xout-00001.jsonl', 'out-100000.jsonl'])
      await writeFile(join(folder, name), '');
    expect(await existingShards(options.target)).toEqual([100_000]);
  });
});

test('.npy in shards has the rows of each in its header', async () => {
  const target: FileTarget = { ...options.target, path: join(folder, 'out.npy') };
  const writer = await FileWriter.create({ ...options, target, form: { ...FORM, format: 'npy' } }, fresh);
  await writer.write(block(0, 14));
  await writer.finish();
  const headers = await Promise.all(
    [0, 1].map(async (shard) => (await readFile(shardTarget(target, shard).path)).toString('latin1', 10, 128)),
  );
  expect(headers).toEqual([expect.stringContaining('(10, 1)'), expect.stringContaining('(4, 1)')]);
});

test('an Arrow file goes into a pipe from its first byte to its last', async () => {
  const form: RowForm = { ...FORM, format: 'arrow' };
  const given: Buffer[] = [];
  const writer = new StreamWriter(await openEncoder(form), {
    write: async (bytes) => void given.push(bytes),
    close: async () => undefined,
  });
  await writer.write(block(0, 3));
  await writer.finish();
  const { tableFromIPC } = await import('apache-arrow');
  expect(tableFromIPC(Buffer.concat(given)).numRows).toBe(3);
});
