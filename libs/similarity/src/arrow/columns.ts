// Which column of an Arrow table holds the vectors, which the names of rows, and where the buffers of a column stand in
// the body of a record batch. Refuses, by its name and type, what would have to be guessed.

import { DataType, MetadataVersion, Type, UnionMode, type Field, type Schema } from 'apache-arrow';
import type { RecordBatch } from 'apache-arrow/ipc/metadata/message';
import { wrongFile } from '../collections/vector-file-errors.ts';

export interface VectorColumn {
  readonly name: string;
  /** Place among the columns of the schema. */
  readonly at: number;
  /** Bytes of one value: 2 half, 4 single, 8 double. */
  readonly valueBytes: 2 | 4 | 8;
  /** Values of each row where the type says so; else each row has an offset of 4 or 8 bytes. */
  readonly shape: { readonly dims: number } | { readonly offsetBytes: 4 | 8 };
}

export interface NameColumn {
  readonly at: number;
  readonly type: DataType;
}

/** `asked`: what --column said. Without it: `embedding`, else `vector`, else the only one that is a list of floats. */
export function vectorColumn(path: string, { fields }: Schema, asked: string | undefined): VectorColumn {
  for (const name of asked === undefined ? ['embedding', 'vector'] : [asked]) {
    const named = fields.flatMap((field, at) => (field.name === name ? [{ field, at }] : []));
    if (named.length > 1) throw wrongFile(path, `${named.length} of its columns are called "${name}"`);
    if (named.length === 0) continue;
    const [{ field, at }] = named as [{ field: Field; at: number }];
    const found = asVectors(field, at);
    if (found === undefined)
      throw wrongFile(
        path,
        `its column "${name}" is of type ${typeText(field.type)}; vectors are lists of float16, float32 or float64 ` +
          `(pa.list_(pa.float32(), N))${asked === undefined ? '; --column names another column' : ''}`,
      );
    return found;
  }
  if (asked !== undefined) throw wrongFile(path, `it has no column "${asked}": it has ${columnsText(fields)}`);
  const found = fields.flatMap((field, at) => asVectors(field, at) ?? []);
  if (found.length === 1) return found[0]!;
  if (found.length > 1)
    throw wrongFile(
      path,
      `${found.length} of its columns are lists of floats and none is called "embedding" or "vector": say which one ` +
        `with --column ${found.map(({ name }) => name).join(' or --column ')}`,
    );
  throw wrongFile(
    path,
    `none of its columns is a list of floats (float16, float32 or float64, such as pa.list_(pa.float32(), N)): ` +
      `it has ${columnsText(fields)}`,
  );
}

/** The column `id`, whose values are what rows are called; undefined when there is none. */
export function nameColumn(path: string, { fields }: Schema): NameColumn | undefined {
  const named = fields.flatMap((field, at) => (field.name === 'id' ? [{ at, type: field.type as DataType }] : []));
  if (named.length > 1) throw wrongFile(path, `${named.length} of its columns are called "id"`);
  const [column] = named;
  if (column === undefined) return undefined;
  const plain: DataType = DataType.isDictionary(column.type) ? (column.type.dictionary as DataType) : column.type;
  if (isText(plain) || DataType.isInt(plain)) return column;
  throw wrongFile(
    path,
    `its column "id" is of type ${typeText(column.type)}; names of rows are texts or whole numbers: cast it, or give ` +
      'it another name',
  );
}

export function isText(type: DataType): boolean {
  return [Type.Utf8, Type.LargeUtf8, Type.Utf8View].includes(type.typeId);
}

/** Where the nodes and buffers of a field begin in the lists of a record batch. */
export interface Place {
  readonly node: number;
  readonly buffer: number;
  /** Of the lists of further buffers that texts by view have. */
  readonly view: number;
}

/** The place of each top field; the last is the end of all. Throws an Error where the batch has fewer or more. */
export function placesOf(fields: readonly Field[], version: MetadataVersion, batch: RecordBatch): readonly Place[] {
  const places: Place[] = [{ node: 0, buffer: 0, view: 0 }];
  for (const field of fields) places.push(behind(field.type as DataType, places.at(-1)!, version, batch));
  const { node, buffer } = places.at(-1)!;
  if (node !== batch.nodes.length || buffer !== batch.buffers.length)
    throw new Error(
      `it lists ${batch.nodes.length} arrays and ${batch.buffers.length} buffers where its columns have ${node} and ` +
        `${buffer}`,
    );
  return places;
}

function behind(type: DataType, { node, buffer, view }: Place, version: MetadataVersion, batch: RecordBatch): Place {
  if (DataType.isNull(type)) return { node: node + 1, buffer, view };
  if (DataType.isUtf8View(type) || DataType.isBinaryView(type)) {
    const further = batch.variadicBufferCounts[view] ?? 0;
    if (further < 0 || further > batch.buffers.length) throw new Error(`a column claims ${further} buffers of text`);
    return { node: node + 1, buffer: buffer + 2 + further, view: view + 1 };
  }
  const own = { node: node + 1, buffer: buffer + buffersOf(type, version), view };
  const children = DataType.isDictionary(type) ? [] : ((type.children ?? []) as readonly Field[]);
  return children.reduce((place, child) => behind(child.type as DataType, place, version, batch), own);
}

function buffersOf(type: DataType, version: MetadataVersion): number {
  switch (type.typeId) {
    case Type.Utf8:
    case Type.LargeUtf8:
    case Type.Binary:
    case Type.LargeBinary:
      return 3;
    case Type.FixedSizeList:
    case Type.Struct:
      return 1;
    default:
      if (!DataType.isUnion(type)) return 2;
      // Before version 5 unions had a bitmap of nulls.
      return (type.mode === UnionMode.Sparse ? 1 : 2) + (version < MetadataVersion.V5 ? 1 : 0);
  }
}

function asVectors({ name, type }: Field, at: number): VectorColumn | undefined {
  const isFixed = DataType.isFixedSizeList(type);
  if (!isFixed && !DataType.isList(type) && !DataType.isLargeList(type)) return undefined;
  const element: DataType | undefined = type.children[0]?.type as DataType | undefined;
  if (element === undefined || !DataType.isFloat(element)) return undefined;
  const valueBytes = ([2, 4, 8] as const)[element.precision];
  if (valueBytes === undefined) return undefined;
  const shape = isFixed ? { dims: type.listSize } : ({ offsetBytes: DataType.isLargeList(type) ? 8 : 4 } as const);
  return { name, at, valueBytes, shape };
}

/** apache-arrow writes "FixedSizeList[16]<Int8>". */
function typeText(type: DataType): string {
  return String(type);
}

function columnsText(fields: readonly Field[]): string {
  if (fields.length === 0) return 'no columns';
  const shown = fields.slice(0, 12).map(({ name, type }) => `${name} (${typeText(type as DataType)})`);
  return `${shown.join(', ')}${fields.length > 12 ? ' …' : ''}`;
}
