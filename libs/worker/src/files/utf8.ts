// UTF-8 or not, and if not, where. Never replaces a byte silently: a text that is not what its author wrote would get
// a vector that is not its own.

import { isUtf8 } from 'node:buffer';
import type { Line } from './lines.ts';

/** The text, or the position of the first byte that does not belong. */
export function decodeUtf8(bytes: Buffer): { readonly text: string } | { readonly badByteAt: number } {
  return isUtf8(bytes) ? { text: bytes.toString('utf8') } : { badByteAt: firstBadByte(bytes) };
}

/**
 * A line of a file as text, without the byte order mark of the first one. With a problem the text is only good for
 * finding its end.
 */
export function decodeLine(line: { readonly bytes: Buffer } & Pick<Line, 'number' | 'byteOffset'>): {
  readonly text: string;
  readonly problem?: string;
} {
  const bytes = line.number === 1 ? withoutByteOrderMark(line.bytes) : line.bytes;
  const decoded = decodeUtf8(bytes);
  const markBytes = line.bytes.length - bytes.length;
  if ('text' in decoded) {
    const nulAt = bytes.indexOf(0);
    return nulAt === -1
      ? decoded
      : { ...decoded, problem: `a NUL at byte ${line.byteOffset + markBytes + nulAt}, which no text has; take it out` };
  }
  const at = line.byteOffset + markBytes + decoded.badByteAt;
  return {
    text: bytes.toString('utf8'),
    problem:
      `not valid UTF-8 at byte ${at} (0x${bytes[decoded.badByteAt]!.toString(16).padStart(2, '0')}); convert the ` +
      'file to UTF-8, for example: iconv -f WINDOWS-1252 -t UTF-8',
  };
}

function withoutByteOrderMark(bytes: Buffer): Buffer {
  return bytes.length >= 3 && bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf ? bytes.subarray(3) : bytes;
}

/**
 * Decoding replaces each bad sequence by U+FFFD; the first one that does not stand in the bytes themselves marks the
 * place.
 */
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
