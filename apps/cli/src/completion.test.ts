import { spawnSync } from 'node:child_process';
import { beforeEach, describe, expect, test } from 'vitest';
import { settingsSchema } from '@shoal/core';
import { completionScript } from './completion.ts';
import { SETTING_FLAGS } from './program/settings.ts';
import { program } from './testing/program-here.ts';

test('every setting of core has its flag, under its own name', () => {
  expect(Object.keys(SETTING_FLAGS)).toEqual(Object.keys(settingsSchema.shape));
});

/** What bash would offer for the words, the last of which is being typed. */
function offered(...words: string[]): string[] {
  const script =
    `${completionScript(program, 'bash')}\nCOMP_WORDS=(shoal ${words.map((word) => `'${word}'`).join(' ')}); ` +
    `COMP_CWORD=${words.length}; _shoal; printf '%s\\n' "\${COMPREPLY[@]}"`;
  const { stdout, stderr } = spawnSync('bash', ['-c', script], { encoding: 'utf8' });
  expect(stderr).toBe('');
  return stdout.split('\n').filter((word) => word !== '');
}

describe('the completion script for bash', () => {
  beforeEach(({ skip }) => {
    if (spawnSync('bash', ['--version']).status !== 0) skip('there is no bash on this machine');
  });

  test('offers commands, their commands, flags and the values of flags', () => {
    expect(offered('')).toEqual(expect.arrayContaining(['embed', 'try', 'model', 'worker', 'completion']));
    expect(offered('-')).toEqual(expect.arrayContaining(['--version', '--help']));
    expect(offered('em')).toEqual(['embed']);
    expect(offered('model', 'p')).toEqual(['pull']);
    expect(offered('model', 'pull', '--f')).toEqual(['--force']);
    expect(offered('embed', '--output-')).toEqual(['--output-format']);
    expect(offered('embed', '--output-format', '')).toEqual(['jsonl', 'csv', 'npy', 'arrow', 'parquet']);
    expect(offered('embed', '--format', '')).toEqual(['text', 'jsonl', 'json', 'csv', 'markdown', 'parquet']);
    expect(offered('completion', '')).toEqual(expect.arrayContaining(['bash', 'zsh', 'fish']));
  });

  test('offers the values that a setting may have', () => {
    expect(offered('worker', '--hybrid', '')).toEqual(['auto', 'never', 'always']);
    expect(offered('worker', '--precision', 'f')).toEqual(['fp32', 'fp16']);
    expect(offered('tune', '--kind', '')).toEqual(['embed', 'similarity']);
    expect(offered('up', '--unsafe-server', '')).toEqual(['refuse', 'warn']);
    expect(offered('embed', '--log-level', 'd')).toEqual(['debug']);
  });

  test('offers nothing where a file or any text may stand, so that bash completes file names', () => {
    for (const words of [
      ['embed', ''],
      ['embed', '-o', ''],
      ['embed', '--output', ''],
      ['embed', '-o', '-'],
      ['index', 'build', 'docs', ''],
      ['worker', '--collections-dir', ''],
      ['worker', '--model', ''],
    ])
      expect(offered(...words)).toEqual([]);
    expect(completionScript(program, 'bash')).toContain('complete -o default ');
  });
});

test('a worker has the flags of every setting that its kinds read', () => {
  const flags = program.commands.find((command) => command.name() === 'worker')!.options.map(({ long }) => long);
  expect(flags).toEqual(expect.arrayContaining(['--kind', '--collections-dir', '--kernels', '--device', '--model']));
});

test('the scripts for zsh and fish name every command', () => {
  expect(completionScript(program, 'zsh')).toMatch(/ compinit; .*bashcompinit && bashcompinit\n.*_shoal/s);
  const fish = completionScript(program, 'fish');
  expect(fish).toContain(
    "complete -c shoal -n '__fish_seen_subcommand_from embed' -l output-format -r -f -a 'jsonl csv npy arrow parquet'",
  );
  expect(fish).toContain(
    "complete -c shoal -n 'not __fish_seen_subcommand_from embed try index search rerank similarity spread model up " +
      "serve key dashboard exporter worker tune gpu doctor fleet queue audit completion' -f -a embed",
  );
});

test('zsh without compinit takes the script, too, and its function runs as bashcompinit calls it', ({ skip }) => {
  if (spawnSync('zsh', ['--version']).status !== 0) skip('there is no zsh on this machine');
  const asCalled =
    'try() { emulate -L sh; setopt kshglob noshglob braceexpand nounset; COMP_WORDS=(shoal worker --hybrid a); ' +
    'COMP_CWORD=3; _shoal; echo "${COMPREPLY[@]}"; }; try';
  const { stdout, stderr } = spawnSync(
    'zsh',
    ['-f', '-c', `${completionScript(program, 'zsh')}\nprint $_comps[shoal]; ${asCalled}`],
    { encoding: 'utf8' },
  );
  expect([stderr, stdout]).toEqual(['', '_bash_complete -o default -F _shoal\nauto never always\n']);
});
