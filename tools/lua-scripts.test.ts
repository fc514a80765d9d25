import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import luaparse, { type Chunk, type Node } from 'luaparse';
import { describe, expect, test } from 'vitest';
import { RESULT_HEADER_BYTES } from '@shoal/contract';
import type { Script } from '../libs/queue/src/redis/script.ts';
import { modulesOf, pythonModuleOf } from './build-lua.ts';
import { luaFiles, parseHeader, readScripts, type LuaScript } from './lua-scripts.ts';
import { scriptsPage } from './scripts-page.ts';

const scripts = readScripts();

/** What the server gives a script; a name that is neither here nor a local is a slip of the pen. */
const GLOBALS = new Set(
  'KEYS ARGV redis cjson cmsgpack string table math tonumber type ipairs pairs unpack pcall'.split(' '),
);

function read(path: string): string {
  return readFileSync(new URL(`../${path}`, import.meta.url), 'utf8');
}

function parse(lua: string): Chunk {
  return luaparse.parse(lua, { luaVersion: '5.1', scope: true, locations: true, comments: false });
}

function* nodesOf(value: unknown): Generator<Node> {
  if (Array.isArray(value)) for (const one of value) yield* nodesOf(one);
  else if (typeof value === 'object' && value !== null && 'type' in value) {
    yield value as Node;
    for (const part of Object.values(value)) yield* nodesOf(part);
  }
}

/** Names that a program sets without `local`, and names that it reads and nobody gives it. */
function strayNames(chunk: Chunk): string[] {
  const stray = [...nodesOf(chunk)].flatMap((node) => {
    if (node.type === 'AssignmentStatement')
      return node.variables.flatMap((name) => (name.type === 'Identifier' && isGlobal(name) ? [name.name] : []));
    if (node.type === 'FunctionDeclaration' && node.identifier?.type === 'Identifier')
      return node.isLocal ? [] : [node.identifier.name];
    return node.type === 'Identifier' && isGlobal(node) && !GLOBALS.has(node.name) ? [node.name] : [];
  });
  return [...new Set(stray)];
}

function isGlobal(name: Node): boolean {
  return 'isLocal' in name && name.isLocal === false;
}

/** Lines on which two statements begin. */
function crowdedLines(chunk: Chunk): number[] {
  const statements = [...nodesOf(chunk)].filter(
    ({ type }) => type.endsWith('Statement') || type === 'FunctionDeclaration',
  );
  const lines = statements.map(({ loc }) => loc!.start.line);
  return lines.filter((line, at) => lines.indexOf(line) !== at);
}

test('the checks see what they are there for', () => {
  expect(() => parse('local x = = 1')).toThrow('<expression> expected');
  expect(strayNames(parse('local a = 1\nb = a\nfunction c() end\nprint(d)'))).toEqual(['b', 'c', 'print', 'd']);
  expect(strayNames(parse('local function f(x)\n  return x\nend\nreturn f(KEYS[1])'))).toEqual([]);
  expect(crowdedLines(parse('local a = 1 local b = 2\nif a then return b end'))).toEqual([1, 2]);
});

/** Places of keys and arguments that the code names by number and the header does not. */
function untoldPlaces({ lua, keys, args }: LuaScript): string[] {
  const code = lua.split('\n').filter((line) => !line.startsWith('--'));
  return [...code.join('\n').matchAll(/\b(KEYS|ARGV)\[(\d+)\]/g)].flatMap(([name, list, place]) => {
    const told = list === 'KEYS' ? keys : args;
    return told.at(-1)?.place.endsWith('..') === true || Number(place) <= told.length ? [] : [name];
  });
}

/** What `look` finds in each script, with the script's name. */
function foundIn(look: (script: LuaScript) => readonly (string | number)[]): string[] {
  return scripts.flatMap((script) => look(script).map((found) => `${script.name}: ${found}`));
}

