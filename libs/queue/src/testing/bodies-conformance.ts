// What every kind of payload server promises, as tests.

import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Bodies } from '../payload/bodies.ts';

export interface BodiesUnderTest {
  readonly bodies: Bodies;
  /** Nobody answers there any more, and somebody does again. */
  takeAway(): Promise<unknown>;
  giveBack(): Promise<unknown>;
  stop(): Promise<unknown>;
}

const TTL_MS = 60_000;
const SIZES = [0, 1, 100_000, 2_000_000];

export function bodiesConformance(name: string, fresh: () => Promise<BodiesUnderTest>): void {
  describe(`bodies: ${name}`, () => {
    let under: BodiesUnderTest;
    let bodies: Bodies;

    beforeAll(async () => {
      under = await fresh();
      bodies = under.bodies;
      await bodies.ready();
    });
    afterAll(async () => {
      await bodies.close();
      await bodies.close();
      await under.stop();
    });

    test('gives each back as it was put, whatever it and its key are', async () => {
      const keys = ['{t}:out:embed-x:1', '{t}:in:../../a/\0b', 'ü 魚?#%2F', 'k'.repeat(1_000)];
      const values = SIZES.map((size, at) => Buffer.alloc(size, `${at + 1}\0é`));
      await Promise.all(keys.map((key, at) => bodies.put(key, values[at]!, TTL_MS)));
      const found = await Promise.all(keys.map((key) => bodies.get(key)));
      expect(found.map((value, at) => value?.equals(values[at]!))).toEqual(keys.map(() => true));
      expect(await bodies.get('{t}:out:embed-x:2')).toBeUndefined();
    });

    test('takes the same once more', async () => {
      const value = Buffer.from('the same');
      await bodies.put('again', value, TTL_MS);
      await bodies.put('again', value, TTL_MS);
      expect(await bodies.get('again')).toEqual(value);
    });

    test('has nothing of what was dropped, and drops what is not there', async () => {
      await bodies.put('a', Buffer.from('a'), TTL_MS);
      await bodies.put('b', Buffer.from('b'), TTL_MS);
      await bodies.put('c', Buffer.from('c'), TTL_MS);
      await bodies.drop(['a', 'never', 'b']);
      expect(await Promise.all(['a', 'b', 'c'].map((key) => bodies.get(key)))).toEqual([
        undefined,
        undefined,
        Buffer.from('c'),
      ]);
    });

    test('can be looked at', async () => {
      const { memory } = await bodies.look();
      expect(memory?.usedBytes ?? Number.POSITIVE_INFINITY).toBeGreaterThan(100_000);
    });

    test('says what is wrong while it is away, and works again', async () => {
      await bodies.put('kept', Buffer.from('x'), TTL_MS);
      await under.takeAway();
      for (const asked of [
        () => bodies.get('kept'),
        () => bodies.put('other', Buffer.from('x'), TTL_MS),
        () => bodies.look(),
      ])
        await expect(asked()).rejects.toThrow(/\w{4}/);
      await under.giveBack();
      await expect.poll(() => bodies.put('other', Buffer.from('y'), TTL_MS), { timeout: 20_000 }).toBeUndefined();
      expect(await bodies.get('other')).toEqual(Buffer.from('y'));
    });
  });
}
