import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { DeviceProfileKey, MemoryLaw } from '@shoal/core';
import { RecordingLogger } from '@shoal/core/testing';
import { keepThresholds } from './threshold-store.ts';
import { keepProfile, readProfile, storeProfile } from './profile-store.ts';

const KEY: DeviceProfileKey = {
  graphHash: '0123456789abcdef',
  provider: 'cpu',
  precision: 'fp32',
  deviceKind: 'Some CPU @ 2.0 GHz, 2 threads',
};
const LAW: MemoryLaw = {
  loadedBytes: 1,
  floorBytes: 1,
  slackBytes: 0,
  perToken: [{ width: 8, bytes: 1 }],
  arena: 'exact',
};

let cacheDir: string;
let log: RecordingLogger;
beforeEach(() => {
  cacheDir = mkdtempSync(join(tmpdir(), 'shoal-profiles-'));
  log = new RecordingLogger();
});
afterEach(() => rmSync(cacheDir, { recursive: true, force: true }));

test('what was measured is there at the next start, and what is measured later stands beside it', async () => {
  expect(await readProfile(cacheDir, KEY, log)).toBeUndefined();
  await storeProfile(cacheDir, KEY, { memory: LAW }, log);
  await storeProfile(cacheDir, KEY, { kneeTokens: 1536 }, log);
  expect(await readProfile(cacheDir, KEY, log)).toMatchObject({ memory: LAW, kneeTokens: 1536 });
  expect(log.lines).toEqual([]);
});

test('what cannot be kept is a warning', async () => {
  const file = join(cacheDir, 'file');
  writeFileSync(file, '');
  await keepProfile(file, KEY, { memory: LAW }, log);
  await keepThresholds(file, 'Some GPU', { thresholds: [], passingQueries: {} }, log);
  expect(log.messages('warn')).toEqual([
    expect.stringContaining('cannot be read'),
    expect.stringContaining('cannot be kept'),
    expect.stringContaining('thresholds cannot be kept'),
  ]);
});

test('another graph, device or precision has a profile of its own', async () => {
  await storeProfile(cacheDir, KEY, { kneeTokens: 1536 }, log);
  for (const other of [
    { graphHash: 'fedcba9876543210' },
    { deviceKind: 'Some CPU @ 2.0 GHz, 4 threads' },
    { precision: 'int8' as const },
  ]) {
    expect(await readProfile(cacheDir, { ...KEY, ...other }, log)).toBeUndefined();
  }
  expect(log.lines).toEqual([]);
});

test.each([
  ['is cut off', (text: string) => text.slice(0, 40)],
  ['is another’s', (text: string) => text.replace('0123456789abcdef', 'fedcba9876543210')],
  ['says nonsense', (text: string) => text.replace('1536', '-3')],
])('a profile that %s is ignored with a line, and replaced by the next measurement', async (_, damage) => {
  const path = await storeProfile(cacheDir, KEY, { kneeTokens: 1536 }, log);
  writeFileSync(path, damage(readFileSync(path, 'utf8')));
  expect(await readProfile(cacheDir, KEY, log)).toBeUndefined();
  expect(log.lines).toMatchObject([
    { level: 'warn', message: 'stored profile does not fit this graph and device, going on without it' },
  ]);
  await storeProfile(cacheDir, KEY, { kneeTokens: 512 }, log);
  expect(await readProfile(cacheDir, KEY, new RecordingLogger())).toMatchObject({ kneeTokens: 512 });
});
