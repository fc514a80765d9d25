import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { isMade, makeOnce } from './make-once.ts';

let parent: string;
let folder: string;

beforeEach(() => {
  parent = mkdtempSync(join(tmpdir(), 'shoal-once-'));
  folder = join(parent, 'packages');
});

afterEach(() => rmSync(parent, { recursive: true }));

test('who comes while it is being made waits until it is whole', async () => {
  let times = 0;
  const seen = await Promise.all(
    [1, 2, 3].map(async () => {
      await makeOnce(folder, async () => {
        times++;
        await delay(30);
        writeFileSync(join(folder, 'last'), '');
      });
      return existsSync(join(folder, 'last'));
    }),
  );
  expect([times, seen, readdirSync(parent)]).toEqual([1, [true, true, true], ['packages']]);
});

test('what was left half-made is made again', async () => {
  mkdirSync(folder);
  writeFileSync(join(folder, 'half'), '');
  expect(isMade(folder)).toBe(false);
  await expect(
    makeOnce(folder, () => {
      writeFileSync(join(folder, 'quarter'), '');
      throw new Error('pip is away');
    }),
  ).rejects.toThrow('pip is away');
  expect(isMade(folder)).toBe(false);
  await makeOnce(folder, () => writeFileSync(join(folder, 'new'), ''));
  expect(readdirSync(folder).toSorted()).toEqual(['.whole', 'new']);
});
