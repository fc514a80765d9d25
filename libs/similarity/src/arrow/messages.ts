// The messages of an Arrow IPC file or stream, one after the other: schema, dictionaries, record batches. Every length
// is compared with the file before anything of that length is read. Says of files that are something else what they
// are. https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc

import { MetadataVersion, type Schema } from 'apache-arrow';
import { Footer, type FileBlock } from 'apache-arrow/ipc/metadata/file';
import { DictionaryBatch, Message, RecordBatch } from 'apache-arrow/ipc/metadata/message';
import { wrongFile } from '../collections/vector-file-errors.ts';
import { checkMetadata, DamagedMetadata } from './metadata-check.ts';

/** A file that is read at places: reads never go beyond `size`. */
export interface Bytes {
  readonly path: string;
  readonly size: number;
  read(at: number, bytes: number): Promise<Uint8Array<ArrayBuffer>>;
}

/** A record batch or dictionary whose body, all of it inside the file, begins at `bodyAt`. */
export interface Batch {
  readonly header: RecordBatch | DictionaryBatch;
  readonly bodyAt: number;
  readonly bodyBytes: number;
  /** For messages about it: "record batch 3". */
  readonly what: string;
}

export interface Messages {
  readonly schema: Schema;
  /** In an order in which they can be read: dictionaries before what needs them. */
  batches(): AsyncGenerator<Batch>;
}

const MAGIC = 'ARROW1';
/** The footer's length and the magic. */
const TAIL_BYTES = 10;
const FILE_START_BYTES = 8;
/** Where older streams had the length at once. */
const CONTINUED = 0xffff_ffff;
/** Metadata is some hundred bytes for each column and batch. */
const MOST_METADATA_BYTES = 1 << 28;

export async function openMessages(file: Bytes): Promise<Messages> {
  const start = Buffer.from(await file.read(0, Math.min(16, file.size)));
  refuseOthers(file.path, start);
  return start.toString('latin1', 0, 6) === MAGIC ? openFile(file) : openStream(file);
}

function refuseOthers(path: string, start: Buffer): void {
  const text = start.toString('latin1');
  if (text.startsWith('FEA1'))
    throw wrongFile(
      path,
      'it is a Feather file of version 1, which is no Arrow; write it with pyarrow.feather.write_feather(…, version=2)',
    );
  if (text.startsWith('PAR1'))
    throw wrongFile(path, 'it is a Parquet file and no Arrow; write it with pyarrow.feather.write_feather');
  if (text.startsWith('version https://'))
    throw wrongFile(path, 'it is a Git LFS pointer: git lfs pull fetches the file');
  if (start.length === 0) throw wrongFile(path, 'it is empty');
}

// ---- file: a footer says where everything is ----------------------------------------------------------------------

async function openFile(file: Bytes): Promise<Messages> {
  const { path, size } = file;
  const tail = Buffer.from(await file.read(Math.max(0, size - TAIL_BYTES), Math.min(TAIL_BYTES, size)));
  if (size < FILE_START_BYTES + TAIL_BYTES || tail.toString('latin1', 4) !== MAGIC)
    throw wrongFile(path, 'it begins like an Arrow file and has no end: it was cut, or is not finished');
  const footerBytes = tail.readInt32LE(0);
  const footerAt = size - TAIL_BYTES - footerBytes;
  if (footerBytes <= 0 || footerAt < FILE_START_BYTES)
    throw wrongFile(path, `its footer claims ${footerBytes} bytes of the ${size} that the file has`);
  const bytes = await file.read(footerAt, footerBytes);
  const footer = decoded(path, 'footer', () => {
    checkMetadata(bytes, 'footer');
    return Footer.decode(bytes);
  });
  refuseOldVersion(path, footer.schema.metadataVersion);
  const dictionaries = [...footer.dictionaryBatches()];
  const records = [...footer.recordBatches()];
  const blocks = [...dictionaries, ...records];
  refuseImpossible(path, blocks, await endOfSchema(file, blocks, footerAt), footerAt);
  return {
    schema: footer.schema,
    async *batches() {
      const { metadataVersion: version } = footer.schema;
      for (const [i, block] of dictionaries.entries()) yield readBlock(file, version, block, `dictionary ${i}`);
      for (const [i, block] of records.entries()) yield readBlock(file, version, block, `record batch ${i}`);
    },
  };
}

/**
 * Most writers put the schema at the start as well, for who reads from there. Polars writes it without its length, and
 * apache-arrow not at all: then nothing is said of what lies before the first batch.
 */
async function endOfSchema(file: Bytes, blocks: readonly FileBlock[], footerAt: number): Promise<number> {
  const head = new DataView((await file.read(FILE_START_BYTES, 8)).buffer);
  if (head.getUint32(0, true) === CONTINUED && !blocks.some(({ offset }) => offset === FILE_START_BYTES))
    return Math.min(footerAt, FILE_START_BYTES + 8 + Math.max(0, head.getInt32(4, true)));
  return Math.min(footerAt, ...blocks.map(({ offset }) => Math.max(FILE_START_BYTES, offset)));
}

/**
 * The schema, the batches and the footer follow each other. A batch in a gap between them would be one whose rows are
 * lost without a word: padding is all that may stand there.
 */
function refuseImpossible(path: string, blocks: readonly FileBlock[], begin: number, end: number): void {
  let at = begin;
  for (const { offset, metaDataLength, bodyLength } of blocks.toSorted((a, b) => a.offset - b.offset)) {
    const isMetadata = metaDataLength >= 8 && metaDataLength <= MOST_METADATA_BYTES;
    if (offset < at || !isMetadata || bodyLength < 0 || offset + metaDataLength + bodyLength > end)
      throw wrongFile(path, `its footer names a batch at byte ${offset} that the file has no room for: it is damaged`);
    refuseGap(path, at, offset);
    at = offset + metaDataLength + bodyLength;
  }
  refuseGap(path, at, end);
}

