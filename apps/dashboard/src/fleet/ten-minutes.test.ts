// Points of a line are what workers were doing at each time, whenever they told it.

import { expect, test } from 'vitest';
import type { ReadStep, WorkerHistory } from '@shoal/queue';
import { eventsOf, tenMinutesOf } from './ten-minutes.ts';

const NOW = 10_000_000;

function historyOf(workerId: string, ends: readonly number[], more: Partial<ReadStep> = {}): WorkerHistory {
  const steps = ends.map((secondsAgo): ReadStep => ({
    v: 1,
    atMs: NOW - 1_000 * secondsAgo,
    isLast: false,
    ms: 10_000,
    jobs: 1,
    texts: 100,
    tokens: 80,
    padded: 100,
    runs: 1,
    busyMs: 5_000,
    batches: [],
    events: {},
    ...more,
  }));
  return { workerId, owner: undefined, steps };
}

const regular = (offset: number): number[] => Array.from({ length: 60 }, (_, at) => 590 - at * 10 + offset);

test('a worker that tells regularly has sixty points, wherever its steps end', () => {
  for (const offset of [0, 3, 9.9]) {
    const { textsPerSecond, padding, busy } = tenMinutesOf([historyOf('one', regular(offset))], NOW);
    expect(textsPerSecond.slice(2)).toEqual(Array.from({ length: 58 }, () => 10));
    expect(padding[30]).toBeCloseTo(0.2);
    expect(busy[30]).toBe(0.5);
  }
});

test('rates of workers add up, and a step that is late by seconds lowers nothing', () => {
  const all = [historyOf('one', regular(0)), historyOf('two', regular(9)), historyOf('three', regular(12))];
  expect(tenMinutesOf(all, NOW).textsPerSecond.slice(2)).toEqual(Array.from({ length: 58 }, () => 30));
  expect(tenMinutesOf(all, NOW).busy[30]).toBe(0.5);
});

test('one that died or left has no points any more, one that came late none before', () => {
  const died = tenMinutesOf([historyOf('dead', [300, 290, 280])], NOW).textsPerSecond;
  expect(died.filter((point) => point !== undefined)).toHaveLength(4);
  expect(died[59]).toBe(undefined);
  const left = tenMinutesOf([historyOf('left', [5], { isLast: true })], NOW).textsPerSecond;
  expect(left.filter((point) => point !== undefined)).toHaveLength(1);
  expect(tenMinutesOf([], NOW).textsPerSecond.every((point) => point === undefined)).toBe(true);
});

test('padding of nothing is nothing', () => {
  const idle = tenMinutesOf([historyOf('idle', regular(0), { texts: 0, tokens: 0, padded: 0 })], NOW);
  expect(idle.padding[30]).toBe(undefined);
  expect(idle.textsPerSecond[30]).toBe(0);
});

test('events are added up over the steps, most first', () => {
  const history = historyOf('one', [20, 10], { events: { 'lost x': 1, 'failed Y': 5 } });
  expect(eventsOf(history)).toEqual([
    { event: 'failed Y', count: 10 },
    { event: 'lost x', count: 2 },
  ]);
});
