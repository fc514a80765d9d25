// What `shoal embed` reads: lines, JSONL, CSV and Markdown. No line may be lost: each is a text, or named as one that
// cannot be read. The second readers are a few lines each; where a format leaves something open (a quote inside a
// field, NUL, UTF-16, a lone CR), they say that they cannot tell.

import { fromMarkdown } from 'mdast-util-from-markdown';
import { gfmFromMarkdown } from 'mdast-util-gfm';
import { gfm } from 'micromark-extension-gfm';
import { readRecords } from '../../../apps/cli/src/input/records.ts';
import type { TextFormat } from '../../../apps/cli/src/input/record.ts';
import type { FuzzedReader, Values } from '../fuzzed-reader.ts';

const PROBLEM = 'a problem';

/** In one piece, or a few bytes at a time: ends of lines and letters fall between pieces. */
async function* chunksOf(bytes: Buffer, variant: number): AsyncGenerator<Buffer> {
  const size = variant === 0 || bytes.length > 5_000 ? Math.max(1, bytes.length) : 3;
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function recordsOf(format: TextFormat, bytes: Buffer, variant: number) {
  const records: { readonly id: unknown; readonly text: string }[] = [];
  const options = { format, name: `file.${format}`, firstIndex: 0, textField: undefined, idField: undefined };
  for await (const record of readRecords(chunksOf(bytes, variant), options)) {
    if (!('problem' in record)) records.push({ id: record.id, text: record.text });
    else if (record.problem.length > 1_200) throw new Error(`a problem of ${record.problem.length} characters`);
    else records.push({ id: undefined, text: PROBLEM });
  }
  return records;
}

const common = { kind: 'text', codes: ['INPUT_INVALID'], takesAll: true, variants: 2 } as const;

/** Undefined where it is not UTF-8 throughout, or has characters whose meaning is not for a plain reader to say. */
function decoded(bytes: Buffer): string | undefined {
  const text = bytes.toString().replace(/^\ufeff/, '');
  if (/\0|\r(?!\n)/.test(text) || /^(?:\xff\xfe|\xfe\xff)/.test(bytes.toString('latin1', 0, 2))) return undefined;
  return bytes.equals(Buffer.from(bytes.toString())) ? text : undefined;
}

function linesOf(text: string): string[] {
  const lines = text.split(/\r?\n/);
  return lines.at(-1) === '' ? lines.slice(0, -1) : lines;
}

export const linesReader: FuzzedReader = {
  ...common,
  name: 'lines',
  extension: '.txt',
  seeds: async () => [
    Buffer.from('how does a worker renew its leases\nwho ends an executor\n漢字 and 🙂\n'),
    Buffer.from('\ufefffirst line\r\nsecond line\r\nthe last one has no end'),
  ],
  read: async (bytes, _path, variant) => {
    const records = await recordsOf('text', bytes, variant);
    return records.map(({ text }) => text);
  },
  readAgain: (bytes) => {
    const text = decoded(bytes);
    return text === undefined ? 'unknown' : linesOf(text);
  },
};

export const jsonlReader: FuzzedReader = {
  ...common,
  name: 'jsonl',
  extension: '.jsonl',
  seeds: async () => [
    Buffer.from('{"id":"a","text":"one"}\n{"id":7,"text":"two \\u00e9","more":[1,{"x":null}]}\n\n{"text":""}\n'),
    Buffer.from('\ufeff{"text":"line\u2028one","id":"007"}\r\n{"text":"🙂","id":-1}'),
  ],
  read: async (bytes, _path, variant) => {
    const records = await recordsOf('jsonl', bytes, variant);
    return records.map(({ id, text }) => (text === PROBLEM ? PROBLEM : `${typeof id} ${String(id)} ${text}`));
  },
  readAgain: (bytes) => {
    const text = decoded(bytes);
    if (text === undefined) return 'unknown';
    return linesOf(text)
      .filter((line) => line.trim() !== '')
      .map(jsonRecord);
  },
};

function jsonRecord(line: string): string {
  try {
    const record: unknown = JSON.parse(line);
    if (typeof record !== 'object' || record === null || Array.isArray(record)) return PROBLEM;
    const own = Object.getOwnPropertyDescriptors(record) as Readonly<Record<string, PropertyDescriptor | undefined>>;
    const [text, id]: unknown[] = [own['text']?.value, own['id']?.value];
    if (typeof text !== 'string' || !['undefined', 'string', 'number'].includes(typeof id)) return PROBLEM;
    if (typeof id === 'number' && Number.isInteger(id) && !Number.isSafeInteger(id)) return PROBLEM;
    return `${typeof id} ${String(id)} ${text}`;
  } catch {
    return PROBLEM;
  }
}

export const csvReader: FuzzedReader = {
  ...common,
  name: 'csv',
  extension: '.csv',
  takesAll: false, // a header without the text ends it, and what a header is called is not for the second reader to say
  seeds: async () => [
    Buffer.from('id,text\n1,one\n2,"two, and more"\n3,"a ""quoted"" word"\n4,"line one\nline two"\n'),
    Buffer.from('text,id,more\r\n漢字,007,\r\n"",8,"x"\r\nlast,9,y'),
  ],
  read: async (bytes, _path, variant) => {
    const records = await recordsOf('csv', bytes, variant);
    return records.map(({ id, text }) => (text === PROBLEM ? PROBLEM : `${String(id)} ${text}`));
  },
  readAgain: (bytes) => readCsv(bytes),
};

function readCsv(bytes: Buffer): Values | undefined | 'unknown' {
  const text = decoded(bytes);
  const rows = text === undefined ? undefined : rowsOf(text);
  const [header, ...others] = rows ?? [];
  if (header === undefined) return 'unknown';
  const names = header.map((name) => name.trim());
  const [textAt, idAt] = [names.indexOf('text'), names.indexOf('id')];
  if (textAt === -1 || names.lastIndexOf('text') !== textAt || names.lastIndexOf('id') !== idAt) return undefined;
  return others.map((row) => {
    if (row.length !== names.length) return PROBLEM;
    return `${String(idAt === -1 || row[idAt] === '' ? undefined : row[idAt])} ${row[textAt]}`;
  });
}

/** RFC 4180 to the letter; undefined where a quote stands where none may, or is not closed. */
function rowsOf(text: string): string[][] | undefined {
  const FIELD = /(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|$)/y;
  const rows: string[][] = [];
  let row: string[] = [];
  let at = 0;
  while (at < text.length || row.length > 0) {
    FIELD.lastIndex = at;
    const found = FIELD.exec(text);
    if (found === null) return undefined;
    row.push(found[1]?.replaceAll('""', '"') ?? found[2]!);
    at = FIELD.lastIndex;
    if (found[3] === ',') continue;
    if (row.length === 1 && found[0] !== '""\n' && row[0] === '') return undefined; // an empty line: nothing, or an empty text
    rows.push(row);
    row = [];
  }
  return rows;
}

/** A document that is longer, or nested, may take mdast longer than the clock allows. */
const MOST_CHARACTERS = 3_000;

export const markdownReader: FuzzedReader = {
  ...common,
  name: 'markdown',
  extension: '.md',
  seeds: async () => [
    Buffer.from(
      '---\ntitle: about leases\n---\n# Leases\n\nA *worker* renews [its lease](https://example.org "why") at half.\n\n' +
        '- first item\n- second `code` item\n\n> quoted words\n\n```ts\nconst answer = 42;\n```\n',
    ),
    Buffer.from(
      'Heading one\n===========\n\n| name | value |\n| --- | ---: |\n| alpha | beta |\n\n<!-- hidden -->\n\n' +
        '<div align="center">shown inside</div>\n\n![a picture](p.png) and ~~struck~~ text[^1].\n\n[^1]: the note\n',
    ),
    Buffer.from(
      '漢字の文章。次の文。\n\n1. one\n   * nested\n\n     deeper text\n\n***\n\n[ref]: http://example.org\n\nUse [ref] &amp; go.\n',
    ),
  ],
  read: async (bytes, _path, variant) => {
    const records = await recordsOf('markdown', bytes, variant);
    const shown = records.map(({ text }) => text).join('');
    const text = decoded(bytes);
    if (text !== undefined && text.length <= MOST_CHARACTERS) {
      const letters = withoutSpace(shown);
      const lost = wordsOf(text).find((word) => !isIn(letters, word));
      if (lost !== undefined) throw new Error(`lost: ${lost.slice(0, 80)}`);
    }
    return ['nothing is lost'];
  },
  readAgain: () => 'unknown',
};

const withoutSpace = (text: string): string => text.replaceAll(/\s/g, '');

/** Also where a long word was cut, and headings stand between its pieces. */
function isIn(shown: string, word: string): boolean {
  let rest = word;
  for (let pieces = 0; rest !== '' && pieces <= 1 + word.length / 20; pieces++) {
    let [whole, none] = [0, rest.length + 1];
    while (none - whole > 1) {
      const middle = (whole + none) >> 1;
      if (shown.includes(rest.slice(0, middle))) whole = middle;
      else none = middle;
    }
    if (whole === 0) return false;
    rest = rest.slice(whole);
  }
  return rest === '';
}

/** What mdast finds to be text, code or the alternative text of an image. */
function wordsOf(document: string): string[] {
  const words: string[] = [];
  const visit = (node: Node): void => {
    const text =
      node.type === 'image' || node.type === 'imageReference' ? node.alt : VISIBLE.has(node.type) ? node.value : '';
    words.push(...(text?.match(/[\p{L}\p{N}]+/gu) ?? []));
    node.children?.forEach(visit);
  };
  // What may be front matter is looked at by the tests of front-matter.ts.
  const body = document.replace(/^(---|\+\+\+)[ \t]*\r?\n[^]*?\n(\1|\.\.\.)[ \t]*(\r?\n|$)/, '');
  visit(fromMarkdown(body, { extensions: [gfm()], mdastExtensions: [gfmFromMarkdown()] }) as Node);
  return words;
}

const VISIBLE = new Set(['text', 'code', 'inlineCode']);

interface Node {
  readonly type: string;
  readonly value?: string;
  readonly alt?: string | null;
  readonly children?: readonly Node[];
}
