// What the reader makes of well-formed files of each type, and of files that lie about themselves.

import { mkdtemp, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Safetensors } from './safetensors.ts';

let folder: string;
let path: string;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), 'shoal-safetensors-'));
  path = join(folder, 'weights.safetensors');
});
afterAll(() => rm(folder, { recursive: true, force: true }));

async function write(header: unknown, data: Uint8Array, claimedLength?: bigint): Promise<void> {
  const text = Buffer.from(typeof header === 'string' ? header : JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(claimedLength ?? BigInt(text.length));
  await writeFile(path, Buffer.concat([length, text, data]));
}

const bytesOf = (values: { readonly buffer: ArrayBufferLike }): Uint8Array => new Uint8Array(values.buffer);
const read = (name: string, shape: readonly number[]): Promise<Float32Array> =>
  Safetensors.use(path, (weights) => {
    weights.expect(name, shape);
    return weights.read(name);
  });
const refusal = (message: RegExp): unknown =>
  expect.objectContaining({ code: 'MODEL_CORRUPT', message: expect.stringMatching(message) as unknown });

describe('values', () => {
  test('F32 are read as they are, metadata is skipped, order in the header does not matter', async () => {
    await write(
      {
        __metadata__: { format: 'pt' },
        b: { dtype: 'F32', shape: [2], data_offsets: [12, 20] },
        a: { dtype: 'F32', shape: [3, 1], data_offsets: [0, 12] },
      },
      bytesOf(Float32Array.of(1, 2.5, -3, 4, 1e-40)),
    );
    expect([...(await read('a', [3, 1]))]).toEqual([1, 2.5, -3]);
    expect([...(await read('b', [2]))]).toEqual([4, Math.fround(1e-40)]);
  });

  test('F16 are widened exactly: normal, subnormal, zero, infinite', async () => {
    const halves = Uint16Array.of(
      0x3c00,
      0xc000,
      0x7bff,
      0x0001,
      0x03ff,
      0x0400,
      0x8000,
      0x7c00,
      0xfc00,
      0x7e00,
      0x3555,
    );
    await write({ a: { dtype: 'F16', shape: [11], data_offsets: [0, 22] } }, bytesOf(halves));
    expect([...(await read('a', [11]))]).toEqual([
      1,
      -2,
      65_504,
      2 ** -24,
      1023 * 2 ** -24,
      2 ** -14,
      -0,
      Infinity,
      -Infinity,
      NaN,
      0.333251953125,
    ]);
  });

  test('BF16 are widened exactly', async () => {
    await write(
      { a: { dtype: 'BF16', shape: [4], data_offsets: [0, 8] } },
      bytesOf(Uint16Array.of(0x3f80, 0xc040, 0x0001, 0x7f80)),
    );
    expect([...(await read('a', [4]))]).toEqual([1, -3, 2 ** -133, Infinity]);
  });

  test('a tensor of no elements and a scalar', async () => {
    await write(
      {
        none: { dtype: 'F32', shape: [0, 4], data_offsets: [0, 0] },
        one: { dtype: 'F32', shape: [], data_offsets: [0, 4] },
      },
      bytesOf(Float32Array.of(7)),
    );
    expect([...(await read('none', [0, 4]))]).toEqual([]);
    expect([...(await read('one', []))]).toEqual([7]);
  });
});

const tensor = (change: Record<string, unknown> = {}): Record<string, unknown> => ({
  dtype: 'F32',
  shape: [4],
  data_offsets: [0, 16],
  ...change,
});

describe('a file that is not what its header says is refused, with the tensor', () => {
  const four = bytesOf(Float32Array.of(1, 2, 3, 4));

  test.each<[string, unknown, RegExp, bigint?]>([
    ['header of 4 GB', {}, /header claims 4294967296 bytes; 100000000 are allowed/, 2n ** 32n],
    ['header of 2⁶⁴ − 1 bytes', {}, /header claims 18446744073709551615 bytes/, 2n ** 64n - 1n],
    ['header longer than the file', {}, /header claims 5000 bytes, but the file ends after 18/, 5_000n],
    ['header that is not JSON', '{"a":', /header is not JSON/],
    ['header that is a list', '[]', /expected an object/],
    ['unknown type', { a: tensor({ dtype: 'F99' }) }, /tensor a has the unknown type "F99"/],
    ['type of Object.prototype', { a: tensor({ dtype: 'constructor' }) }, /tensor a has the unknown type/],
    [
      'shape that is too small for the bytes',
      { a: tensor({ shape: [3] }) },
      /tensor a of type F32 and shape \[3\] takes 12 bytes/,
    ],
    ['shape beyond all numbers', { a: tensor({ shape: [2 ** 40, 2 ** 40] }) }, /tensor a of type F32/],
    ['negative shape', { a: tensor({ shape: [-4] }) }, /"shape" should be a list of whole numbers/],
    [
      'offsets backwards',
      { a: tensor({ data_offsets: [16, 0] }) },
      /tensor a .* takes 16 bytes, not those from 16 to 0/,
    ],
    ['one offset', { a: tensor({ data_offsets: [0] }) }, /tensor a/],
    [
      'overlap',
      { a: tensor(), b: tensor({ shape: [2], data_offsets: [8, 16] }) },
      /tensor b should begin at byte 16 of the data and begins at 8/,
    ],
    [
      'gap',
      { a: tensor({ shape: [1], data_offsets: [0, 4] }), b: tensor({ shape: [2], data_offsets: [8, 16] }) },
      /tensor b should begin at byte 4/,
    ],
    [
      'bytes that belong to nobody',
      { a: tensor({ shape: [2], data_offsets: [0, 8] }) },
      /the file has \d+ bytes where its header describes \d+/,
    ],
    ['tensor past the end', { a: tensor({ shape: [400], data_offsets: [0, 1_600] }) }, /cut off inside tensor a/],
    ['tensor that is a number', { a: 5 }, /"a" should be an object/],
  ])('%s', async (_, header, message, claimed) => {
    await write(header, four, claimed);
    await expect(Safetensors.use(path, async () => 'opened')).rejects.toEqual(refusal(message));
  });

  test('cut off in the data', async () => {
    await write({ a: tensor() }, four);
    await truncate(path, 70);
    await expect(Safetensors.use(path, async () => 'opened')).rejects.toEqual(
      refusal(/cut off inside tensor a: 70 bytes where at least \d+ should be/),
    );
  });

  test('shorter than a header', async () => {
    await writeFile(path, 'abc');
    await expect(Safetensors.use(path, async () => 'opened')).rejects.toEqual(refusal(/has 3 bytes, too few/));
  });

  test('missing tensor, wrong shape, whole numbers', async () => {
    await write({ a: tensor({ dtype: 'I32' }) }, four);
    await expect(read('b', [4])).rejects.toEqual(refusal(/tensor b is missing/));
    await expect(read('a', [2, 2])).rejects.toEqual(refusal(/tensor a should have the shape \[2, 2\] and has \[4\]/));
    await expect(read('a', [4])).rejects.toEqual(refusal(/tensor a holds I32/));
  });
});
