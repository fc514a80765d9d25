// Records of plain text and of JSONL, where a line is a record, and of an array of JSON, where an element is one. Decides
// what a bad line is; an empty line is an empty text in plain text and nothing in JSONL.

import { ShoalError } from '@shoal/contract';
import { ArrayProblem, readArray } from './json-array.ts';
import { LineEnds, MAX_LINE_BYTES, readLines, type Line } from './lines.ts';
import type { Found, RecordId, RecordOptions } from './record.ts';
import { decodeLine } from './utf8.ts';

export async function* lineRecords(chunks: AsyncIterable<Buffer>, options: RecordOptions): AsyncGenerator<Found> {
  const ends = new LineEnds();
  for await (const lines of readLines(chunks, options.maxLineBytes, options.begin)) {
    for (const line of lines) {
      ends.add(line);
      const found = readRecord(line, options);
      if (found !== undefined) yield { line: line.number, ...found };
      else if (options.format === 'jsonl') options.notes?.add('blankLines');
    }
  }
  options.notes?.add('loneCarriageReturns', ends.strange);
}

/** Elements of an array: objects as a line of JSONL has them, or strings, which are texts. `line` is the element's number. */
export async function* arrayRecords(chunks: AsyncIterable<Buffer>, options: RecordOptions): AsyncGenerator<Found> {
  try {
    for await (const elements of readArray(chunks, options.maxLineBytes))
      for (const { number, bytes } of elements) yield { line: number, ...readElement(bytes, options) };
  } catch (error) {
    if (!(error instanceof ArrayProblem)) throw error;
    throw new ShoalError('INPUT_INVALID', `${options.name}: ${error.message}`, { file: options.name });
  }
}

function readElement(bytes: Buffer | undefined, options: RecordOptions): Content {
  if (bytes === undefined) return { problem: tooLong('element', options) };
  const { text: json, problem } = decodeLine({ number: 0, byteOffset: 0, bytes });
  if (problem !== undefined) return { problem: problem.replace(/ at byte (\d+)/, ' at byte $1 of the element') };
  const parsed = parseJson(json);
  if ('problem' in parsed) return parsed;
  if (typeof parsed.value !== 'string') return recordOf(parsed.value, options, 'expected an object or a string');
  return parsed.value.isWellFormed()
    ? { id: undefined, text: parsed.value }
    : { problem: `the string has ${HALF_A_CHARACTER}` };
}

/** JSON can say it (`"\ud83d"`), UTF-8 cannot: it would be embedded as U+FFFD, and two ids could become one. */
const HALF_A_CHARACTER =
  'half of a surrogate pair: it was cut within a character, such as an emoji; write it whole, or U+FFFD in its place';

function tooLong(what: 'line' | 'element', { maxLineBytes = MAX_LINE_BYTES }: RecordOptions): string {
  return `the ${what} is longer than ${maxLineBytes / 1024 / 1024} MiB; split it, a model reads a few hundred words of a text`;
}

type Content = { readonly id: RecordId | undefined; readonly text: string } | { readonly problem: string };

function readRecord(line: Line, options: RecordOptions): Content | undefined {
  if (line.bytes === undefined) return { problem: tooLong('line', options) };
  const { text, problem } = decodeLine({ ...line, bytes: line.bytes });
  if (problem !== undefined) return { problem };
  // a byte order mark and nothing else: an empty file
  if (text === '' && line.end === '' && line.bytes.length > 0) return undefined;
  return options.format === 'text' ? { id: undefined, text } : readJson(text, options);
}

function readJson(line: string, options: RecordOptions): Content | undefined {
  if (line.trim() === '') return undefined;
  const parsed = parseJson(line);
  return 'problem' in parsed ? parsed : recordOf(parsed.value, options, 'expected a JSON object');
}

function recordOf(value: unknown, { textField = 'text', idField }: RecordOptions, expected: string): Content {
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    return { problem: `${expected}, found ${kindOf(value)}` };
  const text: unknown = Object.hasOwn(value, textField) ? Reflect.get(value, textField) : nestedField(value, textField);
  if (text === undefined)
    return { problem: `the object has no field "${textField}"${fieldsOf(value)}; name the field with --text-field` };
  if (typeof text !== 'string') return { problem: `field "${textField}" is ${kindOf(text)}, not a string` };
  if (!text.isWellFormed()) return { problem: `field "${textField}" has ${HALF_A_CHARACTER}` };
  const id = readId(ownField(value, idField ?? 'id'), idField);
  return 'problem' in id ? id : { id: id.id, text };
}

function parseJson(line: string): { readonly value: unknown } | { readonly problem: string } {
  try {
    return { value: JSON.parse(line) };
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    return { problem: `not valid JSON: ${reason.replaceAll(/\s+/g, ' ').slice(0, 160)}` };
  }
}

function readId(
  id: unknown,
  idField: string | undefined,
): { readonly id: RecordId | undefined } | { readonly problem: string } {
  const name = idField ?? 'id';
  if (id === undefined)
    return idField === undefined ? { id: undefined } : { problem: `the object has no field "${idField}" (--id-field)` };
  if (typeof id === 'string')
    return id.isWellFormed() ? { id } : { problem: `field "${name}" has ${HALF_A_CHARACTER}` };
  if (typeof id !== 'number') return { problem: `field "${name}" is ${kindOf(id)}; an id is a string or a number` };
  if (Number.isInteger(id) && !Number.isSafeInteger(id))
    return { problem: `field "${name}" is a number too large to be kept exactly; write it as a string` };
  return { id };
}

function ownField(value: object, name: string): unknown {
  return Object.hasOwn(value, name) ? Reflect.get(value, name) : undefined;
}

/** By the names from the top with dots between, as columns of Parquet are called. */
function nestedField(value: object, name: string): unknown {
  let found: unknown = value;
  for (const step of name.includes('.') ? name.split('.') : [])
    found = typeof found === 'object' && found !== null ? ownField(found, step) : undefined;
  return found === value ? undefined : found;
}

function fieldsOf(value: object): string {
  const names = Object.keys(value)
    .slice(0, 5)
    .map((name) => `"${name.slice(0, 40)}"`);
  return names.length === 0 ? '' : ` (it has ${names.join(', ')}${Object.keys(value).length > 5 ? ', …' : ''})`;
}

function kindOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'an array';
  return typeof value === 'object' ? 'an object' : `a ${typeof value}`;
}
