// Edge lists of text: no edge is lost, and nodes keep their ids as they were written (007, 2^63). The second reader makes
// a plain list of (from, to, weight), and numbers nodes as they come; where the first row is a heading it has the rule
// of the documentation and no more.

import { readEdges, type EdgeList } from '../../../apps/cli/src/input/edge-list.ts';
import type { FuzzedReader, Values } from '../fuzzed-reader.ts';
import { linesOf, rowsOf } from './texts.ts';

interface Edge {
  readonly from: string;
  readonly to: string;
  readonly weight: number;
}

async function* piecesOf(bytes: Buffer, size: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

/** Every edge in the words of the file, in an order that says nothing, and the nodes as they are numbered. */
function valuesOf(edges: readonly Edge[], names: readonly string[] | undefined, nodes: number): Values {
  const sorted = edges.map(({ from, to, weight }) => JSON.stringify([from, to, Math.fround(weight)])).toSorted();
  return [nodes, names === undefined ? 'by number' : JSON.stringify(names), ...sorted];
}

function written({ graph }: EdgeList): Values {
  const { begin, source, weight, names, nodes } = graph;
  const idOf = (node: number): string => names?.[node] ?? String(node);
  const edges: Edge[] = [];
  for (let to = 0; to < nodes; to++)
    for (let at = begin[to]!; at < begin[to + 1]!; at++)
      edges.push({ from: idOf(source[at]!), to: idOf(to), weight: weight[at]! });
  return valuesOf(edges, names, nodes);
}

/** Ids are the numbers of nodes where all are numerals without gaps to speak of; else nodes are numbered as they come. */
function again(edges: readonly Edge[]): Values | undefined {
  if (edges.length === 0) return undefined;
  const ids = [...new Set(edges.flatMap(({ from, to }) => [from, to]))];
  const areNumbers = ids.every((id) => String(Number(id)) === id && /^\d{1,10}$/.test(id));
  const most = areNumbers ? Math.max(...ids.map(Number)) : 0;
  return areNumbers && most < Math.max(2 ** 20, 4 * ids.length)
    ? valuesOf(edges, undefined, most + 1)
    : valuesOf(edges, ids, ids.length);
}

const common = { kind: 'text', codes: ['INPUT_INVALID', 'GRAPH_INVALID'], takesAll: true } as const;

/** With a heading, without one, and as the first row tells. */
const HEADINGS = [false, true, undefined] as const;

export const csvEdgesReader: FuzzedReader = {
  ...common,
  name: 'edges.csv',
  variants: HEADINGS.length,
  seeds: async () => [
    Buffer.from('0,1,1\n1,2,2\n2,0,3\n007,7,0.25\n9223372036854775808,18446744073709551616,1e-3\n'),
    Buffer.from('\ufeff5,1,7\r\n"a ""b""",漢字,0\r\n" x ",y,\r\n1,5\r\n\r\n1,5,.5'),
  ],
  read: async (bytes, _path, variant) =>
    written(
      await readEdges(piecesOf(bytes, bytes.length > 5_000 ? 4_096 : 3), {
        format: 'csv',
        name: 'edges.csv',
        hasHeader: HEADINGS[variant],
      }),
    ),
  readAgain: (bytes, variant) => readCsvEdges(bytes, HEADINGS[variant]),
};

const NUMBER = /^[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?$/i;
const BEGINNINGS = /^(?:from(?:id|node|nodeid)?|source(?:id)?|src|start|parent|user(?:id)?|subject|node1)$/;
const ENDS = /^(?:to(?:id|node|nodeid)?|target(?:id)?|dst|dest(?:ination)?|end|child|item(?:id)?|object|node2)$/;
const WEIGHTS = /^(?:weights?|w|value|score|strength|count|rating|similarity)$/;

/** A third field that is no number is one of a heading. */
const isOdd = (field = ''): boolean =>
  field !== '' && !NUMBER.test(field) && !/^(?:[+-]?(?:nan|inf|infinity)|[+-]?\d+,\d+)$/i.test(field);

function readCsvEdges(bytes: Buffer, heading: boolean | undefined): Values | undefined {
  const rows = rowsOf(bytes, ',').map(({ fields }) => fields?.map((field) => field.trim()));
  const [first] = rows;
  if (first === undefined || rows.includes(undefined)) return undefined;
  const names = first.map((name) => name.toLowerCase().replaceAll(/[^a-z0-9]/g, ''));
  const [beginning, end] = [BEGINNINGS, ENDS].map((words) => names.findIndex((name) => words.test(name)));
  const isNamed = beginning !== -1 && end !== -1;
  const isHeading = heading ?? (isNamed || isOdd(first[2]));
  let places: readonly [number, number, number] = [0, 1, 2];
  if (isHeading) {
    if (!isNamed && (first.length < 2 || first.length > 3)) return undefined;
    const [from, to] = isNamed ? [beginning!, end!] : [0, 1];
    const weight = names.findIndex((name, at) => at !== from && at !== to && WEIGHTS.test(name));
    places = [from, to, weight === -1 && first.length === 3 ? 3 - from - to : weight];
  }
  const edges: Edge[] = [];
  for (const row of (isHeading ? rows.slice(1) : rows) as string[][]) {
    while (row.length > (isHeading ? first.length : 3) && row.at(-1) === '') row.pop();
    if (row.length > (isHeading ? first.length : 3)) return undefined;
    const edge = edgeOf(row[places[0]], row[places[1]], row[places[2]]);
    if (edge === undefined) return undefined;
    edges.push(edge);
  }
  return again(heading === undefined && !isHeading && isOfOtherKind(edges) ? edges.slice(1) : edges);
}

const isWhole = (id: string): boolean => /^-?\d+$/.test(id);

/** A first row of words above numbers, or of numbers above words: none of its ids is what all the others are. */
function isOfOtherKind([first, ...others]: readonly Edge[]): boolean {
  if (first === undefined || others.length === 0) return false;
  const own = new Set([first.from, first.to]);
  const rest = others.flatMap(({ from, to }) => [from, to]).filter((id) => !own.has(id));
  return [...own].every((id) => !isWhole(id)) && rest.every(isWhole);
}

function edgeOf(from: string | undefined, to: string | undefined, weight: unknown): Edge | undefined {
  if (from === undefined || to === undefined || from === '' || to === '') return undefined;
  if (weight === undefined || weight === null || weight === '') return { from, to, weight: 1 };
  const value = typeof weight === 'number' ? weight : NUMBER.test(String(weight)) ? Number(weight) : Number.NaN;
  const isSound = value === 0 || (value > 0 && value <= 1e6 && Math.fround(value) > 0);
  return isSound ? { from, to, weight: value } : undefined;
}

export const jsonlEdgesReader: FuzzedReader = {
  ...common,
  name: 'edges.jsonl',
  variants: 2,
  seeds: async () => [
    Buffer.from('{"from":1,"to":2}\n{"from":"007","to":7,"weight":0.5}\n\n{"to":2,"from":9223372036854775808}\n'),
    Buffer.from('\ufeff{"from":0,"to":3,"weight":1}\r\n{"from":3,"to":1,"weight":null,"more":[{"from":9}]}'),
  ],
  read: async (bytes, _path, variant) =>
    written(
      await readEdges(piecesOf(bytes, variant === 0 || bytes.length > 5_000 ? 4_096 : 3), {
        format: 'jsonl',
        name: 'edges.jsonl',
      }),
    ),
  readAgain: (bytes) => {
    const edges: Edge[] = [];
    for (const line of linesOf(bytes)) {
      if (line?.trim() === '') continue;
      const edge = line === undefined ? undefined : jsonEdge(line);
      if (edge === undefined) return undefined;
      edges.push(edge);
    }
    return again(edges);
  },
};

function jsonEdge(line: string): Edge | undefined {
  try {
    const edge = JSON.parse(line) as unknown;
    if (typeof edge !== 'object' || edge === null || Array.isArray(edge)) return undefined;
    const own = Object.getOwnPropertyDescriptors(edge) as Readonly<Record<string, PropertyDescriptor | undefined>>;
    const [from, to] = ['from', 'to'].map((name) => {
      const value: unknown = own[name]?.value;
      if (typeof value !== 'string' && typeof value !== 'number') return undefined;
      if (typeof value === 'string' && !value.isWellFormed()) return undefined;
      return typeof value === 'number' && !Number.isSafeInteger(value) ? digits(line, name, value) : String(value);
    });
    const weight: unknown = own['weight']?.value;
    if (!['undefined', 'number', 'string'].includes(typeof weight) && weight !== null) return undefined;
    return edgeOf(from, to, weight);
  } catch {
    return undefined;
  }
}

/** The last member of the line by this name that is this number; what is no whole number is as JSON says it. */
function digits(line: string, name: string, value: number): string {
  const members = [...line.matchAll(new RegExp(`"${name}"\\s*:\\s*(-?\\d+)\\s*[,}]`, 'g'))];
  return members.findLast(([, found]) => Number(found) === value)?.[1] ?? String(value);
}
