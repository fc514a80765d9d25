// The page docs/scripts.md, from the headers of the Lua programs. Written by `npm run docs`.

import { readScripts, type LuaScript, type LuaValue } from './lua-scripts.ts';

export function scriptsPage(scripts: readonly LuaScript[] = readScripts()): string {
  const served = scripts.filter(({ name }) => !name.startsWith('testing/'));
  return [
    '# Lua on the queue server',
    '',
    'These programs run inside the queue server, beside the ones that BullMQ brings. They are sent once by',
    '`SCRIPT LOAD` and called by `EVALSHA`; the sha1 is what `SLOWLOG` and error messages of the server name.',
    '"Not refused by a full server" means that the script runs although `maxmemory` is reached (`allow-oom`), "reads',
    'only" that it runs although the disk is full as well (`no-writes`).',
    'The page is generated from the headers of the files (`npm run docs`).',
    '',
    '| script | what it does | sha1 |',
    '| --- | --- | --- |',
    ...served.map(({ name, summary, sha1 }) => `| [${name}](#${anchorOf(name)}) | ${cell(summary)} | \`${sha1}\` |`),
    ...served.flatMap(sectionOf),
    '',
  ].join('\n');
}

function sectionOf(script: LuaScript): string[] {
  const { name, file, summary, runs, keys, args, answers, writes, deletes, sha1, lua } = script;
  return [
    '',
    `## ${name}`,
    '',
    summary,
    '',
    `- File: [${file}](../${file})`,
    `- Runs: ${runs}`,
    ...(keys.length + args.length === 0 ? [] : ['', '| | name | meaning |', '| --- | --- | --- |']),
    ...keys.map((key) => rowOf('KEYS', key)),
    ...args.map((arg) => rowOf('ARGV', arg)),
    ...(keys.length + args.length === 0 ? [] : ['']),
    `- Answers: ${answers}`,
    `- Writes: ${writes}`,
    `- Deletes: ${deletes}`,
    `- sha1: \`${sha1}\`${flagWords(lua)}`,
  ];
}

function flagWords(lua: string): string {
  if (lua.startsWith('#!lua flags=no-writes')) return ', reads only';
  return lua.startsWith('#!lua flags=allow-oom') ? ', not refused by a full server' : '';
}

function rowOf(kind: 'KEYS' | 'ARGV', { place, name, meaning }: LuaValue): string {
  return `| ${kind}[${place}] | ${cell(name)} | ${cell(meaning)} |`;
}

function cell(text: string): string {
  return text.replaceAll('|', '\\|');
}

function anchorOf(name: string): string {
  return name.replaceAll('/', '');
}
