// cmsgpack.unpack, which BullMQ's scripts read their options with. No script packs. Servers know the format as it was
// before it had bytes, times and types of one's own (bin, fixext, ext): their marks are refused.

import { LuaError, LuaTable, NotModelled, type LuaValue } from './values.ts';

/** One value. Throws LuaError for bytes that are none or end too early; more bytes behind it are further values. */
export function unpackMessage(text: string): LuaValue[] {
  const reader = new Reader(Buffer.from(text, 'latin1'));
  const values: LuaValue[] = [];
  while (!reader.isAtEnd) values.push(reader.read());
  return values;
}

/** Servers take 3,999 levels, less what the script itself has used of Lua's stack. */
const MOST_NESTED = 1_000;

class Reader {
  readonly #bytes: Buffer;
  #at = 0;
  #depth = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get isAtEnd(): boolean {
    return this.#at >= this.#bytes.length;
  }

  read(): LuaValue {
    const mark = this.#take(1).readUInt8();
    if (mark < 0x80) return mark;
    if (mark < 0x90) return this.#map(mark & 15);
    if (mark < 0xa0) return this.#list(mark & 15);
    if (mark < 0xc0) return this.#text(mark & 31);
    if (mark >= 0xe0) return mark - 256;
    switch (mark) {
      case 0xc0:
        return undefined;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xd9:
        return this.#text(this.#take(1).readUInt8());
      case 0xda:
        return this.#text(this.#take(2).readUInt16BE());
      case 0xdb:
        return this.#text(this.#take(4).readUInt32BE());
      case 0xca:
        return this.#take(4).readFloatBE();
      case 0xcb:
        return this.#take(8).readDoubleBE();
      case 0xcc:
        return this.#take(1).readUInt8();
      case 0xcd:
        return this.#take(2).readUInt16BE();
      case 0xce:
        return this.#take(4).readUInt32BE();
      case 0xcf:
        return Number(this.#take(8).readBigInt64BE()); // as servers read it, with a sign
      case 0xd0:
        return this.#take(1).readInt8();
      case 0xd1:
        return this.#take(2).readInt16BE();
      case 0xd2:
        return this.#take(4).readInt32BE();
      case 0xd3:
        return Number(this.#take(8).readBigInt64BE());
      case 0xdc:
        return this.#list(this.#take(2).readUInt16BE());
      case 0xdd:
        return this.#list(this.#take(4).readUInt32BE());
      case 0xde:
        return this.#map(this.#take(2).readUInt16BE());
      case 0xdf:
        return this.#map(this.#take(4).readUInt32BE());
      default:
        throw new LuaError('Bad data format in input.');
    }
  }

  #take(length: number): Buffer {
    if (this.#at + length > this.#bytes.length) throw new LuaError('Missing bytes in input.');
    this.#at += length;
    return this.#bytes.subarray(this.#at - length, this.#at);
  }

  #text(length: number): string {
    return this.#take(length).toString('latin1');
  }

  #list(length: number): LuaTable {
    const table = new LuaTable();
    for (let at = 1; at <= length; at++) table.set(at, this.#inner());
    return table;
  }

  #inner(): LuaValue {
    if (++this.#depth > MOST_NESTED) throw new NotModelled(`cmsgpack.unpack of more than ${MOST_NESTED} levels`);
    const value = this.read();
    this.#depth--;
    return value;
  }

  #map(length: number): LuaTable {
    const table = new LuaTable();
    for (let at = 0; at < length; at++) {
      const [key, value] = [this.#inner(), this.#inner()];
      if (key === undefined || Number.isNaN(key))
        throw new LuaError(`table index is ${key === undefined ? 'nil' : 'NaN'}`, true);
      table.set(key, value);
    }
    return table;
  }
}
