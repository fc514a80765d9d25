// What was measured of a graph on a device, kept in the cache folder between starts: the memory law and the knee. A
// profile that is damaged, or of another graph or device, is left alone and said; it is never bent to fit.

import { readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { cpus } from 'node:os';
import {
  decodeDeviceProfile,
  encodeDeviceProfile,
  type DeviceProfile,
  type DeviceProfileKey,
  type Logger,
  type Precision,
} from '@shoal/core';
import { placeAtomically } from '@shoal/fetch';
import type { EncoderBackendOptions } from '@shoal/inference';
import type { StoredModel } from '@shoal/models';

/** Undefined when there is none that fits. */
export async function readProfile(
  cacheDir: string,
  key: DeviceProfileKey,
  log: Logger,
): Promise<DeviceProfile | undefined> {
  const path = profilePath(cacheDir, key);
  const text = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT')
      log.warn({ path, reason: error.message }, 'stored profile cannot be read, going on without it');
    return undefined;
  });
  if (text === undefined) return undefined;
  const found = decodeDeviceProfile(text, key);
  if ('profile' in found) return found.profile;
  log.warn({ path, reason: found.reason }, 'stored profile does not fit this graph and device, going on without it');
  return undefined;
}

/** Puts what is new beside what was known: the warm-up measures memory alone, `shoal tune` the knee as well. */
export async function storeProfile(
  cacheDir: string,
  key: DeviceProfileKey,
  found: Pick<DeviceProfile, 'memory' | 'kneeTokens' | 'lanes'>,
  log: Logger,
): Promise<string> {
  const known = await readProfile(cacheDir, key, log);
  const path = profilePath(cacheDir, key);
  const profile: DeviceProfile = { ...known, ...found, v: 1, key, measuredAt: new Date().toISOString() };
  await placeAtomically(path, (temporary) => writeFile(temporary, encodeDeviceProfile(profile)));
  return path;
}

/** What `shoal tune` kept of budgets in this cache folder. Files that are no profiles are not listed. */
export async function tunedProfiles(cacheDir: string): Promise<readonly TunedProfile[]> {
  const folder = join(cacheDir, 'profiles');
  const names = await readdir(folder).catch(() => []);
  const found = await Promise.all(
    names.sort().map(async (name): Promise<TunedProfile[]> => {
      const path = join(folder, name);
      const profile = profileIn(await readFile(path, 'utf8').catch(() => ''));
      return profile?.kneeTokens === undefined ? [] : [{ path, profile }];
    }),
  );
  return found.flat();
}

export interface TunedProfile {
  readonly path: string;
  readonly profile: DeviceProfile;
}

/** Forgets the budget and lanes; what is known of memory, which workers measure by themselves, stays. */
export async function forgetTuned({ path, profile }: TunedProfile): Promise<void> {
  const { kneeTokens: _, lanes: __, ...rest } = profile;
  if (rest.memory === undefined) await rm(path, { force: true });
  else await placeAtomically(path, (temporary) => writeFile(temporary, encodeDeviceProfile(rest)));
}

function profileIn(text: string): DeviceProfile | undefined {
  try {
    const { key }: { readonly key?: unknown } = JSON.parse(text);
    if (typeof key !== 'object' || key === null) return undefined;
    const found = decodeDeviceProfile(text, key as DeviceProfileKey);
    return 'profile' in found ? found.profile : undefined;
  } catch {
    return undefined;
  }
}

/** Whoever only wanted to know goes on without a place to keep it. */
export async function keepProfile(
  cacheDir: string,
  key: DeviceProfileKey,
  found: Pick<DeviceProfile, 'memory' | 'kneeTokens' | 'lanes'>,
  log: Logger,
): Promise<void> {
  await storeProfile(cacheDir, key, found, log).catch((error: unknown) => {
    log.warn(
      { path: profilePath(cacheDir, key), reason: error instanceof Error ? error.message : String(error) },
      'what was measured cannot be kept, the next start measures it again',
    );
  });
}

/**
 * The graph's own hash is in its file name; an imported graph is known by its model's revision, which is a hash of all
 * its files.
 */
export function profileKey({
  model,
  graphPath,
  provider,
  precision,
  deviceKind,
}: {
  readonly model: StoredModel;
  readonly graphPath: string;
  readonly provider: string;
  readonly precision: Precision;
  readonly deviceKind: string;
}): DeviceProfileKey {
  const graphHash = model.graphKind === 'imported' ? model.revision : basename(graphPath, '.onnx').split('-').at(-1)!;
  return { graphHash, provider, precision, deviceKind };
}

/** The key of the native encoder, which has no graph: its weights are the model's. */
export function encoderKey(
  { revision }: StoredModel,
  {
    device,
    deviceKind = device,
    precision = 'fp16',
  }: Pick<EncoderBackendOptions, 'device' | 'deviceKind' | 'precision'>,
): DeviceProfileKey {
  return { graphHash: revision, provider: 'native-encoder', precision, deviceKind };
}

/**
 * Threads are a part of it: each has buffers of its own, and they decide how long a run takes. `sessions` share them.
 */
export function cpuKind(threads: number, sessions = 1): string {
  const divided = sessions === 1 ? '' : ` in ${sessions} sessions`;
  return `${cpus()[0]?.model.trim() ?? 'unknown CPU'}, ${threads} ${threads === 1 ? 'thread' : 'threads'}${divided}`;
}

function profilePath(cacheDir: string, { graphHash, provider, precision, deviceKind }: DeviceProfileKey): string {
  const name = [graphHash, provider, precision, deviceKind]
    .join('-')
    .toLowerCase()
    .replaceAll(/[^a-z0-9]+/g, '-');
  return join(cacheDir, 'profiles', `${name}.json`);
}
