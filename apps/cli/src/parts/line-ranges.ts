// A file of lines, cut into ranges of bytes that begin and end with a line. It is read once from beginning to end and
// nothing of it is kept: rows are numbered by their lines, so somebody has to count these, and one process counts them
// at the speed of its disk. What ends a line is the same as for whoever reads them (libs/worker's lines.ts).

import type { PartRange } from '@shoal/contract';

export type ByteRange = Extract<PartRange, { kind: 'bytes' }>;

const LF = 0x0a;
const CR = 0x0d;

/** Ranges of up to so many lines; none of an empty file. */
export async function lineRanges(chunks: AsyncIterable<Buffer>, mostLines: number): Promise<ByteRange[]> {
  const cutter = new Cutter(mostLines);
  for await (const chunk of chunks) cutter.add(chunk);
  return cutter.end();
}

class Cutter {
  readonly #mostLines: number;
  readonly #ranges: ByteRange[] = [];
  /** Of the range that is open: where it begins, the number of its first line, its lines. */
  #from = 0;
  #firstLine = 1;
  #lines = 0;
  /** Behind the last line that has ended. */
  #lineAt = 0;
  #bytes = 0;
  /** The last byte was a CR, and what follows says whether the line ends with it. */
  #isAfterReturn = false;

  constructor(mostLines: number) {
    this.#mostLines = mostLines;
  }

  add(chunk: Buffer): void {
    if (chunk.length === 0) return;
    let from = 0;
    if (this.#isAfterReturn) {
      if (chunk[0] === LF) from = 1;
      this.#endLine(this.#bytes + from);
    }
    this.#isAfterReturn = chunk.at(-1) === CR;
    const text = this.#isAfterReturn ? chunk.subarray(0, -1) : chunk;
    let feed = text.indexOf(LF, from);
    let carriage = text.indexOf(CR, from);
    while (feed !== -1 || carriage !== -1) {
      const isFeed = carriage === -1 || (feed !== -1 && feed < carriage);
      from = isFeed ? feed + 1 : carriage + (feed === carriage + 1 ? 2 : 1);
      this.#endLine(this.#bytes + from);
      if (feed !== -1 && feed < from) feed = text.indexOf(LF, from);
      if (carriage !== -1 && carriage < from) carriage = text.indexOf(CR, from);
    }
    this.#bytes += chunk.length;
  }

  end(): ByteRange[] {
    if (this.#isAfterReturn || this.#bytes > this.#lineAt) this.#endLine(this.#bytes);
    this.#close();
    return this.#ranges;
  }

  #endLine(at: number): void {
    this.#lineAt = at;
    this.#lines++;
    if (this.#lines === this.#mostLines) this.#close();
  }

  #close(): void {
    if (this.#lines === 0) return;
    const [from, to, firstLine, lines] = [this.#from, this.#lineAt, this.#firstLine, this.#lines];
    this.#ranges.push({ kind: 'bytes', from, to, firstLine, lines });
    this.#from = to;
    this.#firstLine += lines;
    this.#lines = 0;
  }
}
