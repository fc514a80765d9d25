// Long work gets one piece a turn, whoever it is for.

import { expect, test } from 'vitest';
import { loopTurn } from './loop-turns.ts';

test('each turn of the event loop has one piece, in the order in which they were asked for', async () => {
  let turn = 0;
  let isCounting = true;
  const count = (): void => {
    turn += 1;
    if (isCounting) setImmediate(count);
  };
  setImmediate(count);
  const seen: [number, number][] = [];
  await Promise.all([0, 1, 2, 3].map((piece) => loopTurn().then(() => seen.push([piece, turn]))));
  isCounting = false;
  expect(seen.map(([piece]) => piece)).toEqual([0, 1, 2, 3]);
  expect(new Set(seen.map(([, at]) => at)).size).toBe(4);
});
