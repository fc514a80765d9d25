// Edge lists into graphs: CSV by the reader that texts have, JSONL, and .npy. Nodes are numbered as they come and keep
// their ids as they were written; no edge is lost without a word, and none is made of a heading.

import { extname } from 'node:path';
import { addAbortSignal } from 'node:stream';
import { ShoalError } from '@shoal/contract';
import { graphFromEdges, readNpy, type Graph } from '@shoal/similarity';
import { readCsv, type CsvRow } from './csv.ts';
import { openChunks, refuseBinary, unreadable } from './files.ts';
import { readLines } from '@shoal/worker/files/lines';
import { ReadingNotes } from '@shoal/worker/files/reading-notes';
import { placeIn } from '@shoal/worker/files/record';
import { decodeLine } from '@shoal/worker/files/utf8';
import type { Terminal } from '../terminal.ts';

export interface EdgeListOptions {
  /** Of CSV. Undefined: a comma, or a tab in a file called .tsv. */
  readonly delimiter?: string | undefined;
  /** Whether the first row of CSV is a heading. Undefined: told by that row, and said. */
  readonly hasHeader?: boolean | undefined;
  readonly terminal?: Pick<Terminal, 'signal' | 'whileDeaf'> | undefined;
}

export interface EdgeList {
  readonly graph: Graph;
  /** What was taken in a way that its author may not expect, a sentence each. */
  readonly notes: readonly string[];
}

/** Ids stay the numbers of their nodes where there are at most so many, or few gaps between them. */
const FEW_NODES = 1 << 20;
const MOST_GAPS = 4;
const MAX_WEIGHT = 1e6;
const NUMERAL = /^(0|[1-9]\d{0,9})$/;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

const FROM = new Set(
  'from fromid fromnode fromnodeid source sourceid src start parent user userid subject node1'.split(' '),
);
const TO = new Set(
  'to toid tonode tonodeid target targetid dst dest destination end child item itemid object node2'.split(' '),
);
const WEIGHT = new Set('weight weights w value score strength count rating similarity'.split(' '));

/**
 * .jsonl lines {"from", "to", "weight"?}; .csv and .tsv rows from, to and perhaps a weight, with or without a heading;
 * .npy of edges × 2 or 3.
 */
export async function readEdgeList(path: string, options: EdgeListOptions = {}): Promise<EdgeList> {
  const extension = extname(path).toLowerCase();
  const format = /^\.[ct]sv$/.test(extension) ? 'csv' : /^\.(jsonl|ndjson)$/.test(extension) ? 'jsonl' : undefined;
  if (format !== 'csv' && (options.delimiter !== undefined || options.hasHeader !== undefined))
    throw new ShoalError('USAGE', `--delimiter, --header and --no-header are about CSV, and ${path} is none`);
  if (extension === '.npy') return readNpyEdges(path, options);
  if (format === undefined)
    throw new ShoalError('USAGE', `${path} is no edge list that can be read: .jsonl, .csv, .tsv or .npy`, {
      file: path,
    });
  return readEdges(chunksOf(path, options), { ...options, name: path, format });
}

async function* chunksOf(path: string, { terminal }: EdgeListOptions): AsyncGenerator<Buffer> {
  let isFirst = true;
  try {
    const stream = await openChunks(path, 1 << 20);
    if (terminal !== undefined) addAbortSignal(terminal.signal, stream);
    for await (const chunk of stream) {
      terminal?.signal.throwIfAborted();
      if (isFirst) refuseBinary(path, chunk as Buffer);
      isFirst = false;
      yield chunk as Buffer;
    }
  } catch (error) {
    throw error instanceof ShoalError || terminal?.signal.aborted === true ? error : unreadable(path, error);
  }
}

/** The graph of the bytes of a file of text. */
export async function readEdges(
  chunks: AsyncIterable<Buffer>,
  options: EdgeListOptions & { readonly name: string; readonly format: 'csv' | 'jsonl' },
): Promise<EdgeList> {
  const edges = new EdgeBuilder(options.name);
  if (options.format === 'csv') await readCsvEdges(chunks, options, edges);
  else await readJsonEdges(chunks, edges);
  return builtFrom(edges, options);
}

/** Sorting tens of millions of edges takes seconds. */
async function builtFrom(edges: EdgeBuilder, { terminal }: EdgeListOptions): Promise<EdgeList> {
  const build = (): EdgeList => edges.build();
  return terminal?.whileDeaf === undefined ? build() : terminal.whileDeaf(build);
}

