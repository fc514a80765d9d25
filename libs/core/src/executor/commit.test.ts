import { expect, test } from 'vitest';
import { Committer, type CommittedJob } from './commit.ts';
import { noFaults } from '../base/fault-points.ts';
import type { CommitRequest, CommitResult } from '../ports/payload.ts';
import { settled } from '../testing/index.ts';

const LARGE = 65_536;

function jobOf(jobId: string, more: Partial<CommittedJob> = {}): CommittedJob {
  return {
    order: {
      jobId,
      token: `${jobId}-token`,
      queuedMs: 0,
      fingerprint: undefined,
      class: 'bulk',
      resultTtlMs: 1_000,
      remainingMs: undefined,
    },
    fingerprint: '0123456789abcdef',
    isDropped: false,
    ...more,
  };
}

/** A committer whose store answers when it is told to, and what it asked and said so far. */
function setup(bytesOf: (job: CommittedJob) => number) {
  const asked: { readonly jobIds: readonly string[]; readonly answer: () => void }[] = [];
  const told: string[] = [];
  const committer = new Committer<CommittedJob>({
    store: {
      commit: (requests: readonly CommitRequest[]) =>
        new Promise<CommitResult[]>((resolve) =>
          asked.push({
            jobIds: requests.map(({ jobId }) => jobId),
            answer: () => resolve(requests.map(() => 'committed')),
          }),
        ),
    },
    faults: noFaults,
    resultOf: (job) => Buffer.alloc(bytesOf(job)),
    valueOf: () => ({ v: 1 }) as never,
    onCommitted: (answers) => told.push(...answers.map(({ outcome }) => outcome.jobId)),
  });
  return { committer, asked, told };
}

test('a large result is written at once, whatever is under way, and told of when it is there', async () => {
  const { committer, asked, told } = setup(() => LARGE);
  committer.add([jobOf('a'), jobOf('b')]);
  committer.add([jobOf('c')]);
  expect(asked.map(({ jobIds }) => jobIds)).toEqual([['a'], ['b'], ['c']]);
  asked[2]!.answer();
  await settled();
  expect(told).toEqual(['c']);
  expect(committer.busy).toBeDefined();
  for (const { answer } of asked) answer();
  await settled();
  expect(told).toEqual(['c', 'a', 'b']);
  expect(committer.busy).toBeUndefined();
});

test('small results share the next turn, but for those of jobs that were dropped meanwhile', async () => {
  const { committer, asked, told } = setup(() => 100);
  const dropped = { ...jobOf('c'), isDropped: false };
  committer.add([jobOf('a')]);
  committer.add([jobOf('b'), dropped]);
  committer.add([jobOf('d')]);
  dropped.isDropped = true;
  expect(asked.map(({ jobIds }) => jobIds)).toEqual([['a']]);
  asked[0]!.answer();
  await settled();
  expect(asked.slice(1).map(({ jobIds }) => jobIds)).toEqual([['b', 'd']]);
  asked[1]!.answer();
  await settled();
  expect(told).toEqual(['a', 'b', 'd']);
  expect(committer.busy).toBeUndefined();
});

test('a small result does not wait for a large one, nor an interactive one for others', async () => {
  const { committer, asked } = setup(({ order: { jobId } }) => (jobId === 'large' ? LARGE : 100));
  const question = jobOf('q');
  committer.add([jobOf('large')]);
  committer.add([jobOf('small')]);
  committer.add([{ ...question, order: { ...question.order, class: 'interactive' } }]);
  expect(asked.map(({ jobIds }) => jobIds)).toEqual([['large'], ['small'], ['q']]);
  for (const { answer } of asked) answer();
  await settled();
  expect(committer.busy).toBeUndefined();
});
