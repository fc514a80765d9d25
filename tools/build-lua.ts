// Writes scripts.generated.ts into every lua/ folder: the text of its scripts with their sha1, as constants that the
// code beside it imports. Run by `npm run lua` after a .lua file has changed; lua-scripts.test.ts fails until it was.
//
// The modules are committed because the sources run as they are (tests, benches and the processes that these start), as
// a build by tsc, and out of an npm package: a .lua file that is read at run time would have to be found from all
// three.

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

function moduleOf(folder: string, scripts: readonly LuaScript[]): string {
  const script = relative(folder, join(folder.split('/src/')[0]!, 'src/redis/script.ts'));
  return [
    '// Written by tools/build-lua.ts from the .lua files of this folder: npm run lua.\n',
    `import type { Script } from '${script}';\n`,
    scripts.map(constantOf).join('\n'),
  ].join('\n');
}

function constantOf(script: LuaScript): string {
  const constant = script.name.split('/')[1]!.toUpperCase().replaceAll('-', '_');
  return [
    `export const ${constant}: Script = {`,
    `  name: '${script.name}',`,
    `  sha: '${script.sha1}',`,
    `  keyCount: ${keyCountOf(script)},`,
    '  lua: [',
    ...piecesOf(script.lua).map((piece) => `    ${quoted(piece)},`),
    "  ].join(''),",
    '};\n',
  ].join('\n');
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
  for (const [path, text] of modulesOf(readScripts())) writeFileSync(new URL(`../${path}`, import.meta.url), text);
}
