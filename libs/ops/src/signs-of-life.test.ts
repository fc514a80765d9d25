import type { ChildProcess } from 'node:child_process';
import { EventEmitter } from 'node:events';
import { beforeEach, expect, test } from 'vitest';
import { ManualClock } from '@shoal/core/testing';
import { watchSigns } from './signs-of-life.ts';

let clock: ManualClock;
let child: EventEmitter;
let silences: number;
beforeEach(() => {
  clock = new ManualClock();
  child = new EventEmitter();
  silences = 0;
  watchSigns(child as ChildProcess, () => void silences++, { clock });
});

const sign = (): boolean => child.emit('message', { kind: 'alive' });

test('a child that gives signs is left alone, and is silent half a minute after the last one, once', async () => {
  sign();
  for (let at = 0; at < 5; at++) {
    await clock.advance(29_000);
    sign();
  }
  expect(silences).toBe(0);
  await clock.advance(60_000);
  expect([silences, clock.pending]).toEqual([1, 0]);
});

test('a child that says that it is ready and nothing behind it is silent', async () => {
  child.emit('message', { kind: 'ready' });
  await clock.advance(60_000);
  expect(silences).toBe(1);
});

test('a child that starts for long, or has ended, is not waited for', async () => {
  await clock.advance(60_000);
  sign();
  child.emit('exit');
  await clock.advance(60_000);
  expect([silences, clock.pending]).toEqual([0, 0]);
});

test('whoever was asleep himself hears what came meanwhile before he finds somebody silent', () => {
  const looks: (() => void)[] = [];
  const asleep = {
    nowMs: () => 3_600_000 * looks.length,
    after: (_: number, look: () => void) => fakeTimer(looks, look),
  };
  watchSigns(child as ChildProcess, () => void silences++, { clock: asleep });
  sign();
  for (let hours = 0; hours < 6; hours++) looks.shift()!();
  sign();
  looks.shift()!();
  expect(silences).toBe(0);
});

function fakeTimer(timers: (() => void)[], wake: () => void): () => void {
  timers.push(wake);
  return () => undefined;
}
