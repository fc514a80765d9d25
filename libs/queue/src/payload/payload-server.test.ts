// What is told of a payload server. What becomes of bodies is in payload-servers.test.ts.

import { expect, onTestFinished, test, vi } from 'vitest';
import { RecordingLogger } from '@shoal/core/testing';
import type { Bodies } from './bodies.ts';
import { PayloadServer } from './payload-server.ts';

const FAILED = 'a payload server failed; until it answers again, payloads go to others or by the queue server';
const BACK = 'the payload server answers again';

function setup() {
  vi.useFakeTimers({ toFake: ['performance'] });
  onTestFinished(() => void vi.useRealTimers());
  const log = new RecordingLogger();
  const state = { fails: false };
  const get = async (): Promise<undefined> => {
    if (state.fails) throw new Error('503 SlowDown');
  };
  const bodies = { get, ready: async () => undefined, giveUp: () => undefined } as unknown as Bodies;
  const server = new PayloadServer({ name: 'one', bodies, log });
  const ask = async (fails: boolean): Promise<void> => {
    state.fails = fails;
    await server.get('k').catch(() => undefined);
    vi.advanceTimersByTime(1_000);
  };
  return { ask, told: () => log.lines.map(({ message }) => message), lines: log.lines };
}

test('one that fails and answers by turns is told of once a minute, with how often it failed meanwhile', async () => {
  const { ask, told, lines } = setup();
  for (let second = 0; second < 40; second++) await ask(second % 2 === 0);
  expect(told()).toEqual([FAILED, BACK]);
  for (let second = 0; second < 30; second++) await ask(second % 2 === 0);
  expect(told()).toEqual([FAILED, BACK, FAILED, BACK]);
  expect(lines[2]?.fields).toMatchObject({ reason: '503 SlowDown', failures: 31 });
});

test('one that fails soon again, and goes on failing, is told of at the third time', async () => {
  const { ask, told } = setup();
  await ask(true);
  await ask(false);
  for (const count of [1, 2]) expect((await ask(true), told()), `${count}`).toEqual([FAILED, BACK]);
  for (let second = 0; second < 60; second++) await ask(true);
  expect(told()).toEqual([FAILED, BACK, FAILED]);
  await ask(false);
  expect(told()).toEqual([FAILED, BACK, FAILED, BACK]);
});
