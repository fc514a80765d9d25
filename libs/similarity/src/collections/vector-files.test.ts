import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import {
  Field,
  FixedSizeList,
  Float32,
  List,
  makeData,
  RecordBatch,
  Schema,
  Struct,
  Table,
  tableToIPC,
  Utf8,
  vectorFromArray,
} from 'apache-arrow';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { RowBatch } from './collections.ts';
import { graphInfo, listGraphs, openGraph, removeGraph, saveGraph } from '../graphs/graph-file.ts';
import { graphFromEdges } from '../graphs/graph.ts';
import { readVectors, type VectorFileOptions } from './vector-files.ts';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'shoal-vectors-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

function file(name: string, content: string | Uint8Array): string {
  writeFileSync(join(folder, name), content);
  return join(folder, name);
}

function npy(descr: string, shape: string, values: Uint8Array, order = 'False'): Buffer {
  const description = `{'descr': '${descr}', 'fortran_order': ${order}, 'shape': (${shape}), }`.padEnd(117) + '\n';
  const head = Buffer.alloc(10);
  head.write('\x93NUMPY\x01\x00', 'latin1');
  head.writeUInt16LE(description.length, 8);
  return Buffer.concat([head, Buffer.from(description), values]);
}

const bytes = (values: Float32Array | Float64Array | Uint16Array | BigInt64Array | Int32Array) =>
  new Uint8Array(values.buffer);

async function all(path: string, options: VectorFileOptions = {}) {
  const batches: RowBatch[] = [];
  for await (const batch of readVectors(path, options)) batches.push(batch);
  return {
    dims: batches[0]?.dims,
    vectors: batches.flatMap(({ vectors }) => [...vectors]),
    names: batches.flatMap(({ names }) => names ?? []),
  };
}

const problemOf = (work: Promise<unknown>) =>
  work.then(
    () => 'none',
    (error: { code?: string; message: string }) => `${error.code}: ${error.message.replace(folder, '')}`,
  );

