import { expect, test } from 'vitest';
import { commandOf } from './typed-command.ts';

test('a command is shown as a shell reads it back, without what was left out and without passwords', () => {
  const words = [
    'embed',
    'my texts.txt',
    "it's.csv",
    '--fresh',
    '-o',
    'x.npy',
    '--redis-url',
    'redis://:secret@host:1/2',
  ];
  expect(commandOf({ words }, ['--fresh'])).toBe(
    "shoal embed 'my texts.txt' 'it'\\''s.csv' -o x.npy --redis-url 'redis://***@host:1/2'",
  );
  expect(commandOf({ words: ['embed', '--redis-url=redis://u:secret@host'] })).not.toContain('secret');
});
