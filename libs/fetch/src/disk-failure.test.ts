import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { diskFailure, onDisk } from './disk-failure.ts';
import { placeAtomically, writeAt } from './file.ts';
import { withLock } from './lock.ts';
import { SmallDisk } from './testing/small-disk.ts';

const isThere = SmallDisk.make(4_096);
if (typeof isThere === 'string') console.log(`skipped: ${isThere}`);
else isThere.remove();

let disk: SmallDisk;

function setUp(): void {
  const made = SmallDisk.make(1_000_000);
  if (typeof made === 'string') throw new Error(made);
  disk = made;
}

test('what a write took of its bytes is followed by the rest, and by what the disk says of that', async () => {
  const taken: string[] = [];
  const file = (room: number) => ({
    write: async (bytes: Uint8Array, from: number, length: number, at: number) => {
      if (room === 0) throw new Error('ENOSPC');
      const bytesWritten = Math.min(room, length, 3);
      room -= bytesWritten;
      taken.push(`${Buffer.from(bytes).subarray(from, from + bytesWritten)}@${at}`);
      return { bytesWritten };
    },
  });
  await writeAt(file(9) as never, Buffer.from('12345678'), 10);
  expect(taken).toEqual(['123@10', '456@13', '78@16']);
  await expect(writeAt(file(4) as never, Buffer.from('12345678'), 0)).rejects.toThrow('ENOSPC');
});

test('what the disk does not take is named with the path, what is left and what to do', () => {
  const error = Object.assign(new Error('no space left'), { code: 'ENOSPC', path: '/nowhere/at/all' });
  expect(diskFailure(error)).toMatchObject({
    code: 'FILE_UNWRITABLE',
    message: expect.stringMatching(
      /^\/nowhere\/at\/all cannot .* full \(ENOSPC, \d+ (MB|kB) left\)\. Free .*--cache-dir/,
    ),
  });
  expect(diskFailure(Object.assign(new Error('x'), { code: 'EDQUOT' }), 'a/b')?.message).toMatch(/^a\/b .*quota/);
  expect(diskFailure(Object.assign(new Error('x'), { code: 'EACCES' }), 'a')?.message).toMatch(/Make it writable/);
  expect(diskFailure(Object.assign(new Error('x'), { code: 'ENOENT' }), 'a')).toBeUndefined();
  expect(diskFailure('ENOSPC')).toBeUndefined();
});

test.skipIf(typeof isThere === 'string')(
  'a disk with space and no room for another file says which it is',
  async () => {
    const made = SmallDisk.make(1_000_000, 2);
    if (typeof made === 'string') throw new Error(made);
    try {
      writeFileSync(join(made.folder, 'only'), '');
      await expect(
        onDisk(join(made.folder, 'one-more'), () => writeFile(join(made.folder, 'one-more'), '')),
      ).rejects.toThrow(/as many files as it can hold \(df -i\) \(ENOSPC, 1 MB left\)\. Remove files there/);
    } finally {
      made.remove();
    }
  },
);

test.skipIf(typeof isThere === 'string').each(['full', 'read-only'])('on a disk that is %s', async (state) => {
  setUp();
  try {
    mkdirSync(join(disk.folder, 'made'));
    writeFileSync(join(disk.folder, 'made', 'kept'), 'before');
    if (state === 'full') disk.fill();
    const seen = state === 'full' ? disk.folder : disk.readOnlyView();
    const said = {
      code: 'FILE_UNWRITABLE',
      message: expect.stringMatching(
        state === 'full' ? /the disk is full \(ENOSPC, 0 kB left\)/ : /the file system is read-only \(EROFS/,
      ),
    };
    await expect(withLock(join(seen, 'made', 'lock'), async () => 1)).rejects.toMatchObject(said);
    await expect(withLock(join(seen, 'new', 'lock'), async () => 1)).rejects.toMatchObject(
      state === 'full' ? { code: 'FILE_UNWRITABLE' } : said,
    );
    const kept = join(seen, 'made', 'kept');
    await expect(placeAtomically(kept, (path) => writeFile(path, Buffer.alloc(9_000)))).rejects.toMatchObject(said);
    expect(readFileSync(kept, 'utf8')).toBe('before');
    expect(readdirSync(join(disk.folder, 'made'))).toEqual(['kept']);
    disk.empty();
    expect(await withLock(join(disk.folder, 'made', 'lock'), async () => 1)).toBe(1);
  } finally {
    disk.remove();
  }
});