describe('vectors from files', () => {
  test('.npy of half, single and double floats', async () => {
    expect(await all(file('f4.npy', npy('<f4', '2, 3', bytes(Float32Array.of(1, 2, 3, 4, 5, 6)))))).toEqual({
      dims: 3,
      vectors: [1, 2, 3, 4, 5, 6],
      names: [],
    });
    expect(await all(file('f8.npy', npy('<f8', '1, 2', bytes(Float64Array.of(0.5, -2)))))).toMatchObject({
      dims: 2,
      vectors: [0.5, -2],
    });
    expect(await all(file('f2.npy', npy('<f2', '1, 3', bytes(Uint16Array.of(0x3c00, 0xc000, 0x0001)))))).toMatchObject({
      vectors: [1, -2, 2 ** -24],
    });
    expect(await all(file('none.npy', npy('<f4', '0, 3', new Uint8Array())))).toEqual({
      dims: undefined,
      vectors: [],
      names: [],
    });
  });

  test('.npy of one dimension is one row, and the order of columns is followed', async () => {
    expect(await all(file('one.npy', npy('<f4', '3,', bytes(Float32Array.of(1, 2, 3)))))).toEqual({
      dims: 3,
      vectors: [1, 2, 3],
      names: [],
    });
    // As numpy.save writes x.T: the first column, then the second.
    expect(
      await all(file('t.npy', npy('<f8', '3, 2', bytes(Float64Array.of(1, 2, 3, 4, 5, 6)), 'True'))),
    ).toMatchObject({ dims: 2, vectors: [1, 4, 2, 5, 3, 6] });
    const many = Float32Array.from({ length: 3_000 * 700 }, (_, i) => i);
    const { vectors } = await all(file('many.npy', npy('<f4', '3000, 700', bytes(many), 'True')));
    expect(vectors.every((value, i) => value === (i % 700) * 3_000 + Math.floor(i / 700))).toBe(true);
  });

  test('.npy headers of versions 2 and 3 are read, in any order and spacing', async () => {
    for (const version of [2, 3]) {
      const description = `{"shape":(1,2,),  'fortran_order':False, 'descr':"<f4"}\n`;
      const head = Buffer.alloc(12);
      head.write('\x93NUMPY', 'latin1');
      head.writeUInt8(version, 6);
      head.writeUInt32LE(description.length, 8);
      const whole = Buffer.concat([head, Buffer.from(description), bytes(Float32Array.of(1, 2))]);
      expect(await all(file('version.npy', whole))).toMatchObject({ dims: 2, vectors: [1, 2] });
    }
  });

  test('what is no such .npy is refused with what was found', async () => {
    const problem = (name: string, content: string | Uint8Array) => problemOf(all(file(`${name}.npy`, content)));
    const one = bytes(Float32Array.of(1));
    expect(await problem('short', npy('<f4', '2, 3', one))).toBe(
      'INPUT_INVALID: /short.npy: it ends before its last row: 152 bytes are announced, 132 are there',
    );
    expect(await problem('long', npy('<f4', '1, 1', bytes(Float32Array.of(1, 2))))).toContain(
      '4 bytes stand behind its last row, another array perhaps: one file holds one array',
    );
    expect(await problem('big', npy('>f4', '1, 1', one))).toContain(
      'it holds floats (\'>f4\') in big-endian order; save it with x.astype(x.dtype.newbyteorder("<"))',
    );
    for (const [descr, what] of Object.entries({
      '<i4': 'integers',
      '|i1': 'integers',
      '|u1': 'unsigned integers',
      '|b1': 'booleans',
      '<c8': 'complex numbers',
      '|O': 'Python objects',
      '<U3': 'texts',
      '<f16': 'floats',
      '|V2': 'bytes without a type (bfloat16 perhaps)',
    }))
      expect(await problem('type', npy(descr, '1, 1', one))).toContain(
        `it holds ${what} ('${descr}'); vectors are float16, float32 or float64: save it with x.astype("float32")`,
      );
    expect(await problem('cube', npy('<f4', '1, 1, 1', one))).toContain('it has the shape (1, 1, 1); rows × columns');
    expect(await problem('point', npy('<f4', '', one))).toContain('it has the shape ()');
    expect(await problem('huge', npy('<f4', '9007199254740991, 9007199254740991', one))).toContain('it has the shape');
    expect(await problem('shape', npy('<f4', '1, x', one))).toContain('its header is damaged');
    const records = npy('<f4', '1,', one)
      .toString('latin1')
      .replace("'<f4'", "[('a', '<f4')]")
      .replace('         ', '');
    expect(await problem('records', Buffer.from(records, 'latin1'))).toContain('it holds records of several fields');
    expect(await problem('zip', 'PK\x03\x04 and an archive behind it')).toContain('it is a .npz archive');
    expect(await problem('lfs', 'version https://git-lfs.github.com/spec/v1')).toContain('git lfs pull');
    expect(await problem('text', 'hello, this is text')).toContain('no .npy file');
    expect(await problem('none', '')).toContain('no .npy file');
    expect(await problemOf(all(join(folder, 'absent.npy')))).toBe(
      'FILE_UNREADABLE: cannot read /absent.npy: there is no such file',
    );
    expect(() => readVectors('x.npz')).toThrow('a .npz archive holds several arrays');
    expect(() => readVectors('x.npy', { column: 'a' })).toThrow('--column names a column of an Arrow file');
  });

  test('rows that cannot be compared are refused by file and row, in every format', async () => {
    const rows = Float64Array.of(1, 2, 0, 0, 1e-60, 0);
    expect(await problemOf(all(file('tiny.npy', npy('<f8', '3, 2', bytes(rows)))))).toBe(
      'VECTOR_INVALID: /tiny.npy, row 2: its largest number is 1e-60, so that fp32 has no direction for it; bring ' +
        'the rows to length 1 before they are written',
    );
    expect(await problemOf(all(file('nan.npy', npy('<f4', '2, 1', bytes(Float32Array.of(1, NaN))))))).toContain(
      '/nan.npy, row 1: it holds NaN at dimension 0',
    );
    expect(await problemOf(all(file('inf.jsonl', '[1,2]\n[1,1e400]\n')))).toContain(
      '/inf.jsonl, row 1: it holds Infinity at dimension 1',
    );
  });

  test('JSONL by "embedding" or "vector", with ids', async () => {
    expect(await all(file('a.jsonl', '{"id":"x","embedding":[1,2]}\n\n{"index":7,"vector":[3,4]}\n'))).toEqual({
      dims: 2,
      vectors: [1, 2, 3, 4],
      names: ['x', ''],
    });
    expect(await all(file('b.jsonl', '[1,2]\n[3,4]'))).toEqual({ dims: 2, vectors: [1, 2, 3, 4], names: [] });
    expect(await problemOf(all(file('c.jsonl', '{"embedding":[1,2]}\n{"embedding":[1]}\n')))).toBe(
      'DIMENSIONS_MISMATCH: /c.jsonl, line 2: the vector has 1 dimensions and those before it 2',
    );
    expect(await problemOf(all(file('d.jsonl', '{"embedding":[1,null]}\n')))).toContain(
      'line 1: there is no "embedding"',
    );
    expect(
      await all(
        file('ids.jsonl', '\uFEFF{"id":9223372036854775807,"vector":[1],"text":"a\u2028b"}\r\n{"id":7,"vector":[2]}'),
      ),
    ).toEqual({ dims: 1, vectors: [1, 2], names: ['9223372036854775807', '7'] });
    const nested = '{"id":9007199254740993,"meta":{"id":9007199254740992},"embedding":[1]}';
    expect((await all(file('nested.jsonl', nested))).names).toEqual(['9007199254740993']);
    const deep = `${'['.repeat(50_000)}${']'.repeat(50_000)}`;
    expect(await problemOf(all(file('deep.jsonl', `{"embedding":[1,${deep}]}`)))).toContain('number 1 of it is a list');
    expect(await problemOf(all(file('deep.jsonl', `{"embedding":[1],"id":${deep}}`)))).toContain(
      'nor a number: a list',
    );
    expect(await problemOf(all(file('deep.jsonl', `{"embedding":[1],"id":1e300,"x":${deep}}`)))).toContain(
      'its record nests too deeply',
    );
    expect(await problemOf(all(file('id.jsonl', '{"id":[1],"embedding":[1]}\n')))).toContain(
      'line 1: its "id" is neither',
    );
    expect(await problemOf(all(file('latin.jsonl', Buffer.from('{"id":"\xfc","vector":[1]}\n', 'latin1'))))).toContain(
      'line 1: it is not UTF-8',
    );
    expect(await problemOf(all(file('e.jsonl', '{"embedding":[1,\n')))).toBe(
      'INPUT_INVALID: /e.jsonl, line 1: not valid JSON',
    );
    expect(await problemOf(all(join(folder, 'absent.jsonl')))).toContain('FILE_UNREADABLE');
  });

  test('Arrow files with a list of fixed size', async () => {
    const child = makeData({ type: new Float32(), data: Float32Array.of(1, 2, 3, 4) });
    const list = new FixedSizeList(2, new Field('item', new Float32()));
    const ids = vectorFromArray(['x', 'y'], new Utf8()).data[0]!;
    const schema = new Schema([new Field('id', new Utf8()), new Field('embedding', list)]);
    const batch = new RecordBatch(
      schema,
      makeData({
        type: new Struct(schema.fields),
        length: 2,
        children: [ids, makeData({ type: list, length: 2, child })],
      }),
    );
    for (const form of ['file', 'stream'] as const)
      expect(await all(file(`${form}.arrow`, tableToIPC(new Table([batch]), form)))).toEqual({
        dims: 2,
        vectors: [1, 2, 3, 4],
        names: ['x', 'y'],
      });
    expect(await problemOf(all(file('text.arrow', 'hello, this is text and nothing else')))).toContain('INPUT_INVALID');
  });

  test('a copy is read in the place of what it is a copy of, which messages name', async () => {
    const copies = {
      npy: npy('<f4', '1, 2', new Uint8Array(Float32Array.of(1, 2).buffer)),
      jsonl: '[1,2]\n',
      arrow: tableToIPC(
        new Table({ embedding: vectorFromArray([[1, 2]], new List(new Field('item', new Float32()))) }),
      ),
    };
    for (const [format, content] of Object.entries(copies)) {
      const name = `s3://bucket/x.${format}`;
      expect(await all(name, { copy: file('copy', content) })).toMatchObject({ dims: 2, vectors: [1, 2] });
      expect(await problemOf(all(name, { copy: file('copy', 'no vectors') }))).toMatch(`INPUT_INVALID: ${name}`);
      expect(await problemOf(all(name, { copy: join(folder, 'none') }))).toMatch(
        `FILE_UNREADABLE: cannot read ${name}`,
      );
    }
  });
});

