// Arrow's IPC file: a schema, record batches of 1,024 rows, a footer that says where each batch is. Batches are cut by
// rows and bytes of the file alone, never by time, so that a run that was interrupted and gone on with writes the same
// bytes as a quiet one. https://arrow.apache.org/docs/format/Columnar.html#ipc-file-format The only importer of
// apache-arrow, whose parts are used and not its file writer: that one cannot begin behind batches that are there.
// Doing without it would mean FlatBuffers by hand.

import {
  Field,
  FixedSizeList,
  Float16,
  Float32,
  Int8,
  Int64,
  MessageHeader,
  MetadataVersion,
  RecordBatch,
  Schema,
  Struct,
  Uint8,
  Utf8,
  makeData,
  type Data,
  type DataType,
} from 'apache-arrow';
import { FileBlock, Footer } from 'apache-arrow/ipc/metadata/file';
import { Message, RecordBatch as BatchHeader } from 'apache-arrow/ipc/metadata/message';
import { VectorAssembler } from 'apache-arrow/visitor/vectorassembler';
import { ShoalError, invariant, type OutputDtype } from '@shoal/contract';
import { MODEL_KEY } from '@shoal/similarity/model-key';
import type { Block, EncodedRows, ReadAt, RowEncoder, RowForm, Written } from '@shoal/worker/files/row-form';
import { encodeVectors, widthOf, type VectorValues } from '@shoal/worker/files/vector-form';

/** 1.6 MB of 384 dimensions: large enough to be read in one go, small enough that a killed run loses seconds. */
const BATCH_ROWS = 1_024;
/** A batch is closed before its texts grow beyond this; offsets are 32-bit numbers, and a batch is held in memory. */
const BATCH_TEXT_BYTES = 16 * 1024 * 1024;

interface Row {
  readonly id: string;
  readonly index: number;
  readonly text: Buffer;
  readonly vector: Float32Array;
  readonly position: number;
}

export class ArrowEncoder implements RowEncoder {
  readonly #form: RowForm;
  readonly #schema: Schema;
  readonly #head: Buffer;
  /** Where the batches of the file are; the footer lists them. */
  readonly #blocks: FileBlock[] = [];
  #bytes: number;
  #rows: Row[] = [];
  #textBytes = 0;

  private constructor(form: RowForm) {
    this.#form = form;
    this.#schema = schemaOf(form);
    // The schema stands here and in the footer, for readers that go through a file from its start.
    this.#head = Buffer.concat([Buffer.from(`${MAGIC}\0\0`), messageBytes(Message.from(this.#schema))]);
    this.#bytes = this.#head.length;
  }

  /** Whole batches of `written` are kept; the caller has cut the file behind the last of them. */
  static async open(form: RowForm, written?: Written): Promise<ArrowEncoder> {
    const encoder = new ArrowEncoder(form);
    if (written === undefined) return encoder;
    encoder.#blocks.push(...(await findBatches(written.read, encoder.#bytes, written.bytes)));
    encoder.#bytes = written.bytes;
    return encoder;
  }

  head(): Buffer {
    return this.#head;
  }

  encode({ records, dims, vectors, position }: Block): readonly EncodedRows[] {
    const done: EncodedRows[] = [];
    for (const [row, record] of records.entries()) {
      const text = this.#form.withText ? Buffer.from(record.text) : NO_TEXT;
      if (
        this.#rows.length === BATCH_ROWS ||
        (this.#rows.length > 0 && this.#textBytes + text.length > BATCH_TEXT_BYTES)
      )
        done.push(...this.flush());
      this.#rows.push({
        id: String(record.id),
        index: record.index,
        text,
        vector: vectors.subarray(row * dims, (row + 1) * dims),
        position: position - records.length + row + 1,
      });
      this.#textBytes += text.length;
    }
    if (this.#rows.length === BATCH_ROWS) done.push(...this.flush());
    return done;
  }

