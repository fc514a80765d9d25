import { ShoalError } from '@shoal/contract';
import { expect, test } from 'vitest';
import { toProblem } from './problem.ts';

test.each(['QUEUE_UNREACHABLE', 'QUEUE_DAMAGED', 'QUEUE_UNSAFE', 'QUEUE_REFUSES_WRITES', 'NOT_SERVED'] as const)(
  '%s is no fault of the request: 503, with when to ask again and what is the matter',
  (code) => {
    expect(toProblem(new ShoalError(code, 'what is the matter'))).toMatchObject({
      message: 'what is the matter',
      facts: { status: 503, code: code.toLowerCase(), retryAfterSeconds: expect.toSatisfy((after) => after >= 5) },
    });
  },
);
