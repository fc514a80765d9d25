// Writes scripts.generated.ts into every lua/ folder: the text of its scripts with their sha1, as constants that the
// code beside it imports. Run by `npm run lua` after a .lua file has changed; lua-scripts.test.ts fails until it was.
//
// The modules are committed because the sources run as they are (tests, benches and the processes that these start), as
// a build by tsc, and out of an npm package: a .lua file that is read at run time would have to be found from all
// three. The Python client has those that it calls in a module of its own, so that a wheel needs nothing beside it.

import { writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { keyCountOf, readScripts, type LuaScript } from './lua-scripts.ts';

/** Of each lua/ folder, by the path of the module in the repository. */
export function modulesOf(scripts: readonly LuaScript[]): Map<string, string> {
  const folders = Map.groupBy(scripts, ({ file }) => dirname(file));
  return new Map(
    [...folders].map(([folder, group]) => [join(folder, 'scripts.generated.ts'), moduleOf(folder, group)]),
  );
}

/** The scripts that the Python client calls. */
const OF_PYTHON = [
  'admission/admit-jobs',
  'admission/release-room',
  'bullmq/add-jobs',
  'bullmq/fail-waiting-job',
  'lanes/list-workers',
  'producer/cancel-claimed-job',
  'producer/mark-taken',
  'producer/read-endings',
  'worker/announce-jobs',
];

/** The same for the Python client: path and text. */
export function pythonModuleOf(scripts: readonly LuaScript[]): readonly [path: string, text: string] {
  const used = scripts.filter(({ name }) => OF_PYTHON.includes(name));
  const text = [
    '"""Written by tools/build-lua.ts from the .lua files of libs/queue: npm run lua."""\n',
    'from typing import NamedTuple\n\n',
    'class Script(NamedTuple):\n    sha: str\n    lua: str\n',
    ...used.map(pythonConstantOf),
  ].join('\n');
  return ['clients/python/src/shoal/_scripts.py', text];
}

function pythonConstantOf(script: LuaScript): string {
  const lines = script.lua
    .split(/(?<=\n)/)
    .flatMap(piecesOf)
    .map((piece) => `    ${JSON.stringify(piece)}`);
  return `\n${constantNameOf(script)} = Script(\n    "${script.sha1}",\n${lines.join('\n')},\n)\n`;
}

function moduleOf(folder: string, scripts: readonly LuaScript[]): string {
  const script = relative(folder, join(folder.split('/src/')[0]!, 'src/redis/script.ts'));
  return [
    '// Written by tools/build-lua.ts from the .lua files of this folder: npm run lua.\n',
    `import type { Script } from '${script}';\n`,
    scripts.map(constantOf).join('\n'),
  ].join('\n');
}

function constantOf(script: LuaScript): string {
  return [
    `export const ${constantNameOf(script)}: Script = {`,
    `  name: '${script.name}',`,
    `  sha: '${script.sha1}',`,
    `  keyCount: ${keyCountOf(script)},`,
    '  lua: [',
    ...piecesOf(script.lua).map((piece) => `    ${quoted(piece)},`),
    "  ].join(''),",
    '};\n',
  ].join('\n');
}

function constantNameOf({ name }: LuaScript): string {
  return name.split('/')[1]!.toUpperCase().replaceAll('-', '_');
}

/** So that no line is longer than others may be, and none passes for a line of the program that somebody may edit. */
const PIECE_LENGTH = 90;

function piecesOf(text: string): string[] {
  return Array.from({ length: Math.ceil(text.length / PIECE_LENGTH) }, (_, at) =>
    text.slice(at * PIECE_LENGTH, (at + 1) * PIECE_LENGTH),
  );
}

/** As the formatter has it: in the quotes of which there are fewer in the text. */
function quoted(text: string): string {
  const quote = text.split("'").length > text.split('"').length ? '"' : "'";
  return `${quote}${text.replaceAll('\\', '\\\\').replaceAll('\n', '\\n').replaceAll(quote, `\\${quote}`)}${quote}`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const scripts = readScripts();
  for (const [path, text] of [...modulesOf(scripts), pythonModuleOf(scripts)])
    writeFileSync(new URL(`../${path}`, import.meta.url), text);
}
