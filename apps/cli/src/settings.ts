// The settings of a command: its flags, the environment, shoal.config.json in the current folder, defaults. What they
// are is core's schema; this file only brings the sources together.

import { environmentName, resolveSettings, settingsSchema, type Settings } from '@shoal/core';
import { readSettingsFiles } from '@shoal/ops/service';
import { say, type Terminal } from './terminal.ts';

/**
 * Settings in force, or CONFIG_INVALID with every problem at once. Flags that are no settings are left to the command.
 */
export async function settingsOf(terminal: Terminal, flags: object): Promise<Settings> {
  const keys = Object.keys(settingsSchema.shape);
  const given = Object.fromEntries(Object.entries(flags).filter(([key]) => keys.includes(key)));
  const files = await readSettingsFiles({ flags: given, environment: terminal.environment });
  const settings = resolveSettings({ flags: given, environment: terminal.environment, ...files });
  for (const warning of files.warnings) say(terminal, warning);
  return settings;
}

/** Settings as environment variables, for a worker process: what is in force here is in force there. */
export function settingsEnvironment(settings: Settings): Record<string, string> {
  const entries = Object.entries(settings).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries.map(([key, value]) => [environmentName(key), String(value)]));
}
