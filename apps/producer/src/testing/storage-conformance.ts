// What every storage has to do, as tests: one suite for the folder and the bucket.

import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Storage } from '../batches/storage.ts';
import { gathered } from './gathered.ts';

const text = (bytes: Uint8Array | undefined): string | undefined => bytes && Buffer.from(bytes).toString();

async function contentOf(storage: Storage, key: string, from?: number): Promise<string | undefined> {
  const pieces = await storage.open(key, from);
  return pieces === undefined ? undefined : Buffer.concat(await gathered(pieces)).toString();
}

/** `open`: two handles of one storage, as two processes have them, and what ends it. */
export function describeStorage(
  what: string,
  open: () => Promise<{ readonly one: Storage; readonly other: Storage; readonly close: () => Promise<void> }>,
): void {
  describe(`${what}`, () => {
    let one: Storage;
    let other: Storage;
    let close: (() => Promise<void>) | undefined;

    beforeAll(async () => ({ one, other, close } = await open()));
    afterAll(() => close?.());

    test('a record is made once, and replaced by whoever saw its last version', async () => {
      const first = await one.replace('records/a', Buffer.from('1'), undefined);
      expect(first).toBeTypeOf('string');
      expect(await other.replace('records/a', Buffer.from('2'), undefined)).toBeUndefined();
      expect(text((await other.read('records/a'))?.bytes)).toBe('1');
      const second = await other.replace('records/a', Buffer.from('2'), first);
      expect(second).toBeTypeOf('string');
      expect(await one.replace('records/a', Buffer.from('3'), first)).toBeUndefined();
      expect(await one.read('records/a')).toEqual({ bytes: Buffer.from('2'), version: second });
      expect(await one.replace('records/none', Buffer.from('3'), first)).toBeUndefined();
      expect(await one.read('records/none')).toBeUndefined();
    });

    test('of many who replace one version at once, one succeeds', async () => {
      const version = await one.replace('records/busy', Buffer.from('0'), undefined);
      const tries = [...Array(12).keys()].map((at) =>
        (at % 2 === 0 ? one : other).replace('records/busy', Buffer.from(`by ${at}`), version),
      );
      const winners = (await Promise.all(tries)).flatMap((found, at) => (found === undefined ? [] : [at]));
      expect(winners).toHaveLength(1);
      expect(text((await one.read('records/busy'))?.bytes)).toBe(`by ${winners[0]}`);
      const makers = await Promise.all(
        [...Array(12).keys()].map((at) => other.replace('records/new', Buffer.from(String(at)), undefined)),
      );
      expect(makers.filter((found) => found !== undefined)).toHaveLength(1);
    });

    test('a content of any size is written whole and read from any byte', async () => {
      const megabyte = Buffer.alloc(1 << 20, 'abcdefgh');
      expect(await one.write('contents/large', Array(10).fill(megabyte) as Buffer[])).toBe(10 << 20);
      const found = await gathered((await other.open('contents/large'))!);
      expect(Buffer.concat(found).equals(Buffer.concat(Array(10).fill(megabyte) as Buffer[]))).toBe(true);
      expect(await one.write('contents/small', [Buffer.from('hello '), Buffer.from('world')])).toBe(11);
      expect(await contentOf(other, 'contents/small', 6)).toBe('world');
      expect(await contentOf(other, 'contents/small', 11)).toBe('');
      expect(await one.write('contents/small', [Buffer.from('again')])).toBe(5);
      expect(await contentOf(other, 'contents/small')).toBe('again');
      expect(await one.write('contents/empty', [])).toBe(0);
      expect(await contentOf(other, 'contents/empty')).toBe('');
      expect(await contentOf(other, 'contents/none')).toBeUndefined();
    });

    test.each([1, 9 << 20])(
      'what breaks off after %i bytes leaves nothing, and what was there before',
      async (bytes) => {
        const breaking = async function* (): AsyncGenerator<Uint8Array> {
          yield Buffer.alloc(bytes);
          throw new Error('the caller left');
        };
        await expect(one.write('contents/broken', breaking())).rejects.toThrow('the caller left');
        expect(await contentOf(other, 'contents/broken')).toBeUndefined();
        await one.write('contents/kept', [Buffer.from('kept')]);
        await expect(one.write('contents/kept', breaking())).rejects.toThrow('the caller left');
        expect(await contentOf(other, 'contents/kept')).toBe('kept');
        expect(await gathered(one.names('contents', 'j'))).not.toContain('broken');
      },
    );

    test('the names of a folder come in order, after any of them, without those of folders in it', async () => {
      const names = [...Array(30).keys()].map((at) => `n${String(at).padStart(2, '0')}`);
      for (const name of ['sub/x', ...names.toReversed()]) await one.write(`listed/${name}`, [Buffer.from(name)]);
      expect(await gathered(other.names('listed'))).toEqual(names);
      expect(await gathered(other.names('listed', 'n27'))).toEqual(['n28', 'n29']);
      expect(await gathered(other.names('listed', 'n29'))).toEqual([]);
      expect(await gathered(other.names('nothing'))).toEqual([]);
    });

    test('what is removed is gone, however often', async () => {
      await one.write('contents/gone', [Buffer.from('x')]);
      await other.remove('contents/gone');
      await one.remove('contents/gone');
      expect(await one.read('contents/gone')).toBeUndefined();
    });

    test('workers are told where a content and a folder of theirs are, and what they wrote is read at any place', async () => {
      const [mine, theirs] = [one.forWorkers!, other.forWorkers!];
      const folder = 't/owner/parts/batch_1';
      await one.write('contents/source', [Buffer.from('hello')]);
      const source = await mine.source('contents/source');
      expect(source).toMatchObject({ bytes: 5 });
      expect(await theirs.source('contents/source')).toEqual(source);
      expect(await mine.source('contents/none')).toBeUndefined();
      const place = await mine.output(folder);
      expect(await theirs.output(folder)).toEqual(place);
      await one.write(`${folder}/part-00000.parquet`, [Buffer.from('a whole object')]);
      await one.write(`${folder}/_temporary/part-00001.parquet.1`, [Buffer.from('not committed')]);
      const object = (await theirs.object(folder, 'part-00000.parquet'))!;
      const into = Buffer.alloc(8, '.');
      expect(await object.stat()).toMatchObject({ size: 14 });
      expect(await object.read(into, 1, 5, 2)).toMatchObject({ bytesRead: 5 });
      expect(into.toString()).toBe('.whole..');
      expect(await object.read(into, 0, 8, 11)).toMatchObject({ bytesRead: 3 });
      expect(await object.read(into, 0, 8, 14)).toMatchObject({ bytesRead: 0 });
      await object.close();
      for (let times = 0; times < 2; times++) await mine.clear(folder);
      expect(await theirs.object(folder, 'part-00000.parquet')).toBeUndefined();
      expect(await gathered(other.names(`${folder}/_temporary`))).toEqual([]);
      await expect(mine.clear('../x')).rejects.toThrow(TypeError);
      await expect(mine.output('../x')).rejects.toThrow(TypeError);
    });

    test.each(['', '/', '../x', 'a/../b', 'a//b', '/etc/passwd', 'a/.hidden', 'a\\b', 'a\0b', 'a/..', '.', 'ä'])(
      'no key leads elsewhere: %j',
      async (key) => {
        await expect(one.read(key)).rejects.toThrow(TypeError);
        await expect(one.write(key, [Buffer.from('x')])).rejects.toThrow(TypeError);
        await expect(one.replace(key, Buffer.from('x'), undefined)).rejects.toThrow(TypeError);
        await expect(one.open(key)).rejects.toThrow(TypeError);
        await expect(one.remove(key)).rejects.toThrow(TypeError);
        await expect(gathered(one.names(key))).rejects.toThrow(TypeError);
      },
    );
  });
}
