// Who waits hears the server's own words once it refuses to write for a while, and nothing is asked when nobody waits.

import { expect, test } from 'vitest';
import { ManualClock } from '@shoal/core/testing';
import { RefusedWrites } from './refused-writes.ts';

function setup(answers: (string | undefined | Error)[]) {
  const clock = new ManualClock();
  let asked = 0;
  const refused = new RefusedWrites({
    clock,
    ask: async () => {
      const answer = answers[asked++];
      if (answer instanceof Error) throw answer;
      return answer;
    },
  });
  const heard: string[] = [];
  return { clock, refused, heard, asked: () => asked };
}

test('two looks in a row tell', async () => {
  const { clock, refused, heard, asked } = setup(['MISCONF full', 'MISCONF full']);
  const end = refused.whileWaiting((words) => heard.push(words));
  await clock.advance(1_500);
  expect(heard).toEqual([]);
  await clock.advance(1_000);
  expect(heard).toEqual(['MISCONF full']);
  end();
  await clock.advance(60_000);
  expect([asked(), clock.pending]).toEqual([2, 0]);
});

test('one refusal, as of a failover, does not, nor does a server that is away', async () => {
  const { clock, refused, heard } = setup(['READONLY', undefined, 'LOADING', new Error('away'), 'LOADING']);
  refused.whileWaiting((words) => heard.push(words));
  await clock.advance(5_500);
  expect(heard).toEqual([]);
});
