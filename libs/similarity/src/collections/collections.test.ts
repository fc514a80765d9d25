import { mkdtempSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { buildCandidates, canFindCandidates, checkRecall, openCandidates, searchCandidates } from './candidates.ts';
import {
  appendToCollection,
  checkCollection,
  collectionInfo,
  createCollection,
  listCollections,
  openCollection,
  removeCollection,
  type RowBatch,
} from './collections.ts';
import { openCollectionRows } from './collection-rows.ts';
import { hitsOf } from '../engines/best-rows.ts';
import { openKernels } from '../engines/kernels.ts';
import { nativeAddon, nativeProblem } from '../engines/native-addon.ts';
import { matrixOf, ROW_TYPES, rowReader } from '../engines/vectors.ts';
import { residentBytes } from './open-collection.ts';
import { workBytes } from '../engines/work-bytes.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'shoal-collections-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const kernels = openKernels();
const codeOf = (work: Promise<unknown>) =>
  work.then(
    () => 'no error',
    (error: { code?: string }) => error.code,
  );

/** Row r is all around r, so that every row is nearest to itself. */
function rows(count: number, dims = 8, from = 0): RowBatch {
  return {
    dims,
    vectors: Float32Array.from(
      { length: count * dims },
      (_, i) => Math.sin(i * 1.7 + from) + (i % dims === 0 ? from + Math.floor(i / dims) : 0),
    ),
    names: Array.from({ length: count }, (_, row) => `row ${from + row}`),
  };
}

const messageOf = (work: Promise<unknown>) => work.then(String, (error: Error) => error.message);
const scaled = (factor: number) => ({ dims: 8, vectors: rows(20).vectors.map((value) => value * factor) });
const pathOf = (version: number, name = 'docs') => join(folder, name, `${version}.shc`);

const of = (model?: string, from = 0): RowBatch => ({
  ...rows(2, 8, from),
  ...(model === undefined ? {} : { model }),
});
const modelOf = async () => (await openCollection(folder, 'docs')).about.model;

describe('the model of a collection', () => {
  test('is what its rows say, or what is said of all of them, and never of some', async () => {
    for (const [batches, about, model] of [
      [[of('a@1'), of('a@1')], {}, 'a@1'],
      [[of('a'), of('a@1')], {}, 'a@1'],
      [[of('a@1'), of()], {}, undefined],
      [[of(), of('a@1')], {}, undefined],
      [[of()], { model: 'a' }, 'a'],
      [[of('a@1'), of()], { model: 'a' }, 'a@1'],
    ] as const) {
      await createCollection(folder, 'docs', batches, { about });
      expect(await modelOf()).toBe(model);
    }
    for (const [batches, about] of [
      [[of('a@1'), of('b@1')], {}],
      [[of('a@1'), of('a@2')], {}],
      [[of('a@1')], { model: 'b' }],
    ] as const)
      expect(await codeOf(createCollection(folder, 'docs', batches, { about }))).toBe('DIMENSIONS_MISMATCH');
  });

  test('stays through appending only where the new rows are known to be of it', async () => {
    await createCollection(folder, 'docs', [of('a@1')]);
    for (const bad of [of('b@1'), of('a@2'), of()])
      expect(await codeOf(appendToCollection(folder, 'docs', [bad]))).toBe('DIMENSIONS_MISMATCH');
    await appendToCollection(folder, 'docs', [of('a@1')]);
    await appendToCollection(folder, 'docs', [of()], { about: { model: 'a' } });
    expect(await modelOf()).toBe('a@1');
    await createCollection(folder, 'docs', [of()]);
    await appendToCollection(folder, 'docs', [of('a@1')], { about: { model: 'a@1', note: 'x' } });
    expect((await openCollection(folder, 'docs')).about).toEqual({ note: 'x' });
  });
});

describe('a collection', () => {
  test.each(ROW_TYPES)('comes back as %s: values, names, what is known of it, and the nearest rows', async (dtype) => {
    const given = rows(100);
    const info = await createCollection(folder, 'docs', [rows(60), rows(40, 8, 60)], {
      dtype,
      about: { model: 'tiny@1' },
    });
    const collection = await openCollection(folder, 'docs');
    expect(info).toMatchObject({ name: 'docs', version: 1, rows: 100, dims: 8, dtype, versions: [1] });
    expect(collection).toMatchObject({
      version: 1,
      rows: 100,
      dims: 8,
      dtype,
      about: { model: 'tiny@1' },
      isMapped: nativeAddon() !== undefined,
    });
    expect([collection.names!(0), collection.names!(99), residentBytes(collection)]).toEqual([
      'row 0',
      'row 99',
      info.bytes,
    ]);
    expect(collection.block.strideBytes % 64).toBe(0);
    const read = rowReader(collection.block);
    const close = { f32: 0, f16: 1e-3, i8: 1 / 127 }[dtype];
    for (let row = 0; row < 60; row++) {
      const largest = Math.max(...given.vectors.subarray(row * 8, row * 8 + 8).map(Math.abs));
      read(row).forEach((value, d) =>
        expect(Math.abs(value - given.vectors[row * 8 + d]!)).toBeLessThanOrEqual(close * largest),
      );
    }
    const found = await kernels.topK(matrixOf(given.vectors.slice(0, 3 * 8), 8), collection.block, {
      k: 1,
      metric: 'l2',
    });
    expect([0, 1, 2].map((query) => hitsOf(found, query).ids[0])).toEqual([0n, 1n, 2n]);
  });

  test('ids are the caller’s, and rise', async () => {
    await createCollection(folder, 'docs', [
      { dims: 2, vectors: Float32Array.of(1, 0, 0, 1), ids: BigUint64Array.of(7n, 2n ** 60n) },
    ]);
    const { block } = await openCollection(folder, 'docs');
    expect(
      hitsOf(await kernels.topK(matrixOf(Float32Array.of(0, 1), 2), block, { k: 2, metric: 'dot' }), 0).ids,
    ).toEqual(BigUint64Array.of(2n ** 60n, 7n));
    await appendToCollection(folder, 'docs', [{ dims: 2, vectors: Float32Array.of(1, 1) }]);
    expect((await openCollection(folder, 'docs')).block.ids).toEqual(BigUint64Array.of(7n, 2n ** 60n, 2n ** 60n + 1n));
    expect(
      await codeOf(
        appendToCollection(folder, 'docs', [{ dims: 2, vectors: Float32Array.of(1, 1), ids: BigUint64Array.of(3n) }]),
      ),
    ).toBe('INPUT_INVALID');
  });

  test('grows by versions: who reads one keeps it, the newest is opened, old ones go', async () => {
    await createCollection(folder, 'docs', [rows(3)]);
    const first = await openCollection(folder, 'docs');
    expect(await appendToCollection(folder, 'docs', [rows(2, 8, 3)])).toMatchObject({
      version: 2,
      rows: 5,
      versions: [2, 1],
    });
    expect(await appendToCollection(folder, 'docs', [rows(1, 8, 5)])).toMatchObject({
      version: 3,
      rows: 6,
      versions: [3, 2],
    });
    const third = await openCollection(folder, 'docs');
    expect([third.rows, third.names!(0), third.names!(5)]).toEqual([6, 'row 0', 'row 5']);
    expect(await codeOf(openCollection(folder, 'docs@1'))).toBe('COLLECTION_GONE');
    expect((await openCollection(folder, 'docs@2')).rows).toBe(5);
    const query = matrixOf(rows(1).vectors, 8);
    expect(hitsOf(await kernels.topK(query, first.block, { k: 9, metric: 'l2' }), 0).ids).toEqual(
      hitsOf(await kernels.topK(query, first.block, { k: 3, metric: 'l2' }), 0).ids,
    );
    first.checkIntact();
    expect(await removeCollection(folder, 'docs')).toEqual([3, 2]);
    expect(hitsOf(await kernels.topK(query, third.block, { k: 1, metric: 'l2' }), 0).ids).toEqual(
      BigUint64Array.of(0n),
    );
    expect(await codeOf(openCollection(folder, 'docs'))).toBe('COLLECTION_UNKNOWN');
    expect(await listCollections(folder)).toEqual([]);
  });

  test('takes all rows of writers that come at once', async () => {
    await createCollection(folder, 'docs', [rows(1)]);
    await Promise.all([1, 2, 3].map((writer) => appendToCollection(folder, 'docs', [rows(2, 8, 10 * writer)])));
    const { rows: count, names, version } = await openCollection(folder, 'docs');
    expect([count, version, Array.from({ length: count }, (_, row) => names!(row)).sort()]).toEqual([
      7,
      4,
      ['row 0', 'row 10', 'row 11', 'row 20', 'row 21', 'row 30', 'row 31'],
    ]);
  });

  test('is not there when its source fails, nor is half of it', async () => {
    function* failing() {
      yield rows(5);
      throw new Error('the reader broke');
    }
    await expect(createCollection(folder, 'docs', failing())).rejects.toThrow('the reader broke');
    const abort = new AbortController();
    await expect(
      createCollection(folder, 'docs', [rows(5), rows(5)], {
        signal: abort.signal,
        onRows: () => abort.abort(new Error('enough')),
      }),
    ).rejects.toThrow('enough');
    expect(readdirSync(folder)).toEqual([]);
    await createCollection(folder, 'docs', [rows(5)]);
    await expect(appendToCollection(folder, 'docs', failing())).rejects.toThrow('the reader broke');
    expect(readdirSync(join(folder, 'docs'))).toEqual(['1.shc']);
  });

  test('may be empty, and then says so when it is searched', async () => {
    await createCollection(folder, 'docs', [], { dims: 8 });
    const { block } = await openCollection(folder, 'docs');
    expect(await codeOf(kernels.topK(matrixOf(rows(1).vectors, 8), block, { k: 1, metric: 'dot' }))).toBe(
      'COLLECTION_EMPTY',
    );
    expect(await codeOf(createCollection(folder, 'none', []))).toBe('COLLECTION_EMPTY');
    expect((await appendToCollection(folder, 'docs', [rows(2)])).rows).toBe(2);
  });
});

describe('what cannot be a collection is refused by its code', () => {
  test('names, versions, dimensions and values', async () => {
    expect(await codeOf(openCollection(folder, 'nobody'))).toBe('COLLECTION_UNKNOWN');
    for (const name of ['../up', '', '.hidden', 'a b', 'docs@0', 'docs@x', 'docs@1@2'])
      expect(await codeOf(openCollection(folder, name))).toBe('COLLECTION_UNKNOWN');
    expect(await codeOf(createCollection(folder, 'docs', [rows(2), rows(2, 9)]))).toBe('DIMENSIONS_MISMATCH');
    expect(await codeOf(createCollection(folder, 'docs', [{ dims: 3, vectors: Float32Array.of(1, 2) }]))).toBe(
      'DIMENSIONS_MISMATCH',
    );
    for (const bad of [NaN, Infinity, 1e20])
      expect(await codeOf(createCollection(folder, 'docs', [{ dims: 2, vectors: Float32Array.of(1, bad) }]))).toBe(
        'VECTOR_INVALID',
      );
    expect(
      await codeOf(createCollection(folder, 'docs', [{ dims: 1, vectors: Float32Array.of(1e5) }], { dtype: 'f16' })),
    ).toBe('VECTOR_INVALID');
    expect(await codeOf(createCollection(folder, 'docs', [rows(1)], { dtype: 'f64' as 'f32' }))).toBe('SEARCH_INVALID');
  });

  test('rows that would be others as f16 or i8, with their number and what to do', async () => {
    for (const [factor, dtype] of [
      [1e-8, 'f16'],
      [1e-6, 'f16'],
      [1e5, 'f16'],
    ] as const)
      expect(await messageOf(createCollection(folder, 'x', [rows(3), scaled(factor)], { dtype }))).toMatch(
        /^\d+ of the 20 rows from 3 on \(\d+.*\) would be others as f16: the least cosine .* \(--dtype f32\)/,
      );
    const spiked = { dims: 2_000, vectors: Float32Array.from({ length: 2_000 }, (_, i) => (i === 0 ? 300 : 1)) };
    expect(await messageOf(createCollection(folder, 'x', [spiked], { dtype: 'i8' }))).toContain(
      '1 of the 1 rows from 0 on (0) would be others as i8',
    );
    for (const dtype of ['f16', 'i8'] as const)
      for (const factor of dtype === 'i8' ? [1e-8, 1e-3, 1, 1e10] : [1e-3, 1, 100])
        expect(
          await createCollection(folder, 'y', [scaled(factor), { dims: 8, vectors: new Float32Array(8) }], { dtype }),
        ).toMatchObject({ rows: 21 });
  });

  test('files with a right checksum whose sections, ids, names, lengths or scales contradict each other', async () => {
    const ids = BigUint64Array.from({ length: 50 }, (_, row) => BigInt(2 * row));
    await createCollection(folder, 'docs', [{ ...rows(50), ids }], { dtype: 'i8' });
    const whole = readFileSync(pathOf(1));
    const place = (section: number) => Number(whole.readBigUInt64LE(48 + 8 * section));
    const [, scales, lengths, idsAt, names, about] = [0, 1, 2, 3, 4, 5].map(place) as number[];
    const changes: Readonly<Record<string, (file: Buffer) => void>> = {
      flags: (file) => file.writeUInt8(file[9]! | 4, 9),
      reserved: (file) => file.writeUInt16LE(1, 10),
      version: (file) => file.writeBigUInt64LE(0n, 32),
      time: (file) => file.writeDoubleLE(NaN, 40),
      dims: (file) => file.writeUInt32LE(7_000, 12),
      rows: (file) => file.writeBigUInt64LE(2n ** 63n, 16),
      'more rows': (file) => file.writeBigUInt64LE(51n, 16),
      'rows before': (file) => file.writeBigUInt64LE(64n, 48),
      ...Object.fromEntries(
        ['rows', 'scales', 'lengths', 'ids', 'names', 'about'].map((section, i) => [
          `${section} off their place`,
          (file: Buffer) => file.writeBigUInt64LE(BigInt(place(i) + 1), 48 + 8 * i),
        ]),
      ),
      'a scale': (file) => file.writeFloatLE(-1, scales!),
      'a length': (file) => file.writeFloatLE(Infinity, lengths! + 4),
      'an id': (file) => file.writeBigUInt64LE(0n, idsAt! + 8),
      'a name': (file) => file.writeBigUInt64LE(2n ** 62n, names! + 8),
      'the last name': (file) => file.writeBigUInt64LE(BigInt(about!), names! + 8 * 50),
      about: (file) => file.write('[]', about!),
    };
    for (const [what, change] of Object.entries(changes)) {
      const changed = Buffer.from(whole);
      change(changed);
      changed.writeUInt32LE(crc32(changed.subarray(4_096)), 104);
      changed.writeUInt32LE(crc32(changed.subarray(0, 108)), 108);
      writeFileSync(pathOf(1), changed);
      for (const map of [true, false])
        expect(`${what}: ${await codeOf(openCollection(folder, 'docs', { map }))}`).toBe(`${what}: COLLECTION_CORRUPT`);
    }
  });

  test('every changed byte of a file, and every cut', async () => {
    await createCollection(folder, 'docs', [rows(50)], { dtype: 'i8' });
    const whole = readFileSync(pathOf(1));
    for (const at of [0, 9, 12, 20, 47, 100, 107, 4_096, 4_100, 6_000, whole.length - 1]) {
      const changed = Buffer.from(whole);
      changed[at]! ^= 1;
      writeFileSync(pathOf(1), changed);
      expect(`${at}: ${await codeOf(openCollection(folder, 'docs'))}`).toBe(`${at}: COLLECTION_CORRUPT`);
      expect(`${at}: ${await codeOf(checkCollection(folder, 'docs'))}`).toBe(`${at}: COLLECTION_CORRUPT`);
    }
    for (const bytes of [0, 10, 4_095, 4_096, whole.length - 1]) {
      writeFileSync(pathOf(1), whole.subarray(0, bytes));
      expect(`${bytes}: ${await codeOf(openCollection(folder, 'docs', { map: bytes % 2 === 0 }))}`).toBe(
        `${bytes}: COLLECTION_CORRUPT`,
      );
    }
    expect(await listCollections(folder)).toEqual([
      { name: 'docs', error: expect.objectContaining({ code: 'COLLECTION_CORRUPT' }) },
    ]);
    writeFileSync(pathOf(1), whole);
    expect(await checkCollection(folder, 'docs')).toMatchObject({ rows: 50, version: 1 });
    expect(await collectionInfo(folder, 'docs@1')).toMatchObject({ rows: 50, dtype: 'i8' });
  });

  test.each([
    ['lengths that begin between two numbers', 64, -2n],
    ['ids that begin between two numbers', 72, -4n],
    ['rows that begin inside the header', 48, -4_096n],
  ])('a right checksum over %s', async (_, at, by) => {
    await createCollection(folder, 'docs', [{ ...rows(3), ids: BigUint64Array.of(1n, 2n, 3n) }]);
    const bytes = readFileSync(pathOf(1));
    bytes.writeBigUInt64LE(bytes.readBigUInt64LE(at) + by, at);
    bytes.writeUInt32LE(crc32(bytes.subarray(0, 108)), 108);
    writeFileSync(pathOf(1), bytes);
    for (const map of [true, false])
      expect(await codeOf(openCollection(folder, 'docs', { map }))).toBe('COLLECTION_CORRUPT');
  });

  test('a right checksum over names that end before they begin', async () => {
    await createCollection(folder, 'docs', [{ ...rows(2), names: ['one', 'two'] }]);
    const bytes = readFileSync(pathOf(1));
    bytes.writeBigUInt64LE(5_000n, Number(bytes.readBigUInt64LE(80)) + 8);
    bytes.writeUInt32LE(crc32(bytes.subarray(4_096)), 104);
    bytes.writeUInt32LE(crc32(bytes.subarray(0, 108)), 108);
    writeFileSync(pathOf(1), bytes);
    expect(await codeOf(openCollection(folder, 'docs'))).toBe('COLLECTION_CORRUPT');
    const { names } = await openCollection(folder, 'docs', { verify: false });
    expect(() => names!(0)).toThrow(/the name of row 0 is not where it should be/);
    expect(() => names!(1)).toThrow(/the name of row 1/);
  });

  test('names are read by id from the file, one by one', async () => {
    const ids = BigUint64Array.of(3n, 10n, 2n ** 60n, 2n ** 60n + 1n);
    await createCollection(folder, 'docs', [{ ...rows(4), names: ['a', 'ü', '', 'last'], ids }]);
    const open = await openCollectionRows(folder, 'docs@1');
    expect(await open.names!(BigUint64Array.of(2n ** 60n + 1n, 3n, 2n ** 60n, 10n))).toEqual(['last', 'a', '', 'ü']);
    await open.close();
    await createCollection(folder, 'plain', [{ dims: 8, vectors: rows(2).vectors }]);
    const plain = await openCollectionRows(folder, 'plain@1');
    expect(plain.names).toBeUndefined();
    await plain.close();
  });

  test('a file that is cut while it is searched: the process lives, and nobody gets an answer', async () => {
    if (nativeAddon() === undefined) return console.warn(`not mapped here, so nothing can be cut: ${nativeProblem()}`);
    await createCollection(folder, 'docs', [rows(5_000)]);
    const collection = await openCollection(folder, 'docs', { verify: false });
    truncateSync(pathOf(1), 8_192);
    const query = matrixOf(rows(1).vectors, 8);
    expect(await codeOf(kernels.topK(query, collection.block, { k: 3, metric: 'dot' }))).toBe('COLLECTION_CORRUPT');
    expect(await codeOf(openKernels({ isa: 'plain' }).topK(query, collection.block, { k: 3, metric: 'dot' }))).toBe(
      'COLLECTION_CORRUPT',
    );
    expect(() => collection.checkIntact()).toThrow('it was cut while it was open');
  });
});

describe('candidates', async () => {
  const canFind = await canFindCandidates();
  if (!canFind) console.warn('usearch does not load here: approximate search is not tested');

  test.skipIf(!canFind)('are found beside their version, scored exactly, and their recall is measured', async () => {
    const dims = 16;
    await createCollection(
      folder,
      'docs',
      [{ dims, vectors: Float32Array.from({ length: 500 * dims }, (_, i) => Math.sin(i * i)) }],
      { dtype: 'f16' },
    );
    const collection = await openCollection(folder, 'docs');
    expect(await openCandidates(folder, collection)).toBeUndefined();
    const candidates = await buildCandidates(folder, collection);
    const recall = await checkRecall(folder, kernels, collection, candidates, { sample: 100 });
    expect(recall).toMatchObject({ k: 10, sample: 100 });
    expect(recall.recall).toBeGreaterThan(0.9);
    const opened = await openCandidates(folder, collection);
    expect(opened?.measured).toEqual(recall);
    const query = matrixOf(
      Float32Array.from({ length: dims }, (_, i) => Math.cos(i)),
      dims,
    );
    const [found, exact] = await Promise.all([
      searchCandidates(kernels, collection, opened!, query, { k: 5, metric: 'cosine' }),
      kernels.topK(query, collection.block, { k: 5, metric: 'cosine' }),
    ]);
    expect(hitsOf(found, 0)).toEqual(hitsOf(exact, 0));
    writeFileSync(join(folder, 'docs', '1.cosine.hnsw'), 'damaged');
    expect(await openCandidates(folder, collection)).toBeUndefined();
    await removeCollection(folder, 'docs');
    expect(readdirSync(folder)).toEqual([]);
  });
});

test('memory beside the rows is less with smaller tiles and fewer threads', () => {
  const size = { queries: 100, dims: 384, k: 5_000, threads: 2 };
  expect(workBytes(size, 1_000)).toBeLessThan(workBytes(size, 10_000));
  expect(workBytes({ ...size, threads: 1 }, 10_000)).toBeLessThan(workBytes(size, 10_000));
});
