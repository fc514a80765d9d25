// Run times of a GPU and its CPU, kept in the cache folder between starts. What is damaged or of another machine is
// left alone and said.

import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import {
  decodeBreakEvenProfile,
  encodeBreakEvenProfile,
  type BreakEvenProfile,
  type Logger,
  type TimeTables,
} from '@shoal/core';
import { placeAtomically } from '@shoal/fetch';

/** Undefined when there is none that fits. */
export async function readBreakEven(cacheDir: string, key: string, log: Logger): Promise<BreakEvenProfile | undefined> {
  const path = pathOf(cacheDir, key);
  const text = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT')
      log.warn({ path, reason: error.message }, 'stored run times cannot be read, measuring again');
    return undefined;
  });
  if (text === undefined) return undefined;
  const found = decodeBreakEvenProfile(text, key);
  if ('profile' in found) return found.profile;
  log.warn({ path, reason: found.reason }, 'stored run times do not fit this machine, measuring again');
  return undefined;
}

/** Returns where. */
export async function storeBreakEven(cacheDir: string, key: string, tables: TimeTables): Promise<string> {
  const path = pathOf(cacheDir, key);
  await placeAtomically(path, (temporary) =>
    writeFile(temporary, encodeBreakEvenProfile({ v: 1, key, tables, measuredAt: new Date().toISOString() })),
  );
  return path;
}

/** Whoever only wanted to know goes on without a place to keep it. */
export async function keepBreakEven(cacheDir: string, key: string, tables: TimeTables, log: Logger): Promise<void> {
  await storeBreakEven(cacheDir, key, tables).catch((error: unknown) => {
    log.warn(
      { path: pathOf(cacheDir, key), reason: error instanceof Error ? error.message : String(error) },
      'run times cannot be kept, the next start measures them again',
    );
  });
}

function pathOf(cacheDir: string, key: string): string {
  return join(cacheDir, 'profiles', `similarity-${key.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-')}.json`);
}
