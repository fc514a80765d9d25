// Arrow's own schema, which writers such as pyarrow and pandas put into a Parquet file to keep types that Parquet has no
// words for. A column more has to be in it, or they refuse the file. The message is rebuilt around its old parts, which
// stay as they are, byte for byte: types that no library here knows are not lost. FlatBuffers' layout:
// https://flatbuffers.dev/internals/

import { Field, Float16, Float32, Int8, List, Schema, Uint8, type TypeMap } from 'apache-arrow';
import { Message } from 'apache-arrow/ipc/metadata/message';
import type { OutputDtype } from '@shoal/contract';
import { scaleColumn } from './vector-form.ts';

/** Under which name Arrow's writers keep it, in base64. */
export const ARROW_SCHEMA = 'ARROW:schema';

const TYPES = { f32: () => new Float32(), f16: () => new Float16(), i8: () => new Int8(), binary: () => new Uint8() };

/** `schema` with a column of vectors behind its others, of i8 also one of scales; undefined where it cannot be understood. */
export function withVectorColumn(schema: string, name: string, dtype: OutputDtype): string | undefined {
  const whole = Buffer.from(schema, 'base64');
  // written before Arrow 0.15: without the marker
  const prefix = whole.length >= 8 && whole.readInt32LE(0) === -1 ? 8 : 4;
  const old = whole.subarray(prefix);
  const fields = [
    new Field(name, new List(new Field('element', TYPES[dtype](), false)), true),
    ...(dtype === 'i8' ? [new Field(scaleColumn(name), new Float32(), true)] : []),
  ];
  const more = Buffer.from(Message.encode(Message.from(new Schema<TypeMap>(fields))));
  try {
    const message = rebuilt(old, more);
    const length = Buffer.alloc(8);
    length.writeInt32LE(-1, 0);
    length.writeInt32LE(message.length, 4);
    return Buffer.concat([length, message]).toString('base64');
  } catch (error) {
    if (error instanceof RangeError) return undefined;
    throw error;
  }
}

/** Fields of the tables by their numbers. */
const MESSAGE = { version: 0, header: 2 } as const;
const SCHEMA = { endianness: 0, fields: 1, metadata: 2, features: 3 } as const;
const SCHEMA_HEADER = 1;

/**
 * A message whose schema has the fields of `old` and then those of `more`. Both lie in it whole, behind new tables that
 * point into them; offsets in FlatBuffers point forward from where they stand.
 */
function rebuilt(old: Buffer, more: Buffer): Buffer {
  const [before, behind] = [schemaOf(old), schemaOf(more)];
  const count = before.fields.length + behind.fields.length;
  const tables = Buffer.alloc(align(TABLES_BYTES + 4 + 4 * count));
  const [oldAt, moreAt] = [tables.length, align(tables.length + old.length)];
  const all = Buffer.alloc(align(moreAt + more.length));
  const point = (at: number, to: number): void => void tables.writeUInt32LE(to - at, at);
  point(0, 16);
  // the message's vtable: 12 bytes at 4, of a table of 12: version at 4, type of the header at 6, header at 8
  for (const [at, value] of [12, 12, 4, 6, 8, 0].entries()) tables.writeUInt16LE(value, 4 + 2 * at);
  tables.writeInt32LE(12, 16);
  tables.writeInt16LE(before.version, 20);
  tables.writeUInt8(SCHEMA_HEADER, 22);
  point(24, 40);
  // the schema's vtable: 12 bytes at 28, of a table of 20: fields at 4, metadata at 8, features at 12, endianness at 16
  const present = [16, 4, before.metadata === undefined ? 0 : 8, before.features === undefined ? 0 : 12];
  for (const [at, value] of [12, 20, ...present].entries()) tables.writeUInt16LE(value, 28 + 2 * at);
  tables.writeInt32LE(12, 40);
  point(44, TABLES_BYTES);
  if (before.metadata !== undefined) point(48, oldAt + before.metadata);
  if (before.features !== undefined) point(52, oldAt + before.features);
  tables.writeInt16LE(before.endianness, 56);
  tables.writeUInt32LE(count, TABLES_BYTES);
  const targets = [...before.fields.map((at) => oldAt + at), ...behind.fields.map((at) => moreAt + at)];
  for (const [at, to] of targets.entries()) point(TABLES_BYTES + 4 + 4 * at, to);
  tables.copy(all);
  old.copy(all, oldAt);
  more.copy(all, moreAt);
  return all;
}

/** Two tables and their vtables; the vector of fields follows. */
const TABLES_BYTES = 60;

function align(bytes: number): number {
  return Math.ceil(bytes / 8) * 8;
}

/** Where the parts of a message's schema lie. RangeError where it is none. */
function schemaOf(bytes: Buffer) {
  const message = bytes.readUInt32LE(0);
  const header = pointed(bytes, message, MESSAGE.header);
  if (header === undefined) throw new RangeError('the message has no header');
  const fields = pointed(bytes, header, SCHEMA.fields);
  const count = fields === undefined ? 0 : bytes.readUInt32LE(fields);
  const version = fieldAt(bytes, message, MESSAGE.version);
  const endianness = fieldAt(bytes, header, SCHEMA.endianness);
  return {
    version: version === undefined ? 0 : bytes.readInt16LE(version),
    endianness: endianness === undefined ? 0 : bytes.readInt16LE(endianness),
    fields: Array.from({ length: count }, (_, at) => target(bytes, fields! + 4 + 4 * at)),
    metadata: pointed(bytes, header, SCHEMA.metadata),
    features: pointed(bytes, header, SCHEMA.features),
  };
}

function fieldAt(bytes: Buffer, table: number, field: number): number | undefined {
  const vtable = table - bytes.readInt32LE(table);
  if (4 + 2 * field >= bytes.readUInt16LE(vtable)) return undefined;
  const offset = bytes.readUInt16LE(vtable + 4 + 2 * field);
  return offset === 0 ? undefined : table + offset;
}

function pointed(bytes: Buffer, table: number, field: number): number | undefined {
  const at = fieldAt(bytes, table, field);
  return at === undefined ? undefined : target(bytes, at);
}

function target(bytes: Buffer, at: number): number {
  return at + bytes.readUInt32LE(at);
}
