import { spawnSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { settingsSchema } from '@shoal/core';
import { completionScript } from './completion.ts';
import { SETTING_FLAGS, buildProgram } from './program.ts';

const terminal = { stdin: process.stdin, stdout: process.stdout, stderr: process.stderr, environment: {}, signal: new AbortController().signal };
const program = buildProgram(terminal, '1.2.3');

test('every setting of core has its flag, under its own name', () => {
  expect(Object.keys(SETTING_FLAGS)).toEqual(Object.keys(settingsSchema.shape));
});

/** What bash would offer for the words, the last of which is being typed. */
function offered(...words: string[]): string[] {
  const script = `${completionScript(program, 'bash')}\nCOMP_WORDS=(shoal ${words.map((word) => `'${word}'`).join(' ')}); COMP_CWORD=${words.length}; _shoal; printf '%s\\n' "\${COMPREPLY[@]}"`;
  const { stdout, stderr } = spawnSync('bash', ['-c', script], { encoding: 'utf8' });
  expect(stderr).toBe('');
  return stdout.split('\n').filter((word) => word !== '');
}

describe('the completion script for bash', () => {
  const hasBash = spawnSync('bash', ['--version']).status === 0;

  test.skipIf(!hasBash)('offers commands, their commands, flags and the values of flags', () => {
    expect(offered('')).toEqual(expect.arrayContaining(['embed', 'try', 'model', 'worker', 'completion', '--version']));
    expect(offered('em')).toEqual(['embed']);
    expect(offered('model', 'p')).toEqual(['pull']);
    expect(offered('model', 'pull', '--f')).toEqual(['--force']);
    expect(offered('embed', '--output-')).toEqual(['--output-format']);
    expect(offered('embed', '--output-format', '')).toEqual(['jsonl', 'npy', 'arrow']);
    expect(offered('embed', '--format', '')).toEqual(['text', 'jsonl', 'csv', 'markdown']);
    expect(offered('completion', '')).toEqual(expect.arrayContaining(['bash', 'zsh', 'fish']));
  });
});

test('a worker has the flags of every setting that its kinds read', () => {
  const flags = program.commands.find((command) => command.name() === 'worker')!.options.map(({ long }) => long);
  expect(flags).toEqual(expect.arrayContaining(['--kind', '--collections-dir', '--kernels', '--device', '--model']));
});

test('the scripts for zsh and fish name every command', () => {
  expect(completionScript(program, 'zsh')).toContain('bashcompinit');
  const fish = completionScript(program, 'fish');
  expect(fish).toContain("complete -c shoal -n '__fish_seen_subcommand_from embed' -l output-format -r -f -a 'jsonl npy arrow'");
  expect(fish).toContain("complete -c shoal -n 'not __fish_seen_subcommand_from embed try index search similarity spread model up serve dashboard worker tune gpu doctor fleet queue completion' -f -a embed");
});
