// Compressed files as the bytes that were compressed, chunk by chunk: what one read expands to is never held as a whole,
// so that no file can fill the memory of this process by being small. Several members or frames are one file.

import { Readable, type Duplex } from 'node:stream';
import zlib from 'node:zlib';
import {
  COMPRESSION_NAMES,
  compressionIn,
  compressionOf,
  refuseMissingCodec,
  type Compression,
} from '@shoal/worker/files/compression';
import { framesOf } from './zstd-frames.ts';
import { ShoalError } from '@shoal/contract';

/** What one step may expand to. */
const CHUNK_BYTES = 64 * 1024;

/**
 * `chunks` as they are, or what they were before they were compressed, as their first bytes say. Throws FILE_UNREADABLE
 * where the name says otherwise, and where the compressed bytes are damaged or end too early.
 */
export async function* decompressed(chunks: AsyncIterable<Buffer>, name: string): AsyncGenerator<Buffer> {
  const iterator = chunks[Symbol.asyncIterator]();
  let compression: Compression | undefined;
  try {
    const head = await headOf(iterator);
    compression = compressionIn(head);
    refuseOtherName(name, compression, head);
    const all = chained(head, iterator);
    if (compression === undefined) return yield* all;
    refuseMissingCodec(compression, name);
    if (compression === 'gzip') yield* through(zlib.createGunzip({ chunkSize: CHUNK_BYTES }), all);
    else
      for await (const frame of framesOf(all))
        yield* through(zlib.createZstdDecompress({ chunkSize: CHUNK_BYTES }), frame);
  } catch (error) {
    // a failure of the file under it keeps its own words
    throw error instanceof ShoalError || compression === undefined ? error : damaged(name, compression, error);
  } finally {
    // a codec reads ahead, and of a pipe that says nothing it would be waited for without end
    const closed = Promise.resolve(iterator.return?.());
    if (compression === undefined) await closed;
    else closed.catch(() => undefined);
  }
}

/** What a codec makes of some bytes. */
async function* through(codec: Duplex, bytes: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  const source = Readable.from(bytes, { objectMode: false, highWaterMark: CHUNK_BYTES });
  source.on('error', (error) => codec.destroy(error));
  source.pipe(codec);
  try {
    for await (const chunk of codec) if (Buffer.isBuffer(chunk)) yield chunk;
  } finally {
    source.destroy();
    codec.destroy();
  }
}

/** Enough to see what it is. */
async function headOf(iterator: AsyncIterator<Buffer>): Promise<Buffer> {
  let head = Buffer.alloc(0);
  while (head.length < 4) {
    const { value, done } = await iterator.next();
    if (done === true) break;
    head = Buffer.concat([head, value]);
  }
  return head;
}

async function* chained(head: Buffer, rest: AsyncIterator<Buffer>): AsyncGenerator<Buffer> {
  if (head.length > 0) yield head;
  for (let step = await rest.next(); step.done !== true; step = await rest.next()) yield step.value;
}

function refuseOtherName(name: string, found: Compression | undefined, head: Buffer): void {
  const named = compressionOf(name);
  if (named === undefined || named === found || head.length === 0) return;
  const is = found === undefined ? 'not compressed' : `compressed by ${COMPRESSION_NAMES[found]}`;
  throw new ShoalError(
    'FILE_UNREADABLE',
    `${name} is called a file of ${COMPRESSION_NAMES[named]} and is ${is}; rename it`,
    { file: name },
  );
}

function damaged(name: string, compression: Compression, error: unknown): ShoalError<'FILE_UNREADABLE'> {
  const reason = error instanceof Error ? error.message : String(error);
  return new ShoalError(
    'FILE_UNREADABLE',
    `${name}: its ${COMPRESSION_NAMES[compression]} is damaged or cut (${reason}); what was read before that is lost ` +
      `with it. Test the file: ${compression === 'gzip' ? 'gzip -t' : 'zstd -t'}`,
    { file: name },
    error,
  );
}
