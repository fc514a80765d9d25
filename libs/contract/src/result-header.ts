// The first 32 bytes of a result (SHL1), little-endian:
//   "SHL1" | version u8 = 1 | dtype u8 | flags u16 | rows u32 | dims u32 | crc32 u32 of the body | fingerprint 8 bytes
//   | 4 zero
// Flag 1 (TAKEN): acknowledged, the body is gone. Flag 2: some rows were truncated. Flag 4: a simulated device gave the
// rows, which are no model's; readers of 0.1.0 refuse them. Flag 8: the body lies on a payload server, and behind the
// header is where (result-pointer.ts). Flag 16: of a part of a run, whose rows lie in an object (part-result.ts).

import { ShoalError } from './errors.ts';
import type { OutputDtype } from './embed-job.ts';

export const RESULT_HEADER_BYTES = 32;
export const RESULT_FLAG = { taken: 1, truncated: 2, simulated: 4, pointer: 8, part: 16 } as const;
/** Of results whose body is behind the header. */
export const BODY_FLAGS = RESULT_FLAG.taken | RESULT_FLAG.truncated | RESULT_FLAG.simulated;

export const RESULT_MAGIC = 0x314c_4853; // "SHL1" read as a little-endian u32
/** Vectors and matrices in one of the forms a job may ask for, or the rankings of a similarity job. */
export type ResultDtype = OutputDtype | 'ranking';

export const RESULT_DTYPES: readonly ResultDtype[] = ['f32', 'f16', 'i8', 'binary', 'ranking'];

export interface ResultHeader {
  readonly dtype: ResultDtype;
  readonly rows: number;
  readonly dims: number;
  /** Of the body, wherever it lies. */
  readonly crc32: number;
  /** 16 hex digits. */
  readonly fingerprint: string;
  readonly isTaken: boolean;
  readonly isTruncated: boolean;
  /** No model made the rows: a simulated device did. */
  readonly isSimulated: boolean;
  /** The body lies on a payload server. */
  readonly isPointer: boolean;
  /** The rows lie in an object, and behind the header is which. */
  readonly isPart: boolean;
}

/** Reads the header alone; undefined when the bytes are not one. */
export function decodeResultHeader(bytes: Buffer): ResultHeader | undefined {
  if (bytes.length < RESULT_HEADER_BYTES || bytes.readUInt32LE(0) !== RESULT_MAGIC || bytes.readUInt8(4) !== 1)
    return undefined;
  const dtype = RESULT_DTYPES[bytes.readUInt8(5)];
  if (dtype === undefined) return undefined;
  const flags = bytes.readUInt16LE(6);
  return {
    dtype,
    rows: bytes.readUInt32LE(8),
    dims: bytes.readUInt32LE(12),
    crc32: bytes.readUInt32LE(16),
    fingerprint: bytes.toString('hex', 20, 28),
    isTaken: (flags & RESULT_FLAG.taken) !== 0,
    isTruncated: (flags & RESULT_FLAG.truncated) !== 0,
    isSimulated: (flags & RESULT_FLAG.simulated) !== 0,
    isPointer: (flags & RESULT_FLAG.pointer) !== 0,
    isPart: (flags & RESULT_FLAG.part) !== 0,
  };
}

export function corruptResult(found: string): ShoalError<'RESULT_CORRUPT'> {
  return new ShoalError('RESULT_CORRUPT', `the result key is not a well-formed SHL1 result: ${found}`);
}
