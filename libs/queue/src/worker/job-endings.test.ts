import { expect, test } from 'vitest';
import type { EmbedReturn } from '@shoal/contract';
import type { Announcement, Settlement } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import type { Job } from 'bullmq';
import { JobEndings, type JobEndingsOptions } from './job-endings.ts';

const COMPLETE: Settlement = { kind: 'complete', value: {} as EmbedReturn };
const announcement: Announcement = {
  jobId: 'a',
  outcome: 'completed',
  reply: undefined,
  resultTtlMs: 0,
  isUrgent: false,
  wasRepeated: false,
};

/** How long the ending and its announcement may wait, of a job that was claimed so many ms ago. */
async function waits(
  agoMs: number | undefined,
  ending: Settlement,
  announced?: Announcement,
  open = 2,
): Promise<(number | undefined)[]> {
  const found: (number | undefined)[] = [];
  const parts = {
    announcer: { announceBehind: async (_: Announcement, ms: number) => found.push(ms) > 0 },
    completions: { complete: async (_job: Job, _token: string, _value: object, ms: number) => void found.push(ms) },
  };
  const endings = new JobEndings({
    ...parts,
    prefix: '{t}',
    queue: 'embed-x',
    open: () => open,
    signal: new AbortController().signal,
    log: new RecordingLogger(),
  } as unknown as JobEndingsOptions);
  const job = {
    id: 'a',
    processedOn: agoMs === undefined ? undefined : Date.now() - agoMs,
    moveToFailed: async () => undefined,
  } as unknown as Job;
  await endings.settle({ job, token: 't' }, ending as Exclude<Settlement, { kind: 'abandon' }>, announced);
  return found;
}

test('a completion waits for others for a thirty-second of its time here, 16 ms at most', async () => {
  const [announced, completed] = await waits(320, COMPLETE, announcement);
  expect(announced).toBe(completed);
  expect(announced).toBeGreaterThanOrEqual(10);
  expect(announced).toBeLessThanOrEqual(11);
  expect(await waits(1e6, COMPLETE, announcement)).toEqual([16, 16]);
});

test(
  'what somebody waits for in person, what failed, what nobody is told of and what was claimed in the future ' +
    'wait for nobody',
  async () => {
    expect(await waits(320, COMPLETE, { ...announcement, isUrgent: true })).toEqual([0, 0]);
    expect(
      await waits(
        320,
        { kind: 'fail', failure: { code: 'INFERENCE_FAILED', message: '' } },
        { ...announcement, outcome: 'failed' },
      ),
    ).toEqual([0]);
    expect(await waits(320, COMPLETE)).toEqual([0]);
    expect(await waits(-5_000, COMPLETE, announcement)).toEqual([0, 0]);
    expect(await waits(undefined, COMPLETE, announcement)).toEqual([0, 0]);
  },
);

test('where no other job is left to wait for, nothing waits', async () => {
  expect(await waits(320, COMPLETE, announcement, 1)).toEqual([0, 0]);
});
