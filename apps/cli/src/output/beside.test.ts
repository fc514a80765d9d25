import { mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { IdList, SkippedList, idsPath, skippedPath } from './beside.ts';
import { leftovers, removeRun } from './earlier-run.ts';
import { FileWriter, type FileWriterOptions } from './row-writer.ts';
import { readRunState, type RunState } from './run-state.ts';
import { checkTarget, shardTarget, type FileTarget } from './target.ts';

const state: RunState = {
  v: 1,
  runId: 'run',
  request: { inputs: [], model: 'm@1', options: {} },
  rows: 0,
  position: 0,
  shard: 0,
  bytes: 0,
};

let folder: string;
let target: FileTarget;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-beside-'));
  const found = await checkTarget(join(folder, 'out.npy'), []);
  if (found.kind !== 'file') throw new Error('expected a file target');
  target = found;
});
afterEach(() => rm(folder, { recursive: true }));

function optionsOf(more: Partial<FileWriterOptions> = {}): FileWriterOptions {
  const form = { format: 'npy', dims: 1, hasIds: false, withText: false } as const;
  return { target, form, shardRows: undefined, ...more };
}

function block(from: number, ids: readonly (string | number | undefined)[]) {
  return {
    records: ids.map((id, at) => ({ id, index: from + at, text: 't' })),
    dims: 1,
    vectors: Float32Array.from(ids, (_, at) => from + at),
    position: from + ids.length,
  };
}

const skip = (index: number, reason = 'bad') => ({ index, file: 'in.jsonl', line: index + 1, id: undefined, reason });
const textOf = (path: string) => readFile(path, 'utf8');

test('the ids of a .npy are in a list beside it, a line for each row', async () => {
  const writer = await FileWriter.create(optionsOf(), state);
  await writer.write(block(0, [undefined, undefined]));
  await writer.write(block(2, ['a "b"', 7, undefined]));
  await writer.finish();
  expect(await textOf(idsPath(target))).toBe('null\nnull\n"a \\"b\\""\n7\nnull\n');
  expect(await readdir(folder)).toEqual(['out.npy', 'out.npy.ids.jsonl']);
});

test('a run without ids takes the list of an earlier one away with the file that it was about', async () => {
  await writeFile(idsPath(target), '"old"\n');
  await writeFile(skippedPath(target), '{}\n');
  const writer = await FileWriter.create(optionsOf({ skipped: new SkippedList() }), state);
  await writer.write(block(0, [undefined]));
  expect(await textOf(idsPath(target))).toBe('"old"\n');
  await writer.finish();
  expect(await readdir(folder)).toEqual(['out.npy']);
});

test('ids are kept with the rows of an interrupted run, and no id too many', async () => {
  const first = await FileWriter.create(optionsOf(), state);
  await first.write(block(0, ['a', 'b']));
  expect(await first.abandon()).toEqual({ kind: 'kept', rows: 2, file: join(folder, '.out.npy.shoal-partial') });
  await writeFile(`${target.state}.ids`, '"half', { flag: 'a' });
  const second = await FileWriter.reopen(optionsOf(), (await readRunState(target.state))!);
  await second!.write(block(2, ['c']));
  await second!.finish();
  expect(await textOf(idsPath(target))).toBe('"a"\n"b"\n"c"\n');
});

test('rows whose ids are gone are not gone on with', async () => {
  const first = await FileWriter.create(optionsOf(), state);
  await first.write(block(0, ['a', 'b']));
  await first.abandon();
  await rm(`${target.state}.ids`);
  expect(await FileWriter.reopen(optionsOf(), (await readRunState(target.state))!)).toBeUndefined();
  expect(await IdList.open(target, 2, 8)).toBeUndefined();
});

test('records without a row are listed once and in order, over all runs, and not once they have a row', async () => {
  const before = new SkippedList();
  before.add(skip(5, 'read before anything was written'));
  const first = await FileWriter.create(optionsOf({ skipped: before }), state);
  await first.write(block(0, [undefined]));
  before.add(skip(3));
  before.add(skip(1, 'a job that failed'));
  await first.abandon();
  await writeFile(`${target.state}.skipped`, '{"index":9', { flag: 'a' });
  const after = new SkippedList();
  const second = await FileWriter.reopen(optionsOf({ skipped: after }), (await readRunState(target.state))!);
  after.add(skip(5, 'again'));
  after.hasRow(1);
  await second!.finish();
  expect((await textOf(skippedPath(target))).split('\n')).toEqual([
    '{"index":3,"file":"in.jsonl","line":4,"reason":"bad"}',
    '{"index":5,"file":"in.jsonl","line":6,"reason":"read before anything was written"}',
    '',
  ]);
});

test('rows of an input that cannot be read again become a whole file of their own', async () => {
  await writeFile(join(folder, 'out.partial.npy'), 'of an earlier run');
  const writer = await FileWriter.create(optionsOf({ isRepeatable: false }), state);
  await writer.write(block(0, ['a', 'b']));
  const file = join(folder, 'out.partial-2.npy');
  expect(await writer.abandon()).toEqual({ kind: 'ended', rows: 2, file });
  expect(await readdir(folder)).toEqual(['out.partial-2.npy', 'out.partial-2.npy.ids.jsonl', 'out.partial.npy']);
  expect((await readFile(file)).subarray(128)).toEqual(Buffer.from(Float32Array.of(0, 1).buffer));
});

test('a run without a row leaves nothing', async () => {
  for (const isRepeatable of [true, false]) {
    const writer = await FileWriter.create(optionsOf({ isRepeatable }), state);
    expect(await writer.abandon()).toEqual({ kind: 'nothing' });
    expect(await readdir(folder)).toEqual([]);
  }
});

test('rows that nothing vouches for are not thrown away unasked', async () => {
  expect(await leftovers(target)).toBeUndefined();
  await writeFile(target.partial, Buffer.alloc(128));
  expect(await leftovers(target)).toBeUndefined();
  await writeFile(target.partial, Buffer.alloc(10_000));
  await expect(leftovers(target)).rejects.toThrow(/left \.out\.npy\.shoal-partial \(0\.0 MB\).*--fresh removes it/);
  await removeRun(target, { keepsShards: false });
  expect(await readdir(folder)).toEqual([]);
});

test('beginning again takes the shards of the unfinished run away, and no others', async () => {
  const request = { ...state.request, options: { '--shard-rows': '2' } };
  const writer = await FileWriter.create(optionsOf({ shardRows: 2 }), { ...state, request });
  await writer.write(block(0, [1, 2, 3]));
  await writer.abandon();
  await writeFile(shardTarget(target, 7).path, 'of another run');
  await removeRun(target, { keepsShards: false });
  expect(await readdir(folder)).toEqual(['out-00007.npy']);
});
