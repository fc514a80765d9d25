// Bytes into lines, at constant memory. A line ends with LF, CRLF or CR alone, as spreadsheets of old Macs write it, also
// within one file; nothing else ends one (NEL, U+2028 and form feeds are characters). Knows nothing of what a line
// means. A line above the limit is dropped while it is read and reported by its place, so that no input can fill the
// memory of this process.

/**
 * Longest line that is kept whole. A line is held once, as bytes, then once as a string; 64 MiB is three times the
 * longest we were asked to take.
 */
export const MAX_LINE_BYTES = 64 * 1024 * 1024;

/** Where in its file a stream begins. */
export type LineBegin = Pick<Line, 'number' | 'byteOffset'>;

export interface Line {
  /** 1 for the first line of its file. */
  readonly number: number;
  /** Where the line begins in its file. */
  readonly byteOffset: number;
  /** Without its line end; undefined when it was longer than the limit. */
  readonly bytes: Buffer | undefined;
  readonly end: '' | '\n' | '\r\n' | '\r';
}

/**
 * The lines of a stream of chunks, as many at a time as a chunk completes. What follows the last line end is a line
 * unless it is empty. `begin`: the first line of a stream that is not that of its file.
 */
export async function* readLines(
  chunks: AsyncIterable<Buffer>,
  maxLineBytes: number = MAX_LINE_BYTES,
  begin?: LineBegin,
): AsyncGenerator<readonly Line[]> {
  const open = new OpenLine(maxLineBytes, begin);
  let isAfterReturn = false;
  for await (const read of chunks) {
    if (read.length === 0) continue;
    // a CR at the end of a chunk waits for what follows it
    const chunk: Buffer = isAfterReturn ? Buffer.concat([RETURN, read]) : read;
    isAfterReturn = chunk.at(-1) === CR;
    const lines = linesOf(isAfterReturn ? chunk.subarray(0, -1) : chunk, open);
    if (lines.length > 0) yield lines;
  }
  if (isAfterReturn) yield [open.close(NOTHING, '\r')];
  else if (!open.isEmpty) yield [open.close(NOTHING, '')];
}

const LF = 0x0a;
const CR = 0x0d;
const RETURN = Buffer.from('\r');
const NOTHING = Buffer.alloc(0);

function linesOf(chunk: Buffer, open: OpenLine): Line[] {
  const lines: Line[] = [];
  let from = 0;
  let feed = chunk.indexOf(LF);
  let carriage = chunk.indexOf(CR);
  while (feed !== -1 || carriage !== -1) {
    const isFeed = carriage === -1 || (feed !== -1 && feed < carriage);
    const at = isFeed ? feed : carriage;
    const end = isFeed ? '\n' : feed === carriage + 1 ? '\r\n' : '\r';
    lines.push(open.close(chunk.subarray(from, at), end));
    from = at + end.length;
    if (feed !== -1 && feed < from) feed = chunk.indexOf(LF, from);
    if (carriage !== -1 && carriage < from) carriage = chunk.indexOf(CR, from);
  }
  open.add(chunk.subarray(from));
  return lines;
}

/** The line that has begun and not ended yet, in pieces. */
class OpenLine {
  readonly #maxBytes: number;
  #pieces: Buffer[] = [];
  #bytes = 0;
  #number: number;
  #byteOffset: number;

  constructor(maxBytes: number, { number, byteOffset }: LineBegin = { number: 1, byteOffset: 0 }) {
    this.#maxBytes = maxBytes;
    this.#number = number;
    this.#byteOffset = byteOffset;
  }

  get isEmpty(): boolean {
    return this.#bytes === 0;
  }

  add(piece: Buffer): void {
    this.#bytes += piece.length;
    if (this.#bytes > this.#maxBytes) this.#pieces = [];
    else if (piece.length > 0) this.#pieces.push(piece);
  }

  close(lastPiece: Buffer, end: Line['end']): Line {
    this.add(lastPiece);
    const isTooLong = this.#bytes > this.#maxBytes;
    const bytes = isTooLong ? undefined : this.#pieces.length === 1 ? this.#pieces[0]! : Buffer.concat(this.#pieces);
    const line = { number: this.#number, byteOffset: this.#byteOffset, bytes, end };
    this.#number++;
    this.#byteOffset += this.#bytes + end.length;
    this.#pieces = [];
    this.#bytes = 0;
    return line;
  }
}

/** Counts how lines end, for a file in which a CR alone ends some and not all. */
export class LineEnds {
  #returns = 0;
  #others = 0;

  add({ end }: Line): void {
    if (end === '\r') this.#returns++;
    else if (end !== '') this.#others++;
  }

  /** Lines that end with a CR alone beside such that do not: perhaps no end of a line to who wrote them. */
  get strange(): number {
    return this.#others > 0 ? this.#returns : 0;
  }
}
