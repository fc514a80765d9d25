import zlib from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { decompressed } from './decompress.ts';
import { readRecords } from './records.ts';

async function* chunksOf(bytes: Buffer, size = bytes.length): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

async function textOf(bytes: Buffer, name: string, size?: number): Promise<string> {
  const parts: Buffer[] = [];
  for await (const part of decompressed(chunksOf(bytes, size), name)) parts.push(part);
  return Buffer.concat(parts).toString();
}

const [gzip, zstd] = [(text: string) => zlib.gzipSync(text), (text: string) => zlib.zstdCompressSync(text)];

describe('a compressed file', () => {
  test.each([
    ['gz', gzip],
    ['zst', zstd],
  ])('is read by its first bytes, in one piece or byte by byte, of one part or several: .%s', async (end, compress) => {
    const bytes = Buffer.concat([compress('{"text":"one"}\n'), compress('{"text":"grüße"}\n')]);
    for (const size of [bytes.length, 1, 7])
      expect(await textOf(bytes, `a.jsonl.${end}`, size)).toBe('{"text":"one"}\n{"text":"grüße"}\n');
    // standard input has no name
    expect(await textOf(bytes, 'standard input')).toContain('grüße');
  });

  test('has frames of metadata that hold nothing of it', async () => {
    const skippable = Buffer.concat([Buffer.of(0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0), Buffer.from('abc')]);
    expect(await textOf(Buffer.concat([zstd('one\n'), skippable, zstd('two\n')]), 'a.txt.zst', 3)).toBe('one\ntwo\n');
    await expect(textOf(Buffer.concat([zstd('one\n'), Buffer.from('more')]), 'a.txt.zst')).rejects.toThrow('no frame');
  });

  test('of plain text is plain text', async () => {
    expect(await textOf(Buffer.from('hello\n'), 'a.txt')).toBe('hello\n');
    expect(await textOf(Buffer.alloc(0), 'a.txt.gz')).toBe('');
  });

  test.each([
    ['gz', gzip],
    ['zst', zstd],
  ])('that is cut or damaged is refused by name: .%s', async (end, compress) => {
    const sound = compress('a line\n'.repeat(1_000));
    await expect(textOf(sound.subarray(0, -4), `a.txt.${end}`)).rejects.toThrow(`a.txt.${end}: its `);
    const damaged = Buffer.from(sound);
    damaged[sound.length - 7]! ^= 0xff;
    await expect(textOf(damaged, `a.txt.${end}`)).rejects.toThrow(/is damaged or cut/);
  });

  test('whose name says something else is refused', async () => {
    await expect(textOf(Buffer.from('plain\n'), 'a.txt.gz')).rejects.toThrow(
      'is called a file of gzip and is not compressed',
    );
    await expect(textOf(gzip('x'), 'a.txt.zst')).rejects.toThrow(
      'is called a file of Zstandard and is compressed by gzip',
    );
  });

  test('of 80 MiB in one line is one bad record, and is never held', async () => {
    const bomb = zlib.gzipSync(Buffer.alloc(80 * 1024 * 1024, 'x'), { level: 1 });
    const found = [];
    let most = 0;
    const watched = async function* (): AsyncGenerator<Buffer> {
      for await (const chunk of decompressed(chunksOf(bomb, 16 * 1024), 'bomb.txt.gz')) {
        most = Math.max(most, chunk.length);
        yield chunk;
      }
    };
    const options = {
      format: 'text',
      name: 'bomb.txt.gz',
      firstIndex: 0,
      textField: undefined,
      idField: undefined,
    } as const;
    for await (const record of readRecords(watched(), options)) found.push(record);
    expect(found).toEqual([expect.objectContaining({ problem: expect.stringContaining('longer than 64 MiB') })]);
    expect(most).toBeLessThanOrEqual(64 * 1024);
  });
});
