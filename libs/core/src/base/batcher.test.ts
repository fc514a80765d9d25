import { beforeEach, describe, expect, test } from 'vitest';
import { ManualClock, settled } from '../testing/manual-clock.ts';
import { Batcher, UrgencyBatcher } from './batcher.ts';

let clock: ManualClock;
let sent: { readonly atMs: number; readonly items: readonly string[] }[];

beforeEach(() => {
  clock = new ManualClock();
  sent = [];
});

function send(items: readonly string[]): void {
  sent.push({ atMs: clock.nowMs(), items });
}

function isUrgent(item: string): boolean {
  return item.startsWith('!');
}

/** A call that takes `ms`. */
async function call(items: readonly string[], ms = 10): Promise<void> {
  send(items);
  await new Promise<void>((resolve) => void clock.after(ms, resolve));
}

describe('at the end of the turn', () => {
  test('what may not wait goes out at the end of the turn, together', async () => {
    const batcher = new Batcher({ send, clock });
    batcher.add(['a']);
    batcher.add(['b', 'c'], 0.9);
    await Promise.resolve();
    expect(sent).toEqual([]);
    await clock.advance(100);
    expect(sent).toEqual([{ atMs: 0, items: ['a', 'b', 'c'] }]);
  });

  test('what may wait goes out when the first of it has waited as long as it may', async () => {
    const batcher = new Batcher({ send, clock });
    for (const item of ['a', 'b', 'c']) {
      batcher.add([item], 9);
      await clock.advance(4);
    }
    await clock.advance(100);
    expect(sent).toEqual([{ atMs: 9, items: ['a', 'b', 'c'] }]);
    expect(clock.pending).toBe(0);
  });

  test('an item that may not wait, or not for as long, takes the others along', async () => {
    const batcher = new Batcher({ send, clock });
    batcher.add(['patient'], 9);
    await clock.advance(1);
    batcher.add(['hurried']);
    await clock.advance(20);
    batcher.add(['patient'], 9);
    batcher.add(['less patient'], 3);
    await clock.advance(20);
    expect(sent).toEqual([
      { atMs: 1, items: ['patient', 'hurried'] },
      { atMs: 24, items: ['patient', 'less patient'] },
    ]);
  });

  test('a flush sends at once, and nothing is sent twice', async () => {
    const batcher = new Batcher({ send, clock });
    batcher.add(['a'], 9);
    batcher.add(['b']);
    batcher.flush();
    batcher.flush();
    expect(sent).toEqual([{ atMs: 0, items: ['a', 'b'] }]);
    await clock.advance(100);
    expect(sent).toHaveLength(1);
    expect(clock.pending).toBe(0);
  });

  test('no call takes more than it may', async () => {
    const batcher = new Batcher({ send, clock, most: 2 });
    batcher.add(['a', 'b', 'c', 'd', 'e']);
    await clock.advance(0);
    expect(sent.map(({ items }) => items)).toEqual([['a', 'b'], ['c', 'd'], ['e']]);
  });

  test('adding nothing sends nothing', async () => {
    new Batcher({ send, clock }).add([], 5);
    expect(clock.pending).toBe(0);
    await clock.advance(10);
    expect(sent).toEqual([]);
  });
});

test('at the end of the microtask, nothing else has run meanwhile', async () => {
  const batcher = new Batcher({ send, clock, gathers: 'microtask' });
  const order: string[] = [];
  setImmediate(() => order.push(`turn after ${sent.length} calls`));
  batcher.add(['a']);
  batcher.add(['b']);
  expect(sent).toEqual([]);
  await settled();
  batcher.add(['c']);
  await settled();
  expect(sent.map(({ items }) => items)).toEqual([['a', 'b'], ['c']]);
  expect(order).toEqual(['turn after 1 calls']);
});

describe('one call at a time', () => {
  test('the first goes at once, and what comes while it is under way goes with the next', async () => {
    const batcher = new Batcher({ send: call, clock, gathers: 'idle' });
    batcher.add(['a', 'b']);
    expect(sent).toEqual([{ atMs: 0, items: ['a', 'b'] }]);
    await clock.advance(4);
    batcher.add(['c']);
    batcher.add(['d']);
    await clock.advanceUntilSettled(batcher.busy!);
    expect(sent.slice(1)).toEqual([{ atMs: 10, items: ['c', 'd'] }]);
    expect(batcher.busy).toBeUndefined();
  });

  test('an item that comes between the last look and the end of the call is sent too', async () => {
    const batcher: Batcher<string> = new Batcher({ send: call, clock, gathers: 'idle' });
    batcher.add(['a']);
    void batcher.busy!.then(() => batcher.add(['b']));
    await clock.advanceUntil(() => sent.length === 2);
    expect(sent[1]).toEqual({ atMs: 10, items: ['b'] });
  });
});

test('urgent items do not wait for a call that others fill', async () => {
  const batcher = new UrgencyBatcher<string>((items, areUrgent) => call(items, areUrgent ? 1 : 100));
  expect(batcher.busy).toBeUndefined();
  batcher.add(['a', '!b', 'c'], isUrgent);
  await clock.advance(2);
  batcher.add(['d', '!e'], isUrgent);
  await clock.advanceUntilSettled(batcher.busy!);
  expect(sent).toEqual([
    { atMs: 0, items: ['!b'] },
    { atMs: 0, items: ['a', 'c'] },
    { atMs: 2, items: ['!e'] },
    { atMs: 100, items: ['d'] },
  ]);
});
