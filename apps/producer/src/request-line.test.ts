// Turns: who is answered, who waits, who is refused and when they should come back.

import * as fc from 'fast-check';
import { expect, test } from 'vitest';
import { median, seededRandom } from '@shoal/core/base';
import { ManualClock } from '@shoal/core/testing';
import { ByteBudget } from './byte-budget.ts';
import { spreadSeconds, type Problem } from './problem.ts';
import { RequestLine } from './request-line.ts';

function setup({ mostOpen = 2, mostWaiting = 3, totalBytes = 1_000 } = {}) {
  const clock = new ManualClock();
  const changes: [number, number][] = [];
  const line: RequestLine = new RequestLine({
    mostOpen,
    mostWaiting,
    clock,
    onChange: (...now) => void changes.push(now),
  });
  const budget = new ByteBudget({ totalBytes, onRoom: () => line.callNext() });
  const order: string[] = [];
  const enter = (name: string, { bytes = 0, gone = new AbortController().signal, tenant = 'default' } = {}) => {
    const hold = budget.open();
    const turn = line.enter({ bytes, hold, gone, tenant, waitMs: 5_000 }).then((leave) => {
      order.push(name);
      return () => {
        leave();
        hold.release();
      };
    });
    turn.catch(() => undefined);
    return turn;
  };
  return { clock, enter, order, changes };
}

test('so many are answered at a time, the others wait and come in order', async () => {
  const { enter, order, changes } = setup();
  const [first, , third] = [enter('a'), enter('b'), enter('c'), enter('d')];
  await first;
  expect(order).toEqual(['a', 'b']);
  (await first)();
  (await first)();
  await third;
  expect(order).toEqual(['a', 'b', 'c']);
  expect(changes.at(-1)).toEqual([2, 1]);
});

test('more than may wait are refused, with the time that those before them take', async () => {
  const { enter, clock } = setup({ mostOpen: 1, mostWaiting: 1 });
  const first = await enter('a');
  const second = enter('b');
  await expect(enter('c')).rejects.toMatchObject({ facts: { status: 429, retryAfterSeconds: 2 } });
  await clock.advance(3_000);
  first();
  (await second)();
  await enter('d');
  await clock.advance(20_000);
  void enter('e');
  await expect(enter('f')).rejects.toMatchObject({
    facts: { status: 429, code: 'too_many_requests', retryAfterSeconds: 20 },
  });
});

test('who has waited its time is refused, who leaves is forgotten', async () => {
  const { enter, clock, changes } = setup({ mostOpen: 1 });
  await enter('a');
  const leaving = new AbortController();
  const left = enter('b', { gone: leaving.signal });
  const late = enter('c');
  leaving.abort();
  await expect(left).rejects.toMatchObject({ facts: { status: 499 } });
  await clock.advance(5_000);
  await expect(late).rejects.toMatchObject({ facts: { status: 429 }, message: expect.stringContaining('5 s') });
  expect(changes.at(-1)).toEqual([1, 0]);
});

test('a small request passes a large one that has no room, which goes when there is some', async () => {
  const { enter, order } = setup({ mostOpen: 3 });
  const holding = await enter('holding', { bytes: 800 });
  const large = enter('large', { bytes: 500 });
  await enter('small', { bytes: 3 });
  expect(order).toEqual(['holding', 'small']);
  holding();
  await large;
  expect(order).toEqual(['holding', 'small', 'large']);
});

test('a turn goes to the tenant that has the fewest, whoever came first', async () => {
  const { enter, order } = setup({ mostOpen: 2, mostWaiting: 10 });
  const loud = ['a1', 'a2', 'a3', 'a4'].map((name) => enter(name, { tenant: 'loud' }));
  const quiet = enter('b1', { tenant: 'quiet' });
  (await loud[0]!)();
  await quiet;
  expect(order).toEqual(['a1', 'a2', 'b1']);
  (await loud[1]!)();
  await loud[2];
  expect(order).toEqual(['a1', 'a2', 'b1', 'a3']);
});

test('where no more may wait, the newest of the tenant that waits most makes room for one that waits less', async () => {
  const { enter, order } = setup({ mostOpen: 1, mostWaiting: 3 });
  const loud = ['a1', 'a2', 'a3', 'a4'].map((name) => enter(name, { tenant: 'loud' }));
  const quiet = enter('b1', { tenant: 'quiet' });
  await expect(loud[3]).rejects.toMatchObject({ facts: { status: 429, code: 'too_many_requests' } });
  await expect(enter('a5', { tenant: 'loud' })).rejects.toMatchObject({ facts: { status: 429 } });
  (await loud[0]!)();
  (await loud[1]!)();
  await quiet;
  expect(order).toEqual(['a1', 'a2', 'b1']);
});

test('users of a tenant have its turns between them, and each of them as few as the others', async () => {
  const { enter, order } = setup({ mostOpen: 3, mostWaiting: 10 });
  const first = ['x1', 'x2', 'x3', 'x4'].map((name) => enter(name, { tenant: 'a/x' }));
  const [yes, other] = [enter('y1', { tenant: 'a/y' }), enter('b1', { tenant: 'b' })];
  (await first[0]!)();
  await other;
  (await first[1]!)();
  await yes;
  expect(order).toEqual(['x1', 'x2', 'x3', 'b1', 'y1']);
});

