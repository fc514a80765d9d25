// All figures of a tree as one value: what the code looks like to somebody who has to carry it on.

import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path/posix';
import { circles, importGraph, roomsOf, type RoomFigures } from './arrows.ts';
import { nativeFunctions } from './native-functions.ts';
import { readSourceTree, type SourceTree } from './source-tree.ts';
import { figuresOf, type FileFigures } from './typescript-figures.ts';

export const LINE_LIMIT = 120;
export const CLASS_BAR = { lines: 260, changeable: 8 };
export const FUNCTION_BAR = { typescript: 50, native: 70 };
export const FILE_BAR = 420;
const WORST = 10;

/** Something that was measured, and where it is. */
export interface At<Value> {
  readonly at: string;
  readonly value: Value;
}

export interface HouseFigures {
  readonly fullestFolder: At<number>;
  readonly circles: readonly (readonly string[])[];
  readonly worstCyclomatic: readonly At<number>[];
  readonly longestClass: At<number>;
  readonly mostChangeable: At<number>;
  /** Classes over either bar. */
  readonly classesOver: readonly At<{ readonly lines: number; readonly changeable: number }>[];
  readonly longestFunction: At<number>;
  readonly functionsOver: readonly At<number>[];
  readonly longestNativeFunction: At<number>;
  readonly nativeFunctionsOver: readonly At<number>[];
  readonly fileLines: { readonly p90: number; readonly max: At<number> };
  readonly filesOver: readonly At<number>[];
  readonly longLines: { readonly lines: number; readonly files: readonly At<number>[] };
  readonly luaStrings: { readonly count: number; readonly files: readonly string[] };
  readonly coreExports: number;
  /** The names of core's other entries, testing and sim left out. */
  readonly coreEntries: readonly At<number>[];
  readonly architectureWords: number;
  readonly core: RoomFigures;
  readonly queue: RoomFigures;
  /** Since a given commit; undefined where none was given. */
  readonly commits: { readonly all: number; readonly withoutBody: number } | undefined;
}

export function measureHouse(root: string, since?: string): HouseFigures {
  const tree = readSourceTree(root);
  const files = tree.product.map(figuresOf);
  const graph = importGraph(files);
  const lua = files.filter(({ luaStrings }) => luaStrings > 0);
  return {
    fullestFolder: fullestFolder(tree.shelved),
    circles: circles(graph),
    ...classFigures(files),
    ...functionFigures(files),
    ...nativeFigures(tree),
    ...fileLines(files),
    longLines: longLines(tree),
    luaStrings: { count: sum(lua.map(({ luaStrings }) => luaStrings)), files: lua.map(({ path }) => path) },
    ...coreExports(files),
    architectureWords: wordsOf(tree, root),
    core: roomsOf(graph, 'libs/core/src/'),
    queue: roomsOf(graph, 'libs/queue/src/'),
    commits: since === undefined ? undefined : commitsSince(root, since),
  };
}

/** The folder with most entries, files and folders alike. */
export function fullestFolder(paths: readonly string[]): At<number> {
  const entries = new Map<string, Set<string>>();
  for (const path of paths)
    for (let entry = path; entry.includes('/'); entry = dirname(entry)) {
      const folder = dirname(entry);
      entries.set(folder, (entries.get(folder) ?? new Set()).add(entry));
    }
  return worst([...entries].map(([at, { size }]) => ({ at, value: size })))[0] ?? NOTHING;
}

function functionFigures(
  files: readonly FileFigures[],
): Pick<HouseFigures, 'worstCyclomatic' | 'longestFunction' | 'functionsOver'> {
  const functions = files.flatMap(({ path, functions: own }) =>
    own.map(({ name, lines, cyclomatic }) => ({ at: `${name} (${path})`, lines, cyclomatic })),
  );
  const byLines = worst(functions.map(({ at, lines: value }) => ({ at, value })));
  return {
    worstCyclomatic: worst(functions.map(({ at, cyclomatic: value }) => ({ at, value }))).slice(0, WORST),
    longestFunction: byLines[0] ?? NOTHING,
    functionsOver: over(byLines, FUNCTION_BAR.typescript),
  };
}

