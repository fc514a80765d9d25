// The settings of a command: its flags, the environment, shoal.config.json in the current folder, defaults. What they
// are is core's schema; this file only brings the sources together.

import { readFile } from 'node:fs/promises';
import { ShoalError, environmentName, resolveSettings, settingsSchema, type Settings } from '@shoal/core';
import type { Terminal } from './terminal.ts';

const SETTINGS_FILE = 'shoal.config.json';

/** Settings in force, or CONFIG_INVALID with every problem at once. Flags that are no settings are left to the command. */
export async function settingsOf(terminal: Terminal, flags: object): Promise<Settings> {
  const keys = Object.keys(settingsSchema.shape);
  const given = Object.fromEntries(Object.entries(flags).filter(([key]) => keys.includes(key)));
  return resolveSettings({ flags: given, environment: terminal.environment, file: await readSettingsFile() });
}

/** Settings as environment variables, for a worker process: what is in force here is in force there. */
export function settingsEnvironment(settings: Settings): Record<string, string> {
  const entries = Object.entries(settings).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries.map(([key, value]) => [environmentName(key), String(value)]));
}

async function readSettingsFile(): Promise<Record<string, unknown>> {
  const content = await readFile(SETTINGS_FILE, 'utf8').catch((error: unknown) => {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return '{}';
    throw new ShoalError('CONFIG_INVALID', `${SETTINGS_FILE} cannot be read: ${error instanceof Error ? error.message : String(error)}`, {}, error);
  });
  return parseSettings(content);
}

function parseSettings(content: string): Record<string, unknown> {
  try {
    const parsed: unknown = JSON.parse(content);
    if (typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed)) return { ...parsed };
  } catch (error) {
    throw new ShoalError('CONFIG_INVALID', `${SETTINGS_FILE} is not valid JSON: ${error instanceof Error ? error.message : String(error)}`, {}, error);
  }
  throw new ShoalError('CONFIG_INVALID', `${SETTINGS_FILE} must hold one JSON object of settings, such as { "model": "minilm" }`);
}
