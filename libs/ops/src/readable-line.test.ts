import { expect, test } from 'vitest';
import { readableLine } from './readable-line.ts';

const at = new Date(2026, 10, 26, 9, 5, 7, 42).getTime();

test('a line has time, level, who and what, and every fact by its name', () => {
  const facts = { device: 'cpu', rows: 3, why: 'it is full', part: { a: 1 }, none: null };
  const line = { level: 'warn', time: at, pid: 7, hostname: 'here', name: 'worker', ...facts, msg: 'splitting' };
  expect(readableLine(JSON.stringify(line))).toBe(
    '09:05:07.042 warn  worker: splitting device=cpu rows=3 why="it is full" part={"a":1} none=null\n',
  );
});

test('an error is shown with its stack and what else it carries', () => {
  const err = { type: 'ShoalError', message: 'no', stack: 'ShoalError: no\n    at a.ts:1', code: 'DEVICE_LOST' };
  expect(readableLine(JSON.stringify({ level: 'error', time: at, name: 'http', msg: 'cannot go on', err }))).toBe(
    '09:05:07.042 error http: cannot go on\n  ShoalError: no\n      at a.ts:1\n  code=DEVICE_LOST\n',
  );
});

test('what is no line of JSON stays as it is', () => {
  expect(readableLine('plain words\n')).toBe('plain words\n');
});
