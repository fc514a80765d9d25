// Reads the Lua programs of libs/: each file of a folder called lua/ is a script, each file of lua/includes/ is put in
// place of the line `-- @include "<path>"` of the scripts that name it. A script begins with a header in a fixed form:
//
//   #!lua flags=allow-oom          only where the server runs it although its memory is full
//   #!lua flags=no-writes          where it writes and deletes nothing, so that a full disk does not refuse it
//   -- What it does, in a sentence.
//   --
//   -- Runs: by whom and when
//   -- KEYS[1] name: meaning       KEYS[8..] of each job: … where their number depends on the call
//   -- ARGV[1] name: meaning       ARGV: none
//   -- Answers: what it returns
//   -- Writes: which keys
//   -- Deletes: which keys
//   --
//   -- Why it is done this way.

import { createHash } from 'node:crypto';
import { globSync, readFileSync } from 'node:fs';
import { basename, dirname, join, relative } from 'node:path';

export interface LuaValue {
  /** As the header has it: "1", or "8.." where so many follow as the call has. */
  readonly place: string;
  readonly name: string;
  readonly meaning: string;
}

export interface LuaScript {
  /** Path in the repository. */
  readonly file: string;
  /** Its room and its file, e.g. "bullmq/add-jobs". */
  readonly name: string;
  readonly summary: string;
  readonly runs: string;
  readonly keys: readonly LuaValue[];
  readonly args: readonly LuaValue[];
  readonly answers: string;
  readonly writes: string;
  readonly deletes: string;
  /** What the server gets: the file, with its includes in place. */
  readonly lua: string;
  readonly sha1: string;
}

const ROOT = new URL('..', import.meta.url).pathname;
const INCLUDE = /^-- @include "(.+)"$/;
const ONE_FIELD = /^(Runs|Answers|Writes|Deletes): (.+)$/;
const VALUE_FIELD = /^(KEYS|ARGV)(?:: none|\[(\d+(?:\.\.)?)\] ([^:]+): (.+))$/;

/** In the order of their names. Throws for a header that lacks something, naming file and field. */
export function readScripts(): LuaScript[] {
  return filesLike('libs/*/src/**/lua/*.lua').map((file) => {
    const lua = withIncludes(file, new Set());
    return {
      file,
      name: `${basename(dirname(dirname(file)))}/${basename(file, '.lua')}`,
      ...parseHeader(file, readFileSync(join(ROOT, file), 'utf8')),
      lua,
      sha1: createHash('sha1').update(lua).digest('hex'),
    };
  });
}

/** Paths of all Lua files, includes as well. */
export function luaFiles(): string[] {
  return filesLike('libs/*/src/**/lua/**/*.lua');
}

/** How many keys it has; 0 where that depends on the call. */
export function keyCountOf({ keys }: LuaScript): number {
  return keys.some(({ place }) => place.endsWith('..')) ? 0 : keys.length;
}

/** Pure. Throws where a field is missing, comes twice, or is out of order. */
export function parseHeader(
  file: string,
  text: string,
): Pick<LuaScript, 'summary' | 'runs' | 'keys' | 'args' | 'answers' | 'writes' | 'deletes'> {
  const [summary, lines] = paragraphsOf(text);
  if (!/^[A-Z].*\.$/.test(summary)) throw new HeaderFault(file, 'does not begin with a sentence');
  const fields = lines.map((line) => parseField(file, line));
  const textOf = (name: string): string => {
    const [first, second] = fields.filter((field) => field.name === name);
    if (first?.kind !== 'text' || second !== undefined) throw new HeaderFault(file, `needs one field "${name}"`);
    return first.text;
  };
  const valuesOf = (name: string): LuaValue[] => {
    const found = fields.filter((field) => field.name === name);
    if (found.length === 0) throw new HeaderFault(file, `does not say what ${name} are`);
    const values = found.flatMap((field) => (field.kind === 'value' ? [field.value] : []));
    for (const [at, { place }] of values.entries())
      if (Number.parseInt(place, 10) !== at + 1)
        throw new HeaderFault(file, `has ${name}[${place}] where [${at + 1}] is expected`);
    return values;
  };
  return {
    summary,
    runs: textOf('Runs'),
    keys: valuesOf('KEYS'),
    args: valuesOf('ARGV'),
    answers: textOf('Answers'),
    writes: textOf('Writes'),
    deletes: textOf('Deletes'),
  };
}

class HeaderFault extends Error {
  constructor(file: string, problem: string) {
    super(`${file}: its header ${problem}`);
  }
}

type Field =
  | { readonly kind: 'text'; readonly name: string; readonly text: string }
  | { readonly kind: 'value'; readonly name: string; readonly value: LuaValue }
  | { readonly kind: 'none'; readonly name: string };

function parseField(file: string, line: string): Field {
  const [, textName, text] = ONE_FIELD.exec(line) ?? [];
  if (textName !== undefined && text !== undefined) return { kind: 'text', name: textName, text };
  const [, list, place, name = '', meaning = ''] = VALUE_FIELD.exec(line) ?? [];
  if (list === undefined) throw new HeaderFault(file, `has a line that is no field: ${line}`);
  if (place === undefined) return { kind: 'none', name: list };
  return { kind: 'value', name: list, value: { place, name, meaning } };
}

/** The first paragraph of the header as one sentence, the second as its fields, lines that go on joined. */
function paragraphsOf(text: string): [summary: string, fields: string[]] {
  const lines = text.split('\n');
  const first = lines[0]?.startsWith('#!') === true ? 1 : 0;
  const end = lines.findIndex((line, at) => at >= first && (!line.startsWith('--') || INCLUDE.test(line)));
  const comments = lines.slice(first, end).map((line) => line.slice(3));
  const [summary = [], fields = []] = splitAt(comments);
  return [summary.join(' '), fields.join('\n').replaceAll('\n  ', ' ').split('\n')];
}

function splitAt(lines: readonly string[]): string[][] {
  const paragraphs: string[][] = [[]];
  for (const line of lines) {
    if (line === '') paragraphs.push([]);
    else paragraphs.at(-1)!.push(line);
  }
  return paragraphs;
}

/** Each include once in a script, at the first line that asks for it. */
function withIncludes(file: string, included: Set<string>): string {
  return readFileSync(join(ROOT, file), 'utf8')
    .split('\n')
    .map((line) => {
      const path = INCLUDE.exec(line)?.[1];
      if (path === undefined) return line;
      const other = join(dirname(file), path);
      if (included.has(other)) return '';
      included.add(other);
      return withIncludes(other, included).trimEnd();
    })
    .join('\n');
}

function filesLike(pattern: string): string[] {
  return globSync(pattern, { cwd: ROOT, exclude: (path) => path.includes('node_modules') })
    .map((path) => relative(ROOT, join(ROOT, path)))
    .sort();
}