test('a tenant’s users push out their own, and many users of one tenant no other tenant', async () => {
  const { enter } = setup({ mostOpen: 1, mostWaiting: 3 });
  void enter('x1', { tenant: 'a/x' });
  const loud = ['x2', 'x3'].map((name) => enter(name, { tenant: 'a/x' }));
  void enter('b1', { tenant: 'b' });
  void enter('y1', { tenant: 'a/y' });
  await expect(loud[1]).rejects.toMatchObject({ facts: { status: 429 } });
  await expect(enter('z1', { tenant: 'a/z' })).rejects.toMatchObject({ facts: { status: 429 } });
});

test('an eighth of the turns is kept for tenants that have few', async () => {
  const { enter, order } = setup({ mostOpen: 16, mostWaiting: 100 });
  const loud = Array.from({ length: 20 }, (_, i) => enter(`a${i}`, { tenant: 'loud' }));
  await enter('b1', { tenant: 'quiet' });
  expect(order).toEqual([...Array.from({ length: 14 }, (_, i) => `a${i}`), 'b1']);
  const second = enter('b2', { tenant: 'quiet' }); // it has one of the two that are kept
  await enter('c1', { tenant: 'other' });
  (await loud[0]!)();
  expect(order.at(-1)).toBe('c1'); // the turn that ended is kept again
  (await loud[1]!)();
  (await loud[2]!)();
  await second;
  expect(order.at(-1)).toBe('b2');
});

test('whoever comes and goes: nobody without a turn waits while there is one, and one tenant leaves an eighth', async () => {
  const tenants = ['a', 'b', 'c', 'd'];
  const step = fc.tuple(fc.constantFrom('enter', 'enter', 'leave'), fc.constantFrom(...tenants), fc.nat(30));
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 8, max: 24 }), fc.array(step, { maxLength: 120 }), async (mostOpen, steps) => {
      const { enter } = setup({ mostOpen, mostWaiting: 1_000 });
      const open: { readonly tenant: string; readonly leave: () => void }[] = [];
      const waiting: string[] = [];
      const kept = Math.floor(mostOpen / 8);
      for (const [kind, tenant, which] of steps) {
        if (kind === 'leave') open.splice(which % Math.max(1, open.length), 1)[0]?.leave();
        else {
          waiting.push(tenant);
          void enter(tenant, { tenant }).then((leave) => {
            waiting.splice(waiting.indexOf(tenant), 1);
            open.push({ tenant, leave });
          });
        }
        for (let turn = 0; turn < 5; turn++) await Promise.resolve();
        const held = (one: string): number => open.filter((each) => each.tenant === one).length;
        expect(open.length).toBeLessThanOrEqual(mostOpen);
        const isIdle = waiting.length > 0 && open.length < mostOpen - kept;
        const shutOut = open.length < mostOpen ? waiting.filter((one) => held(one) === 0) : [];
        expect([isIdle, shutOut]).toEqual([false, []]);
        expect(Math.max(0, ...tenants.map(held))).toBeLessThanOrEqual(mostOpen - kept);
      }
    }),
    { numRuns: 100 },
  );
});

test.each([
  ['one after the other', (nowMs: number) => nowMs + 100],
  ['several at a time', (nowMs: number) => nowMs + 200 - (nowMs % 100)],
])(
  'ten times as many callers as places, answered %s, find one about when they were told to come back',
  async (_, endMs) => {
    const [clock, random] = [new ManualClock(), seededRandom(1)];
    const line = new RequestLine({ mostOpen: 4, mostWaiting: 12, clock, random });
    const budget = new ByteBudget({ totalBytes: 1_000 });
    const [told, took]: [number[], number[]] = [[], []];
    const ask = (refusedMs?: number, toldMs?: number): void => {
      const [hold, gone] = [budget.open(), new AbortController().signal];
      const nowMs = clock.nowMs();
      line.enter({ bytes: 0, hold, gone, tenant: 'a', waitMs: 1e9 }).then(
        (leave) => clock.after(endMs(clock.nowMs()) - clock.nowMs(), () => (leave(), ask())),
        (problem: Problem) => {
          const seconds = spreadSeconds(problem.facts.retryAfterSeconds!, random);
          clock.after(seconds * 1_000, () => ask(refusedMs ?? nowMs, toldMs ?? seconds * 1_000));
          rejected = true;
        },
      );
      let rejected = false;
      queueMicrotask(() =>
        queueMicrotask(() => {
          if (rejected || refusedMs === undefined || nowMs < 60_000) return;
          told.push(toldMs!);
          took.push(nowMs - refusedMs);
        }),
      );
    };
    for (let caller = 0; caller < 160; caller++) clock.after(caller * 10, () => ask());
    await clock.advance(200_000);
    expect(took.length).toBeGreaterThan(500);
    expect(median(told) / median(took)).toBeGreaterThan(0.7);
    expect(median(told) / median(took)).toBeLessThan(1.3);
  },
);
