// Parquet out of Parquet. Inputs were made by pyarrow, DuckDB and Polars (fixtures/parquet/make.py); what is written is
// read back by hyparquet here, and by the three of them in the nightly form.

import { execFileSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { open, readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import zlib from 'node:zlib';
import { parquetMetadata, parquetReadObjects } from 'hyparquet';
import { afterAll, describe, expect, test } from 'vitest';
import { isShoalError } from '@shoal/contract';
import { checkInputs, openAt, readInputs } from '../input/files.ts';
import type { TextRecord } from '@shoal/worker/files/record';
import { readFooter } from '@shoal/worker/files/footer';
import { HEADER_BYTES, pageAt } from '@shoal/worker/files/pages';
import { carriedShards, refuseUncarriable } from '@shoal/worker/files/carried-columns';
import { openEncoder } from './row-encoder.ts';
import type { Block, EncodedRows, RowForm, Written } from '@shoal/worker/files/row-form';
import { FileWriter } from './row-writer.ts';
import { readRunState } from './run-state.ts';
import { checkTarget, type FileTarget } from './target.ts';

const FIXTURES = join(import.meta.dirname, '../../fixtures/parquet');
const fixture = (name: string): string => join(FIXTURES, name);
const ROWS = 60;
/** Of these the text is null. */
const NULLS = [7, 30, 59];
const DIMS = 3;
const folder = mkdtempSync(join(tmpdir(), 'shoal-parquet-'));
afterAll(() => rmSync(folder, { recursive: true }));

const textOf = (row: number): string => `row ${row} grüße 魚 ${'x'.repeat(row % 9)}`;
const vectorOf = (index: number): Float32Array => Float32Array.of(index, -0.5, 1 / 3);

async function records(path: string, fields: { textField?: string; idField?: string } = {}) {
  const inputs = await checkInputs([path], undefined);
  const found = [];
  const { textField, idField } = fields;
  const { signal } = new AbortController();
  const options = { textField, idField, stdin: process.stdin, signal, onBytes: () => undefined };
  for await (const record of readInputs(inputs, options)) found.push(record);
  return found;
}

async function formOf(...paths: readonly string[]): Promise<RowForm> {
  const inputs = await checkInputs(paths, undefined);
  const carried = inputs.map((input) => ({ open: () => openAt(input), parquet: input.parquet! }));
  return { format: 'parquet', dims: DIMS, hasIds: false, withText: false, model: 'm@1', carried };
}

/** The file that `embed` writes, or what of it is there when `stopAt` texts have come. */
async function embedded(form: RowForm, { stopAt = Infinity, before = Buffer.alloc(0), position = 0 } = {}) {
  const written: Written | undefined =
    before.length === 0
      ? undefined
      : { read: async (at, length) => before.subarray(at, at + length), bytes: before.length, position };
  const encoder = await openEncoder(form, written);
  const parts = [before.length === 0 ? encoder.head(0) : before];
  let done = position;
  const take = async (rows: Iterable<EncodedRows> | AsyncIterable<EncodedRows>): Promise<void> => {
    for await (const one of rows) {
      parts.push(one.bytes);
      done = one.position;
    }
  };
  let [good, index] = [0, -1];
  for (const { parquet } of form.carried!)
    for (const record of await records(parquet.name)) {
      index++;
      if (!('text' in record) || ++good <= position) continue;
      const block = { records: [{ ...record, index }], dims: DIMS, vectors: vectorOf(index), position: good };
      await take(encoder.encode(block));
      if (good === stopAt) return { bytes: Buffer.concat(parts), position: done };
    }
  await take(encoder.flush());
  return { bytes: Buffer.concat([...parts, encoder.tail()]), position: done };
}

/** Good records of the input with their vectors, so many at a time. */
async function blocksOf(form: RowForm, size: number): Promise<Block[]> {
  let index = -1;
  const good: TextRecord[] = [];
  for (const { parquet } of form.carried!)
    for (const record of await records(parquet.name)) {
      index++;
      if ('text' in record) good.push({ ...record, index });
    }
  return Array.from({ length: Math.ceil(good.length / size) }, (_, at) => {
    const own = good.slice(at * size, (at + 1) * size);
    const vectors = Float32Array.from(own.flatMap((record) => [...vectorOf(record.index)]));
    return { records: own, dims: DIMS, vectors, position: at * size + own.length };
  });
}

/** What of a block comes behind so many good records. */
function behind(block: Block, position: number): Block {
  const done = Math.min(block.records.length, Math.max(0, position - (block.position - block.records.length)));
  return { ...block, records: block.records.slice(done), vectors: block.vectors.subarray(done * DIMS) };
}

/** Behind the magic and the first page of vectors. */
function firstPage(bytes: Buffer): number {
  return 4 + pageAt(bytes.subarray(4, 4 + HEADER_BYTES)).bytes;
}

const rowsOf = async (bytes: Buffer): Promise<Record<string, unknown>[]> =>
  parquetReadObjects({
    file: Uint8Array.from(bytes).buffer,
    geoparquet: false,
    compressors: { GZIP: (page) => zlib.gunzipSync(page), ZSTD: (page) => zlib.zstdDecompressSync(page) },
  });

/** From what a row was made of, in scales. */
const farFrom = (row: number, embedding: readonly number[], scale: number): number =>
  Math.max(...vectorOf(row).map((value, dim) => Math.abs(embedding[dim]! * scale - value) / scale));

describe('columns of a Parquet file', () => {
  test('go along as they are, and a row without a text has no vector', async () => {
    const form = await formOf(fixture('types.parquet'));
    const before = await readFile(fixture('types.parquet'));
    const { bytes } = await embedded(form);
    const [old, now] = [await rowsOf(before), await rowsOf(bytes)];
    expect(now.map((row) => ({ ...row, embedding: undefined }))).toEqual(
      old.map((row) => ({ ...row, embedding: undefined })),
    );
    expect(now.map(({ embedding }) => embedding)).toEqual(
      old.map((_, row) => (NULLS.includes(row) ? null : [...vectorOf(row)])),
    );
    const [was, is] = [parquetMetadata(Uint8Array.from(before)), parquetMetadata(Uint8Array.from(bytes))];
    expect(is.schema.slice(1, -3)).toEqual(was.schema.slice(1));
    expect(is.row_groups.map((group) => group.num_rows)).toEqual(was.row_groups.map((group) => group.num_rows));
    // byte for byte: nothing was decoded and encoded again
    for (const [at, group] of was.row_groups.entries())
      for (const [column, { meta_data: facts }] of group.columns.entries()) {
        const moved = is.row_groups[at]!.columns[column]!.meta_data!;
        const chunkIn = (
          file: Buffer,
          { dictionary_page_offset, data_page_offset, total_compressed_size }: typeof moved,
        ): Buffer => {
          const from = Number(dictionary_page_offset ?? data_page_offset);
          return file.subarray(from, from + Number(total_compressed_size));
        };
        expect(chunkIn(bytes, moved).equals(chunkIn(before, facts!))).toBe(true);
      }
    expect(is.key_value_metadata?.find(({ key }) => key === 'shoal.model')?.value).toBe('m@1');
  });

  test('a run that was interrupted after any number of rows writes the same bytes', async () => {
    const form = await formOf(fixture('types.parquet'));
    const { bytes: whole } = await embedded(form);
    for (let stopAt = 1; stopAt <= ROWS - NULLS.length; stopAt += 7) {
      const { bytes: before, position } = await embedded(form, { stopAt });
      const cut = before.length > 4 ? before : Buffer.alloc(0);
      expect((await embedded(form, { before: cut, position })).bytes.equals(whole)).toBe(true);
    }
    // also where it was killed in the middle of a column that it copied
    const { bytes: first, position } = await embedded(form, { stopAt: 30 });
    for (const bytes of [first.length - 1, first.length - 1000])
      expect((await embedded(form, { before: whole.subarray(0, bytes), position })).bytes.equals(whole)).toBe(true);
  });

  test('of several files go into one, where they are the same columns', async () => {
    const form = await formOf(fixture('codec-gzip.parquet'), fixture('codec-zstd.parquet'));
    const rows = await rowsOf((await embedded(form)).bytes);
    expect(rows.map(({ id }) => id)).toEqual([...Array(2 * ROWS).keys()].map((row) => `i${row % ROWS}`));
    expect(rows[ROWS + 1]).toMatchObject({ text: textOf(1), embedding: [...vectorOf(ROWS + 1)] });
    const other = await formOf(fixture('codec-gzip.parquet'), fixture('types.parquet'));
    expect(() => refuseUncarriable(other.carried!, 'embedding')).toThrow('has other columns than');
    expect(() => refuseUncarriable(other.carried!, 'text')).toThrow('has a column "text" already');
  });

  test('of i8 there is a scale a row, null where there is no vector, and a run that goes on writes the same', async () => {
    const scalesPath = join(folder, 'scales');
    const form = { ...(await formOf(fixture('types.parquet'))), dtype: 'i8', scalesPath } as const;
    const { bytes: whole } = await embedded(form);
    const rows = await rowsOf(whole);
    expect(Object.keys(rows[0]!).slice(-2)).toEqual(['embedding', 'embedding_scale']);
    const close = rows.map(({ embedding, embedding_scale: scale }, row) =>
      embedding === null && scale === null ? 'null' : farFrom(row, embedding as number[], Number(scale)) <= 0.500_01,
    );
    expect(close).toEqual(rows.map((_, row) => (NULLS.includes(row) ? 'null' : true)));
    for (const stopAt of [1, 17, 30, 44]) {
      const { bytes: before, position } = await embedded(form, { stopAt });
      const cut = before.length > 4 ? before : Buffer.alloc(0);
      expect((await embedded(form, { before: cut, position })).bytes.equals(whole)).toBe(true);
    }
    const { bytes: before, position } = await embedded(form, { stopAt: 44 });
    rmSync(scalesPath);
    const again = embedded(form, { before: before.subarray(0, firstPage(before)), position });
    await expect(again).rejects.toThrow('the scales of rows that are kept');
    expect(() => refuseUncarriable(form.carried!, 'key', 'i8')).toThrow('has a column "key" already');
  });

  test('of a row group without rows, and of a file of nothing else, as pyarrow writes them', async () => {
    const form = await formOf(fixture('no-rows.parquet'), fixture('empty-groups.parquet'));
    const whole = await embedded(form);
    const rows = await rowsOf(whole.bytes);
    const nine = Array.from({ length: 9 }, (_, row) => row);
    expect(rows.map(({ id, text }) => [id, text ?? null])).toEqual(
      nine.map((row) => [`i${row}`, row === 7 ? null : textOf(row)]),
    );
    expect(rows.map(({ embedding }) => embedding)).toEqual(nine.map((row) => (row === 7 ? null : [...vectorOf(row)])));
    const { bytes: before, position } = await embedded(form, { stopAt: 6 });
    expect((await embedded(form, { before, position })).bytes.equals(whole.bytes)).toBe(true);
  });

  test('in shards keep whole row groups; a run that was interrupted goes on with them', async () => {
    const form = await formOf(fixture('types.parquet'), fixture('types.parquet'));
    const sizes = form.carried!.flatMap(({ parquet }) => parquet.groups.map(({ rows }) => rows));
    const most = Math.max(...sizes);
    expect(() => carriedShards(form.carried!, most - 1)).toThrow(`take --shard-rows ${most} or more`);
    const whole = await rowsOf((await embedded(form)).bytes);
    for (const stopAt of [Infinity, 1, 40, 70]) {
      const target = (await checkTarget(join(folder, `shards-${stopAt}.parquet`), [])) as FileTarget;
      const options = { target, form, shardRows: most };
      const request = { inputs: [], model: 'm@1', options: {} };
      const fresh = { v: 1, runId: 'r', request, rows: 0, position: 0, shard: 0, bytes: 0 } as const;
      const blocks = await blocksOf(form, 25);
      const first = await FileWriter.create(options, fresh);
      for (const block of blocks) if (block.position <= stopAt) await first.write(block);
      if (stopAt === Infinity) await first.finish();
      else {
        await first.abandon();
        const state = await readRunState(target.state);
        const next = (await FileWriter.reopen(options, state ?? fresh)) ?? (await FileWriter.create(options, fresh));
        for (const block of blocks) await next.write(behind(block, next.state.position));
        await next.finish();
      }
      const { rows, shards } = JSON.parse(await readFile(join(folder, `shards-${stopAt}.index.json`), 'utf8'));
      expect(rows).toBe(2 * ROWS);
      const read = await Promise.all(
        shards.map(async ({ file }: { file: string }) => rowsOf(await readFile(join(folder, file)))),
      );
      expect(read.flat()).toEqual(whole);
      expect(read.every((one: unknown[], at: number) => one.length === shards[at].rows && one.length <= most)).toBe(
        true,
      );
    }
  });

  test.each(['f16', 'binary'] as const)('vectors may be %s', async (dtype) => {
    const form = { ...(await formOf(fixture('codec-plain.parquet'))), dtype };
    const rows = await rowsOf((await embedded(form)).bytes);
    const third = dtype === 'f16' ? 0.333251953125 : undefined;
    expect(rows[2]!['embedding']).toEqual(third === undefined ? [0b1010_0000] : [2, -0.5, third]);
  });
});

describe('texts of a Parquet file', () => {
  const codecs = readdirSync(FIXTURES).filter((name) => name.startsWith('codec-'));
  test.each(codecs)('are read: %s', async (name) => {
    const found = await records(fixture(name));
    expect(found).toHaveLength(ROWS);
    const seen = found.map((record) =>
      'text' in record ? [record.id, record.text] : record.problem.replace(/^.*, row/, 'row'),
    );
    const meant = found.map((_, index) =>
      NULLS.includes(index) ? `row ${index + 1}: the text is null (column "text")` : [`i${index}`, textOf(index)],
    );
    expect(seen).toEqual(meant);
  });

  test('have ids of strings, whole numbers and UUIDs; a number that JSON cannot hold is its digits', async () => {
    const idsBy = async (idField: string) =>
      (await records(fixture('types.parquet'), { idField }))
        .slice(0, 2)
        .map((record) => ('id' in record ? record.id : record));
    expect(await idsBy('key')).toEqual(['k0', 'k1']);
    expect(await idsBy('number')).toEqual([0, 1]);
    expect(await idsBy('uid')).toEqual([
      '00000000-0000-0000-0000-000000000000',
      '01010101-0101-0101-0101-010101010101',
    ]);
    expect(await idsBy('big')).toEqual(['1152921504606846976', '1152921504606846977']);
    expect((await records(fixture('types.parquet'), { textField: 'place.name.c' }))[3]).toMatchObject({ text: 's3' });
  });

  test.each<[string, object, string]>([
    [
      'a column that is not there',
      { textField: 'body' },
      'the file has no column "body" (it has "key", "number", "text"',
    ],
    ['a nested column', { textField: 'tags' }, 'the column "tags" is nested (a list, a map or a struct)'],
    ['a struct', { textField: 'place' }, 'name a member: "place.x", "place.name.c"'],
    ['numbers', { textField: 'number' }, 'the column "number" holds unsigned integer (int32) and no strings'],
    ['a time', { textField: 'at' }, 'the column "at" holds timestamp (int64) and no strings'],
    ['an id of decimals', { idField: 'price' }, 'the column "price" holds decimal'],
  ])('are refused by name: %s', async (_, fields, message) => {
    await expect(records(fixture('types.parquet'), fields)).rejects.toThrow(message);
  });

  test('of a name that two columns have are not guessed', async () => {
    await expect(records(fixture('twice.parquet'))).rejects.toThrow('the file has several columns "text"');
  });

  test('an encrypted file, an encrypted column, a cut file and another one are named', async () => {
    await expect(records(fixture('encrypted.parquet'))).rejects.toThrow('the Parquet file is encrypted');
    await expect(records(fixture('encrypted-column.parquet'))).rejects.toThrow('is encrypted, and no key can be given');
    const cut = join(folder, 'cut.parquet');
    writeFileSync(cut, (await readFile(fixture('types.parquet'))).subarray(0, 5_000));
    await expect(records(cut)).rejects.toThrow('the Parquet file is cut: it ends without the footer');
    writeFileSync(cut, 'text\nhello\n');
    await expect(records(cut)).rejects.toThrow('it is no Parquet file: it does not begin with PAR1');
  });

  test('of a damaged file are refused as damaged, or are those that are there', async () => {
    const damaged = join(folder, 'damaged.parquet');
    const sound = await readFile(fixture('codec-pages.parquet'));
    let refused = 0;
    const others: unknown[] = [];
    for (let seed = 1; seed <= 40; seed++) {
      const bytes = Buffer.from(sound);
      const at = Math.imul(seed, 2_654_435_761) >>> 0;
      bytes[at % bytes.length]! ^= 1 << (seed % 8);
      writeFileSync(damaged, bytes);
      const found = await records(damaged).catch((error: unknown) => error);
      if (isShoalError(found)) refused++;
      else if (!Array.isArray(found) || found.length !== ROWS) others.push(found);
    }
    expect(others).toEqual([]);
    expect(refused).toBeGreaterThan(10);
  });

  test('of a page whose header has a number of 64 bits in the place of one of 32 are refused as damaged', async () => {
    const damaged = join(folder, 'damaged.parquet');
    const sound = await readFile(fixture('codec-pages.parquet'));
    const [I32, I64] = [0x15, 0x16]; // the head of a field after its predecessor, in Thrift's compact form
    const found = [];
    for (const at of Array.from({ length: 16 }, (_, byte) => 4 + byte).filter((byte) => sound[byte] === I32)) {
      writeFileSync(damaged, Buffer.from(sound.with(at, I64)));
      found.push(await records(damaged).catch((error: unknown) => isShoalError(error) && error.code));
    }
    expect(found).toContain('FILE_UNREADABLE');
    expect(found.filter((one) => !Array.isArray(one) && one !== 'FILE_UNREADABLE')).toEqual([]);
  });
});

/** With a Python that has them, or can be given them. */
const nightly = process.env['SHOAL_TEST_NIGHTLY'] === undefined ? test.skip : test;
nightly('(nightly: pyarrow, pandas, DuckDB and Polars) read the columns with their types and the vectors', async () => {
  const python = join(folder, 'venv/bin/python');
  execFileSync('python3', ['-m', 'venv', join(folder, 'venv')]);
  execFileSync(python, ['-m', 'pip', 'install', '-q', 'pyarrow', 'pandas', 'duckdb', 'polars'], { stdio: 'inherit' });
  const out = join(folder, 'out.parquet');
  writeFileSync(out, (await embedded(await formOf(fixture('types.parquet')))).bytes);
  const script = `
import sys, pyarrow.parquet as pq, pandas, duckdb, polars
before, now = pq.read_table(sys.argv[1]), pq.read_table(sys.argv[2])
assert now.column_names == before.column_names + ['embedding']
for name in before.column_names:
    assert before.schema.field(name) == now.schema.field(name), name
    assert before[name].equals(now[name]), name
vectors = now['embedding'].to_pylist()
assert [at for at, one in enumerate(vectors) if one is None] == ${JSON.stringify(NULLS)}
assert vectors[2] == [2, -0.5, 0.3333333432674408]
assert len(pandas.read_parquet(sys.argv[2])) == ${ROWS}
assert duckdb.sql(f"select typeof(embedding), count(embedding) from '{sys.argv[2]}' group by 1").fetchall()[-1][0] == 'FLOAT[]'
assert polars.read_parquet(sys.argv[2], columns=['embedding']).dtypes == [polars.List(polars.Float32)]
`;
  execFileSync(python, ['-c', script, fixture('types.parquet'), out], { stdio: 'inherit' });
});

test('the footer of a file that is not finished yet cannot be read by accident', async () => {
  const { bytes } = await embedded(await formOf(fixture('types.parquet')), { stopAt: 40 });
  writeFileSync(join(folder, 'unfinished'), bytes);
  const file = await open(join(folder, 'unfinished'));
  await expect(readFooter(file, 'unfinished')).rejects.toThrow('is cut');
  await file.close();
});
