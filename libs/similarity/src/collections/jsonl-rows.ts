// JSONL with vectors: an object with "embedding" or "vector", and perhaps "id", or the bare list of numbers. Lines end
// with LF or CRLF alone (a text may hold U+2028); bytes that are no UTF-8 are refused, numbers beyond 2^53 in "id" keep
// all their digits.

import { createReadStream } from 'node:fs';
import { ShoalError } from '@shoal/contract';
import type { RowBatch } from './collections.ts';
import { soundRows } from './sound-rows.ts';
import { unreadable, wrongFile } from './vector-file-errors.ts';

const ROWS_PER_BATCH = 1_024;
/** 65,536 numbers of 25 characters are 1.6 MB; the text beside them may be larger. */
const MOST_LINE_BYTES = 1 << 26;

/** The signal stops it with its reason, also while a pipe says nothing. `copy` is read in the place of `path`. */
export async function* readJsonlRows(path: string, signal?: AbortSignal, copy = path): AsyncGenerator<RowBatch> {
  let [dims, first] = [0, 0];
  let batch: { vectors: number[][]; names: string[] } = { vectors: [], names: [] };
  const take = (): RowBatch => {
    const { vectors, names } = batch;
    batch = { vectors: [], names: [] };
    const values = new Float64Array(vectors.length * dims);
    vectors.forEach((vector, row) => values.set(vector, row * dims));
    const rows = soundRows(path, values, dims, first);
    first += vectors.length;
    return { dims, vectors: rows, ...(names.every((name) => name === '') ? {} : { names }) };
  };
  for await (const { line, text } of linesOf(path, chunksOf(path, copy, signal))) {
    if (text.trim() === '') continue;
    const { vector, name } = parseLine(path, line, text);
    dims ||= vector.length;
    if (vector.length !== dims)
      throw new ShoalError(
        'DIMENSIONS_MISMATCH',
        `${path}, line ${line}: the vector has ${vector.length} dimensions and those before it ${dims}`,
        { file: path, line },
      );
    batch.vectors.push(vector);
    batch.names.push(name);
    if (batch.vectors.length === ROWS_PER_BATCH) yield take();
  }
  if (batch.vectors.length > 0) yield take();
}

async function* linesOf(
  path: string,
  chunks: AsyncIterable<Buffer>,
): AsyncGenerator<{ readonly line: number; readonly text: string }> {
  const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  let line = 0;
  let kept: Buffer[] = [];
  const next = (last: Buffer): { readonly line: number; readonly text: string } => {
    const bytes = kept.length === 0 ? last : Buffer.concat([...kept, last]);
    kept = [];
    line++;
    try {
      const text = utf8.decode(bytes);
      return { line, text: line === 1 && text.startsWith('\uFEFF') ? text.slice(1) : text };
    } catch {
      throw wrongFile(path, 'it is not UTF-8: write the file in UTF-8', line);
    }
  };
  for await (const chunk of chunks) {
    let from = 0;
    for (let end = chunk.indexOf(10); end !== -1; end = chunk.indexOf(10, from)) {
      yield next(chunk.subarray(from, end));
      from = end + 1;
    }
    kept.push(chunk.subarray(from));
    if (kept.reduce((sum, part) => sum + part.length, 0) > MOST_LINE_BYTES)
      throw wrongFile(path, `it is longer than ${MOST_LINE_BYTES} bytes: one record stands on one line`, line + 1);
  }
  if (kept.some((part) => part.length > 0)) yield next(Buffer.alloc(0));
}

async function* chunksOf(path: string, copy: string, signal: AbortSignal | undefined): AsyncGenerator<Buffer> {
  try {
    const options = { highWaterMark: 1 << 20, ...(signal === undefined ? {} : { signal }) };
    for await (const chunk of createReadStream(copy, options)) yield chunk as Buffer;
  } catch (error) {
    signal?.throwIfAborted();
    throw error instanceof ShoalError ? error : unreadable(path, error);
  }
}

function parseLine(path: string, line: number, text: string): { vector: number[]; name: string } {
  let record: unknown;
  try {
    record = JSON.parse(text);
  } catch {
    throw wrongFile(path, 'not valid JSON', line);
  }
  if (Array.isArray(record)) return { vector: vectorOf(path, line, record), name: '' };
  const field = (name: string): unknown =>
    typeof record === 'object' && record !== null ? Reflect.get(record, name) : undefined;
  const vector = vectorOf(path, line, field('embedding') ?? field('vector'));
  const id = field('id');
  if (id === undefined || id === null) return { vector, name: '' };
  if (typeof id === 'number')
    return { vector, name: Number.isSafeInteger(id) ? String(id) : digitsOfId(path, line, text, id) };
  if (typeof id !== 'string') throw wrongFile(path, `its "id" is neither a text nor a number: ${inShort(id)}`, line);
  return { vector, name: id };
}

function vectorOf(path: string, line: number, found: unknown): number[] {
  if (!Array.isArray(found) || found.length === 0)
    throw wrongFile(path, 'there is no "embedding" (or "vector") that is a list of numbers', line);
  const at = found.findIndex((value) => typeof value !== 'number');
  if (at !== -1)
    throw wrongFile(
      path,
      `there is no "embedding" (or "vector") that is a list of numbers: number ${at} of it is ${inShort(found[at])}`,
      line,
    );
  return found as number[];
}

/** Lists and objects by their kind alone: spelling them out would go as deep as a file likes to nest. */
function inShort(value: unknown): string {
  if (typeof value === 'object' && value !== null) return Array.isArray(value) ? 'a list' : 'an object';
  return JSON.stringify(value).slice(0, 80);
}

/** A number that fp64 rounds, as it is written. Objects inside the record may have ids of their own. */
function digitsOfId(path: string, line: number, text: string, id: number): string {
  const written = new Map<unknown, string>();
  try {
    const record: unknown = JSON.parse(text, function (
      this: unknown,
      key: string,
      value: unknown,
      context?: { readonly source?: string },
    ) {
      if (key === 'id' && value === id && context?.source !== undefined) written.set(this, context.source);
      return value;
    } as (this: unknown, key: string, value: unknown) => unknown);
    return written.get(record) ?? String(id);
  } catch (error) {
    if (error instanceof RangeError)
      throw wrongFile(path, 'its record nests too deeply to keep the digits of "id"', line);
    throw error;
  }
}
