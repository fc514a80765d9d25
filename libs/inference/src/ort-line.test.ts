import { expect, test } from 'vitest';
import { soonestLine } from './ort-line.ts';

const line = (name: string, pending: number, runningMs: number) => ({ name, pending, runningMs: () => runningMs });

test('the line with least to do is next, and of those with as much the one that has run for longest', () => {
  expect(soonestLine([line('two', 2, 90), line('one', 1, 5), line('other', 1, 40)]).name).toBe('other');
  expect(soonestLine([line('busy', 1, 90), line('idle', 0, 0)]).name).toBe('idle');
  expect(soonestLine([line('first', 0, 0), line('second', 0, 0)]).name).toBe('first');
});
