// UTF-8 or not, and if not, where. Never replaces a byte silently: a text that is not what its author wrote would get
// a vector that is not its own.

import { isUtf8 } from 'node:buffer';

/** The text, or the position of the first byte that does not belong. */
export function decodeUtf8(bytes: Buffer): { readonly text: string } | { readonly badByteAt: number } {
  return isUtf8(bytes) ? { text: bytes.toString('utf8') } : { badByteAt: firstBadByte(bytes) };
}

/** Decoding replaces each bad sequence by U+FFFD; the first one that does not stand in the bytes themselves marks the place. */
function firstBadByte(bytes: Buffer): number {
  const lenient = bytes.toString('utf8');
  let at = 0;
  let from = 0;
  for (let found = lenient.indexOf('\uFFFD'); found !== -1; found = lenient.indexOf('\uFFFD', from)) {
    at += Buffer.byteLength(lenient.slice(from, found));
    if (!bytes.subarray(at, at + 3).equals(REPLACEMENT)) return at;
    at += REPLACEMENT.length;
    from = found + 1;
  }
  return at;
}

const REPLACEMENT = Buffer.from('\uFFFD');
