import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { RowBatch } from '../collections/collections.ts';
import { readArrowRows, type ArrowOptions } from './arrow-rows.ts';
import { readArrowInThread } from './arrow-thread.ts';

const FIXTURES = fileURLToPath(new URL('../../fixtures/arrow/', import.meta.url));
const ROWS = Array.from({ length: 24 }, (_, i) => (i - 8) / 8);
const NAMES = ['a', 'b', 'ü', '', 'with some more than twelve bytes', '007'];

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'shoal-arrow-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

function file(name: string, content: Uint8Array): string {
  writeFileSync(join(folder, name), content);
  return join(folder, name);
}

const fixture = (name: string): Buffer => readFileSync(join(FIXTURES, name));

async function collected(batches: AsyncIterable<RowBatch>) {
  const all = { dims: 0, vectors: [] as number[], names: [] as string[], model: undefined as string | undefined };
  for await (const { dims, vectors, names, model } of batches) {
    all.dims = dims;
    all.vectors.push(...vectors);
    all.names.push(...(names ?? []));
    all.model = model;
  }
  return all;
}

const read = (name: string, options?: ArrowOptions) => collected(readArrowRows(join(FIXTURES, name), options));

const problemOf = (work: Promise<unknown>) =>
  work.then(
    () => 'none',
    (error: { code?: string; message: string }) =>
      `${error.code}: ${error.message.replace(FIXTURES, '').replace(`${folder}/`, '')}`,
  );

const SOUND = (
  'f16 f32 f64 list-f16 list-f32 list-f64 large-list-f64 batches sliced sliced-fixed zstd every-type ' +
  'every-type-lz4 polars-view id-dictionary id-large model'
)
  .split(' ')
  .map((name) => `${name}.arrow`);

const REFUSED: readonly (readonly [file: string, problem: string])[] = [
  ['null-row.arrow', 'INPUT_INVALID: null-row.arrow: row 2 has no vector (null) in its column "embedding"'],
  ['null-list.arrow', 'row 1 has no vector (null)'],
  ['null-value.arrow', 'row 1 has no number (null) at dimension 1 of its column "embedding"'],
  ['nan.arrow', 'VECTOR_INVALID: nan.arrow, row 1: it holds NaN at dimension 0'],
  [
    'two-lengths.arrow',
    'DIMENSIONS_MISMATCH: two-lengths.arrow, row 1: the vector has 1 dimensions and those before it 2',
  ],
  ['empty-list.arrow', 'row 1 has a vector of no values'],
  ['ints.arrow', 'its column "embedding" is of type FixedSizeList[4]<Int8>; vectors are lists of float16'],
  ['list-ints.arrow', 'is of type List<Int64>'],
  ['decimals.arrow', 'is of type List<Decimal[2e+1]>'],
  ['dictionary.arrow', 'is of type Dictionary<Int32, Float64>'],
  ['list-view.arrow', "a column of Arrow's type ListView, which cannot be read"],
  ['two-unnamed.arrow', 'say which one with --column title or --column body'],
  ['texts.arrow', 'none of its columns is a list of floats'],
  ['no-columns.arrow', 'it has no columns'],
  ['id-floats.arrow', 'its column "id" is of type Float64; names of rows are texts or whole numbers'],
  ['version-1.feather', 'it is a Feather file of version 1'],
];

describe('Arrow files', () => {
  test.each(SOUND)('%s gives the numbers and names that pyarrow put in', async (name) => {
    expect(await read(name)).toMatchObject({ dims: 4, vectors: ROWS, names: NAMES });
  });

  test('a stream, LZ4 and other places of the column give the same', async () => {
    for (const name of ['stream.arrows', 'lz4.feather'])
      expect(await read(name)).toMatchObject({ dims: 4, vectors: ROWS, names: NAMES });
    for (const name of ['title-first.arrow', 'vector-column.arrow', 'only-one.arrow', 'polars.arrow'])
      expect(await read(name)).toMatchObject({ dims: 4, vectors: ROWS, names: [] });
    for (const name of ['lz4-long.feather', 'zstd-long.arrow'])
      expect((await read(name)).vectors).toEqual(Array.from({ length: 400 }, () => ROWS).flat());
  });

  test('the asked column is read, whatever its place and name', async () => {
    expect((await read('title-first.arrow', { column: 'title_vec' })).vectors).toEqual(ROWS.map((value) => -value));
    expect(await problemOf(read('f32.arrow', { column: 'body' }))).toContain(
      'it has no column "body": it has id (Utf8), embedding (FixedSizeList[4]<Float32>)',
    );
    expect(await problemOf(read('f32.arrow', { column: 'id' }))).toContain('its column "id" is of type Utf8');
  });

  test('names are whole numbers with all their digits, or nothing where there is none', async () => {
    expect((await read('id-int64.arrow')).names).toEqual([
      '9223372036854775807',
      '0',
      '-1',
      '9007199254740993',
      '5',
      '6',
    ]);
    expect((await read('id-nulls.arrow')).names).toEqual(['a', '', 'c', '', 'e', 'f']);
  });

  test('the model that made the vectors comes with them', async () => {
    expect((await read('model.arrow')).model).toBe('minilm@53aa51172d14');
    expect((await read('f32.arrow')).model).toBeUndefined();
  });

  test('a table without rows is none of an error', async () => {
    expect(await read('no-rows.arrow')).toMatchObject({ vectors: [] });
  });

  test.each(REFUSED)('%s is refused by name', async (name, problem) => {
    expect(await problemOf(read(name))).toContain(problem);
  });

  test('every fixture is read or refused here', () => {
    const elsewhere = [
      'stream.arrows',
      'lz4.feather',
      'title-first.arrow',
      'vector-column.arrow',
      'only-one.arrow',
      'polars.arrow',
    ];
    const others = ['lz4-long.feather', 'zstd-long.arrow', 'id-int64.arrow', 'id-nulls.arrow', 'no-rows.arrow'];
    const known = [...SOUND, ...REFUSED.map(([name]) => name), ...elsewhere, ...others, 'README.md', 'make.py'];
    expect(readdirSync(FIXTURES).filter((name) => !known.includes(name))).toEqual([]);
  });
});

