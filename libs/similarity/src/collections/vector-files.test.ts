import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  Field,
  FixedSizeList,
  Float32,
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
import { graphInfo, listGraphs, openGraph, readEdgeList, removeGraph, saveGraph } from '../graphs/graph-file.ts';
import { graphFromEdges } from '../graphs/graph.ts';
import { readVectors } from './vector-files.ts';

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

async function all(path: string) {
  const batches: RowBatch[] = [];
  for await (const batch of readVectors(path)) batches.push(batch);
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

  test('what is no such .npy is refused with what was found', async () => {
    expect(await problemOf(all(file('short.npy', npy('<f4', '2, 3', bytes(Float32Array.of(1))))))).toBe(
      'INPUT_INVALID: /short.npy: it ends before its last row',
    );
    expect(await problemOf(all(file('order.npy', npy('<f4', '1, 1', bytes(Float32Array.of(1)), 'True'))))).toContain(
      'Fortran order',
    );
    expect(await problemOf(all(file('big.npy', npy('>f4', '1, 1', bytes(Float32Array.of(1))))))).toContain(
      'type ">f4"',
    );
    expect(await problemOf(all(file('cube.npy', npy('<f4', '1, 1, 1', bytes(Float32Array.of(1))))))).toContain(
      'shape (1, 1, 1)',
    );
    expect(await problemOf(all(file('ints.npy', npy('<i4', '1, 1', bytes(Int32Array.of(1))))))).toContain('integers');
    expect(await problemOf(all(file('text.npy', 'hello, this is text')))).toContain('no .npy file');
    expect(await problemOf(all(join(folder, 'absent.npy')))).toBe(
      'FILE_UNREADABLE: cannot read /absent.npy: there is no such file',
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
});

describe('graphs', () => {
  test('from edge lists by number or name', async () => {
    const numbers = await readEdgeList(file('n.csv', 'from,to,weight\n0,2,0.5\n2,0,1\n2,2,3\n'));
    expect(numbers).toEqual({
      nodes: 3,
      begin: Uint32Array.of(0, 1, 1, 3),
      source: Uint32Array.of(2, 0, 2),
      weight: Float32Array.of(1, 0.5, 3),
    });
    expect(
      await readEdgeList(file('n.npy', npy('<i8', '2, 2', bytes(BigInt64Array.of(0n, 1n, 1n, 0n))))),
    ).toMatchObject({ nodes: 2, weight: Float32Array.of(1, 1) });
    expect(
      await readEdgeList(file('n.jsonl', '{"from":"a","to":"b"}\n{"from":"b","to":"a","weight":2}\n')),
    ).toMatchObject({ nodes: 2, names: ['a', 'b'] });
    expect(await problemOf(readEdgeList(file('bad.jsonl', '{"from":"a"}\n')))).toContain(
      'line 1: there is no "from" and "to"',
    );
    expect(await problemOf(readEdgeList(file('bad.csv', '0,1\n0\n')))).toContain('line 2: an edge is from, to');
    expect(await problemOf(readEdgeList(file('neg.npy', npy('<i4', '1, 2', bytes(Int32Array.of(0, -1))))))).toContain(
      'GRAPH_INVALID',
    );
    expect(await problemOf(readEdgeList(file('weight.csv', '0,1,many\n1,0,-1\n')))).toContain('GRAPH_INVALID');
  });

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
    await removeGraph(folder, 'g');
    expect(await problemOf(graphInfo(folder, 'g'))).toContain('COLLECTION_UNKNOWN');
  });
});