describe('graphs', () => {
  test('are kept under a name, and damage is seen', async () => {
    const graph = graphFromEdges({ from: Uint32Array.of(0, 1), to: Uint32Array.of(1, 0) }, 2, ['a', 'ü']);
    expect(await saveGraph(folder, 'g', graph)).toMatchObject({ nodes: 2, edges: 2 });
    expect(await openGraph(folder, 'g')).toEqual(graph);
    expect(await listGraphs(folder)).toEqual(['g']);
    const path = join(folder, '.graphs', 'g.shg');
    const whole = readFileSync(path);
    for (const at of [0, 8, 16, 70, whole.length - 1]) {
      const changed = Buffer.from(whole);
      changed[at]! ^= 1;
      writeFileSync(path, changed);
      expect(`${at}: ${await problemOf(openGraph(folder, 'g'))}`).toContain(`${at}: COLLECTION_CORRUPT`);
    }
    // a right checksum over what cannot be read
    for (const [at, byte] of [
      [4, 3],
      [whole.length - 1, 0x20],
      [whole.indexOf('"a"'), 0x7b],
    ] as const) {
      const odd = Buffer.from(whole);
      odd[at] = byte;
      odd.writeUInt32LE(crc32(odd.subarray(64), crc32(odd.subarray(0, 24))), 24);
      writeFileSync(path, odd);
      expect(`${at}: ${await problemOf(openGraph(folder, 'g'))}`).toContain(`${at}: COLLECTION_CORRUPT`);
    }
    const namesAt = whole.length - Buffer.byteLength('["a","ü"]');
    for (const [what, change] of Object.entries({
      'no JSON': (graphBytes: Buffer) => graphBytes.write('x', namesAt),
      'no texts': (graphBytes: Buffer) => graphBytes.write('[1, 22222]', namesAt),
      'one name': (graphBytes: Buffer) => graphBytes.write('["aaaaaa"]', namesAt),
      flags: (graphBytes: Buffer) => graphBytes.writeUInt32LE(3, 4),
      'an edge': (graphBytes: Buffer) => graphBytes.writeUInt32LE(7, 64 + 3 * 4),
    })) {
      const changed = Buffer.from(whole);
      change(changed);
      changed.writeUInt32LE(crc32(changed.subarray(64), crc32(changed.subarray(0, 24))), 24);
      writeFileSync(path, changed);
      expect(`${what}: ${await problemOf(openGraph(folder, 'g'))}`).toContain(`${what}: COLLECTION_CORRUPT`);
    }
    await removeGraph(folder, 'g');
    expect(await problemOf(graphInfo(folder, 'g'))).toContain('COLLECTION_UNKNOWN');
  });
});
