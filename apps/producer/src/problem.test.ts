import { ShoalError } from '@shoal/contract';
import { expect, test } from 'vitest';
import { StorageFailure } from './batches/storage.ts';
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

test.each([
  ['ENOSPC', 507, 'storage_full', 'is full'],
  ['EDQUOT', 507, 'storage_full', 'is full'],
  ['EROFS', 503, 'storage_unavailable', 'is read-only'],
  ['EIO', 503, 'storage_unavailable', 'the log of the server says why'],
])(
  'a place for files that answers %s is told in words, without a path, with when to ask again',
  (errno, status, code, words) => {
    const said = Object.assign(new Error(`${errno}: /secret/place`), { code: errno });
    for (const cause of [said, new Error('the lock in /secret/place', { cause: said })]) {
      const problem = toProblem(new StorageFailure('/secret/place cannot be written', cause));
      expect(problem.facts).toMatchObject({ status, code, retryAfterSeconds: expect.toSatisfy((after) => after >= 5) });
      expect(problem.message).toContain(words);
      expect(problem.message).not.toContain('/secret');
    }
  },
);