describe('files that are no Arrow, or no longer', () => {
  test('are told from each other', async () => {
    const problem = (content: string | Buffer) =>
      problemOf(collected(readArrowRows(file('x.arrow', Buffer.from(content)))));
    expect(await problem('')).toContain('it is empty');
    expect(await problem('PAR1 and more of it')).toContain('it is a Parquet file');
    expect(await problem('version https://git-lfs.github.com/spec/v1')).toContain('git lfs pull');
    expect(await problem('hello, this is text and nothing else')).toContain('it is no whole Arrow IPC file or stream');
    expect(await problem(fixture('f32.arrow').subarray(0, 600))).toContain('it was cut, or is not finished');
    expect(await problem(fixture('stream.arrows').subarray(0, 600))).toContain('it was cut');
    expect(await problem(Buffer.concat([fixture('stream.arrows'), fixture('stream.arrows')]))).toContain(
      'bytes stand behind the end of its stream',
    );
    expect(await problemOf(collected(readArrowRows(folder)))).toContain('FILE_UNREADABLE');
  });

  test('a big-endian schema is refused', async () => {
    const stream = fixture('stream.arrows');
    const [schema, layout] = schemaTable(stream);
    // pyarrow leaves the order of bytes out where it is little-endian; here its field is that of the columns, not 0.
    stream.writeUInt16LE(stream.readUInt16LE(layout + 6), layout + 4);
    expect(schema).toBeGreaterThan(0);
    expect(await problemOf(collected(readArrowRows(file('big.arrows', stream))))).toContain('big-endian');
  });

  test('a list of columns that claims more of them than there are bytes is refused at once', async () => {
    const stream = fixture('stream.arrows');
    const [schema, layout] = schemaTable(stream);
    const fields = schema + stream.readUInt16LE(layout + 6);
    stream.writeUInt32LE(0x7fff_ffff, fields + stream.readUInt32LE(fields));
    expect(await problemOf(collected(readArrowRows(file('loop.arrows', stream))))).toContain(
      'the first message is damaged: it points outside of itself',
    );
  });

  test('one changed byte never brings other values than a second reader, nor an error without a name', async () => {
    for (const name of ['f32.arrow', 'stream.arrows', 'lz4.feather', 'zstd.arrow', 'every-type-lz4.arrow'])
      for (const problem of await mutations(name, 120)) expect(problem).toMatch(/^(none|[A-Z_]+: x\.)/);
  });
});

describe('in a thread', () => {
  test('the same rows come, and the same errors', async () => {
    expect(await collected(readArrowInThread(join(FIXTURES, 'batches.arrow')))).toMatchObject({
      vectors: ROWS,
      names: NAMES,
    });
    expect(await problemOf(collected(readArrowInThread(join(FIXTURES, 'null-row.arrow'))))).toContain(
      'INPUT_INVALID: null-row.arrow: row 2 has no vector',
    );
  });

  test('one that never answers is ended, and so is one whose command was interrupted', async () => {
    const program = new URL('../testing/endless-thread.ts', import.meta.url);
    expect(await problemOf(collected(readArrowInThread('x.arrow', { program, silenceMs: 200 })))).toBe(
      'INPUT_INVALID: x.arrow: reading it came to no end: nothing for 0.2 s. It is damaged, or its record batches ' +
        'are far too large: write it again, in smaller ones',
    );
    const interruption = new AbortController();
    const reading = collected(readArrowInThread('x.arrow', { program, signal: interruption.signal }));
    interruption.abort(new Error('interrupted'));
    await expect(reading).rejects.toThrow('interrupted');
  });
});

/** Where the table of the schema and its layout stand in a stream. */
function schemaTable(stream: Buffer): readonly [schema: number, layout: number] {
  const message = 8 + stream.readUInt32LE(8);
  const header = message + stream.readUInt16LE(message - stream.readInt32LE(message) + 4 + 2 * 2);
  const schema = header + stream.readUInt32LE(header);
  return [schema, schema - stream.readInt32LE(schema)];
}

/** What is said of copies with one changed byte each, at places and by amounts that are always the same. */
async function mutations(name: string, count: number): Promise<readonly string[]> {
  const whole = fixture(name);
  const problems: string[] = [];
  for (let i = 0; i < count; i++) {
    const changed = Buffer.from(whole);
    changed[(i * 7_919) % whole.length]! ^= 1 + ((i * 104_729) % 255);
    problems.push(await problemOf(collected(readArrowRows(file(`x.${name}`, changed)))));
  }
  return problems;
}
