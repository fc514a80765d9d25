// A result whose body lies on a payload server: at the result key is its header with flag 8, and behind it where the
// whole result (header and body, without the flag) was put:
//   bytes u32 of the whole result | crc32 u32 of what follows | store length u16 | key length u16 | store | key
// in UTF-8, and nothing behind. Store is the server's name as `payloadServers` has it (host:port). The pointer is what a
// commit writes under the job's lock, so it decides which body is the result: others are garbage with a time to live.

import { isUtf8 } from 'node:buffer';
import { crc32 } from 'node:zlib';
import { ShoalError } from './errors.ts';
import { invariant } from './invariant.ts';
import {
  BODY_FLAGS,
  RESULT_FLAG,
  RESULT_HEADER_BYTES,
  corruptResult,
  decodeResultHeader,
  type ResultHeader,
} from './result-header.ts';

export interface ResultPointer {
  readonly header: ResultHeader;
  /** Name of the payload server, 1 to 255 bytes. */
  readonly store: string;
  /** Where it lies there, 1 to 1,024 bytes. */
  readonly key: string;
  /** Of the whole result that lies there, header included. */
  readonly bytes: number;
}

const MAX_STORE_BYTES = 255;
const MAX_KEY_BYTES = 1_024;
/** Before store and key. */
const FIXED_BYTES = RESULT_HEADER_BYTES + 12;

/** What goes to the result key instead of `result`, a whole result that lies at `key` of `store`. */
export function encodePointer(result: Buffer, { store, key }: Pick<ResultPointer, 'store' | 'key'>): Buffer {
  const [storeBytes, keyBytes] = [Buffer.from(store), Buffer.from(key)];
  invariant(
    isNamed(storeBytes.length, MAX_STORE_BYTES) && isNamed(keyBytes.length, MAX_KEY_BYTES),
    'a pointer has names of its size',
  );
  const flags = result.readUInt16LE(6);
  invariant((flags & ~(RESULT_FLAG.truncated | RESULT_FLAG.simulated)) === 0, 'a pointer is made of a whole result');
  const out = Buffer.alloc(FIXED_BYTES + storeBytes.length + keyBytes.length);
  out.set(result.subarray(0, RESULT_HEADER_BYTES));
  out.writeUInt16LE(flags | RESULT_FLAG.pointer, 6);
  out.writeUInt32LE(result.length, 32);
  out.writeUInt16LE(storeBytes.length, 40);
  out.writeUInt16LE(keyBytes.length, 42);
  out.set(storeBytes, FIXED_BYTES);
  out.set(keyBytes, FIXED_BYTES + storeBytes.length);
  out.writeUInt32LE(crc32(out.subarray(40)), 36);
  return out;
}

function isNamed(bytes: number, most: number): boolean {
  return bytes > 0 && bytes <= most;
}

/** Throws RESULT_TAKEN, or RESULT_CORRUPT for whatever is no well-formed pointer. */
export function decodePointer(bytes: Buffer): ResultPointer {
  const header = decodeResultHeader(bytes);
  if (header?.isPointer !== true) throw corruptResult(`it is no pointer to a payload server (${bytes.length} bytes)`);
  if (header.isTaken) throw takenResult();
  const flags = bytes.readUInt16LE(6);
  if (flags > (BODY_FLAGS | RESULT_FLAG.pointer) || bytes.readUInt32LE(28) !== 0)
    throw corruptResult(`bytes that are zero in version 1 are not (flags ${flags})`);
  if (bytes.length < FIXED_BYTES) throw corruptResult(`its pointer ends after ${bytes.length} bytes`);
  if (crc32(bytes.subarray(40)) !== bytes.readUInt32LE(36))
    throw corruptResult('the checksum of its pointer does not match');
  const [storeBytes, keyBytes, whole] = [bytes.readUInt16LE(40), bytes.readUInt16LE(42), bytes.readUInt32LE(32)];
  const names = bytes.subarray(FIXED_BYTES);
  const isSized = isNamed(storeBytes, MAX_STORE_BYTES) && isNamed(keyBytes, MAX_KEY_BYTES);
  const [store, key] = [names.subarray(0, storeBytes), names.subarray(storeBytes)];
  if (
    !isSized ||
    names.length !== storeBytes + keyBytes ||
    whole < RESULT_HEADER_BYTES ||
    !isUtf8(store) ||
    !isUtf8(key)
  )
    throw corruptResult('its pointer does not say where the body lies');
  return { header, store: store.toString(), key: key.toString(), bytes: whole };
}

/** Of who cannot ask the payload server that a pointer names. `known`: the servers that can be asked. */
export function elsewhere(store: string, known: readonly string[] = []): ShoalError<'PAYLOAD_ELSEWHERE'> {
  return new ShoalError(
    'PAYLOAD_ELSEWHERE',
    `the result lies on payload server ${store}, which this reader does not know ` +
      `(${known.length === 0 ? 'it has no payloadServers' : `its payloadServers are ${known.join(', ')}`}); ` +
      `name ${store} in payloadServers, or ask under another id`,
    { store },
  );
}

export function takenResult(): ShoalError<'RESULT_TAKEN'> {
  return new ShoalError(
    'RESULT_TAKEN',
    'the result was acknowledged before; ask for the job again to have it computed anew',
  );
}
