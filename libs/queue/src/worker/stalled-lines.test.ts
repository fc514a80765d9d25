import { setImmediate as turn } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { RecordingLogger } from '@shoal/core/testing';
import { StalledLines } from './stalled-lines.ts';

test('a thousand jobs that stall together are one line with their count and the first ids', async () => {
  const log = new RecordingLogger();
  const stalled = new StalledLines(log);
  for (let n = 0; n < 1_000; n++) stalled.add(`job-${n}`);
  await turn();
  await turn();
  expect(log.lines).toEqual([
    {
      level: 'warn',
      fields: { jobs: 1_000, jobIds: ['job-0', 'job-1', 'job-2', 'job-3', 'job-4'] },
      message: 'jobs stalled, their worker is gone; they wait again',
    },
  ]);
  stalled.add('later');
  await turn();
  await turn();
  expect(log.lines.at(-1)?.fields).toEqual({ jobs: 1, jobIds: ['later'] });
});
