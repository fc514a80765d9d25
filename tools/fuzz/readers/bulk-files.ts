// What `shoal embed` reads beside lines: Parquet, compressed files and arrays of JSON. Of Parquet and compressed files no
// second reader is at hand that shares no code with ours, so that of damaged ones only clock, memory and kind of error count.

import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import zlib from 'node:zlib';
import { parquetReadObjects } from 'hyparquet';
import { decompressed } from '../../../apps/cli/src/input/decompress.ts';
import { checkInputs, readInputs } from '../../../apps/cli/src/input/files.ts';
import { readRecords } from '../../../apps/cli/src/input/records.ts';
import type { FuzzedReader } from '../fuzzed-reader.ts';

const PARQUET = join(import.meta.dirname, '../../../apps/cli/fixtures/parquet');
const PROBLEM = 'a problem';

export const parquetReader: FuzzedReader = {
  name: 'parquet',
  kind: 'binary',
  extension: '.parquet',
  codes: ['FILE_UNREADABLE', 'INPUT_INVALID'],
  mostUndecided: 1,
  seeds: async () =>
    readdirSync(PARQUET)
      .filter((name) => /^(codec-.*|types)\.parquet$/.test(name) && name !== 'codec-lz4.parquet')
      .map((name) => readFileSync(join(PARQUET, name))),
  read: async (_bytes, path) => {
    const inputs = await checkInputs([path], undefined);
    const values: string[] = [];
    const { signal } = new AbortController();
    const fields = { textField: undefined, idField: undefined };
    const options = { ...fields, stdin: process.stdin, signal, onBytes: () => undefined };
    for await (const record of readInputs(inputs, options)) values.push('text' in record ? record.text : PROBLEM);
    return values;
  },
  readAgain: async (bytes) => {
    if (!(await parquetReader.seeds()).some((seed) => seed.equals(bytes))) return 'unknown';
    const compressors = {
      GZIP: (page: Uint8Array) => zlib.gunzipSync(page),
      ZSTD: (page: Uint8Array) => zlib.zstdDecompressSync(page),
      BROTLI: (page: Uint8Array) => zlib.brotliDecompressSync(page),
    };
    const rows = await parquetReadObjects({ file: Uint8Array.from(bytes).buffer, columns: ['text'], compressors });
    return rows.map(({ text }) => (typeof text === 'string' ? text : PROBLEM));
  },
};

async function* once(bytes: Buffer): AsyncGenerator<Buffer> {
  yield bytes;
}

const LINES = Buffer.from('{"id":"a","text":"one"}\n'.repeat(200));
const TWO = Buffer.concat([Buffer.from('one\n'), LINES]);
const COMPRESSED: readonly (readonly [Buffer, Buffer])[] = [
  [zlib.gzipSync(LINES), LINES],
  [Buffer.concat([zlib.gzipSync('one\n'), zlib.gzipSync(LINES)]), TWO],
  [zlib.zstdCompressSync(LINES), LINES],
  [Buffer.concat([zlib.zstdCompressSync('one\n'), zlib.zstdCompressSync(LINES)]), TWO],
];

export const compressedReader: FuzzedReader = {
  name: 'compressed',
  kind: 'binary',
  extension: '.txt',
  codes: ['FILE_UNREADABLE'],
  mostUndecided: 1,
  seeds: async () => COMPRESSED.map(([file]) => file),
  read: async (bytes) => {
    const parts: Buffer[] = [];
    for await (const part of decompressed(once(bytes), 'file')) parts.push(part);
    return [Buffer.concat(parts)];
  },
  readAgain: (bytes) => {
    const [, plain] = COMPRESSED.find(([file]) => file.equals(bytes)) ?? [];
    return plain === undefined ? 'unknown' : [plain];
  },
};

export const jsonArrayReader: FuzzedReader = {
  name: 'json',
  kind: 'text',
  extension: '.json',
  codes: ['INPUT_INVALID'],
  takesAll: true,
  // an array that is wrong in one place has elements that are sound
  mostUndecided: 1,
  seeds: async () => [
    Buffer.from('[{"id":"a","text":"one"}, "two \\u00e9", {"text":"]},{["}, [1,{"x":null}], {"text":""}]'),
    Buffer.from('\ufeff [\n {"text":"a \\"b\\" \\\\"},\n {"text":"🙂","id":-1}\n]\n'),
  ],
  read: async (bytes) => {
    const values: string[] = [];
    const options = { format: 'json', name: 'file', firstIndex: 0, textField: undefined, idField: undefined } as const;
    for await (const record of readRecords(once(bytes), options)) values.push('text' in record ? record.text : PROBLEM);
    return values;
  },
  readAgain: (bytes) => {
    const text = bytes.toString('utf8').replace(/^\uFEFF/, '');
    if (text.includes('\uFFFD') || text.includes('\0')) return 'unknown';
    try {
      const values: unknown = JSON.parse(text);
      return Array.isArray(values) ? values.map(textIn) : undefined;
    } catch {
      return 'unknown';
    }
  },
};

function textIn(value: unknown): string {
  if (typeof value === 'string') return value.isWellFormed() ? value : PROBLEM;
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return PROBLEM;
  const [text, id]: unknown[] = ['text', 'id'].map((name) =>
    Object.hasOwn(value, name) ? Reflect.get(value, name) : undefined,
  );
  const isId =
    id === undefined ||
    (typeof id === 'string' && id.isWellFormed()) ||
    (typeof id === 'number' && (!Number.isInteger(id) || Number.isSafeInteger(id)));
  return typeof text === 'string' && text.isWellFormed() && isId ? text : PROBLEM;
}
