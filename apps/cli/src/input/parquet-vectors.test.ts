// Vectors of Parquet files that pyarrow, DuckDB and Polars wrote (fixtures/parquet-vectors/make.py), and of those that
// `shoal embed` writes.

import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { openEncoder } from '../output/row-encoder.ts';
import type { RowForm } from '@shoal/worker/files/row-form';
import { hasParquetVectors, parquetVectors, type VectorColumns } from './parquet-vectors.ts';

const FIXTURES = join(import.meta.dirname, '../../fixtures/parquet-vectors');
const fixture = (name: string): string => join(FIXTURES, `${name}.parquet`);
const folder = mkdtempSync(join(tmpdir(), 'shoal-vectors-'));
afterAll(() => rmSync(folder, { recursive: true }));

const MODEL = 'minilm@53aa51172d14';
const VALUES = Array.from({ length: 120 }, (_, at) => at / 8);
const KEYS = Array.from({ length: 30 }, (_, row) => `v${row}`);

async function collected(path: string, columns: VectorColumns = {}) {
  const all = { dims: 0, values: [] as number[], names: [] as string[], model: undefined as string | undefined };
  for await (const { dims, vectors, names, model } of parquetVectors(path, columns)) {
    all.dims = dims;
    all.values.push(...vectors);
    all.names.push(...(names ?? []));
    all.model = model;
  }
  return all;
}

/** As `shoal embed` writes them: 3,000 rows of two dimensions. */
async function written(dtype: 'f32' | 'f16' | 'i8' | 'binary') {
  const form: RowForm = { format: 'parquet', dims: 2, hasIds: true, withText: true, dtype, model: MODEL };
  const encoder = await openEncoder(form);
  const records = Array.from({ length: 3_000 }, (_, index) => ({ id: `r${index}`, index, text: 't' }));
  const vectors = Float32Array.from(records.flatMap(({ index }) => [1 + (index % 7), -127 / 128]));
  const parts = [encoder.head(0)];
  for await (const { bytes } of encoder.encode({ records, dims: 2, vectors, position: 3_000 })) parts.push(bytes);
  for await (const { bytes } of encoder.flush()) parts.push(bytes);
  const path = join(folder, `${dtype}.parquet`);
  writeFileSync(path, Buffer.concat([...parts, encoder.tail()]));
  return { path, vectors };
}

describe('vectors of a Parquet file', () => {
  const sound = ['list', 'fixed', 'double', 'half', 'required', 'pages', 'polars', 'duckdb'];
  test.each(sound)('come with their ids: %s', async (name) => {
    expect(await collected(fixture(name), { idField: 'key' })).toMatchObject({ dims: 4, values: VALUES, names: KEYS });
    expect(await hasParquetVectors(fixture(name))).toBe(true);
  });

  test('are found by name, or because no other column could be meant', async () => {
    expect(await collected(fixture('other-name'))).toMatchObject({ values: VALUES, names: [] });
    expect(await collected(fixture('two'), { column: 'b' })).toMatchObject({ values: VALUES });
    await expect(collected(fixture('two'))).rejects.toThrow('say which one with --column a or --column b');
  });

  const refused: readonly (readonly [name: string, message: string])[] = [
    ['null-row', 'row 2 has no vector (null) in its column "embedding"'],
    ['null-value', 'row 1 has no number (null) at dimension 1'],
    ['empty', 'row 1 has a vector of no values'],
    ['two-lengths', 'row 3: the vector has 2 dimensions and those before it 4'],
    ['nan', 'row 1: it holds NaN at dimension 1'],
    ['ints', 'the column "embedding" holds lists of int64'],
    ['nested', 'the column "embedding" holds lists of lists of float'],
  ];
  test.each(refused)('are refused by their row or column: %s', async (name, message) => {
    await expect(collected(fixture(name))).rejects.toThrow(message);
  });

  test('columns that are not there, or hold no ids, are named', async () => {
    await expect(collected(fixture('list'), { column: 'body' })).rejects.toThrow('the file has no column "body"');
    await expect(collected(fixture('list'), { column: 'key' })).rejects.toThrow('the column "key" holds string');
    await expect(collected(fixture('list'), { idField: 'embedding' })).rejects.toThrow('is nested');
    await expect(collected(fixture('gone'))).rejects.toThrow('there is no such file');
  });

  test('every fixture is read or refused here', () => {
    const known = [...sound, ...refused.map(([name]) => name), 'other-name', 'two'].map((name) => `${name}.parquet`);
    expect(readdirSync(FIXTURES).filter((name) => !known.includes(name))).toEqual(['make.py']);
  });

  test.each(['f32', 'f16', 'i8'] as const)('that shoal embed wrote come back as they were: %s', async (dtype) => {
    const { path, vectors } = await written(dtype);
    const found = await collected(path);
    expect([found.dims, found.names.length, found.names[2_999], found.model]).toEqual([2, 3_000, 'r2999', MODEL]);
    const tolerance = dtype === 'i8' ? 7 / 250 : 0;
    expect(found.values.every((value, at) => Math.abs(value - vectors[at]!) <= tolerance)).toBe(true);
  });

  test('that are bits are refused', async () => {
    const { path } = await written('binary');
    await expect(collected(path)).rejects.toThrow('holds lists of unsigned integer (int32), and vectors are');
  });
});