  flush(): readonly EncodedRows[] {
    const rows = this.#rows;
    if (rows.length === 0) return [];
    this.#rows = [];
    this.#textBytes = 0;
    const { metadata, body } = batchBytes(batchOf(this.#schema, this.#form, rows));
    this.#blocks.push(new FileBlock(metadata.length, body.length, this.#bytes));
    this.#bytes += metadata.length + body.length;
    return [{ bytes: Buffer.concat([metadata, body]), rows: rows.length, position: rows.at(-1)!.position }];
  }

  tail(): Buffer {
    const footer = Buffer.from(Footer.encode(new Footer(this.#schema, MetadataVersion.V5, this.#blocks, [])));
    return Buffer.concat([int32(NO_LENGTH, 0), footer, int32(footer.length), Buffer.from(MAGIC)]);
  }
}

const NO_TEXT = Buffer.alloc(0);

function schemaOf({ dims, hasIds, withText, model, dtype = 'f32' }: RowForm): Schema {
  const fields = [
    hasIds ? new Field('id', new Utf8(), false) : new Field('index', new Int64(), false),
    ...(withText ? [new Field('text', new Utf8(), false)] : []),
    new Field('embedding', listOf(dims, dtype), false),
    ...(dtype === 'i8' ? [new Field('embedding_scale', new Float32(), false)] : []),
  ];
  return new Schema(fields, model === undefined ? new Map() : new Map([[MODEL_KEY, model]]));
}

const TYPES = { f32: () => new Float32(), f16: () => new Float16(), i8: () => new Int8(), binary: () => new Uint8() };

function listOf(dims: number, dtype: OutputDtype): FixedSizeList {
  return new FixedSizeList(widthOf(dims, dtype), new Field('item', TYPES[dtype](), false));
}

function batchOf(
  schema: Schema,
  { dims, hasIds, withText, dtype = 'f32' }: RowForm,
  rows: readonly Row[],
): RecordBatch {
  const children: Data<DataType>[] = [
    hasIds
      ? utf8(rows.map((row) => Buffer.from(row.id)))
      : makeData({ type: new Int64(), data: BigInt64Array.from(rows, (row) => BigInt(row.index)) }),
    ...(withText ? [utf8(rows.map((row) => row.text))] : []),
    ...embeddings(dims, dtype, rows),
  ];
  return new RecordBatch(
    schema,
    makeData({ type: new Struct(schema.fields), length: rows.length, nullCount: 0, children }),
  );
}

function utf8(texts: readonly Buffer[]): Data<Utf8> {
  const valueOffsets = new Int32Array(texts.length + 1);
  for (const [at, text] of texts.entries()) valueOffsets[at + 1] = valueOffsets[at]! + text.length;
  return makeData({ type: new Utf8(), length: texts.length, nullCount: 0, valueOffsets, data: Buffer.concat(texts) });
}

/** The vectors, and of i8 their scales. */
function embeddings(dims: number, dtype: OutputDtype, rows: readonly Row[]): readonly Data<DataType>[] {
  const all = new Float32Array(rows.length * dims);
  for (const [at, { vector }] of rows.entries()) all.set(vector, at * dims);
  const { values: data, scales } = encodeVectors(all, rows.length, dims, dtype);
  const child = valuesOf(data, dtype);
  const lists = makeData({ type: listOf(dims, dtype), length: rows.length, nullCount: 0, child });
  if (scales === undefined) return [lists];
  return [lists, makeData({ type: new Float32(), length: rows.length, nullCount: 0, data: scales })];
}

function valuesOf(values: VectorValues['values'], dtype: OutputDtype): Data<DataType> {
  const facts = { length: values.length, nullCount: 0 };
  if (values instanceof Float32Array) return makeData({ type: new Float32(), ...facts, data: values });
  if (values instanceof Int8Array) return makeData({ type: new Int8(), ...facts, data: values });
  if (values instanceof Uint16Array) return makeData({ type: new Float16(), ...facts, data: values });
  invariant(dtype === 'binary', 'bytes are bits');
  return makeData({ type: new Uint8(), ...facts, data: values });
}

const MAGIC = 'ARROW1';
/** Stands where older versions of the format had a length; a message that has none ends them all. */
const NO_LENGTH = -1;
/** Before the metadata of a message: NO_LENGTH, then the length of the metadata. */
const PREFIX_BYTES = 8;

/** A message without its body. */
function messageBytes(message: Message): Buffer {
  const metadata = Message.encode(message);
  const padded = padding(metadata.length);
  return Buffer.concat([int32(NO_LENGTH, metadata.length + padded.length), metadata, padded]);
}

function batchBytes(batch: RecordBatch): { readonly metadata: Buffer; readonly body: Buffer } {
  const { byteLength, nodes, bufferRegions, buffers, variadicBufferCounts } = VectorAssembler.assemble(batch);
  const metadata = messageBytes(
    Message.from(new BatchHeader(batch.numRows, nodes, bufferRegions, null, variadicBufferCounts), byteLength),
  );
  const body = Buffer.concat(
    buffers.flatMap((part) => [
      new Uint8Array(part.buffer, part.byteOffset, part.byteLength),
      padding(part.byteLength),
    ]),
  );
  invariant(body.length === byteLength, 'the body of a record batch has the size that its message says');
  return { metadata, body };
}

/** Everything begins at a multiple of 8 bytes. */
function padding(bytes: number): Buffer {
  return Buffer.alloc(-bytes & 7);
}

function int32(...values: readonly number[]): Buffer {
  return Buffer.from(Int32Array.from(values).buffer);
}

/** Walks from message to message: a footer would know them, and a file that is not finished has none. */
async function findBatches(read: ReadAt, from: number, bytes: number): Promise<readonly FileBlock[]> {
  const blocks: FileBlock[] = [];
  let at = from;
  while (at < bytes) {
    const prefix = await read(at, PREFIX_BYTES);
    const metadataBytes = prefix.length === PREFIX_BYTES && prefix.readInt32LE(0) === -1 ? prefix.readInt32LE(4) : 0;
    if (metadataBytes <= 0 || at + PREFIX_BYTES + metadataBytes > bytes) throw damaged(at);
    const message = Message.decode(await read(at + PREFIX_BYTES, metadataBytes));
    if (message.headerType !== MessageHeader.RecordBatch) throw damaged(at);
    blocks.push(new FileBlock(PREFIX_BYTES + metadataBytes, message.bodyLength, at));
    at += PREFIX_BYTES + metadataBytes + message.bodyLength;
  }
  if (at !== bytes) throw damaged(at);
  return blocks;
}

function damaged(at: number): ShoalError<'FILE_UNREADABLE'> {
  return new ShoalError(
    'FILE_UNREADABLE',
    `the unfinished Arrow file is damaged at byte ${at} and cannot be gone on with; --fresh begins again`,
  );
}
