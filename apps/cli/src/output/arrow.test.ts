import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { readVectors, type RowBatch } from '@shoal/similarity';
import { tableFromIPC } from 'apache-arrow';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { openEncoder } from './row-encoder.ts';
import type { Block, EncodedRows, RowEncoder, RowForm } from '@shoal/worker/files/row-form';
import { FileWriter } from './row-writer.ts';
import { readRunState, type RunState } from './run-state.ts';
import { checkTarget, type FileTarget } from './target.ts';

const DIMS = 4;
const FORM: RowForm = { format: 'arrow', dims: DIMS, hasIds: true, withText: true };

/** Rows `from` to `to`; every value tells where it belongs. */
function block(from: number, to: number, textOf = (row: number) => `text ${row} 🐟`): Block {
  return {
    records: Array.from({ length: to - from }, (_, at) => ({
      id: `doc-${from + at}`,
      index: from + at,
      text: textOf(from + at),
    })),
    dims: DIMS,
    vectors: Float32Array.from({ length: (to - from) * DIMS }, (_, at) => from * DIMS + at),
    position: to,
  };
}

async function collected(rows: ReturnType<RowEncoder['encode']>): Promise<EncodedRows[]> {
  const all: EncodedRows[] = [];
  for await (const one of rows) all.push(one);
  return all;
}

async function fileOf(encoder: RowEncoder, ...blocks: readonly Block[]): Promise<Buffer> {
  const parts = [encoder.head(0)];
  for (const one of blocks) parts.push(...(await collected(encoder.encode(one))).map(({ bytes }) => bytes));
  parts.push(...(await collected(encoder.flush())).map(({ bytes }) => bytes));
  return Buffer.concat([...parts, encoder.tail()]);
}

async function arrow(form: Partial<RowForm>, ...blocks: readonly Block[]): Promise<Buffer> {
  return fileOf(await openEncoder({ ...FORM, ...form }), ...blocks);
}

describe('an Arrow file', () => {
  test('has a column of ids, one of texts where asked for, and one of vectors, none of them with nulls', async () => {
    const table = tableFromIPC(await arrow({}, block(0, 3)));
    expect(table.schema.toString()).toBe(
      'Schema<{ 0: id: Utf8, 1: text: Utf8, 2: embedding: FixedSizeList[4]<Float32> }>',
    );
    expect(table.schema.fields.map((field) => field.nullable)).toEqual([false, false, false]);
    expect(table.getChild('id')!.toArray()).toEqual(['doc-0', 'doc-1', 'doc-2']);
    expect(table.getChild('text')!.get(1)).toBe('text 1 🐟');
    expect(Array.from(table.getChild('embedding')!.get(2))).toEqual([8, 9, 10, 11]);
  });

  test('says which model made its vectors, and is read as it was written', async () => {
    const model = 'minilm@53aa51172d14';
    const folder = await mkdtemp(join(tmpdir(), 'shoal-arrow-model-'));
    const path = join(folder, 'model.arrow');
    await writeFile(path, await arrow({ model }, block(0, 3)));
    expect(tableFromIPC(await readFile(path)).schema.metadata).toEqual(new Map([['shoal.model', model]]));
    const batches: RowBatch[] = [];
    for await (const batch of readVectors(path)) batches.push(batch);
    await rm(folder, { recursive: true });
    expect(batches).toEqual([{ dims: DIMS, vectors: block(0, 3).vectors, names: ['doc-0', 'doc-1', 'doc-2'], model }]);
    expect(tableFromIPC(await arrow({}, block(0, 3))).schema.metadata.size).toBe(0);
  });

  test('without ids has 64-bit indices', async () => {
    const table = tableFromIPC(await arrow({ hasIds: false, withText: false }, block(5, 7)));
    expect(table.schema.toString()).toBe('Schema<{ 0: index: Int64, 1: embedding: FixedSizeList[4]<Float32> }>');
    expect(Array.from(table.getChild('index')!)).toEqual([5n, 6n]);
  });

  test('is the same bytes however its rows came: batches of 1,024 rows', async () => {
    const whole = await arrow({}, block(0, 2_500));
    const pieces = await arrow({}, ...Array.from({ length: 50 }, (_, at) => block(at * 50, at * 50 + 50)));
    expect(pieces.equals(whole)).toBe(true);
    const table = tableFromIPC(whole);
    expect(table.batches.map((batch) => batch.numRows)).toEqual([1_024, 1_024, 452]);
    expect(Array.from(table.getChild('embedding')!.get(2_499))).toEqual([9_996, 9_997, 9_998, 9_999]);
  });

  test('closes a batch before its texts are more than 16 MiB', async () => {
    const table = tableFromIPC(
      await arrow(
        {},
        block(0, 20, () => 'x'.repeat(1 << 20)),
      ),
    );
    expect(table.batches.map((batch) => batch.numRows)).toEqual([16, 4]);
  });

  test('without rows has its columns', async () => {
    const table = tableFromIPC(await arrow({ hasIds: false }));
    expect([table.numRows, table.schema.fields.map((field) => field.name)]).toEqual([
      0,
      ['index', 'text', 'embedding'],
    ]);
  });

  test('says with each batch how much of the input is done with behind it', async () => {
    const encoder = await openEncoder(FORM);
    const skipped = { ...block(1_000, 1_100), position: 1_200 }; // a hundred records before it failed
    expect(await collected(encoder.encode(block(0, 1_000)))).toEqual([]);
    const [first] = await collected(encoder.encode(skipped));
    expect(first).toMatchObject({ rows: 1_024, position: 1_124 });
    expect(encoder.flush()).toMatchObject([{ rows: 76, position: 1_200 }]);
  });
});

describe('an Arrow file that a run left unfinished', () => {
  let folder: string;
  let target: FileTarget;
  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'shoal-arrow-'));
    const found = await checkTarget(join(folder, 'out.arrow'), []);
    if (found.kind !== 'file') throw new Error('expected a file target');
    target = found;
  });
  afterEach(() => rm(folder, { recursive: true }));

  const fresh: RunState = {
    v: 1,
    runId: 'run',
    request: { inputs: [], model: 'm@1', options: {} },
    rows: 0,
    position: 0,
    shard: 0,
    bytes: 0,
  };

  test('is gone on with behind its last whole batch, and ends up as the bytes of a quiet run', async () => {
    const options = { target, form: FORM, shardRows: undefined };
    const first = await FileWriter.create(options, fresh);
    await first.write(block(0, 3_000));
    await first.abandon();
    const state = await readRunState(target.state);
    expect(state).toMatchObject({ rows: 2_048, position: 2_048 });
    const second = await FileWriter.reopen(options, state!);
    await second!.write(block(2_048, 3_500));
    await second!.finish();
    expect((await readFile(target.path)).equals(await arrow({}, block(0, 3_500)))).toBe(true);
  });

  test('is refused when it is not what it should be', async () => {
    const options = { target, form: FORM, shardRows: undefined };
    const first = await FileWriter.create(options, fresh);
    await first.write(block(0, 1_024));
    await first.abandon();
    const state = await readRunState(target.state);
    const reopened = FileWriter.reopen(options, { ...state!, bytes: state!.bytes - 8 });
    await expect(reopened).rejects.toMatchObject({
      code: 'FILE_UNREADABLE',
      message: expect.stringContaining('the unfinished Arrow file is damaged at byte'),
    });
  });
});
