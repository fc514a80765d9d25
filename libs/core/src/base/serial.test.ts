import { expect, test } from 'vitest';
import { ManualClock } from '../testing/manual-clock.ts';
import { Serial } from './serial.ts';

/** Work that takes `ms` of the clock's time and notes when it begins and ends. */
function worker(clock: ManualClock, log: string[]) {
  return (name: string, ms: number, failure?: Error) => async (): Promise<string> => {
    log.push(`${clock.nowMs()} ${name} begins`);
    await new Promise<void>((resolve) => void clock.after(ms, resolve));
    log.push(`${clock.nowMs()} ${name} ends`);
    if (failure !== undefined) throw failure;
    return name;
  };
}

test('work runs one after the other, in the order in which it was asked for', async () => {
  const [clock, log] = [new ManualClock(), [] as string[]];
  const [serial, work] = [new Serial(), worker(clock, log)];
  const both = Promise.all([serial.run(work('long', 10)), serial.run(work('short', 1))]);
  expect(await clock.advanceUntilSettled(both)).toEqual(['long', 'short']);
  expect(log).toEqual(['0 long begins', '10 long ends', '10 short begins', '11 short ends']);
});

test('work that fails tells its caller and lets the next one run', async () => {
  const [clock, log] = [new ManualClock(), [] as string[]];
  const [serial, work] = [new Serial(), worker(clock, log)];
  const failing = serial.run(work('failing', 5, new Error('no')));
  const outcome = failing.catch((error: unknown) => error);
  expect(await clock.advanceUntilSettled(serial.run(work('next', 1)))).toBe('next');
  expect(await outcome).toEqual(new Error('no'));
  expect(log.at(-1)).toBe('6 next ends');
});

test('it is settled when all has ended that was asked for before, failed work too', async () => {
  const [clock, log] = [new ManualClock(), [] as string[]];
  const [serial, work] = [new Serial(), worker(clock, log)];
  await serial.settled(); // at once when nothing was asked for
  const failing = serial.run(work('failing', 5, new Error('no')));
  const outcome = failing.catch((error: unknown) => error);
  const settledAtMs = serial.settled().then(() => clock.nowMs());
  expect(await clock.advanceUntilSettled(settledAtMs)).toBe(5);
  expect(await outcome).toEqual(new Error('no'));
});
