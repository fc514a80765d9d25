// Settings in files, one JSON object each: shoal.config.json of the current folder, and the person's own in the home
// folder. What the settings are, and which of them a folder may choose, is core's. Files that somebody else could have
// written are said (the folder's) or refused (the home folder's, which may name libraries to load).

import { open } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { ShoalError } from '@shoal/contract';
import { saidOfFolder, type SettingSources } from '@shoal/core';

const SETTINGS_FILE = 'shoal.config.json';

export interface SettingsFiles extends Pick<SettingSources, 'file' | 'home'> {
  /** What a person should know of them, as sentences. */
  readonly warnings: readonly string[];
}

/**
 * Their contents, unchecked; empty where there are none. `sources` are what beats them: what they decide is said only
 * where they do. Throws CONFIG_INVALID.
 */
export async function readSettingsFiles(
  sources: Pick<SettingSources, 'flags' | 'environment'>,
  folder = '.',
): Promise<SettingsFiles> {
  const { environment = process.env } = sources;
  const ofFolder = await readFileOf(join(folder, SETTINGS_FILE));
  const config = environment['XDG_CONFIG_HOME'] || join(environment['HOME'] || homedir(), '.config');
  const ofHome = await readFileOf(join(config, 'shoal', 'config.json'));
  if (ofHome?.danger !== undefined)
    throw new ShoalError(
      'CONFIG_INVALID',
      `${ofHome.path} ${ofHome.danger}, and it may name what is loaded: chown it to yourself, chmod 600 '${ofHome.path}'`,
    );
  const said = ofFolder === undefined ? [] : saidOfFolder({ ...sources, environment, file: ofFolder.settings });
  const danger = ofFolder?.danger === undefined ? [] : [`shoal.config.json of this folder ${ofFolder.danger}`];
  return { file: ofFolder?.settings ?? {}, home: ofHome?.settings ?? {}, warnings: [...danger, ...said] };
}

interface SettingsFile {
  readonly path: string;
  readonly settings: Record<string, unknown>;
  /** Who else may have written it. */
  readonly danger: string | undefined;
}

/** The file that is looked at is the one that is read: both through one handle. */
async function readFileOf(path: string): Promise<SettingsFile | undefined> {
  try {
    const file = await open(path, 'r');
    try {
      return { path, settings: parseSettings(path, await file.readFile('utf8')), danger: dangerOf(await file.stat()) };
    } finally {
      await file.close();
    }
  } catch (error) {
    if (error instanceof ShoalError) throw error;
    if (error instanceof Error && 'code' in error && (error.code === 'ENOENT' || error.code === 'ENOTDIR'))
      return undefined;
    throw new ShoalError(
      'CONFIG_INVALID',
      `${path} cannot be read: ${error instanceof Error ? error.message : String(error)}`,
      {},
      error,
    );
  }
}

function dangerOf({ uid, mode }: { readonly uid: number; readonly mode: number }): string | undefined {
  const self = process.getuid?.() ?? uid;
  if (uid !== self && uid !== 0) return `belongs to another user (${uid}; this command runs as ${self})`;
  return (mode & 0o022) === 0 ? undefined : `may be written by others (mode ${(mode & 0o777).toString(8)})`;
}

function parseSettings(path: string, content: string): Record<string, unknown> {
  try {
    const parsed: unknown = JSON.parse(content.replace(/^\uFEFF/, '')); // Windows' editors put a mark before it
    if (typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed)) return { ...parsed };
  } catch (error) {
    throw new ShoalError('CONFIG_INVALID', `${path} is not valid JSON${placeOf(error)}`);
  }
  throw new ShoalError(
    'CONFIG_INVALID',
    `${path} must hold one JSON object of settings, such as { "model": "minilm" }`,
  );
}

/** Where it broke. JSON.parse quotes what it found there, which may be a password. */
function placeOf(error: unknown): string {
  const found = /line \d+ column \d+|position \d+/.exec(error instanceof Error ? error.message : '')?.[0];
  return found === undefined ? '' : ` (${found})`;
}
