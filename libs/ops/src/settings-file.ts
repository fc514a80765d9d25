// shoal.config.json in the current folder: one JSON object of settings. What the settings are is core's schema.

import { readFile } from 'node:fs/promises';
import { ShoalError } from '@shoal/contract';

const SETTINGS_FILE = 'shoal.config.json';

/** Its contents, unchecked; empty when there is no such file. Throws CONFIG_INVALID. */
export async function readSettingsFile(): Promise<Record<string, unknown>> {
  const content = await readFile(SETTINGS_FILE, 'utf8').catch((error: unknown) => {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return '{}';
    throw new ShoalError(
      'CONFIG_INVALID',
      `${SETTINGS_FILE} cannot be read: ${error instanceof Error ? error.message : String(error)}`,
      {},
      error,
    );
  });
  return parseSettings(content);
}

function parseSettings(content: string): Record<string, unknown> {
  try {
    const parsed: unknown = JSON.parse(content.replace(/^\uFEFF/, '')); // Windows' editors put a mark before it
    if (typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed)) return { ...parsed };
  } catch (error) {
    throw new ShoalError(
      'CONFIG_INVALID',
      `${SETTINGS_FILE} is not valid JSON: ${error instanceof Error ? error.message : String(error)}`,
      {},
      error,
    );
  }
  throw new ShoalError(
    'CONFIG_INVALID',
    `${SETTINGS_FILE} must hold one JSON object of settings, such as { "model": "minilm" }`,
  );
}
