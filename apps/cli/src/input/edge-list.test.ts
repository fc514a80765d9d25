import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { npyHeader } from '@shoal/worker/files/npy';
import { readEdgeList, readEdges, type EdgeListOptions } from './edge-list.ts';

async function* once(content: string): AsyncGenerator<Buffer> {
  yield Buffer.from(content);
}

interface Asked extends EdgeListOptions {
  readonly name?: string;
  readonly format?: 'csv' | 'jsonl';
}

async function read(content: string, { name = 'e.csv', format = 'csv', ...options }: Asked = {}) {
  const { graph, notes } = await readEdges(once(content), { name, format, ...options });
  const nameOf = (node: number): string => graph.names?.[node] ?? String(node);
  const edges: string[] = [];
  for (let to = 0; to < graph.nodes; to++)
    for (let at = graph.begin[to]!; at < graph.begin[to + 1]!; at++)
      edges.push(`${nameOf(graph.source[at]!)} → ${nameOf(to)} ${Number(graph.weight[at]!.toFixed(4))}`);
  return { nodes: graph.nodes, names: graph.names, edges: edges.sort(), notes };
}

describe('edge lists', () => {
  test('with large ids take memory by the number of their nodes, and keep the ids', async () => {
    expect(await read('200000000,2,1\n0,4000000000\n')).toMatchObject({
      nodes: 4,
      names: ['200000000', '2', '0', '4000000000'],
      edges: ['0 → 4000000000 1', '200000000 → 2 1'],
      notes: [
        '1 edge without a weight, beside such that have one, counts 1',
        expect.stringContaining('the ids of 4 nodes go up to 4,000,000,000: the nodes are numbered as they come'),
      ],
    });
  });

  test('of whole numbers have them as numbers of nodes, as jobs call them', async () => {
    expect(await read('0,2\n2,7\n')).toEqual({ nodes: 8, names: undefined, edges: ['0 → 2 1', '2 → 7 1'], notes: [] });
  });

  test.each(['007', '9223372036854775808', '-1', '1e3', '1.0', 'x, y', '+5', ' \u00e9'.trim()])(
    'keep the id %j as it is written',
    async (id) => {
      const { names } = await read(`"${id}",7\n7,8\n`, { hasHeader: false });
      expect(names).toEqual([id, '7', '8']);
    },
  );

  test('have quotes, line ends and a byte order mark as CSV has them', async () => {
    expect(await read('\uFEFF"x, y",b,1\r\n"say ""hi""","two\nlines",2\rb,c\n')).toMatchObject({
      names: ['x, y', 'b', 'say "hi"', 'two\nlines', 'c'],
      edges: ['b → c 1', 'say "hi" → two\nlines 2', 'x, y → b 1'],
    });
  });

  test.each([
    ['from,to', ''],
    ['Source,Target,Weight', ',0.5'],
    ['user,item', ''],
    ['parent,child', ''],
    ['# FromNodeId,ToNodeId', ''],
    ['a,b,cost', ',2'],
    ['foo,bar', ''], // all others are numbers
  ])('take %s for a heading, say so, and keep the numbers', async (heading, weight) => {
    const { names, edges, notes } = await read(`${heading}\n1,2${weight}\n2,3${weight}\n`);
    expect(names).toBeUndefined();
    expect(edges.length).toBe(2);
    expect(notes).toEqual([`the first line (${heading}) was taken for a heading; --no-header makes an edge of it`]);
  });

  test('take no edge for a heading, and are told by flags', async () => {
    expect((await read('alice,bob\nbob,carol\n')).edges).toEqual(['alice → bob 1', 'bob → carol 1']);
    expect((await read('x,1,2\ny,2,3\n')).edges.length).toBe(2);
    expect((await read('from,to\n1,2\n', { hasHeader: false })).edges).toEqual(['1 → 2 1', 'from → to 1']);
    expect(await read('alice,bob\nbob,carol\n', { hasHeader: true })).toMatchObject({
      edges: ['bob → carol 1'],
      notes: [],
    });
  });

  test('have their columns where the heading says, and say what is left out', async () => {
    expect(await read('id,weight,target,source\n1,0.5,b,a\n')).toMatchObject({
      edges: ['a → b 0.5'],
      notes: ['columns that are no part of an edge were left out: "id"', expect.stringContaining('heading')],
    });
  });

  test.each([
    ['0,1\n0\n', 'e.csv, line 2: an edge is from, to and perhaps a weight'],
    ['0;1\n', `--delimiter ';'`],
    ['0 1\n', `--delimiter ' '`],
    ['# a comment\n0,1\n', `grep -v '^#'`],
    ['0,1\n0,\n', 'line 2: an edge has no end'],
    ['0,1,2,3\n', 'line 1: the row has 4 fields'],
    ['from,to\n0,1,2\n', 'line 2: the row has 3 fields and the heading 2'],
    ['0,1,1\n1,0,-1\n', 'line 2: the weight is "-1"'],
    ['0,1,nan\n', 'line 1: the weight is "nan"'],
    ['0,1,1\n0,1,0x10\n', 'line 2: the weight is "0x10"'],
    ['0,1,"0,5"\n', 'write the decimal point as "."'],
    ['0,1,1e-60\n', 'that fp32 can hold'],
    ['"0,1\n', 'is never closed'],
    ['from,to\n', 'it holds no edges'],
    ['', 'it holds no edges'],
  ])('%j are refused by their line: %s', async (content, message) => {
    await expect(read(content)).rejects.toThrow(message);
  });

  test('are refused in a message that a terminal can hold, however long a field is', async () => {
    const long = 'x'.repeat(300_000);
    const refusal = await read(`from,to,weight\n1,2,${long}\n`).catch((error: unknown) => String(error));
    expect(String(refusal).length).toBeLessThan(400);
    const { notes } = await read(`from,to,weight,${long},${'more,'.repeat(20)}\n1,2,3\n`);
    expect(notes.join('\n').length).toBeLessThan(600);
  });

  test('of JSONL keep numbers beyond 2^53, and refuse what is no edge', async () => {
    const jsonl = { name: 'e.jsonl', format: 'jsonl' } as const;
    expect(
      (await read('{"from":9007199254740993,"to":"9007199254740992"}\n\n{"from":7,"to":"7","weight":"0.5"}', jsonl))
        .names,
    ).toEqual(['9007199254740993', '9007199254740992', '7']);
    await expect(read('{"from":"a"}\n', jsonl)).rejects.toThrow('e.jsonl, line 1: there is no "from" and "to"');
    await expect(read('{"from":1,"to":"\\ud83d"}\n', jsonl)).rejects.toThrow('"to" has half of a surrogate pair');
    await expect(read('{"from":1,"to":2,"weight":true}\n', jsonl)).rejects.toThrow('"weight" must be a number');
    await expect(read('[1,2]\n', jsonl)).rejects.toThrow('an edge is an object');
  });

  test('of .npy have ids with gaps, and refuse what the type cannot hold', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'shoal-edges-'));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const path = join(folder, 'e.npy');
    const write = (...values: readonly number[]): void =>
      writeFileSync(
        path,
        Buffer.concat([npyHeader(values.length / 2, 2), new Uint8Array(Float32Array.from(values).buffer)]),
      );
    write(16_000_000, 2, 2, 16_000_000);
    expect((await readEdgeList(path)).graph).toMatchObject({ nodes: 2, names: ['16000000', '2'] });
    write(0, -1);
    expect((await readEdgeList(path)).graph.names).toEqual(['0', '-1']);
    write(0, 2 ** 25);
    await expect(readEdgeList(path)).rejects.toThrow('nodes are whole numbers up to 16777216');
    write(0.5, 1);
    await expect(readEdgeList(path)).rejects.toThrow('edge 0 goes from 0.5 to 1');
    await expect(readEdgeList(path, { delimiter: ';' })).rejects.toThrow('are about CSV');
    await expect(readEdgeList(join(folder, 'none.csv'))).rejects.toThrow('there is no such file');
  });
});
