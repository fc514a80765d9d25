import zlib from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { decompressed } from '../input/decompress.ts';
import { readCsv } from '../input/csv.ts';
import { openEncoder } from './row-encoder.ts';
import type { Block, EncodedRows, RowForm } from '@shoal/worker/files/row-form';

const FORM: RowForm = { format: 'csv', dims: 3, hasIds: true, withText: true };
const texts = ['plain', 'a "quote", and a comma', 'two\nlines', '', ' space '];

function block(from: number, to: number, length = 1): Block {
  const rows = Array.from({ length: to - from }, (_, at) => from + at);
  return {
    records: rows.map((index) => ({ id: `i${index}`, index, text: texts[index % texts.length]!.repeat(length) })),
    dims: 3,
    vectors: Float32Array.from(rows.flatMap((row) => [row, -0.5, 1 / 3])),
    position: to,
  };
}

async function encoded(
  form: RowForm,
  ...blocks: readonly Block[]
): Promise<{ bytes: Buffer; parts: readonly EncodedRows[] }> {
  const encoder = await openEncoder(form);
  const parts: EncodedRows[] = [];
  for (const one of blocks) for await (const part of encoder.encode(one)) parts.push(part);
  for await (const part of encoder.flush()) parts.push(part);
  return { bytes: Buffer.concat([encoder.head(0), ...parts.map(({ bytes }) => bytes), encoder.tail()]), parts };
}

async function* once(bytes: Buffer): AsyncGenerator<Buffer> {
  yield bytes;
}

describe('rows of CSV', () => {
  test('read back as they are, whatever their texts have in them', async () => {
    const rows = [];
    const { bytes } = await encoded(FORM, block(0, 5));
    for await (const row of readCsv(once(bytes), { delimiter: ',' })) rows.push('fields' in row ? row.fields : row);
    expect(rows).toEqual([
      ['id', 'text', 'embedding'],
      ...texts.map((text, row) => [`i${row}`, text, `[${row},-0.5,0.33333334]`]),
    ]);
  });

  test('are called by their index where they have no ids', async () => {
    const { bytes } = await encoded({ ...FORM, hasIds: false, withText: false }, block(4, 5));
    expect(bytes.toString()).toBe('index,embedding\n4,"[4,-0.5,0.33333334]"\n');
  });
});

describe('a type of values', () => {
  test.each<[NonNullable<RowForm['dtype']>, string]>([
    ['f16', '{"id":"i2","embedding":[2,-0.5,0.33325195]}\n'],
    ['i8', `{"id":"i2","embedding":[127,-32,21],"embedding_scale":${Math.fround(2 / 127)}}\n`],
    ['binary', '{"id":"i2","embedding":[160]}\n'],
  ])('%s of JSONL', async (dtype, line) => {
    const { bytes } = await encoded({ ...FORM, format: 'jsonl', withText: false, dtype }, block(2, 3));
    expect(bytes.toString()).toBe(line);
  });

  test.each<[NonNullable<RowForm['dtype']>, string, number]>([
    ['f16', "'<f2', 'fortran_order': False, 'shape': (2, 3)", 12],
    ['i8', "'|i1', 'fortran_order': False, 'shape': (2, 3)", 6],
    ['binary', "'|u1', 'fortran_order': False, 'shape': (2, 1)", 2],
  ])('%s of .npy', async (dtype, description, bytes) => {
    const encoder = await openEncoder({ ...FORM, format: 'npy', dtype });
    expect(encoder.head(2).toString('latin1')).toContain(description);
    const [part] = encoder.encode(block(0, 2)) as readonly EncodedRows[];
    expect(part!.bytes).toHaveLength(bytes);
  });
});

describe.each(['gzip', 'zstd'] as const)('lines compressed by %s', (compression) => {
  test('are cut by their bytes alone, and read as one file by us and as parts that are whole', async () => {
    const form = { ...FORM, compression };
    const long = 12_000; // of characters: some members
    const one = await encoded(form, block(0, 60, long));
    const two = await encoded(form, block(0, 7, long), block(7, 31, long), block(31, 60, long));
    expect(two.bytes.equals(one.bytes)).toBe(true);
    expect(one.parts.length).toBeGreaterThan(1);
    expect(one.parts.reduce((sum, { rows }) => sum + rows, 0)).toBe(60);
    const parts: Buffer[] = [];
    for await (const part of decompressed(once(one.bytes), 'a.csv')) parts.push(part);
    expect(Buffer.concat(parts).equals((await encoded(FORM, block(0, 60, long))).bytes)).toBe(true);
    const inflate = compression === 'gzip' ? zlib.gunzipSync : zlib.zstdDecompressSync;
    expect(inflate(one.parts[1]!.bytes).toString()).toMatch(/^i\d+,[^]*\n$/);
  });
});