/** Everything begins on a multiple of 8 or 64 bytes, and the mark of the end takes 8. */
const MOST_PADDING_BYTES = 72;

function refuseGap(path: string, from: number, to: number): void {
  if (to - from > MOST_PADDING_BYTES)
    throw wrongFile(path, `${to - from} bytes at ${from} belong to no batch that its footer names: it is damaged`);
}

async function readBlock(
  file: Bytes,
  version: MetadataVersion,
  { offset, metaDataLength, bodyLength }: FileBlock,
  what: string,
): Promise<Batch> {
  const bytes = await file.read(offset, metaDataLength);
  const view = new DataView(bytes.buffer);
  const prefix = view.getUint32(0, true) === CONTINUED ? 8 : 4;
  const length = view.getInt32(prefix - 4, true);
  if (length <= 0 || prefix + length > metaDataLength)
    throw wrongFile(file.path, `${what} claims ${length} bytes of metadata where there are ${metaDataLength}`);
  const message = messageOf(file.path, bytes.subarray(prefix, prefix + length), what);
  if (message.bodyLength > bodyLength)
    throw wrongFile(file.path, `${what} claims ${message.bodyLength} bytes where its footer gives it ${bodyLength}`);
  return batchOf(file.path, version, message, offset + metaDataLength, what);
}

// ---- stream: messages follow each other ---------------------------------------------------------------------------

async function openStream(file: Bytes): Promise<Messages> {
  const { path } = file;
  const first = await readMessage(file, 0, 'the first message').catch((error: unknown) => {
    throw wrongFile(path, `it is no whole Arrow IPC file or stream (${error instanceof Error ? error.message : ''})`);
  });
  if (first === undefined || !first.message.isSchema())
    throw wrongFile(path, 'it is no Arrow IPC file or stream: it does not begin with a schema');
  const schema = decoded(path, 'schema', () => first.message.header() as Schema);
  refuseOldVersion(path, first.message.version);
  return {
    schema,
    async *batches() {
      let at = first.end;
      for (let i = 0; at < file.size; i++) {
        const what = `message ${i + 1}`;
        const next = await readMessage(file, at, what);
        if (next === undefined) return;
        yield batchOf(path, first.message.version, next.message, next.bodyAt, what);
        at = next.end;
      }
    },
  };
}

/** Undefined at the end of the stream, behind which nothing may stand: it would be rows that nobody reads. */
async function readMessage(
  file: Bytes,
  at: number,
  what: string,
): Promise<{ readonly message: Message; readonly bodyAt: number; readonly end: number } | undefined> {
  const { path, size } = file;
  const cut = (): Error => wrongFile(path, `it ends inside ${what}: it was cut`);
  if (at + 4 > size) throw cut();
  const head = new DataView((await file.read(at, Math.min(8, size - at))).buffer);
  const isContinued = head.getUint32(0, true) === CONTINUED;
  if (isContinued && head.byteLength < 8) throw cut();
  const prefix = isContinued ? 8 : 4;
  const length = head.getInt32(prefix - 4, true);
  if (length === 0) {
    if (at + prefix < size)
      throw wrongFile(
        path,
        `${size - at - prefix} bytes stand behind the end of its stream, another stream perhaps: one file holds one`,
      );
    return undefined;
  }
  if (length < 0) throw wrongFile(path, `${what} claims ${length} bytes of metadata`);
  if (at + prefix + length > size) throw cut();
  if (length > MOST_METADATA_BYTES) throw wrongFile(path, `${what} claims ${length} bytes of metadata`);
  const message = messageOf(path, await file.read(at + prefix, length), what);
  const bodyAt = at + prefix + length;
  if (message.bodyLength < 0 || bodyAt + message.bodyLength > size) throw cut();
  return { message, bodyAt, end: bodyAt + message.bodyLength };
}

// ---- both ---------------------------------------------------------------------------------------------------------

function messageOf(path: string, bytes: Uint8Array, what: string): Message {
  return decoded(path, what, () => {
    checkMetadata(bytes, 'message');
    return Message.decode(bytes);
  });
}

function batchOf(path: string, version: MetadataVersion, message: Message, bodyAt: number, what: string): Batch {
  if (message.version !== version)
    throw wrongFile(path, `${what} is of Arrow's version V${message.version + 1}, its schema of V${version + 1}`);
  const header = decoded(path, what, () => message.header() as unknown);
  if (!(header instanceof RecordBatch) && !(header instanceof DictionaryBatch))
    throw wrongFile(path, `${what} is neither a record batch nor a dictionary`);
  return { header, bodyAt, bodyBytes: message.bodyLength, what };
}

/** Before version 4 (2017) metadata was laid out in another way. */
function refuseOldVersion(path: string, version: MetadataVersion): void {
  if (version !== MetadataVersion.V4 && version !== MetadataVersion.V5)
    throw wrongFile(path, `its metadata is of Arrow's version V${version + 1}; V4 and V5 can be read`);
}

function decoded<Value>(path: string, what: string, decode: () => Value): Value {
  try {
    return decode();
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    const unknown = /^Unrecognized type: "(\w+)"/.exec(message)?.[1];
    if (unknown !== undefined)
      throw wrongFile(path, `it has a column of Arrow's type ${unknown}, which cannot be read; write it without`);
    throw wrongFile(path, `its ${what} is damaged: ${error instanceof DamagedMetadata ? message : `(${message})`}`);
  }
}
