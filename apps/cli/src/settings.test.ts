import { chmodSync, mkdtempSync, rmdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { resolveSettings } from '@shoal/core';
import { cacheDanger, settingsEnvironment } from './settings.ts';

test('settings given to a worker as environment are the settings it resolves', () => {
  const settings = resolveSettings({
    flags: { redisUrl: 'redis://localhost:1', model: 'tiny-random', threads: 2, maxTokens: 64 },
  });
  expect(resolveSettings({ environment: settingsEnvironment(settings) })).toEqual(settings);
});

test('a cache folder that others may write is said with its cure', () => {
  const folder = mkdtempSync(join(tmpdir(), 'shoal-cache-'));
  expect(cacheDanger(folder)).toBeUndefined();
  chmodSync(folder, 0o1777);
  expect(cacheDanger(folder)).toMatch(/others may write the cache folder .* choose models and graphs: chmod 700/);
  rmdirSync(folder);
  expect(cacheDanger(folder)).toBeUndefined();
});
