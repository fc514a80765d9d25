import { describe, expect, test } from 'vitest';
import { readLines } from './lines.ts';

async function* chunksOf(bytes: Buffer, size: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function linesOf(
  text: string | Buffer,
  { size = 7, limit = 1024 } = {},
): Promise<[number, number, string | undefined][]> {
  const found: [number, number, string | undefined][] = [];
  for await (const lines of readLines(chunksOf(Buffer.from(text), size), limit)) {
    for (const line of lines) found.push([line.number, line.byteOffset, line.bytes?.toString()]);
  }
  return found;
}

describe('lines', () => {
  test.each([1, 2, 3, 5, 1000])('are the same whatever the size of the chunks (%i bytes)', async (size) => {
    expect(await linesOf('eins\r\nzwei\n\ndrei ü', { size })).toEqual([
      [1, 0, 'eins'],
      [2, 6, 'zwei'],
      [3, 11, ''],
      [4, 12, 'drei ü'],
    ]);
  });

  test('end with the last line end: nothing follows it', async () => {
    expect(await linesOf('a\nb\n')).toEqual([
      [1, 0, 'a'],
      [2, 2, 'b'],
    ]);
  });

  test('of nothing are none', async () => {
    expect(await linesOf('')).toEqual([]);
  });

  test.each([1, 2, 3, 1000])('end with a carriage return, alone or before a line feed (%i bytes)', async (size) => {
    expect(await linesOf('a\rb\n\r\rc\r\nd\r', { size })).toEqual([
      [1, 0, 'a'],
      [2, 2, 'b'],
      [3, 4, ''],
      [4, 5, ''],
      [5, 6, 'c'],
      [6, 9, 'd'],
    ]);
  });

  test('end with nothing else that some take for a line end', async () => {
    const text = 'a\u2028b\u2029c\u0085d\ve\ff';
    expect(await linesOf(text)).toEqual([[1, 0, text]]);
  });

  test('above the limit lose their bytes and keep their place', async () => {
    expect(await linesOf(`short\n${'x'.repeat(40)}\nnext`, { limit: 20 })).toEqual([
      [1, 0, 'short'],
      [2, 6, undefined],
      [3, 47, 'next'],
    ]);
  });

  test('of 20 MB arrive whole', async () => {
    const found = await linesOf(Buffer.concat([Buffer.alloc(20_000_000, 'x'), Buffer.from('\nend')]), {
      size: 65_536,
      limit: 64 << 20,
    });
    expect(found.map(([, , text]) => text?.length)).toEqual([20_000_000, 3]);
  });
});
