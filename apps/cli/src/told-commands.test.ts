// Every command that somebody is told to type, by a page, an alert, a help text or an error, is one that there is: its
// words are commands and its flags are theirs.

import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Command } from 'commander';
import { expect, test } from 'vitest';
import { program } from './testing/program-here.ts';

const ROOT = join(import.meta.dirname, '../../..');
/** Pages that keep the words of their day, and tests, which call what is not there as well. */
const LEFT_OUT =
  /(^|\/)(node_modules|fixtures|dist)\/|^docs\/lab\/|^bench\/results\/|^CHANGELOG\.md$|(\.test|\.generated)\.ts$/;
const NAMES = program.commands.map((command) => command.name());
/** Up to what ends a command in a shell, in a sentence or in a string. */
const TOLD = new RegExp(`(?<![\\w@/.\\-])shoal ((?:${NAMES.join('|')})(?= |$)[^\`'"\\n|;&>)\\]]*)`, 'gm');

/** What is wrong with the command; undefined: nothing. */
function problemOf(told: string): string | undefined {
  const words = told.trim().split(/\s+/);
  let command: Command = program;
  for (let at = 0; command.commands.length > 0 && /^[a-z][a-z-]*$/.test(words[at] ?? ''); at++) {
    const next = command.commands.find((one) => one.name() === words[at] || one.aliases().includes(words[at]!));
    if (next === undefined) return `${command.name()} has no command "${words[at]}"`;
    command = next;
  }
  const flags = words.flatMap((word) => /^--?[a-z][\w-]*/i.exec(word) ?? []);
  const unknown = flags.find((flag) => flag !== '--help' && !knows(command, flag));
  return unknown === undefined ? undefined : `${command.name()} has no ${unknown}`;
}

function knows(command: Command | null, flag: string): boolean {
  if (command === null) return false;
  return command.options.some(({ short, long }) => short === flag || long === flag) || knows(command.parent, flag);
}

test('a command that is not there is seen', () => {
  expect(['queue counts --json', 'fleet drain --all', 'queue peek', 'embed a.txt -o b.npy'].map(problemOf)).toEqual([
    undefined,
    'drain has no --all',
    'queue has no command "peek"',
    undefined,
  ]);
});

test('every command that is told is there', () => {
  const files = execFileSync(
    'git',
    ['ls-files', '*.md', '*.ts', '*.yaml', '*.yml', '*.sh', '*.service', '*.py', 'shoal'],
    {
      cwd: ROOT,
      encoding: 'utf8',
    },
  );
  const wrong = files.split('\n').flatMap((file) => {
    if (file === '' || LEFT_OUT.test(file)) return [];
    const text = readFileSync(join(ROOT, file), 'utf8');
    return [...text.matchAll(TOLD)].flatMap(({ 1: told = '', index }) => {
      const problem = problemOf(told);
      return problem === undefined
        ? []
        : [`${file}:${text.slice(0, index).split('\n').length}: shoal ${told}: ${problem}`];
    });
  });
  expect(wrong).toEqual([]);
});
