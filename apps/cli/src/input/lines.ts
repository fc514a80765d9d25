// Bytes into lines, at constant memory. Knows LF and CRLF and nothing of what a line means; a line above the limit is
// dropped while it is read and reported by its place, so that no input can fill the memory of this process.

/**
 * Longest line that is kept whole. A line is held once, as bytes, then once as a string; 64 MiB is three times the
 * longest we were asked to take.
 */
export const MAX_LINE_BYTES = 64 * 1024 * 1024;

export interface Line {
  /** 1 for the first line of its file. */
  readonly number: number;
  /** Where the line begins in its file. */
  readonly byteOffset: number;
  /** Without its line end; undefined when it was longer than the limit. */
  readonly bytes: Buffer | undefined;
  readonly end: '' | '\n' | '\r\n';
}

/**
 * The lines of a stream of chunks, as many at a time as a chunk completes. What follows the last line end is a line
 * unless it is empty.
 */
export async function* readLines(
  chunks: AsyncIterable<Buffer>,
  maxLineBytes: number = MAX_LINE_BYTES,
): AsyncGenerator<readonly Line[]> {
  const open = new OpenLine(maxLineBytes);
  for await (const chunk of chunks) {
    const lines: Line[] = [];
    let from = 0;
    for (let end = chunk.indexOf(LF); end !== -1; end = chunk.indexOf(LF, from)) {
      lines.push(open.close(chunk.subarray(from, end), 1));
      from = end + 1;
    }
    open.add(chunk.subarray(from));
    if (lines.length > 0) yield lines;
  }
  if (!open.isEmpty) yield [open.close(Buffer.alloc(0), 0)];
}

const LF = 0x0a;
const CR = 0x0d;

/** The line that has begun and not ended yet, in pieces. */
class OpenLine {
  readonly #maxBytes: number;
  #pieces: Buffer[] = [];
  #bytes = 0;
  #number = 1;
  #byteOffset = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  get isEmpty(): boolean {
    return this.#bytes === 0;
  }

  add(piece: Buffer): void {
    this.#bytes += piece.length;
    if (this.#bytes > this.#maxBytes) this.#pieces = [];
    else if (piece.length > 0) this.#pieces.push(piece);
  }

  close(lastPiece: Buffer, lineEndBytes: number): Line {
    this.add(lastPiece);
    const isTooLong = this.#bytes > this.#maxBytes;
    const whole = isTooLong ? undefined : this.#pieces.length === 1 ? this.#pieces[0]! : Buffer.concat(this.#pieces);
    const bytes = whole === undefined ? undefined : withoutCarriageReturn(whole);
    const end = lineEndBytes === 0 ? '' : bytes === whole ? '\n' : '\r\n';
    const line = { number: this.#number, byteOffset: this.#byteOffset, bytes, end } as const;
    this.#number++;
    this.#byteOffset += this.#bytes + lineEndBytes;
    this.#pieces = [];
    this.#bytes = 0;
    return line;
  }
}

function withoutCarriageReturn(bytes: Buffer): Buffer {
  return bytes.at(-1) === CR ? bytes.subarray(0, -1) : bytes;
}
