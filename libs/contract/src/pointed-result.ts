// The body that a pointer leads to, once it was fetched: it is taken for the result only where length, header and
// checksum are those that were committed.

import { ShoalError, isShoalError } from './errors.ts';
import { RESULT_FLAG, RESULT_HEADER_BYTES } from './result-header.ts';
import type { ResultPointer } from './result-pointer.ts';
import { openResult } from './result-format.ts';

/**
 * As `openResult` does it. `pointed`: what lies at the key of the pointer, undefined where nothing does. `pointer`: the
 * bytes at the result key, and what `decodePointer` made of them. Throws PAYLOAD_LOST.
 */
export function openPointed(
  pointer: { readonly bytes: Buffer; readonly decoded: ResultPointer },
  pointed: Buffer | undefined,
): ReturnType<typeof openResult> {
  const { decoded } = pointer;
  if (pointed === undefined) throw lost(decoded, 'has nothing there: it was emptied, restarted or evicts keys');
  if (pointed.length !== decoded.bytes) throw lost(decoded, `has ${pointed.length} bytes there, not ${decoded.bytes}`);
  const head = Buffer.from(pointer.bytes.subarray(0, RESULT_HEADER_BYTES));
  head.writeUInt16LE(head.readUInt16LE(6) & ~RESULT_FLAG.pointer, 6);
  if (!pointed.subarray(0, RESULT_HEADER_BYTES).equals(head)) throw lost(decoded, 'has another result there');
  try {
    return openResult(pointed);
  } catch (error) {
    if (!isShoalError(error, 'RESULT_CORRUPT')) throw error;
    throw lost(decoded, 'has other bytes there than were written', error);
  }
}

/** `found`: what the server did, after its name. */
export function lost(
  { store, key }: Pick<ResultPointer, 'store' | 'key'>,
  found: string,
  cause?: unknown,
): ShoalError<'PAYLOAD_LOST'> {
  return new ShoalError(
    'PAYLOAD_LOST',
    `payload server ${store} ${found} (key ${key}); ask for the job again to have it computed anew`,
    { store, key },
    cause,
  );
}
