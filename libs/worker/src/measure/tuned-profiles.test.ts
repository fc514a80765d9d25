import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { noLog, type MemoryLaw } from '@shoal/core';
import { forgetTuned, readProfile, storeProfile, tunedProfiles } from './profile-store.ts';

const KEY = { graphHash: 'abcdefgh', provider: 'cpu', precision: 'fp32', deviceKind: 'a CPU, 2 threads' } as const;
const MEMORY: MemoryLaw = {
  loadedBytes: 1_000,
  floorBytes: 0,
  slackBytes: 0,
  perToken: [{ width: 8, bytes: 10 }],
  arena: 'exact',
};

test('what tune kept is listed and forgotten; what workers know of memory stays', async () => {
  const cacheDir = await mkdtemp(join(tmpdir(), 'shoal-tuned-'));
  try {
    expect(await tunedProfiles(cacheDir)).toEqual([]);
    const other = { ...KEY, precision: 'bf16' } as const;
    await storeProfile(cacheDir, KEY, { kneeTokens: 512, memory: MEMORY }, noLog);
    const alone = await storeProfile(cacheDir, other, { kneeTokens: 256, lanes: 2 }, noLog);
    await storeProfile(cacheDir, { ...KEY, graphHash: 'untuned0' }, { memory: MEMORY }, noLog);
    await writeFile(join(cacheDir, 'profiles', 'x.json'), 'no profile');
    const found = await tunedProfiles(cacheDir);
    expect(found.map(({ profile }) => profile.kneeTokens)).toEqual([256, 512]);
    for (const profile of found) await forgetTuned(profile);
    expect(await tunedProfiles(cacheDir)).toEqual([]);
    const kept = await readProfile(cacheDir, KEY, noLog);
    expect(kept).toMatchObject({ memory: MEMORY });
    expect(kept).not.toHaveProperty('kneeTokens');
    await expect(readFile(alone, 'utf8')).rejects.toThrow(/ENOENT/);
  } finally {
    await rm(cacheDir, { recursive: true });
  }
});
