// The settings of a command: its flags, the environment, shoal.config.json in the current folder, defaults. What they
// are is core's schema; this file only brings the sources together.

import { statSync } from 'node:fs';
import {
  environmentName,
  resolveSettings,
  settingsSchema,
  storeFolders,
  strayVariables,
  withHome,
  type Settings,
} from '@shoal/core';
import { readSettingsFiles } from '@shoal/ops/service';
import { say, type Terminal } from './terminal.ts';

/** What was said to whom: some commands ask for their settings once a device, or once a cell. */
const told = new WeakMap<Terminal['stderr'], Set<string>>();

/**
 * Settings in force, or CONFIG_INVALID with every problem at once. Flags that are no settings are left to the command.
 */
export async function settingsOf(terminal: Terminal, flags: object): Promise<Settings> {
  const keys = Object.keys(settingsSchema.shape);
  const given = Object.fromEntries(Object.entries(flags).filter(([key]) => keys.includes(key)));
  const files = await readSettingsFiles({ flags: given, environment: terminal.environment });
  const settings = withHome(resolveSettings({ flags: given, environment: terminal.environment, ...files }));
  for (const warning of [...files.warnings, ...strayVariables(terminal.environment)]) sayOnce(terminal, warning);
  const { cacheDir, modelsDir } = storeFolders(settings, terminal.environment);
  const dangers = [
    cacheDanger(cacheDir),
    modelsDir === undefined ? undefined : cacheDanger(modelsDir, 'models folder'),
  ];
  for (const danger of dangers) if (danger !== undefined) sayOnce(terminal, danger);
  return settings;
}

function sayOnce(terminal: Terminal, message: string): void {
  const said = told.get(terminal.stderr) ?? new Set();
  told.set(terminal.stderr, said);
  if (said.has(message)) return;
  said.add(message);
  say(terminal, message);
}

/** Who may write the cache chooses models and graphs, and so the vectors. Shoal makes it for its user alone. */
export function cacheDanger(cacheDir: string, what = 'cache folder'): string | undefined {
  const found = statSync(cacheDir, { throwIfNoEntry: false });
  if (found === undefined || (found.mode & 0o022) === 0) return undefined;
  return (
    `others may write the ${what} ${cacheDir} (mode ${(found.mode & 0o777).toString(8)}), and so choose models and ` +
    `graphs: chmod 700 '${cacheDir}'`
  );
}

/** Settings as environment variables, for a worker process: what is in force here is in force there. */
export function settingsEnvironment(settings: Settings): Record<string, string> {
  const entries = Object.entries(settings).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries.map(([key, value]) => [environmentName(key), String(value)]));
}
