// Failures cross processes and job records as one line of text and come back as what they were.

import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  ERROR_CODES,
  ShoalError,
  failedReason,
  isShoalError,
  parseFailedReason,
  toFailure,
  type ErrorCode,
} from './errors.ts';

const codes = Object.keys(ERROR_CODES) as ErrorCode[];

test('any failure survives its failedReason, line breaks and colons included', () => {
  fc.assert(
    fc.property(fc.constantFrom(...codes), fc.string({ unit: 'binary' }), (code, message) => {
      expect(parseFailedReason(failedReason({ code, message }))).toEqual({ code, message });
    }),
  );
});

test.each([
  '',
  'job stalled more than allowable limit',
  'NOT_A_CODE: something',
  'toString: x',
  'OUT_OF_VRAM',
  'TypeError: x is not a function',
])('a reason that somebody else wrote keeps its text: "%s"', (reason) => {
  expect(parseFailedReason(reason)).toEqual({ code: 'INFERENCE_FAILED', message: reason });
});

test('anything thrown becomes a failure', () => {
  expect(toFailure(new ShoalError('INPUT_LOST', 'gone'))).toEqual({ code: 'INPUT_LOST', message: 'gone' });
  expect(toFailure(new RangeError('too far'))).toEqual({ code: 'INFERENCE_FAILED', message: 'too far' });
  expect(toFailure('a string', 'SETUP_FAILED')).toEqual({ code: 'SETUP_FAILED', message: 'a string' });
  expect(toFailure(undefined)).toEqual({ code: 'INFERENCE_FAILED', message: 'undefined' });
});

test('a ShoalError carries code, facts and what was caught, and is told from others by its code', () => {
  const cause = new Error('ECONNREFUSED');
  const error = new ShoalError('QUEUE_UNREACHABLE', 'no answer', { url: 'redis://x' }, cause);
  expect(error).toMatchObject({ name: 'ShoalError', code: 'QUEUE_UNREACHABLE', fields: { url: 'redis://x' }, cause });
  expect('cause' in new ShoalError('USAGE', 'what?')).toBe(false);
  expect([
    isShoalError(error),
    isShoalError(error, 'QUEUE_UNREACHABLE'),
    isShoalError(error, 'USAGE'),
    isShoalError(cause),
  ]).toEqual([true, true, false, false]);
});
