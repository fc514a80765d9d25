// A worker's card is looked at now and then, and a tool that tells nothing harms nobody.

import { expect, test } from 'vitest';
import { noLog } from '@shoal/core';
import type { DeviceReading } from '@shoal/ops';
import { CardWatch } from './card-watch.ts';

const READING: DeviceReading = {
  index: 3,
  uuid: 'GPU-1234',
  name: 'NVIDIA H200',
  driverVersion: '580.1',
  computeCapability: '9.0',
  migMode: 'Disabled',
  totalBytes: 150_000,
  usedBytes: 40_000,
  freeBytes: 110_000,
  utilization: 0.87,
  temperatureCelsius: 61,
  powerWatts: 512,
};

test('tells what the driver says of the one card', async () => {
  const asked: string[] = [];
  const watch = CardWatch.start({
    card: '3',
    log: noLog,
    read: async (card) => {
      asked.push(card);
      return { ok: true, devices: [READING] };
    },
  });
  await watch.stop();
  expect(asked).toEqual(['3']);
  expect(watch.facts()).toEqual({
    name: 'NVIDIA H200',
    uuid: 'GPU-1234',
    totalBytes: 150_000,
    usedBytes: 40_000,
    utilization: 0.87,
    temperatureCelsius: 61,
    powerWatts: 512,
  });
});

test('no card, a tool that is not there and one that throws tell nothing', async () => {
  const silent = CardWatch.start({ card: undefined, log: noLog, read: async () => ({ ok: true, devices: [READING] }) });
  const absent = CardWatch.start({
    card: '0',
    log: noLog,
    read: async () => ({ ok: false, reason: 'no-tool', message: 'nvidia-smi is not there' }),
  });
  const broken = CardWatch.start({
    card: '0',
    log: noLog,
    read: async () => {
      throw new Error('broken');
    },
  });
  for (const watch of [silent, absent, broken]) {
    await watch.stop();
    expect(watch.facts()).toBe(undefined);
  }
});

test('looks again, one look at a time', async () => {
  const looks: (() => void)[] = [];
  const watch = CardWatch.start({
    card: '0',
    log: noLog,
    everyMs: 1,
    read: () => new Promise((resolve) => looks.push(() => resolve({ ok: true, devices: [READING] }))),
  });
  await expect.poll(() => looks.length).toBe(1);
  looks[0]!();
  await expect.poll(() => looks.length).toBe(2);
  const stopped = watch.stop();
  looks[1]!();
  await stopped;
});