/** Edges and the ids of their nodes; memory is that of both, whatever the ids are. */
class EdgeBuilder {
  readonly name: string;
  readonly notes: string[] = [];
  readonly #numbers = new Map<string, number>();
  #from: number[] = [];
  #to: number[] = [];
  #weight: number[] = [];
  #withWeight = 0;

  constructor(name: string) {
    this.name = name;
  }

  get edges(): number {
    return this.#from.length;
  }

  add(from: string, to: string, weight: string | number | undefined, line: number | undefined): void {
    if (from === '' || to === '') throw this.wrong(`an edge has no ${from === '' ? 'beginning' : 'end'}`, line);
    const value = weight === undefined || weight === '' ? 1 : this.#weightOf(weight, line);
    if (weight !== undefined && weight !== '') this.#withWeight++;
    this.#from.push(this.#numberOf(from));
    this.#to.push(this.#numberOf(to));
    this.#weight.push(value);
  }

  /** Whether all nodes but those of the first edge are whole numbers, and none of those is. */
  get isFirstOfOtherKind(): boolean {
    if (this.edges < 2) return false;
    const firsts = Math.max(this.#from[0]!, this.#to[0]!) + 1;
    return [...this.#numbers.keys()].every((id, at) => /^-?\d+$/.test(id) !== at < firsts);
  }

  /** What was taken for an edge was a heading; its words are no nodes. */
  dropFirst(): void {
    const firsts = Math.max(this.#from[0]!, this.#to[0]!) + 1;
    for (const id of [...this.#numbers.keys()].slice(0, firsts)) this.#numbers.delete(id);
    this.#from = this.#from.slice(1).map((node) => node - firsts);
    this.#to = this.#to.slice(1).map((node) => node - firsts);
    this.#weight = this.#weight.slice(1);
    if (this.#withWeight > 0) this.#withWeight = Math.min(this.#withWeight, this.edges);
  }

  build(): EdgeList {
    if (this.edges === 0) throw this.wrong('it holds no edges', undefined);
    const without = this.edges - this.#withWeight;
    if (this.#withWeight > 0 && without > 0)
      this.notes.push(
        `${counted(without, 'edge')} without a weight, beside such that have one, ${without === 1 ? 'counts' : 'count'} 1`,
      );
    const ids = [...this.#numbers.keys()];
    const weight = Float32Array.from(this.#weight);
    if (ids.every((id) => NUMERAL.test(id))) {
      const nodes = ids.map(Number);
      const most = nodes.reduce((largest, node) => Math.max(largest, node), 0);
      if (most < Math.max(FEW_NODES, MOST_GAPS * ids.length))
        return {
          graph: graphFromEdges({
            from: Uint32Array.from(this.#from, (node) => nodes[node]!),
            to: Uint32Array.from(this.#to, (node) => nodes[node]!),
            weight,
          }),
          notes: this.notes,
        };
      this.notes.push(
        `the ids of ${counted(ids.length, 'node')} go up to ${most.toLocaleString('en')}: the nodes are numbered as they come, ` +
          'which is how jobs call them; seeds and answers here have the ids',
      );
    }
    return {
      graph: graphFromEdges(
        { from: Uint32Array.from(this.#from), to: Uint32Array.from(this.#to), weight },
        ids.length,
        ids,
      ),
      notes: this.notes,
    };
  }

  wrong(problem: string, line: number | undefined): ShoalError<'INPUT_INVALID'> {
    return new ShoalError('INPUT_INVALID', `${placeIn(this.name, line)}: ${problem}`, { file: this.name });
  }

  #numberOf(id: string): number {
    const known = this.#numbers.get(id);
    if (known !== undefined) return known;
    this.#numbers.set(id, this.#numbers.size);
    return this.#numbers.size - 1;
  }

  #weightOf(weight: string | number, line: number | undefined): number {
    const value = typeof weight === 'number' ? weight : NUMBER.test(weight) ? Number(weight) : Number.NaN;
    if (value >= 0 && value <= MAX_WEIGHT && (value === 0 || Math.fround(value) > 0)) return value;
    const hint = typeof weight === 'string' && /^\d+,\d+$/.test(weight) ? '; write the decimal point as "."' : '';
    throw new ShoalError(
      'GRAPH_INVALID',
      `${placeIn(this.name, line)}: the weight is ${JSON.stringify(quoted(weight))}; it must be a number from 0 to ${MAX_WEIGHT} ` +
        `that fp32 can hold${hint}`,
      { file: this.name },
    );
  }
}

interface Columns {
  readonly from: number;
  readonly to: number;
  readonly weight: number | undefined;
  /** Undefined: rows have two or three fields, as they like. */
  readonly count: number | undefined;
}

async function readCsvEdges(
  chunks: AsyncIterable<Buffer>,
  { delimiter, hasHeader, name }: EdgeListOptions & { readonly name: string },
  edges: EdgeBuilder,
): Promise<void> {
  const notes = new ReadingNotes();
  const divided = delimiter ?? (/\.tsv$/i.test(name) ? '\t' : ',');
  let first: CsvRow | undefined;
  let columns: Columns | undefined;
  for await (const row of readCsv(chunks, { delimiter: divided, notes })) {
    if ('problem' in row) throw edges.wrong(row.problem, row.line);
    const fields = row.fields.map((field) => field.trim());
    if (columns === undefined) {
      first = row;
      const isHeading = hasHeader ?? isHeadingByItself(fields);
      columns = isHeading ? headingColumns(fields, row.line, edges) : { from: 0, to: 1, weight: 2, count: undefined };
      if (isHeading) {
        if (hasHeader === undefined) edges.notes.push(headingNote(first));
        continue;
      }
    }
    addRow(fields, row.line, { columns, delimiter: divided, edges });
  }
  if (first !== undefined && columns?.count === undefined && hasHeader === undefined && edges.isFirstOfOtherKind) {
    edges.dropFirst();
    edges.notes.push(headingNote(first));
  }
  edges.notes.push(...notes.lines);
}

function addRow(
  fields: readonly string[],
  line: number,
  { columns, delimiter, edges }: { columns: Columns; delimiter: string; edges: EdgeBuilder },
): void {
  const { from, to, weight, count } = columns;
  const used = fields.findLastIndex((field) => field !== '') + 1;
  if (fields.length <= Math.max(from, to))
    throw edges.wrong(`an edge is from, to and perhaps a weight${dividedHint(fields, delimiter)}`, line);
  if (used > (count ?? 3))
    throw edges.wrong(
      count === undefined
        ? `the row has ${used} fields, and an edge is from, to and perhaps a weight; name the columns in a first row ` +
            '(from,to,weight), or leave out the others'
        : `the row has ${used} fields and the heading ${count}; a delimiter inside a name needs quotes around it`,
      line,
    );
  edges.add(fields[from]!, fields[to]!, weight === undefined ? undefined : fields[weight], line);
}

function dividedHint(fields: readonly string[], delimiter: string): string {
  const [only = ''] = fields;
  if (only.startsWith('#')) return `; CSV has no comments, take them out: grep -v '^#'`;
  const other = [';', '\t', '|', ',', ' '].find((one) => one !== delimiter && only.includes(one));
  if (other === undefined) return '';
  return `; the fields look divided by ${other === '\t' ? 'tabs: --delimiter tab' : `"${other}": --delimiter '${other}'`}`;
}

/** Words that name the ends of an edge, or a third field that is no number. */
function isHeadingByItself(fields: readonly string[]): boolean {
  const names = fields.map(plain);
  if (names.some((name) => FROM.has(name)) && names.some((name) => TO.has(name))) return true;
  const [, , third = ''] = fields;
  return fields.length >= 3 && third !== '' && !NUMBER.test(third) && !/^[+-]?(nan|inf(inity)?|\d+,\d+)$/i.test(third);
}

function headingColumns(fields: readonly string[], line: number, edges: EdgeBuilder): Columns {
  const names = fields.map(plain);
  const [from, to] = [names.findIndex((name) => FROM.has(name)), names.findIndex((name) => TO.has(name))];
  const isNamed = from !== -1 && to !== -1;
  if (!isNamed && (fields.length > 3 || fields.length < 2))
    throw edges.wrong(
      `the heading has ${counted(fields.length, 'field')} and none is called from and to (or source and target); name them so`,
      line,
    );
  const ends = isNamed ? { from, to } : { from: 0, to: 1 };
  const named = names.findIndex((name, at) => WEIGHT.has(name) && at !== ends.from && at !== ends.to);
  const third = fields.length === 3 ? [0, 1, 2].find((at) => at !== ends.from && at !== ends.to) : undefined;
  const weight = named === -1 ? third : named;
  const others = fields.filter((_, at) => at !== ends.from && at !== ends.to && at !== weight);
  if (others.length > 0)
    edges.notes.push(
      `columns that are no part of an edge were left out: ${others
        .slice(0, 8)
        .map((one) => `"${one.slice(0, 40)}"`)
        .join(', ')}${others.length > 8 ? ', …' : ''}`,
    );
  return { ...ends, weight, count: fields.length };
}

function headingNote({ fields }: CsvRow): string {
  return `the first line (${fields.join(',').slice(0, 80)}) was taken for a heading; --no-header makes an edge of it`;
}

function plain(field: string): string {
  return field.toLowerCase().replaceAll(/[^a-z0-9]/g, '');
}

async function readJsonEdges(chunks: AsyncIterable<Buffer>, edges: EdgeBuilder): Promise<void> {
  for await (const lines of readLines(chunks)) {
    for (const line of lines) {
      if (line.bytes === undefined) throw edges.wrong('the line is too long for an edge', line.number);
      const { text, problem } = decodeLine({ ...line, bytes: line.bytes });
      if (problem !== undefined) throw edges.wrong(problem, line.number);
      if (text.trim() !== '') addJson(text, line.number, edges);
    }
  }
}

function addJson(text: string, line: number, edges: EdgeBuilder): void {
  let edge: unknown;
  try {
    edge = JSON.parse(text, asWritten);
  } catch {
    throw edges.wrong('not valid JSON', line);
  }
  if (typeof edge !== 'object' || edge === null || Array.isArray(edge))
    throw edges.wrong('an edge is an object {"from", "to", "weight"}', line);
  const [from, to] = ['from', 'to'].map((name) => {
    const id: unknown = Object.hasOwn(edge, name) ? Reflect.get(edge, name) : undefined;
    if (typeof id !== 'string' && typeof id !== 'number')
      throw edges.wrong(`there is no "from" and "to": "${name}" must be a string or a number`, line);
    if (!String(id).isWellFormed())
      throw edges.wrong(`"${name}" has half of a surrogate pair, which no file can keep; write it whole`, line);
    return String(id);
  });
  const weight: unknown = Object.hasOwn(edge, 'weight') ? Reflect.get(edge, 'weight') : undefined;
  if (weight !== undefined && weight !== null && typeof weight !== 'number' && typeof weight !== 'string')
    throw edges.wrong('"weight" must be a number', line);
  edges.add(from!, to!, weight ?? undefined, line);
}

/** Whole numbers beyond 2^53 keep their digits. */
function asWritten(this: unknown, key: string, value: unknown, context?: { readonly source?: string }): unknown {
  const isLarge = typeof value === 'number' && (key === 'from' || key === 'to') && !Number.isSafeInteger(value);
  return isLarge && context?.source !== undefined && /^-?\d+$/.test(context.source) ? context.source : value;
}

async function readNpyEdges(path: string, options: EdgeListOptions): Promise<EdgeList> {
  const edges = new EdgeBuilder(path);
  for await (const { file, values } of readNpy(path)) {
    options.terminal?.signal.throwIfAborted();
    if (file.columns !== 2 && file.columns !== 3)
      throw edges.wrong(`its rows have ${file.columns} values; an edge is from, to and perhaps a weight`, undefined);
    for (let at = 0; at < values.length; at += file.columns) {
      const [from, to] = [values[at]!, values[at + 1]!];
      const most = file.type === 'f2' ? 2_048 : file.type === 'f4' ? 2 ** 24 : Number.MAX_SAFE_INTEGER;
      if (![from, to].every((id) => Number.isInteger(id) && Math.abs(id) <= most))
        throw new ShoalError(
          'GRAPH_INVALID',
          `${path}: edge ${edges.edges} goes from ${from} to ${to}; in a .npy of ${file.type} nodes are whole numbers ` +
            `up to ${most}. Others can be written in a .csv`,
          { file: path },
        );
      edges.add(String(from), String(to), file.columns === 3 ? values[at + 2]! : undefined, undefined);
    }
  }
  return builtFrom(edges, options);
}

function counted(count: number, what: string): string {
  return `${count.toLocaleString('en')} ${what}${count === 1 ? '' : 's'}`;
}

/** As much of it as a message repeats. */
function quoted(weight: string | number): string | number {
  return typeof weight === 'string' && weight.length > 80 ? `${weight.slice(0, 80)}…` : weight;
}
