// Arrow IPC, of the files that pyarrow and polars wrote for the tests of libs/similarity. The second reader walks the
// FlatBuffers of plain files by hand: fixed-size lists of single or double floats, without compression, behind columns
// of plain types. Of every other file it says that it cannot tell.

import { readdir, readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
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
      return readPlain(bytes) ?? 'unknown';
    } catch {
      return 'unknown'; // an offset that leads out of the file: what it means is not for this reader to say
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

interface Column {
  readonly dims: number;
  readonly valueBytes: number;
  /** Of the columns before it. */
  readonly nodes: number;
  readonly buffers: number;
}

/** Of a column of a plain type: whole numbers, floats, texts. */
const BUFFERS: Readonly<Record<number, number>> = { 2: 2, 3: 2, 5: 3 };
const FIXED_SIZE_LIST = 16;
const FLOATING_POINT = 3;

function readPlain(bytes: Buffer): Values | undefined {
  if (bytes.toString('latin1', 0, 6) !== 'ARROW1' || bytes.toString('latin1', bytes.length - 6) !== 'ARROW1')
    return undefined;
  const footerBytes = bytes.readInt32LE(bytes.length - 10);
  const view = viewOf(bytes.subarray(bytes.length - 10 - footerBytes, bytes.length - 10));
  const footer = Table.root(view);
  const column = plainColumn(view, footer.table(1)!);
  if (column === undefined || footer.list(2)[1] > 0) return undefined;
  const [at, count] = footer.list(3);
  const vectors: Uint8Array[] = [];
  for (let block = 0; block < count; block++) {
    const begin = Number(view.getBigInt64(at + 24 * block, true));
    const metadata = view.getInt32(at + 24 * block + 8, true);
    const values = valuesOf(bytes.subarray(begin), metadata, column);
    if (values === undefined) return undefined;
    vectors.push(values);
  }
  return [vectors.every((values) => values.length === 0) ? 0 : column.dims, Buffer.concat(vectors)];
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** The only list among plain columns. */
function plainColumn(view: DataView, schema: Table): Column | undefined {
  if (schema.place(0) !== undefined && view.getInt16(schema.place(0)!, true) !== 0) return undefined; // big-endian
  let [nodes, buffers] = [0, 0];
  let found: Column | undefined;
  for (const field of schema.tables(1)) {
    const type = field.number(2, (at) => view.getUint8(at));
    if (field.place(4) !== undefined) return undefined;
    if (type === FIXED_SIZE_LIST && found === undefined) {
      const [child, ...others] = field.tables(5);
      const precision = child?.table(3)?.number(0, (at) => view.getInt16(at, true));
      const isFloat = child?.number(2, (at) => view.getUint8(at)) === FLOATING_POINT;
      if (!isFloat || others.length > 0 || (precision !== 1 && precision !== 2)) return undefined;
      found = {
        dims: field.table(3)!.number(0, (at) => view.getInt32(at, true)),
        valueBytes: 4 * precision,
        nodes,
        buffers,
      };
      [nodes, buffers] = [nodes + 2, buffers + 3];
    } else if (BUFFERS[type] === undefined) return undefined;
    else [nodes, buffers] = [nodes + 1, buffers + BUFFERS[type]];
  }
  return found;
}

function valuesOf(block: Buffer, metadataBytes: number, column: Column): Uint8Array | undefined {
  const prefix = block.readUInt32LE(0) === 0xffff_ffff ? 8 : 4;
  const view = viewOf(block.subarray(prefix, metadataBytes));
  const header = Table.root(view).table(2)!;
  if (header.place(3) !== undefined) return undefined; // compressed
  const rows = header.number(0, (at) => Number(view.getBigInt64(at, true)));
  const node = (at: number): readonly number[] =>
    [0, 8].map((more) => Number(view.getBigInt64(header.list(1)[0] + 16 * at + more, true)));
  const [list, values] = [node(column.nodes), node(column.nodes + 1)];
  if (list[0] !== rows || list[1] !== 0 || values[0] !== rows * column.dims || values[1] !== 0) return undefined;
  const [buffers] = header.list(2);
  const begin = Number(view.getBigInt64(buffers + 16 * (column.buffers + 2), true));
  const body = block.subarray(metadataBytes + begin);
  return bytesOf(
    Float32Array.from({ length: rows * column.dims }, (_, at) =>
      column.valueBytes === 4 ? body.readFloatLE(4 * at) : body.readDoubleLE(8 * at),
    ),
  );
}
