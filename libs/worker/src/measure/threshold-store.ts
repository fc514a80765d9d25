// Thresholds between a GPU and its CPU, kept in the cache folder between starts. What is damaged or of another machine
// is left alone and said.

import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from '@shoal/core';
import {
  decodeThresholdProfile,
  encodeThresholdProfile,
  type ThresholdProfile,
  type MeasuredThresholds,
} from '@shoal/core/similarity';
import { placeAtomically } from '@shoal/fetch';

/** Undefined when there is none that fits. */
export async function readThresholds(
  cacheDir: string,
  key: string,
  log: Logger,
): Promise<ThresholdProfile | undefined> {
  const path = pathOf(cacheDir, key);
  const text = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT')
      log.warn({ path, reason: error.message }, 'stored thresholds cannot be read, measuring again');
    return undefined;
  });
  if (text === undefined) return undefined;
  const found = decodeThresholdProfile(text, key);
  if ('profile' in found) return found.profile;
  log.warn({ path, reason: found.reason }, 'stored thresholds do not fit this machine, measuring again');
  return undefined;
}

/** Keeps them and returns where. Rejects when that cannot be written. */
export async function storeThresholds(cacheDir: string, key: string, measured: MeasuredThresholds): Promise<string> {
  const path = pathOf(cacheDir, key);
  await placeAtomically(path, (temporary) =>
    writeFile(temporary, encodeThresholdProfile({ v: 2, key, ...measured, measuredAt: new Date().toISOString() })),
  );
  return path;
}

/** The same for a caller that can go on without: what cannot be kept is a warning. */
export async function keepThresholds(
  cacheDir: string,
  key: string,
  measured: MeasuredThresholds,
  log: Logger,
): Promise<void> {
  await storeThresholds(cacheDir, key, measured).catch((error: unknown) => {
    log.warn(
      { path: pathOf(cacheDir, key), reason: error instanceof Error ? error.message : String(error) },
      'thresholds cannot be kept, the next start measures them again',
    );
  });
}

function pathOf(cacheDir: string, key: string): string {
  return join(cacheDir, 'profiles', `similarity-${key.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-')}.json`);
}
