// Lines into records: one text each, with its id and its place. Decides what a bad line is and says so by file and line;
// whether that ends the run or is skipped is the caller's decision. Never looks at the queue or the model.

import { decodeUtf8 } from './utf8.ts';
import { MAX_LINE_BYTES, readLines, type Line } from './lines.ts';

export type TextFormat = 'text' | 'jsonl';
export type RecordId = string | number;

/**
 * Characters of a text that are kept. A model reads some hundred words; without a bound, rows in flight could fill the
 * memory of this process. A text has to hold 1 MiB without 512 words in it for the cut to show.
 */
export const MAX_TEXT_CHARACTERS = 1024 * 1024;

export interface TextRecord {
  /** Which record of the whole input this is, from 0; bad ones count, so that a skipped line leaves a gap. */
  readonly index: number;
  readonly id: RecordId | undefined;
  readonly text: string;
  /** Name of its file and line in it, for messages. */
  readonly file: string;
  readonly line: number;
}

export interface BadRecord {
  readonly index: number;
  /** File, line and what is wrong there, for a person. */
  readonly problem: string;
}

export interface RecordOptions {
  readonly format: TextFormat;
  /** Name of the file as it is called in messages. */
  readonly name: string;
  readonly firstIndex: number;
  readonly textField: string;
  /** The field that must be there; undefined: `id` where a record has one. */
  readonly idField: string | undefined;
  readonly maxLineBytes?: number;
}

/** The records of one file. */
export async function* readRecords(chunks: AsyncIterable<Buffer>, options: RecordOptions): AsyncGenerator<TextRecord | BadRecord> {
  let index = options.firstIndex;
  for await (const lines of readLines(chunks, options.maxLineBytes)) {
    for (const line of lines) {
      const found = readRecord(line, options);
      if (found === undefined) continue;
      yield 'text' in found ? { index, ...found, file: options.name, line: line.number } : { index, problem: `${options.name}, line ${line.number}: ${found.problem}` };
      index++;
    }
  }
}

type Found = { readonly id: RecordId | undefined; readonly text: string } | { readonly problem: string };

/** Undefined: the line holds nothing, which JSONL allows. In plain text an empty line is an empty text. */
function readRecord(line: Line, options: RecordOptions): Found | undefined {
  if (line.bytes === undefined) {
    const limit = (options.maxLineBytes ?? MAX_LINE_BYTES) / 1024 / 1024;
    return { problem: `the line is longer than ${limit} MiB; split it, a model reads a few hundred words of a text` };
  }
  const bytes = line.number === 1 ? withoutByteOrderMark(line.bytes) : line.bytes;
  const decoded = decodeUtf8(bytes);
  if ('badByteAt' in decoded) {
    const at = line.byteOffset + (line.bytes.length - bytes.length) + decoded.badByteAt;
    return { problem: `not valid UTF-8 at byte ${at} (0x${bytes[decoded.badByteAt]!.toString(16).padStart(2, '0')}); convert the file to UTF-8` };
  }
  return options.format === 'text' ? { id: undefined, text: clip(decoded.text) } : readJson(decoded.text, options);
}

/** A copy: a slice of a string keeps the whole of it alive. */
function clip(text: string): string {
  return text.length <= MAX_TEXT_CHARACTERS ? text : Buffer.from(text.slice(0, MAX_TEXT_CHARACTERS), 'utf16le').toString('utf16le');
}

function readJson(line: string, { textField, idField }: RecordOptions): Found | undefined {
  if (line.trim() === '') return undefined;
  const parsed = parseJson(line);
  if ('problem' in parsed) return parsed;
  const { value } = parsed;
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return { problem: `expected a JSON object, found ${kindOf(value)}` };
  const text: unknown = ownField(value, textField);
  if (text === undefined) return { problem: `the object has no field "${textField}"${fieldsOf(value)}; name the field with --text-field` };
  if (typeof text !== 'string') return { problem: `field "${textField}" is ${kindOf(text)}, not a string` };
  const id = readId(ownField(value, idField ?? 'id'), idField);
  return 'problem' in id ? id : { id: id.id, text: clip(text) };
}

function parseJson(line: string): { readonly value: unknown } | { readonly problem: string } {
  try {
    return { value: JSON.parse(line) };
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    return { problem: `not valid JSON: ${reason.replaceAll(/\s+/g, ' ').slice(0, 160)}` };
  }
}

function readId(id: unknown, idField: string | undefined): { readonly id: RecordId | undefined } | { readonly problem: string } {
  const name = idField ?? 'id';
  if (id === undefined) return idField === undefined ? { id: undefined } : { problem: `the object has no field "${idField}" (--id-field)` };
  if (typeof id === 'string') return { id };
  if (typeof id !== 'number') return { problem: `field "${name}" is ${kindOf(id)}; an id is a string or a number` };
  if (Number.isInteger(id) && !Number.isSafeInteger(id)) return { problem: `field "${name}" is a number too large to be kept exactly; write it as a string` };
  return { id };
}

function ownField(value: object, name: string): unknown {
  return Object.hasOwn(value, name) ? Reflect.get(value, name) : undefined;
}

function fieldsOf(value: object): string {
  const names = Object.keys(value).slice(0, 5).map((name) => `"${name.slice(0, 40)}"`);
  return names.length === 0 ? '' : ` (it has ${names.join(', ')}${Object.keys(value).length > 5 ? ', …' : ''})`;
}

function kindOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'an array';
  return typeof value === 'object' ? 'an object' : `a ${typeof value}`;
}

function withoutByteOrderMark(bytes: Buffer): Buffer {
  return bytes.length >= 3 && bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf ? bytes.subarray(3) : bytes;
}
