// LZ4 frames into bytes of a known number. Written here because no reader at hand looks where a match points or where
// the bytes end: damaged data came out as other numbers. Every length is compared with what is there, both ways; what
// Arrow's writers do not use (dictionaries) is refused, checksums are passed over as Arrow C++ never writes them.
// https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md, lz4_Block_format.md

const MAGIC = 0x184d_2204;
const FLAG = {
  dictionary: 1,
  reserved: 2,
  contentChecksum: 4,
  contentSize: 8,
  blockChecksum: 16,
  independentBlocks: 32,
} as const;
const SHORTEST_MATCH = 4;

/** Exactly `bytes` of content; throws an Error that says what is wrong when the frame does not hold just that. */
export function readLz4Frame(frame: Uint8Array, bytes: number): Uint8Array<ArrayBuffer> {
  const view = new DataView(frame.buffer, frame.byteOffset, frame.byteLength);
  const need = (at: number, count: number): void => {
    if (at + count > frame.length) throw new Error('its LZ4 frame ends too early');
  };
  need(0, 7);
  if (view.getUint32(0, true) !== MAGIC) throw new Error('it does not begin like an LZ4 frame');
  const flags = frame[4]!;
  if (flags >> 6 !== 1 || (flags & (FLAG.dictionary | FLAG.reserved)) !== 0 || (frame[5]! & 0x8f) !== 0)
    throw new Error('its LZ4 frame is of an unknown version');
  let at = 6;
  if ((flags & FLAG.contentSize) !== 0) {
    need(at, 8);
    if (view.getBigUint64(at, true) !== BigInt(bytes)) throw new Error('its LZ4 frame has another size than was said');
    at += 8;
  }
  at += 1; // checksum of the header
  const out = new Uint8Array(bytes);
  let written = 0;
  for (;;) {
    need(at, 4);
    const size = view.getUint32(at, true);
    at += 4;
    if (size === 0) break;
    const length = size & 0x7fff_ffff;
    need(at, length);
    const block = frame.subarray(at, at + length);
    if (size >>> 31 === 1) {
      if (written + length > bytes) throw tooLong();
      out.set(block, written);
      written += length;
    } else {
      written = readBlock(block, out, written, (flags & FLAG.independentBlocks) === 0 ? 0 : written);
    }
    at += length + ((flags & FLAG.blockChecksum) === 0 ? 0 : 4);
  }
  at += (flags & FLAG.contentChecksum) === 0 ? 0 : 4;
  if (written !== bytes) throw new Error(`its LZ4 frame holds ${written} bytes, and ${bytes} were said`);
  if (at !== frame.length) throw new Error('there is something behind its LZ4 frame');
  return out;
}

/** Literals and matches by turns; matches reach back to `earliest`. Returns where `out` was written up to. */
function readBlock(block: Uint8Array, out: Uint8Array, from: number, earliest: number): number {
  let [at, to] = [0, from];
  const lengthOf = (first: number): number => {
    let length = first;
    if (first !== 15) return length;
    for (let more = 255; more === 255; length += more) {
      if (at >= block.length) throw new Error('its LZ4 block ends inside a length');
      more = block[at++]!;
    }
    return length;
  };
  while (at < block.length) {
    const token = block[at++]!;
    const literals = lengthOf(token >> 4);
    if (at + literals > block.length) throw new Error('its LZ4 block ends inside literals');
    if (to + literals > out.length) throw tooLong();
    out.set(block.subarray(at, at + literals), to);
    at += literals;
    to += literals;
    if (at === block.length) return to; // the last sequence has no match
    if (at + 2 > block.length) throw new Error('its LZ4 block ends inside an offset');
    const back = block[at]! | (block[at + 1]! << 8);
    at += 2;
    const length = lengthOf(token & 15) + SHORTEST_MATCH;
    if (back === 0 || to - back < earliest) throw new Error('its LZ4 block points before its beginning');
    if (to + length > out.length) throw tooLong();
    if (back >= length) out.copyWithin(to, to - back, to - back + length);
    else for (let i = 0; i < length; i++) out[to + i] = out[to + i - back]!;
    to += length;
  }
  throw new Error('its LZ4 block ends with a match');
}

function tooLong(): Error {
  return new Error('its LZ4 frame holds more than was said');
}