test('every script is Lua 5.1 that sets no globals and reads none but those of the server', () => {
  expect(scripts.length).toBeGreaterThan(20);
  expect(foundIn(({ lua }) => strayNames(parse(lua)))).toEqual([]);
});

test('every script has one statement a line', () => {
  expect(foundIn(({ lua }) => crowdedLines(parse(lua)))).toEqual([]);
});

test('every script names in its header each key and argument that it reads by number', () => {
  expect(foundIn(untoldPlaces)).toEqual([]);
});

test('a script that writes and deletes nothing says so to the server, which runs it then on a full disk', () => {
  const served = readScripts().filter(({ name }) => !name.startsWith('testing/'));
  for (const { name, lua, writes, deletes } of served)
    expect([name, lua.startsWith('#!lua flags=no-writes')]).toEqual([
      name,
      writes === 'nothing' && deletes === 'nothing',
    ]);
});

test('no line is longer than 120 characters, and none ends in blanks', () => {
  const wrong = luaFiles().flatMap((file) =>
    read(file)
      .split('\n')
      .flatMap((line) => (line.length > 120 || line.trimEnd() !== line ? [`${file}: ${line}`] : [])),
  );
  expect(wrong).toEqual([]);
});

test('the modules that the code imports are what the .lua files say (npm run lua writes them)', () => {
  const modules = modulesOf(scripts);
  expect(Object.fromEntries([...modules.keys()].map((path) => [path, read(path)]))).toEqual(
    Object.fromEntries(modules),
  );
  const [path, text] = pythonModuleOf(scripts);
  expect(read(path)).toBe(text);
});

test('what is called by a hash has that hash', async () => {
  for (const [path] of modulesOf(scripts)) {
    const module = (await import(/* @vite-ignore */ new URL(`../${path}`, import.meta.url).href)) as Readonly<
      Record<string, Script>
    >;
    for (const { name, lua, sha } of Object.values(module))
      expect([name, createHash('sha1').update(lua).digest('hex')]).toEqual([name, sha]);
  }
});

test('docs/scripts.md is what the headers say (npm run docs writes it)', () => {
  expect(read('docs/scripts.md')).toBe(scriptsPage());
});

test('a header of a result is as long in Lua as in the contract', () => {
  expect(read('libs/queue/src/redis/lua/includes/result-header.lua')).toContain(
    `local HEADER_BYTES = ${RESULT_HEADER_BYTES}\n`,
  );
});

function parsed(lines: readonly string[]) {
  return parseHeader('x.lua', lines.join('\n'));
}

describe('a header', () => {
  const HEADER = [
    '-- Does something.',
    '--',
    '-- Runs: by nobody,',
    '--   ever',
    '-- KEYS[1] job: its record',
    '-- ARGV: none',
    '-- Answers: nothing',
    '-- Writes: nothing',
    '-- Deletes: nothing',
    'return 0',
  ];

  test('is read with lines that go on', () => {
    expect(parsed(HEADER)).toEqual({
      summary: 'Does something.',
      runs: 'by nobody, ever',
      keys: [{ place: '1', name: 'job', meaning: 'its record' }],
      args: [],
      answers: 'nothing',
      writes: 'nothing',
      deletes: 'nothing',
    });
  });

  test.each(['Runs', 'KEYS', 'ARGV', 'Answers', 'Writes', 'Deletes'])('that lacks %s is refused', (field) => {
    const rest = HEADER.filter((line) => !line.startsWith(`-- ${field}`) && line !== '--   ever');
    expect(() => parsed(rest)).toThrow(field);
  });

  test('that has no sentence, a place too many or a line of another form is refused', () => {
    expect(() => parsed(['-- something', ...HEADER.slice(1)])).toThrow('sentence');
    expect(() => parsed([...HEADER.slice(0, 5), '-- KEYS[3] x: y', ...HEADER.slice(5)])).toThrow('[2] is expected');
    expect(() => parsed([...HEADER.slice(0, 5), '-- Whatever', ...HEADER.slice(5)])).toThrow('no field');
  });
});
