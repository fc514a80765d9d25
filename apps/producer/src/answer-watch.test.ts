// Whose answer ends with its connection: that of a caller who does not read, and not one that waits for this process.

import { ServerResponse, IncomingMessage } from 'node:http';
import { Socket } from 'node:net';
import { expect, test } from 'vitest';
import { ManualClock } from '@shoal/core/testing';
import { AnswerWatch } from './answer-watch.ts';

function setup() {
  const clock = new ManualClock();
  const watch = new AnswerWatch(clock, { stalledMs: 30_000, leastBytesPerSecond: 1_000 });
  const answer = new ServerResponse(new IncomingMessage(new Socket()));
  watch.began(answer);
  return { clock, watch, answer };
}

test('a caller who reads nothing for half a minute loses its connection', async () => {
  const { clock, watch, answer } = setup();
  await clock.advance(20_000);
  watch.moved(answer, 100_000);
  await clock.advance(29_000);
  expect(answer.destroyed).toBe(false);
  await clock.advance(10_000);
  expect(answer.destroyed).toBe(true);
});

test('the time that an answer waits for its turn is given back to its caller', async () => {
  const { clock, watch, answer } = setup();
  for (let piece = 0; piece < 5; piece++) {
    watch.waits(answer);
    await clock.advance(40_000);
    watch.goesOn(answer);
    watch.moved(answer, 10);
  }
  expect(answer.destroyed).toBe(false);
  await clock.advance(40_000);
  expect(answer.destroyed).toBe(true);
});
