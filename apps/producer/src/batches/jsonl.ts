// A file of JSON lines, cut into its lines as it is read: where each begins and ends, whatever the pieces it comes in.
// Lines without anything in them are passed over and counted.

import { isUtf8 } from 'node:buffer';

export interface TextLine {
  /** From 1. */
  readonly number: number;
  /** Undefined where it is longer than a request may be, or no UTF-8: `problem` says so. */
  readonly text: string | undefined;
  readonly problem?: string;
  /** Bytes of the file until its end. */
  readonly endOffset: number;
}

/** What one request over HTTP may have. */
export const MAX_LINE_BYTES = 16 * 1024 * 1024;
const NEWLINE = 0x0a;

/** `from`: the number of lines and of bytes before the first piece. */
export async function* linesOf(
  pieces: AsyncIterable<Uint8Array>,
  from: { readonly line: number; readonly offset: number } = { line: 0, offset: 0 },
): AsyncGenerator<TextLine, void, undefined> {
  let held: Uint8Array[] = [];
  let heldBytes = 0;
  let [number, offset] = [from.line, from.offset];
  const end = (last: Uint8Array, terminator: 0 | 1): TextLine | undefined => {
    const isTooLong = heldBytes + last.length > MAX_LINE_BYTES;
    const bytes = isTooLong ? undefined : Buffer.concat([...held, last]);
    number += 1;
    offset += heldBytes + last.length + terminator;
    [held, heldBytes] = [[], 0];
    return lineOf(bytes, number, offset);
  };
  for await (const piece of pieces) {
    let start = 0;
    for (let at = piece.indexOf(NEWLINE); at !== -1; at = piece.indexOf(NEWLINE, start)) {
      const line = end(piece.subarray(start, at), 1);
      start = at + 1;
      if (line !== undefined) yield line;
    }
    const rest = piece.subarray(start);
    if (heldBytes <= MAX_LINE_BYTES) held.push(rest); // beyond it alone its length is of interest
    heldBytes += rest.length;
  }
  const line = heldBytes > 0 ? end(new Uint8Array(), 0) : undefined;
  if (line !== undefined) yield line;
}

function lineOf(bytes: Buffer | undefined, number: number, endOffset: number): TextLine | undefined {
  const no = (problem: string): TextLine => ({ number, endOffset, text: undefined, problem });
  if (bytes === undefined) return no(`the line is longer than ${MAX_LINE_BYTES} bytes`);
  if (!isUtf8(bytes)) return no('the line is not UTF-8');
  const text = number === 1 ? bytes.toString().replace(/^\uFEFF/, '') : bytes.toString();
  return text.trim() === '' ? undefined : { number, text, endOffset };
}