function classFigures(
  files: readonly FileFigures[],
): Pick<HouseFigures, 'longestClass' | 'mostChangeable' | 'classesOver'> {
  const classes = files.flatMap(({ path, classes: own }) =>
    own.map(({ name, lines, changeable }) => ({ at: `${name} (${path})`, lines, changeable })),
  );
  return {
    longestClass: worst(classes.map(({ at, lines: value }) => ({ at, value })))[0] ?? NOTHING,
    mostChangeable: worst(classes.map(({ at, changeable: value }) => ({ at, value })))[0] ?? NOTHING,
    classesOver: classes
      .filter(({ lines, changeable }) => lines > CLASS_BAR.lines || changeable > CLASS_BAR.changeable)
      .map(({ at, ...value }) => ({ at, value })),
  };
}

function nativeFigures({ native }: SourceTree): Pick<HouseFigures, 'longestNativeFunction' | 'nativeFunctionsOver'> {
  const functions = native.flatMap(({ path, text }) =>
    nativeFunctions(text).map(({ name, lines }) => ({ at: `${name} (${path})`, value: lines })),
  );
  const byLines = worst(functions);
  return { longestNativeFunction: byLines[0] ?? NOTHING, nativeFunctionsOver: over(byLines, FUNCTION_BAR.native) };
}

function fileLines(files: readonly FileFigures[]): Pick<HouseFigures, 'fileLines' | 'filesOver'> {
  const byLines = worst(files.map(({ path, lines }) => ({ at: path, value: lines })));
  return {
    fileLines: { p90: byLines[Math.floor(byLines.length / 10)]?.value ?? 0, max: byLines[0] ?? NOTHING },
    filesOver: over(byLines, FILE_BAR),
  };
}

function longLines({ written }: SourceTree): HouseFigures['longLines'] {
  const files = written.map(({ path, text }) => ({ at: path, value: longLinesIn(text) }));
  return { lines: sum(files.map(({ value }) => value)), files: over(worst(files), 0) };
}

/** Counted by characters, not by the units that strings are made of. */
export function longLinesIn(text: string): number {
  return text.split('\n').filter((line) => [...line].length > LINE_LIMIT).length;
}

function coreExports(files: readonly FileFigures[]): Pick<HouseFigures, 'coreExports' | 'coreEntries'> {
  const entries = files.flatMap(({ path, exports }) => {
    const at = /^libs\/core\/src\/(.*\/)?index\.ts$/.exec(path);
    return at === null ? [] : [{ at: `@shoal/core/${at[1] ?? ''}`, value: exports.length }];
  });
  const main = entries.find(({ at }) => at === '@shoal/core/');
  return { coreExports: main?.value ?? 0, coreEntries: entries.filter((entry) => entry !== main) };
}

function wordsOf({ paths }: SourceTree, root: string): number {
  if (!paths.includes('ARCHITECTURE.md')) return 0;
  return readFileSync(join(root, 'ARCHITECTURE.md'), 'utf8')
    .split(/\s+/)
    .filter((word) => word !== '').length;
}

function commitsSince(root: string, since: string): HouseFigures['commits'] {
  const log = execFileSync('git', ['log', '--no-merges', '--format=%b%x00', `${since}..HEAD`], {
    cwd: root,
    encoding: 'utf8',
    maxBuffer: 2 ** 26,
  });
  const bodies = log.split('\0').slice(0, -1);
  return { all: bodies.length, withoutBody: bodies.filter((body) => body.trim() === '').length };
}

const NOTHING: At<number> = { at: 'nothing', value: 0 };

/** Most first. */
function worst(found: readonly At<number>[]): At<number>[] {
  return found.toSorted((a, b) => b.value - a.value);
}

function over(sorted: readonly At<number>[], bar: number): At<number>[] {
  return sorted.filter(({ value }) => value > bar);
}

function sum(values: readonly number[]): number {
  return values.reduce((all, value) => all + value, 0);
}
