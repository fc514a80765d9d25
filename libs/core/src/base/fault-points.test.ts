// A fault point fires at its place, at the time asked for, once.

import { expect, test } from 'vitest';
import { faultPointsFrom, noFaults } from './fault-points.ts';

function reachedWith(spec: string | undefined): string[] {
  const signals: string[] = [];
  const faults = faultPointsFrom(spec, (name) => signals.push(name));
  for (let i = 0; i < 4; i++) {
    faults.reach('before-commit');
    faults.reach('after-commit');
  }
  return signals;
}

test('it sends its signal the first time, or the n-th, and never again', () => {
  expect(reachedWith('after-commit')).toEqual(['SIGKILL']);
  expect(reachedWith('after-commit:SIGSTOP')).toEqual(['SIGSTOP']);
  expect(reachedWith('before-commit:SIGTERM:4')).toEqual(['SIGTERM']);
  expect(reachedWith('before-commit:SIGTERM:5')).toEqual([]);
  expect(reachedWith('after-announce')).toEqual([]);
});

test('without a specification nothing happens', () => {
  expect(reachedWith(undefined)).toEqual([]);
  expect(faultPointsFrom('', () => undefined)).toBe(noFaults);
});
