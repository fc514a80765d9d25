// Long work gets one piece a turn, whoever it is for, and turns go round.

import * as fc from 'fast-check';
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

test('whoever has little waits for one piece of each other tenant, and not for all that they asked for', async () => {
  const seen: string[] = [];
  const ask = (tenant: string): Promise<unknown> => loopTurn(tenant).then(() => seen.push(tenant.split('/')[0]!));
  const asked = [
    ...Array.from({ length: 20 }, (_, at) => ask(`loud/user-${at}`)),
    ask('quiet'),
    ask('other'),
    ask('other'),
  ];
  await asked[0];
  asked.push(ask('late'));
  await Promise.all(asked);
  expect(seen.slice(0, 7)).toEqual(['loud', 'quiet', 'other', 'loud', 'late', 'other', 'loud']);
  expect(seen).toHaveLength(24);
});

test('whatever is asked for and when, every turn comes, in order for each tenant', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(fc.tuple(fc.nat(4), fc.boolean()), { maxLength: 60 }), async (asks) => {
      const seen = new Map<number, number[]>();
      const open: Promise<unknown>[] = [];
      for (const [at, [tenant, isPause]] of asks.entries()) {
        open.push(loopTurn(`${tenant}`).then(() => seen.set(tenant, [...(seen.get(tenant) ?? []), at])));
        if (isPause) await loopTurn('asker');
      }
      await Promise.all(open);
      for (const [tenant, order] of seen)
        expect(order).toEqual(asks.flatMap(([one], at) => (one === tenant ? [at] : [])));
    }),
    { numRuns: 50 },
  );
});
