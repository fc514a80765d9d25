import { expect, test, vi } from 'vitest';
import { AmpleRoom } from './ample-room.ts';

let nowMs = 0;
const reserve = async (): Promise<string> => 'reserved';
const asked = (share: number, ...tenants: string[]) => ({ tenants, share });

test('room is ample for tenants of whom an answer said so, for a while', async () => {
  const ample = new AmpleRoom(() => nowMs);
  const never = vi.fn<() => Promise<string>>(reserve);
  expect(ample.whileAmple(asked(0.001, 'a'), never)).toBeUndefined();
  ample.learn(['a', 'b'], 0.49);
  expect(await ample.whileAmple(asked(0.001, 'a', 'b'), reserve)).toBe('reserved');
  expect(ample.whileAmple(asked(0.001, 'a', 'c'), never)).toBeUndefined();
  nowMs += 5_001;
  expect(ample.whileAmple(asked(0.001, 'a'), never)).toBeUndefined();
  expect(never).not.toHaveBeenCalled();
});

test('an answer that says half of it is used ends it for everybody, as does one that says nothing', () => {
  for (const answer of [0.5, 1, Number.NaN]) {
    const ample = new AmpleRoom(() => nowMs);
    ample.learn(['a', 'b'], 0.1);
    ample.learn(['a'], answer);
    expect(ample.whileAmple(asked(0.001, 'b'), reserve)).toBeUndefined();
  }
});

test('no more than a hundredth is added without an answer', async () => {
  const ample = new AmpleRoom(() => nowMs);
  ample.learn(['a'], 0);
  expect(ample.whileAmple(asked(0.011, 'a'), reserve)).toBeUndefined();
  const answer = Promise.withResolvers<void>();
  const first = ample.whileAmple(asked(0.006, 'a'), () => answer.promise);
  expect(ample.whileAmple(asked(0.006, 'a'), reserve)).toBeUndefined();
  answer.reject(new Error('the connection broke'));
  await expect(first).rejects.toThrow('broke');
  expect(await ample.whileAmple(asked(0.006, 'a'), reserve)).toBe('reserved');
});
