import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { Gathering } from './gathering.ts';

let flushed: number[];
let gathering: Gathering;
let startMs: number;

beforeEach(() => {
  vi.useFakeTimers();
  flushed = [];
  gathering = new Gathering(() => flushed.push(performance.now() - startMs));
  startMs = performance.now();
});

afterEach(() => {
  vi.useRealTimers();
});

test('what may not wait goes out at the end of the turn, once', async () => {
  gathering.within(0);
  gathering.within(0.9);
  expect(flushed).toEqual([]);
  await vi.advanceTimersByTimeAsync(100);
  expect(flushed).toEqual([0]);
});

test('what may wait goes out when the first of it has waited as long as it may', async () => {
  gathering.within(9);
  await vi.advanceTimersByTimeAsync(4);
  gathering.within(9);
  await vi.advanceTimersByTimeAsync(4);
  gathering.within(9);
  await vi.advanceTimersByTimeAsync(100);
  expect(flushed).toEqual([9]);
});

test('who may not wait, or not for as long, takes the others along', async () => {
  gathering.within(9);
  await vi.advanceTimersByTimeAsync(1);
  gathering.within(0);
  await vi.advanceTimersByTimeAsync(20);
  expect(flushed).toEqual([1]);
  gathering.within(9);
  gathering.within(3);
  await vi.advanceTimersByTimeAsync(20);
  expect(flushed).toEqual([1, 24]);
});
