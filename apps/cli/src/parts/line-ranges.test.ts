import { expect, test } from 'vitest';
import { readLines } from '@shoal/worker/files/lines';
import { lineRanges } from './line-ranges.ts';

async function* inPieces(bytes: Buffer, length: number): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += length) yield bytes.subarray(at, at + length);
}

/** As whoever reads the file numbers its lines: where each begins. */
async function startsOf(bytes: Buffer): Promise<number[]> {
  const starts: number[] = [];
  for await (const lines of readLines(inPieces(bytes, 5))) starts.push(...lines.map(({ byteOffset }) => byteOffset));
  return starts;
}

const FILES = ['', 'a', 'a\n', 'a\nb', '\n\n\n', 'a\r\nb\r\n', 'a\rb\rc', 'a\r', '\r\n\r\n', 'x\n\r\ny\r\r\nz\n'];

test('ranges hold each line once, in order and under its number, however the file comes in pieces', async () => {
  for (const file of FILES.map((text) => Buffer.from(text)))
    for (const mostLines of [1, 2, 1_000])
      for (const piece of [1, 2, 3, 100]) {
        const ranges = await lineRanges(inPieces(file, piece), mostLines);
        const starts = await startsOf(file);
        expect(ranges.flatMap(({ firstLine, lines }) => starts.slice(firstLine - 1, firstLine - 1 + lines))).toEqual(
          starts,
        );
        expect(ranges.map(({ from }) => from)).toEqual(ranges.map(({ firstLine }) => starts[firstLine - 1]));
        expect([0, ...ranges.map(({ to }) => to)].slice(0, -1)).toEqual(ranges.map(({ from }) => from));
        expect(ranges.at(-1)?.to ?? 0).toBe(file.length);
        expect(ranges.every(({ lines }) => lines <= mostLines)).toBe(true);
      }
});
