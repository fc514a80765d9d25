import { expect, test } from 'vitest';
import { resolveSettings } from '@shoal/core';
import { settingsEnvironment } from './settings.ts';

test('settings given to a worker as environment are the settings it resolves', () => {
  const settings = resolveSettings({
    flags: { redisUrl: 'redis://localhost:1', model: 'tiny-random', threads: 2, maxTokens: 64 },
  });
  expect(resolveSettings({ environment: settingsEnvironment(settings) })).toEqual(settings);
});
