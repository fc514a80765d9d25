// A pointer byte by byte: what it says is read back, whatever is damaged is refused, and the body that it leads to is
// only taken for the result when it is the one that was committed.

import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { isShoalError } from './errors.ts';
import { pointedResult } from './pointed-result.ts';
import { bodyBytes, encodeResult, openResult } from './result-format.ts';
import { decodeResultHeader } from './result-header.ts';
import { decodePointer, encodePointer } from './result-pointer.ts';

const FACTS = { dtype: 'f32', rows: 1, dims: 2, fingerprint: '0123456789abcdef', isTruncated: true } as const;
const BODY = Buffer.from('0000803f000000c0', 'hex');
const RESULT = encodeResult(FACTS, BODY);
const PLACE = { store: '10.0.0.5:6379', key: '{shoal}:out:embed-minilm:a:t' };
const POINTER = encodePointer(RESULT, PLACE);

/** Written by hand from the layout in result-pointer.ts; the checksum was computed with Python's zlib. */
const GOLDEN = Buffer.from(
  [
    '53484c31 01 00 0a00 01000000 02000000 562687c3 0123456789abcdef 00000000', // the header with flags 2 and 8
    '28000000 ac4c8671 0d00 1c00', // 40 bytes lie there; checksum; 13 and 28 bytes of names
  ]
    .join('')
    .replaceAll(' ', '')
    .concat(Buffer.from(PLACE.store + PLACE.key).toString('hex')),
  'hex',
);

function codeOf(work: () => unknown): unknown {
  try {
    return work();
  } catch (error) {
    return isShoalError(error) ? error.code : error;
  }
}

function changed(bytes: Buffer, at: number, value: number): Buffer {
  const copy = Buffer.from(bytes);
  copy[at] = value;
  return copy;
}

const opened = (pointer: Buffer, found: Buffer): unknown =>
  codeOf(() => openResult(pointedResult(pointer, decodePointer(pointer), found)).body.toString('hex'));

test('golden bytes', () => {
  expect(POINTER.toString('hex')).toBe(GOLDEN.toString('hex'));
  const { header, ...rest } = decodePointer(GOLDEN);
  expect(rest).toEqual({ ...PLACE, bytes: RESULT.length });
  expect(header).toMatchObject({ ...FACTS, isPointer: true, isTaken: false });
});

/** Of a server or a key, of up to so many bytes. */
function name(most: number): fc.Arbitrary<string> {
  return fc
    .string({ unit: 'grapheme', minLength: 1, maxLength: most })
    .filter((text) => Buffer.byteLength(text) <= most);
}

test('whatever is encoded can be decoded, and leads to its own result alone', () => {
  fc.assert(
    fc.property(
      name(255),
      name(1_024),
      fc.constantFrom('f32', 'f16', 'i8', 'binary'),
      fc.integer({ min: 1, max: 5 }),
      fc.boolean(),
      (store, key, dtype, rows, isSimulated) => {
        const facts = { ...FACTS, dtype, rows, isSimulated } as const;
        const result = encodeResult(facts, Buffer.alloc(bodyBytes(dtype, rows, facts.dims), rows));
        const pointer = encodePointer(result, { store, key });
        expect(decodePointer(pointer)).toMatchObject({ store, key, bytes: result.length });
        expect(opened(pointer, result)).toBe(result.subarray(32).toString('hex'));
        expect(opened(pointer, RESULT)).toBe('PAYLOAD_LOST');
      },
    ),
  );
});

test('a reader without payload servers is told which server it would need, and gets no bytes', () => {
  expect(codeOf(() => openResult(POINTER))).toBe('PAYLOAD_ELSEWHERE');
  expect(() => openResult(POINTER)).toThrow(
    /10\.0\.0\.5:6379.*no payloadServers.*name 10\.0\.0\.5:6379 in payloadServers/,
  );
});

describe('what is no pointer', () => {
  test('one that is cut off anywhere, or is longer, is RESULT_CORRUPT', () => {
    for (let length = 0; length < POINTER.length; length++)
      expect(codeOf(() => openResult(POINTER.subarray(0, length)))).toBe('RESULT_CORRUPT');
    expect(codeOf(() => openResult(Buffer.concat([POINTER, Buffer.alloc(1)])))).toBe('RESULT_CORRUPT');
  });

  test.each([
    ['flag', 6, 24],
    ['end of the header', 31, 1],
    ['checksum', 36, 0],
    ['length of the store', 40, 12],
    ['length of the key', 42, 0],
    ['store', 44, 0x32],
    ['key', POINTER.length - 1, 0x75],
  ])('a wrong %s is RESULT_CORRUPT', (_, at, value) => {
    expect(codeOf(() => decodePointer(changed(POINTER, at, value)))).toBe('RESULT_CORRUPT');
  });

  test('a result with its body', () => expect(codeOf(() => decodePointer(RESULT))).toBe('RESULT_CORRUPT'));

  test('one that was taken, whole or its header alone', () => {
    for (const bytes of [changed(POINTER, 6, 11), changed(POINTER, 6, 11).subarray(0, 32)]) {
      expect(codeOf(() => decodePointer(bytes))).toBe('RESULT_TAKEN');
      expect(codeOf(() => openResult(bytes))).toBe('RESULT_TAKEN');
      expect(decodeResultHeader(bytes)).toMatchObject({ isTaken: true, isPointer: true });
    }
  });
});

describe('what a payload server may give for it', () => {
  test.each([
    ['an empty string', Buffer.alloc(0)],
    ['a part of it', RESULT.subarray(0, 36)],
    ['more than it', Buffer.concat([RESULT, Buffer.alloc(4)])],
    ['the result of another request', changed(RESULT, 20, 0xff)],
    ['a result of another form', changed(RESULT, 5, 1)],
    ['the pointer itself', POINTER.subarray(0, 40)],
  ])('%s is PAYLOAD_LOST', (_, pointed) => {
    expect(opened(POINTER, pointed)).toBe('PAYLOAD_LOST');
  });

  test('another body is RESULT_CORRUPT', () => {
    expect(opened(POINTER, changed(RESULT, 35, 0x40))).toBe('RESULT_CORRUPT');
  });

  test('the result itself is opened', () => expect(opened(POINTER, RESULT)).toBe(BODY.toString('hex')));
});
