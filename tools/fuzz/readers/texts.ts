// What `shoal embed` reads: lines, JSONL, CSV and Markdown. No line may be lost: each is a text, or named as one that
// cannot be read. The second readers are a few lines each and look at bytes, where ours look at lines: LF, CRLF and a CR
// alone end one, and what is no UTF-8 or has a NUL is a problem of its line.

import { fromMarkdown } from 'mdast-util-from-markdown';
import { gfmFromMarkdown } from 'mdast-util-gfm';
import { gfm } from 'micromark-extension-gfm';
import { HARD_MARKDOWN } from '../../../apps/cli/src/testing/hard-markdown.ts';
import { readRecords } from '../../../apps/cli/src/input/records.ts';
import type { TextFormat } from '@shoal/worker/files/record';
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

const MARK = '\xef\xbb\xbf';
const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Undefined where they are no text. */
export function textOf(latin: string): string | undefined {
  try {
    return latin.includes('\0') ? undefined : UTF8.decode(Buffer.from(latin, 'latin1'));
  } catch {
    return undefined;
  }
}

/** Undefined in place of a line that is no text. */
export function linesOf(bytes: Buffer): (string | undefined)[] {
  const all = bytes.toString('latin1');
  const lines = all.replace(MARK, (mark, at: number) => (at === 0 ? '' : mark)).split(/\r\n|\n|\r/);
  if (lines.at(-1) === '') lines.pop();
  return lines.map(textOf);
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
  readAgain: (bytes) => linesOf(bytes).map((line) => line ?? PROBLEM),
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
  readAgain: (bytes) =>
    linesOf(bytes)
      .filter((line) => line?.trim() !== '')
      .map((line) => (line === undefined ? PROBLEM : jsonRecord(line))),
};

function jsonRecord(line: string): string {
  try {
    const record: unknown = JSON.parse(line);
    if (typeof record !== 'object' || record === null || Array.isArray(record)) return PROBLEM;
    const own = Object.getOwnPropertyDescriptors(record) as Readonly<Record<string, PropertyDescriptor | undefined>>;
    const [text, id]: unknown[] = [own['text']?.value, own['id']?.value];
    if (typeof text !== 'string' || !['undefined', 'string', 'number'].includes(typeof id)) return PROBLEM;
    if (!text.isWellFormed() || !String(id).isWellFormed()) return PROBLEM;
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

function readCsv(bytes: Buffer): Values | undefined {
  const [header, ...others] = rowsOf(bytes, ',');
  if (header === undefined) return [];
  const names = header.fields?.map((name) => name.trim());
  if (names === undefined) return undefined;
  const [textAt, idAt] = [names.indexOf('text'), names.indexOf('id')];
  if (textAt === -1 || names.lastIndexOf('text') !== textAt || names.lastIndexOf('id') !== idAt) return undefined;
  return others.map(({ fields: row }) => {
    if (row?.length !== names.length) return PROBLEM;
    return `${String(idAt === -1 || row[idAt] === '' ? undefined : row[idAt])} ${row[textAt]}`;
  });
}

export interface Row {
  /** Undefined: it is a problem. */
  readonly fields: readonly string[] | undefined;
}

/** RFC 4180, a byte at a time; rows with nothing in them are none. */
export function rowsOf(bytes: Buffer, delimiter: string): Row[] {
  const all = bytes.toString('latin1');
  const rows: Row[] = [];
  let at = all.startsWith(MARK) ? MARK.length : 0;
  while (at < all.length) {
    const begin = at;
    const fields: string[] = [];
    let isSound = true;
    for (let isOver = false; !isOver;) {
      let field = '';
      if (all[at] === '"') {
        for (at++; at < all.length && !(all[at] === '"' && all[at + 1] !== '"'); at++) {
          field += all[at]!;
          if (all[at] === '"') at++;
        }
        isSound &&= at < all.length; // else it is never closed
        at++;
        const behind = at;
        while (at < all.length && all[at] !== delimiter && all[at] !== '\n' && all[at] !== '\r') at++;
        isSound &&= behind >= all.length || at === behind;
      } else
        for (; at < all.length && all[at] !== delimiter && all[at] !== '\n' && all[at] !== '\r'; at++)
          field += all[at]!;
      fields.push(field);
      isOver = all[at] !== delimiter;
      if (!isOver) at++;
    }
    const row = all.slice(begin, at);
    at += all.startsWith('\r\n', at) ? 2 : 1;
    if (row === '') continue;
    const texts = fields.map(textOf);
    isSound &&= textOf(row) !== undefined && !texts.includes(undefined);
    rows.push({ fields: isSound ? (texts as string[]) : undefined });
  }
  return rows;
}

/** A longer document, or one that is nested, may take mdast longer than the clock allows. */
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
  hard: (characters) =>
    Object.fromEntries(
      Object.entries(HARD_MARKDOWN).map(([name, make]) => [name, Buffer.from(make(characters))] as const),
    ),
  mostUndecided: 0.05,
  read: async (bytes, _path, variant) => {
    const records = await recordsOf('markdown', bytes, variant);
    if (records.length === 1 && records[0]!.text === PROBLEM) return [PROBLEM];
    const letters = withoutSpace(records.map(({ text }) => text).join(''));
    const text = documentIn(bytes) ?? '';
    const words = [...plainWords(text), ...(text.length <= MOST_CHARACTERS ? wordsOf(text) : [])];
    const lost = [...new Set(words)].find((word) => !isIn(letters, word));
    if (lost !== undefined) throw new Error(`lost: ${lost.slice(0, 80)}`);
    return [NOTHING_LOST];
  },
  readAgain: (bytes) => {
    const text = documentIn(bytes);
    if (text === undefined) return [PROBLEM];
    return text.length <= MOST_CHARACTERS || plainWords(text).length > 0 ? [NOTHING_LOST] : 'unknown';
  },
};

/** Items are numbered from the first of their list on, whatever the others say. */
const MARKERS = /^(?:[ \t]*(?:\d{1,9}[.)]|[-+*])(?=\s|$))+/gm;
const NOTHING_LOST = 'nothing is lost';

function documentIn(bytes: Buffer): string | undefined {
  const all = bytes.toString('latin1');
  return textOf(all.startsWith(MARK) ? all.slice(MARK.length) : all)?.replaceAll(/\r\n?/g, '\n');
}

/**
 * Words that are seen whatever Markdown is: between blank lines, with nothing near them that could make a link, a tag, a
 * reference or a fence of them. Needs no parser, so that documents of any length have such.
 */
function plainWords(document: string): string[] {
  const body = document.replace(FRONT_MATTER, '');
  const hidden = body.search(/<!|<\?|<(?:script|style)/i);
  const paragraphs = (hidden === -1 ? body : body.slice(0, hidden)).split(/\n[ \t]*\n/);
  if (hidden !== -1) paragraphs.pop();
  return paragraphs
    .filter((paragraph) => !/[[\]<>&`\\]|~~~|^[ \t]*(?:---|\+\+\+)/.test(paragraph))
    .map((paragraph) => paragraph.replaceAll(MARKERS, ''))
    .flatMap((paragraph) => paragraph.match(/[\p{L}\p{N}]+/gu) ?? []);
}

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

const FRONT_MATTER = /^(---|\+\+\+)[ \t]*\n[^]*?\n(\1|\.\.\.)[ \t]*(\n|$)/;

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
  const body = document.replace(FRONT_MATTER, '');
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
