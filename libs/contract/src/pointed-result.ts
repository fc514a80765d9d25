// What a payload server has where a pointer leads: it is the result only where length and header are those that were
// committed. The checksum of its body is looked at by `openResult`, as of every result.

import { ShoalError } from './errors.ts';
import { RESULT_FLAG, RESULT_HEADER_BYTES } from './result-header.ts';
import type { ResultPointer } from './result-pointer.ts';

/**
 * `found`, as a whole result for `openResult`. `bytes`: what lies at the result key, and `pointer` what `decodePointer`
 * made of it. Throws PAYLOAD_LOST.
 */
export function pointedResult(bytes: Buffer, pointer: ResultPointer, found: Buffer): Buffer {
  if (found.length !== pointer.bytes) throw lost(pointer, `has ${found.length} bytes there, not ${pointer.bytes}`);
  const head = Buffer.from(bytes.subarray(0, RESULT_HEADER_BYTES));
  head.writeUInt16LE(head.readUInt16LE(6) & ~RESULT_FLAG.pointer, 6);
  if (found.subarray(0, RESULT_HEADER_BYTES).equals(head)) return found;
  throw lost(pointer, 'has another result there');
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
