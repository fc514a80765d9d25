// Arrow IPC, of the files that pyarrow and polars wrote for the tests of libs/similarity. The second reader walks the
// FlatBuffers by hand, of files and streams, and decides what lists of floats of every kind hold, plain or compressed.
// It looks at the vectors alone: what is damaged elsewhere is refused or not as our reader likes.

import { readdir, readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { zstdDecompressSync } from 'node:zlib';
import { readArrowRows } from '../../../libs/similarity/src/arrow/arrow-rows.ts';
import { bytesOf, type FuzzedReader, type Values } from '../fuzzed-reader.ts';

const FIXTURES = fileURLToPath(new URL('../../../libs/similarity/fixtures/arrow/', import.meta.url));
/** As many as are small, of every type, layout and compression. */
const MOST_BYTES = 1_300;
const UNSOUND = /null|nan|two-|empty|decimals|dictionary\.arrow|ints|list-view|no-|texts|version-1|id-floats/;

export const arrowReader: FuzzedReader = {
  name: 'arrow',
  kind: 'binary',
  extension: '.arrow',
  codes: ['INPUT_INVALID', 'VECTOR_INVALID', 'DIMENSIONS_MISMATCH', 'FILE_UNREADABLE'],
  variants: 1,
  seeds: async () => {
    const names = (await readdir(FIXTURES)).filter((name) => /\.(arrows?|feather)$/.test(name) && !UNSOUND.test(name));
    const files = await Promise.all(names.toSorted().map((name) => readFile(`${FIXTURES}/${name}`)));
    return files.filter((bytes) => bytes.length <= MOST_BYTES);
  },
  read: async (_bytes, path) => {
    let dims = 0;
    const vectors: Uint8Array[] = [];
    for await (const batch of readArrowRows(path)) {
      dims = batch.dims;
      vectors.push(bytesOf(batch.vectors).slice());
    }
    return [dims, Buffer.concat(vectors)];
  },
  readAgain: (bytes) => {
    try {
      return readTable(bytes);
    } catch (error) {
      if (error instanceof Unknown) return 'unknown';
      return undefined; // an offset that leads out of the file, or what was thrown as damaged
    }
  },
};

/** A table of FlatBuffers; fields are found through its list of offsets. */
class Table {
  readonly #view: DataView;
  readonly #at: number;

  constructor(view: DataView, at: number) {
    this.#view = view;
    this.#at = at;
  }

  static root(view: DataView): Table {
    return new Table(view, view.getUint32(0, true));
  }

  /** Undefined where the field has its default. */
  place(field: number): number | undefined {
    const offsets = this.#at - this.#view.getInt32(this.#at, true);
    if (4 + 2 * field >= this.#view.getUint16(offsets, true)) return undefined;
    const offset = this.#view.getUint16(offsets + 4 + 2 * field, true);
    return offset === 0 ? undefined : this.#at + offset;
  }

  number(field: number, read: (at: number) => number): number {
    const at = this.place(field);
    return at === undefined ? 0 : read(at);
  }

  table(field: number): Table | undefined {
    const at = this.place(field);
    return at === undefined ? undefined : new Table(this.#view, at + this.#view.getUint32(at, true));
  }

  /** Where its elements begin, and how many there are. */
  list(field: number): readonly [at: number, count: number] {
    const at = this.place(field);
    if (at === undefined) return [0, 0];
    const begin = at + this.#view.getUint32(at, true);
    return [begin + 4, this.#view.getUint32(begin, true)];
  }

  tables(field: number): Table[] {
    const [at, count] = this.list(field);
    return Array.from(
      { length: count },
      (_, i) => new Table(this.#view, at + 4 * i + this.#view.getUint32(at + 4 * i, true)),
    );
  }
}

/** What this reader has no answer for. */
class Unknown extends Error {}

function damaged(what: string): never {
  throw new Error(what);
}

function insist(holds: boolean, what: string): void {
  if (!holds) damaged(what);
}

/** Numbers of types in Arrow's Schema.fbs. */
const TYPE = { null: 1, float: 3, list: 12, union: 14, fixedSizeList: 16, largeList: 21, binaryView: 23, utf8View: 24 };
/** Buffers of an array of each of them, without those of its children. */
const BUFFERS: Readonly<Record<number, number>> = Object.fromEntries(
  [
    [1], // without any
    [13, 16], // nulls
    [2, 3, 6, 7, 8, 9, 10, 11, 12, 15, 17, 18, 21, 23, 24], // and values or offsets
    [4, 5, 19, 20], // and both
  ].flatMap((types, buffers) => types.map((type) => [type, buffers])),
);

class Field {
  readonly #view: DataView;
  readonly table: Table;

  constructor(view: DataView, table: Table) {
    this.#view = view;
    this.table = table;
  }

  get name(): string {
    const [at, count] = this.table.list(0);
    return Buffer.from(bytesOf(this.#view)).toString('utf8', at, at + count);
  }

  get type(): number {
    return this.table.number(2, (at) => this.#view.getUint8(at));
  }

  get isDictionary(): boolean {
    return this.table.place(4) !== undefined;
  }

  get children(): Field[] {
    return this.table.tables(5).map((table) => new Field(this.#view, table));
  }

  /** A number of 16 or 32 bits that its type has. */
  of(field: number, bytes: 2 | 4): number {
    return (
      this.table
        .table(3)
        ?.number(field, (at) => (bytes === 2 ? this.#view.getInt16(at, true) : this.#view.getInt32(at, true))) ?? 0
    );
  }

  /** Bytes of each float of a list of such; undefined for any other column. */
  get floatBytes(): 2 | 4 | 8 | undefined {
    if (this.isDictionary || ![TYPE.list, TYPE.largeList, TYPE.fixedSizeList].includes(this.type)) return undefined;
    const [child] = this.children;
    if (child === undefined || child.isDictionary || child.type !== TYPE.float) return undefined;
    return ([2, 4, 8] as const)[child.of(0, 2)];
  }
}

interface Batch {
  readonly view: DataView;
  readonly version: number;
  readonly header: Table;
  readonly body: Buffer;
}

function readTable(bytes: Buffer): Values {
  const { fields, batches } = bytes.toString('latin1', 0, 6) === 'ARROW1' ? readFooted(bytes) : readStream(bytes);
  const column = vectorsAmong(fields);
  let dims = fields[column]!.type === TYPE.fixedSizeList ? fields[column]!.of(0, 4) : undefined;
  insist(dims === undefined || dims > 0, 'lists without values');
  let rows = 0;
  const pieces = batches.map((batch) => {
    const found = vectorsOf(batch, fields, column, dims);
    rows += found.rows;
    dims = found.rows === 0 ? dims : found.dims;
    return found.values;
  });
  return [rows === 0 ? 0 : dims!, Buffer.concat(pieces)];
}

function vectorsAmong(fields: readonly Field[]): number {
  for (const wanted of ['embedding', 'vector']) {
    const at = fields.flatMap(({ name }, column) => (name === wanted ? [column] : []));
    insist(at.length < 2, 'two of the name');
    if (at.length === 0) continue;
    insist(fields[at[0]!]!.floatBytes !== undefined, 'no list of floats');
    return at[0]!;
  }
  const lists = fields.flatMap(({ floatBytes }, column) => (floatBytes === undefined ? [] : [column]));
  insist(lists.length === 1, 'none or several');
  return lists[0]!;
}

function schemaOf(view: DataView, schema: Table): Field[] {
  insist(schema.number(0, (at) => view.getInt16(at, true)) === 0, 'big-endian');
  return schema.tables(1).map((table) => new Field(view, table));
}

function readFooted(bytes: Buffer): { readonly fields: Field[]; readonly batches: Batch[] } {
  insist(bytes.toString('latin1', bytes.length - 6) === 'ARROW1', 'no end');
  const end = bytes.length - 10;
  const view = viewOf(bytes.subarray(end - bytes.readInt32LE(end), end));
  const footer = Table.root(view);
  const [at, count] = footer.list(3);
  const batches = Array.from({ length: count }, (_, block) => {
    const begin = Number(view.getBigInt64(at + 24 * block, true));
    const { batch } = messageAt(bytes, begin, view.getInt32(at + 24 * block + 8, true));
    return batch ?? damaged('no record batch');
  });
  return { fields: schemaOf(view, footer.table(1)!), batches };
}

function readStream(bytes: Buffer): { readonly fields: Field[]; readonly batches: Batch[] } {
  const first = messageAt(bytes, 0);
  insist(first.kind === SCHEMA, 'no schema');
  const batches: Batch[] = [];
  for (let at = first.end; at < bytes.length;) {
    const next = messageAt(bytes, at);
    at = next.end;
    if (next.kind === undefined) break;
    if (next.batch !== undefined) batches.push(next.batch);
    else insist(next.kind === DICTIONARY, 'a message of another kind');
  }
  return { fields: schemaOf(first.view!, first.header!), batches };
}

const [SCHEMA, DICTIONARY, RECORDS] = [1, 2, 3];

/** `metadataBytes`, with its prefix, where a footer says it. A kind of undefined: the end of a stream. */
function messageAt(
  bytes: Buffer,
  at: number,
  metadataBytes?: number,
): { view?: DataView; kind?: number; header?: Table; batch?: Batch; end: number } {
  const prefix = bytes.readUInt32LE(at) === 0xffff_ffff ? 8 : 4;
  const length = bytes.readInt32LE(at + prefix - 4);
  const bodyAt = at + (metadataBytes ?? prefix + length);
  if (length === 0) return { end: bodyAt };
  insist(length > 0 && at + prefix + length <= bodyAt && bodyAt <= bytes.length, 'metadata that leads out');
  const view = viewOf(bytes.subarray(at + prefix, at + prefix + length));
  const message = Table.root(view);
  const kind = message.number(1, (place) => view.getUint8(place));
  const header = message.table(2) ?? damaged('no header');
  const bodyBytes = message.number(3, (place) => Number(view.getBigInt64(place, true)));
  const end = bodyAt + bodyBytes;
  insist(bodyBytes >= 0 && end <= bytes.length, 'a body that leads out');
  const version = message.number(0, (place) => view.getInt16(place, true));
  const batch = { view, version, header, body: bytes.subarray(bodyAt, end) };
  return { view, kind, header, ...(kind === RECORDS ? { batch } : {}), end };
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** Arrays and buffers that a field has, with its children's. */
function sizeOf(field: Field, batch: Batch, views: number[]): { readonly nodes: number; readonly buffers: number } {
  const { type } = field;
  if (field.isDictionary) return { nodes: 1, buffers: 2 };
  let own = BUFFERS[type];
  if (type === TYPE.union) own = (field.of(0, 2) === 0 ? 1 : 2) + (batch.version < 4 ? 1 : 0);
  if (own === undefined) throw new Unknown(`columns of type ${type}`);
  if (type === TYPE.utf8View || type === TYPE.binaryView) own += views.shift() ?? 0;
  let [nodes, buffers] = [1, own];
  for (const child of field.children) {
    const size = sizeOf(child, batch, views);
    [nodes, buffers] = [nodes + size.nodes, buffers + size.buffers];
  }
  return { nodes, buffers };
}

function vectorsOf(
  batch: Batch,
  fields: readonly Field[],
  column: number,
  before: number | undefined,
): { readonly rows: number; readonly dims: number; readonly values: Uint8Array } {
  const { view, header } = batch;
  const long = (at: number): number => Number(view.getBigInt64(at, true));
  const [viewsAt, viewCount] = header.list(4);
  const views = Array.from({ length: viewCount }, (_, i) => long(viewsAt + 8 * i));
  let [node, buffer] = [0, 0];
  for (const field of fields.slice(0, column)) {
    const size = sizeOf(field, batch, views);
    [node, buffer] = [node + size.nodes, buffer + size.buffers];
  }
  const rows = header.number(0, long);
  insist(lengthOf(batch, node) === rows, 'a column of another length');
  if (rows === 0) return { rows, dims: 0, values: new Uint8Array() };
  const { type, floatBytes } = fields[column]!;
  refuseNulls(bufferOf(batch, buffer), 0, rows);
  let [dims, begin] = [before ?? 0, 0];
  if (type !== TYPE.fixedSizeList) {
    const offsets = bufferOf(batch, ++buffer);
    const wide = type === TYPE.largeList;
    const offset = (i: number): number => (wide ? Number(offsets.readBigInt64LE(8 * i)) : offsets.readInt32LE(4 * i));
    begin = offset(0);
    dims = before ?? offset(1) - begin;
    insist(begin >= 0 && dims > 0, 'offsets that go back');
    for (let row = 0; row < rows; row++) insist(offset(row + 1) - offset(row) === dims, 'lists of several lengths');
  }
  const end = begin + rows * dims;
  insist(lengthOf(batch, node + 1) >= end, 'too few values');
  refuseNulls(bufferOf(batch, buffer + 1), begin, end);
  const floats = bufferOf(batch, buffer + 2);
  const values = Float32Array.from({ length: end - begin }, (_, i) => floatAt(floats, begin + i, floatBytes!));
  return { rows, dims, values: bytesOf(values) };
}

function lengthOf({ view, header }: Batch, node: number): number {
  const [at, count] = header.list(1);
  insist(node < count, 'too few arrays');
  return Number(view.getBigInt64(at + 16 * node, true));
}

function bufferOf({ view, header, body }: Batch, number: number): Buffer {
  const [at, count] = header.list(2);
  insist(number < count, 'too few buffers');
  const [begin, length] = [0, 8].map((more) => Number(view.getBigInt64(at + 16 * number + more, true)));
  insist(begin! >= 0 && length! >= 0 && begin! + length! <= body.length, 'a buffer that leads out');
  const bytes = body.subarray(begin, begin! + length!);
  const compression = header.table(3);
  if (compression === undefined || bytes.length === 0) return bytes;
  const said = bytes.readBigInt64LE(0);
  if (said === -1n) return bytes.subarray(8);
  const codec = compression.number(0, (place) => view.getInt8(place));
  insist(said >= 0n && said < 2n ** 30n && (codec === 0 || codec === 1), 'a codec or size that is none');
  const most = { maxOutputLength: Number(said) + 1 };
  const whole = said === 0n ? [] : codec === 1 ? zstdDecompressSync(bytes.subarray(8), most) : unpacked(bytes, 8);
  insist(BigInt(whole.length) === said, 'another size than was said');
  return Buffer.from(whole);
}

function refuseNulls(bits: Buffer, from: number, to: number): void {
  if (bits.length === 0) return;
  for (let at = from; at < to; at++) insist(((bits.readUInt8(at >> 3) >> (at % 8)) & 1) === 1, 'a null');
}

function floatAt(bytes: Buffer, at: number, size: 2 | 4 | 8): number {
  if (size === 4) return bytes.readFloatLE(4 * at);
  if (size === 8) return bytes.readDoubleLE(8 * at);
  const half = bytes.readUInt16LE(2 * at);
  const [sign, exponent, fraction] = [half >> 15 === 1 ? -1 : 1, (half >> 10) & 31, half & 1023];
  if (exponent === 31) return fraction === 0 ? sign * Infinity : Number.NaN;
  return sign * (exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25));
}

/** An LZ4 frame from `from` on, a byte at a time. */
function unpacked(bytes: Buffer, from: number): number[] {
  insist(bytes.readUInt32LE(from) === 0x184d_2204, 'no LZ4 frame');
  const flags = bytes.readUInt8(from + 4);
  const out: number[] = [];
  let at = from + 7 + ((flags & 8) === 0 ? 0 : 8);
  for (let word = bytes.readUInt32LE(at); word !== 0; word = bytes.readUInt32LE(at)) {
    at += 4;
    const end = at + (word & 0x7fff_ffff);
    if (word >>> 31 === 1) while (at < end) out.push(bytes.readUInt8(at++));
    const more = (length: number): number => {
      let sum = length;
      if (length === 15) for (let next = 255; next === 255; sum += next) next = bytes.readUInt8(at++);
      return sum;
    };
    while (at < end) {
      const token = bytes.readUInt8(at++);
      for (let left = more(token >> 4); left > 0; left--) out.push(bytes.readUInt8(at++));
      if (at >= end) break;
      const back = bytes.readUInt16LE(at);
      at += 2;
      insist(back > 0 && back <= out.length, 'a match before the beginning');
      for (let left = more(token & 15) + 4; left > 0; left--) out.push(out[out.length - back]!);
    }
    if ((flags & 16) !== 0) at += 4;
  }
  return out;
}
