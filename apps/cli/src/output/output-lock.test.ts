import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rm, utimes, writeFile } from 'node:fs/promises';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { placeOfPids } from '@shoal/fetch/process-identity';
import { SmallDisk } from '@shoal/fetch/testing';
import { afterAll, afterEach, beforeEach, describe, expect, test } from 'vitest';
import { withOutputLock } from './output-lock.ts';
import { checkTarget, type Target } from './target.ts';

const disk = SmallDisk.make(100_000);
afterAll(() => (typeof disk === 'string' ? undefined : disk.remove()));

let folder: string;
let target: Target;
let path: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-claim-'));
  target = await checkTarget(join(folder, 'out.npy'), []);
  path = join(folder, '.out.npy.shoal-partial.claim');
});
afterEach(() => rm(folder, { recursive: true }));

const run = async (): Promise<string> => 'claimed';
const told: string[] = [];
const claimed = (patienceMs = 0): Promise<string> =>
  withOutputLock(target, run, { patienceMs, onWait: (line) => told.push(line) });
const write = (pid: number, host = hostname(), place?: string): Promise<void> =>
  writeFile(path, JSON.stringify({ pid, host, place }));
const grow = (file: string): Promise<void> =>
  utimes(file, new Date(Date.now() - 60_000), new Date(Date.now() - 60_000));

describe('the claim of an output', () => {
  test('is there until the run ends, however it ends', async () => {
    await withOutputLock(target, async () => expect(existsSync(path)).toBe(true));
    await expect(
      withOutputLock(target, async () => {
        throw new Error('the run');
      }),
    ).rejects.toThrow('the run');
    expect(await readdir(folder)).toEqual([]);
  });

  test('refuses a second run while the first lives and touches it', async () => {
    await write(process.ppid);
    await expect(claimed()).rejects.toMatchObject({
      code: 'FILE_UNWRITABLE',
      message: expect.stringContaining(`another shoal embed (process ${process.ppid}) is writing it`),
    });
    await grow(path);
    expect(await claimed()).toBe('claimed');
  });

  test('of a process that is gone gives way at once, also one of the same number', async () => {
    for (const pid of [2 ** 22 + 1, process.pid]) {
      await write(pid);
      expect(await claimed()).toBe('claimed');
    }
  });

  test('of another host or container, or not written to its end, is held for as long as it is fresh', async () => {
    await write(1, 'elsewhere');
    await expect(claimed()).rejects.toThrow('(process 1 on elsewhere) is writing it');
    await write(process.pid, hostname(), `${placeOfPids().split('.')[0]}.1`);
    await expect(claimed()).rejects.toThrow(`(process ${process.pid} in another container) is writing it`);
    await writeFile(path, '');
    await expect(claimed()).rejects.toThrow('another shoal embed is writing it');
    await grow(path);
    expect(await claimed()).toBe('claimed');
  });

  test('without a name, as a disk without room leaves it, is waited for until it is old', async () => {
    await writeFile(path, '');
    const almostOld = new Date(Date.now() - 14_800);
    await utimes(path, almostOld, almostOld);
    told.length = 0;
    expect(await claimed(60_000)).toBe('claimed');
    expect(told).toEqual([expect.stringContaining('waiting 60 s at most')]);
    expect(await readdir(folder)).toEqual([]);
  });

  test('that cannot be removed because the disk became read-only hides neither the end of its run nor the next', async () => {
    if (typeof disk === 'string') return console.log(`a read-only disk is not tried: ${disk}`);
    const output = await checkTarget(join(disk.folder, 'out.npy'), []);
    await expect(
      withOutputLock(output, async () => {
        disk.setReadOnly(true);
        throw new Error('why it ended');
      }),
    ).rejects.toThrow('why it ended');
    await expect(withOutputLock(output, run)).rejects.toMatchObject({
      code: 'FILE_UNWRITABLE',
      message: expect.stringContaining('read-only'),
    });
    disk.setReadOnly(false);
    expect(await withOutputLock(output, run)).toBe('claimed');
    expect(await readdir(disk.folder)).toEqual([]);
  });

  test('that somebody is taking over is his; a take-over that was killed is cleared', async () => {
    await write(2 ** 22 + 1);
    await mkdir(`${path}.takeover`);
    await expect(claimed()).rejects.toMatchObject({ code: 'FILE_UNWRITABLE' });
    await grow(`${path}.takeover`);
    expect(await claimed(60_000)).toBe('claimed');
    expect(await readdir(folder)).toEqual([]);
  });

  test('of a file whose name leaves no room for it is refused', async () => {
    await expect(
      withOutputLock(await checkTarget(join(folder, `${'x'.repeat(240)}.npy`), []), async () => undefined),
    ).rejects.toMatchObject({ code: 'FILE_UNWRITABLE', message: expect.stringContaining('its name is too long') });
  });
});
