import { mkdtempSync, readFileSync, readdirSync, rmSync, statSync, utimesSync, writeFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { placeAtomically, sha256File } from './file.ts';

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'shoal-file-'));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

test('a digest is the sha256 of the bytes', async () => {
  writeFileSync(join(folder, 'abc'), 'abc');
  await expect(sha256File(join(folder, 'abc'))).resolves.toBe(
    'ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad',
  );
});

test('a file takes its name when it is whole, and folders above it are made', async () => {
  const destination = join(folder, 'a', 'b', 'whole');
  await expect(
    placeAtomically(destination, async (temporary) => {
      await writeFile(temporary, 'all of it');
      return 9;
    }),
  ).resolves.toBe(9);
  expect(readFileSync(destination, 'utf8')).toBe('all of it');
  expect(readdirSync(join(folder, 'a', 'b'))).toEqual(['whole']);
});

test('a writer that fails leaves the old file and nothing else', async () => {
  const destination = join(folder, 'kept');
  writeFileSync(destination, 'old');
  const failing = placeAtomically(destination, async (temporary) => {
    await writeFile(temporary, 'half');
    throw new Error('disk');
  });
  await expect(failing).rejects.toThrow('disk');
  expect(readFileSync(destination, 'utf8')).toBe('old');
  expect(readdirSync(folder)).toEqual(['kept']);
});

test('what a killed process left an hour ago is swept, what may be being written now only under a lock', async () => {
  for (const name of ['.x.0000aaaa.part', '.x.0000bbbb.part']) writeFileSync(join(folder, name), 'half');
  const long = new Date(Date.now() - 2 * 3_600_000);
  utimesSync(join(folder, '.x.0000aaaa.part'), long, long);
  await placeAtomically(join(folder, 'x'), (temporary) => writeFile(temporary, 'x'));
  expect(readdirSync(folder).sort()).toEqual(['.x.0000bbbb.part', 'x']);
  await placeAtomically(join(folder, 'x'), (temporary) => writeFile(temporary, 'x'), { isLocked: true });
  expect(readdirSync(folder)).toEqual(['x']);
});

test('whatever the umask, what lies in a cache is written by its user alone', async () => {
  const before = process.umask(0);
  try {
    await placeAtomically(join(folder, 'made', 'graph'), (path) => writeFile(path, 'x'));
    const modes = ['made', 'made/graph'].map((name) => (statSync(join(folder, name)).mode & 0o777).toString(8));
    expect(modes).toEqual(['700', '644']);
  } finally {
    process.umask(before);
  }
});
