// What `shoal gpu install` says of native code: built, no compiler, broken. A shell script stands in for the
// compilers.

import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { buildNative } from './native-build.ts';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-encoder-build-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

async function reportOf(script: string): Promise<{ isThere: boolean; found: string }> {
  const path = join(folder, 'build.sh');
  await writeFile(path, script);
  return buildNative('encoder', { cacheDir: folder, script: path });
}

test('a missing compiler is named and no error', async () => {
  expect(await reportOf('[ "$1" = addon ] || { echo "there is no CUDA compiler" >&2; exit 3; }')).toMatchObject({
    isThere: false,
    found: 'a compiler is missing: there is no CUDA compiler',
  });
});

test('a build that fails says which part and the last words of the compiler', async () => {
  expect(await reportOf('echo first >&2; echo "error: no" >&2; exit 1')).toMatchObject({
    isThere: false,
    found: 'building addon failed: error: no',
  });
});

test('both parts are built, and what else is missing is told', async () => {
  expect(await reportOf(`echo "$1" >> ${join(folder, 'parts')}`)).toMatchObject({
    isThere: true,
    found: expect.stringContaining('encoder'),
  });
});

test('a project without the sources says so', async () => {
  expect(await buildNative('encoder', { cacheDir: folder, script: join(folder, 'absent.sh') })).toMatchObject({
    isThere: false,
    found: expect.stringContaining('not here'),
  });
});
