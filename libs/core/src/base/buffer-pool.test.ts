import { RESULT_HEADER_BYTES, encodeResult, bufferForBody } from '@shoal/contract';
import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { BufferPool } from './buffer-pool.ts';

describe('the pool of buffers', () => {
  const ROWS = { dtype: 'f32', rows: 65, dims: 384, fingerprint: '0123456789abcdef', isTruncated: false } as const;

  test(
    'a buffer that came back serves the next body, also one that is a little shorter, and its result ends where ' +
      'that body ends',
    () => {
      const pool = new BufferPool();
      const first = pool.take(66 * 384 * 4).fill(7);
      pool.giveBack(first.buffer);
      const second = pool.take(65 * 384 * 4);
      expect(second.buffer).toBe(first.buffer);
      expect(second.length).toBe(65 * 384 * 4);
      second.fill(0);
      const result = encodeResult(ROWS, second);
      expect(result.buffer).toBe(second.buffer);
      expect(result.equals(encodeResult(ROWS, new Uint8Array(65 * 384 * 4)))).toBe(true);
    },
  );

  test('nobody gets a buffer that another still has, however often it is given back', () => {
    const pool = new BufferPool();
    const first = pool.take(98_304);
    expect(pool.take(98_304).buffer).not.toBe(first.buffer);
    pool.giveBack(first.buffer);
    pool.giveBack(first.buffer);
    const [second, third] = [pool.take(98_304), pool.take(98_304)];
    expect(second.buffer).toBe(first.buffer);
    expect(third.buffer).not.toBe(first.buffer);
  });

  test('what is small, large, or of another origin is not kept', () => {
    const pool = new BufferPool();
    for (const bytes of [1_536, 8 * 2 ** 20]) {
      const { buffer, length } = pool.take(bytes);
      expect(length).toBe(bytes);
      pool.giveBack(buffer);
      expect(pool.take(bytes).buffer).not.toBe(buffer);
    }
    const others = bufferForBody(98_304);
    pool.giveBack(others.buffer);
    expect(pool.take(98_304).buffer).not.toBe(others.buffer);
  });

  test('sizes that nobody asks for any more make way for those that somebody does', () => {
    const pool = new BufferPool();
    // 32 MiB: all that is kept
    for (const { buffer } of Array.from({ length: 8 }, () => pool.take(4 * 2 ** 20))) pool.giveBack(buffer);
    const { buffer } = pool.take(98_304);
    pool.giveBack(buffer);
    expect(pool.take(98_304).buffer).toBe(buffer);
  });

  test('every size has its buffer, at most an eighth too large', () => {
    const pool = new BufferPool();
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 5_000_000 }), (bytes) => {
        const body = pool.take(bytes);
        expect([body.byteOffset, body.length]).toEqual([RESULT_HEADER_BYTES, bytes]);
        expect(body.buffer.byteLength - RESULT_HEADER_BYTES).toBeLessThanOrEqual((bytes * 9) / 8);
      }),
    );
  });
});
