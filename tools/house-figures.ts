// Prints how easily this tree can be walked, each figure beside its bar. It reports, and fails nothing.
//
//   npm run figures                     a page for people
//   npm run figures -- --json           the same as one JSON object
//   npm run figures -- --since <ref>    and how many commits since then say no why
//   npm run figures -- --root <folder>  of another checkout

import { join } from 'node:path';
import { parseArgs } from 'node:util';
import {
  measureHouse,
  CLASS_BAR,
  FILE_BAR,
  FUNCTION_BAR,
  LINE_LIMIT,
  type At,
  type HouseFigures,
} from './figures/measure.ts';

const { values: options } = parseArgs({
  options: { json: { type: 'boolean' }, since: { type: 'string' }, root: { type: 'string' } },
});
const figures = measureHouse(options.root ?? join(import.meta.dirname, '..'), options.since);
console.log(options.json === true ? JSON.stringify(figures) : page(figures));

type Row = readonly [name: string, value: number | string, bar: string, where?: string];

function page(house: HouseFigures): string {
  const { commits } = house;
  const rows: Row[] = [
    place('entries of the fullest folder', house.fullestFolder, '≤ 32'),
    ['circles between files, types included', house.circles.length, '0'],
    place('cyclomatic, most', house.worstCyclomatic[0]!, '≤ 15'),
    place('class, lines of code, most', house.longestClass, `≤ ${CLASS_BAR.lines}`),
    place('class, changeable fields, most', house.mostChangeable, `≤ ${CLASS_BAR.changeable}`),
    place('longest function, TypeScript', house.longestFunction, `≤ ${FUNCTION_BAR.typescript}`),
    place('longest function, C++ and CUDA', house.longestNativeFunction, `≤ ${FUNCTION_BAR.native}`),
    ['file, lines, p90', house.fileLines.p90, '≤ 220'],
    place('file, lines, most', house.fileLines.max, `≤ ${FILE_BAR}`),
    [`lines over ${LINE_LIMIT} characters`, house.longLines.lines, '0'],
    ['Lua in template strings', house.luaStrings.count, '0'],
    ['exported names of @shoal/core', house.coreExports, '≤ 110', entries(house.coreEntries)],
    ['words of ARCHITECTURE.md', house.architectureWords, '≤ 2200'],
    ['arrows between rooms of core', house.core.arrows, '~50', rooms(house.core)],
    ['arrows between rooms of queue', house.queue.arrows, '~40', rooms(house.queue)],
  ];
  if (commits !== undefined) rows.push(['commits without a body', commits.withoutBody, '< 20 %', `of ${commits.all}`]);
  return [
    ...table(rows),
    ...list(
      'Circles',
      house.circles.map((files) => files.join(' ↔ ')),
    ),
    ...list('Most branches', house.worstCyclomatic.map(valueAndPlace)),
    ...list('Classes over the bar', house.classesOver.map(classLine)),
    ...list('Functions over the bar', [...house.functionsOver, ...house.nativeFunctionsOver].map(valueAndPlace)),
    ...list('Files over the bar', house.filesOver.map(valueAndPlace)),
    ...list('Lines over the limit', house.longLines.files.map(valueAndPlace)),
    ...list('Lua in template strings', house.luaStrings.files),
  ].join('\n');
}

function place(name: string, { at, value }: At<number>, bar: string): Row {
  return [name, value, bar, at];
}

function rooms({ rooms: count, arrowsBetweenFiles }: HouseFigures['core']): string {
  return `${count} rooms, ${arrowsBetweenFiles} arrows between files`;
}

function entries(others: HouseFigures['coreEntries']): string {
  return others.map(({ at, value }) => `${value} in ${at}`).join(', ');
}

function classLine({ at, value: { lines, changeable } }: HouseFigures['classesOver'][number]): string {
  return `${lines} lines, ${changeable} changeable  ${at}`;
}

function valueAndPlace({ at, value }: At<number>): string {
  return `${value}  ${at}`;
}

function table(rows: readonly Row[]): string[] {
  return rows.map(([name, value, bar, where = '']) =>
    `${name.padEnd(40)}${String(value).padStart(6)}   ${bar.padEnd(8)}${where}`.trimEnd(),
  );
}

function list(title: string, lines: readonly string[]): string[] {
  return lines.length === 0 ? [] : ['', `${title}:`, ...lines.map((line) => `  ${line}`)];
}
