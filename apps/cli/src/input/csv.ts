// CSV as RFC 4180 has it, line by line at constant memory: quoted fields with delimiters, quotes and line ends in them,
// CRLF, LF or CR, a byte order mark. A row that is wrong is named and reading goes on behind it. Knows nothing of texts and
// ids. Why it is no library: docs/decisions/command-and-setup.md#csv-is-read-by-a-reader-of-our-own

import { LineEnds, MAX_LINE_BYTES, readLines, type Line } from '@shoal/worker/files/lines';
import type { ReadingNotes } from '@shoal/worker/files/reading-notes';
import { decodeLine } from '@shoal/worker/files/utf8';

export interface CsvRow {
  /** The line on which the row begins. */
  readonly line: number;
  readonly fields: readonly string[];
}

export interface BadCsvRow {
  readonly line: number;
  readonly problem: string;
}

export interface CsvOptions {
  /** One ASCII character. */
  readonly delimiter: string;
  readonly maxLineBytes?: number | undefined;
  readonly notes?: ReadingNotes | undefined;
}

const QUOTE = '"';

/** Every row that has something in it; an empty text of a file with one column is written "". */
export async function* readCsv(
  chunks: AsyncIterable<Buffer>,
  { delimiter, maxLineBytes = MAX_LINE_BYTES, notes }: CsvOptions,
): AsyncGenerator<CsvRow | BadCsvRow> {
  let row = new OpenRow(delimiter, maxLineBytes);
  const ends = new LineEnds();
  for await (const lines of readLines(chunks, maxLineBytes)) {
    for (const line of lines) {
      row.add(line);
      if (row.isOpen) continue;
      ends.add(line);
      if (row.isBlank) notes?.add('blankLines');
      else yield row.close();
      row = new OpenRow(delimiter, maxLineBytes);
    }
  }
  if (row.isOpen) yield row.close();
  notes?.add('loneCarriageReturns', ends.strange);
}

/** A row, and where in it reading is: between fields, or inside a quoted one that goes on in the next line. */
class OpenRow {
  readonly #delimiter: string;
  readonly #maxBytes: number;
  readonly #fields: string[] = [];
  #line = 0;
  #bytes = 0;
  #characters = 0;
  #problem: string | undefined;
  /** Pieces of the quoted field that has no closing quote yet, and the line of its opening one. */
  #quoted: { readonly pieces: string[]; readonly line: number } | undefined;

  constructor(delimiter: string, maxBytes: number) {
    this.#delimiter = delimiter;
    this.#maxBytes = maxBytes;
  }

  get isOpen(): boolean {
    return this.#quoted !== undefined;
  }

  get isBlank(): boolean {
    return this.#problem === undefined && this.#characters === 0;
  }

  close(): CsvRow | BadCsvRow {
    if (this.#quoted !== undefined) {
      const where = this.#quoted.line === this.#line ? '' : ` on line ${this.#quoted.line}`;
      return {
        line: this.#line,
        problem:
          `the quote that opens field ${this.#fields.length + 1}${where} is never closed, so that everything ` +
          'behind it is one field; close it, or write a quote inside a text twice ("")',
      };
    }
    return this.#problem === undefined
      ? { line: this.#line, fields: this.#fields }
      : { line: this.#line, problem: this.#problem };
  }

  add(line: Line): void {
    if (this.#line === 0) this.#line = line.number;
    this.#bytes += line.bytes?.length ?? 0;
    if (line.bytes === undefined || this.#bytes > this.#maxBytes) return this.#dropTooLong(line);
    const { text, problem } = decodeLine({ ...line, bytes: line.bytes });
    this.#problem ??= problem;
    this.#split(text, line);
  }

  /** Nobody knows whether a dropped line closed a quote; one that was kept is still looked through for it. */
  #dropTooLong(line: Line): void {
    this.#problem ??=
      `the row is longer than ${this.#maxBytes / 1024 / 1024} MiB; split it, a model reads a few hundred words ` +
      'of a text. A quote that is never closed has this effect as well';
    if (line.bytes === undefined) this.#quoted = undefined;
    else this.#split(line.bytes.toString(), line);
    this.#quoted?.pieces.splice(0);
  }

  #split(text: string, line: Line): void {
    this.#characters += text.length;
    let at = 0;
    while (at <= text.length)
      at =
        this.#quoted !== undefined || text[at] === QUOTE
          ? this.#quotedField(text, at, line)
          : this.#plainField(text, at);
  }

  /** Returns where the next field begins; behind the end of the text: there is none on this line. */
  #plainField(text: string, at: number): number {
    const found = text.indexOf(this.#delimiter, at);
    const end = found === -1 ? text.length : found;
    this.#fields.push(copied(text, at, end));
    return end + 1;
  }

  #quotedField(text: string, from: number, line: Line): number {
    let at = this.#quoted === undefined ? from + 1 : from;
    this.#quoted ??= { pieces: [], line: line.number };
    for (;;) {
      const end = text.indexOf(QUOTE, at);
      if (end === -1) {
        this.#quoted.pieces.push(copied(text, at, text.length), line.end);
        return text.length + 1;
      }
      const isDoubled = text[end + 1] === QUOTE;
      this.#quoted.pieces.push(copied(text, at, isDoubled ? end + 1 : end));
      at = end + (isDoubled ? 2 : 1);
      if (!isDoubled) return this.#closeQuoted(text, at);
    }
  }

  #closeQuoted(text: string, at: number): number {
    this.#fields.push(this.#quoted!.pieces.join(''));
    this.#quoted = undefined;
    if (at === text.length || text[at] === this.#delimiter) return at + 1;
    this.#problem ??=
      `field ${this.#fields.length} goes on behind its closing quote ` +
      `(${JSON.stringify(text.slice(at, at + 20))}); write a quote inside a text twice ("")`;
    const next = text.indexOf(this.#delimiter, at);
    return next === -1 ? text.length + 1 : next + 1;
  }
}

/** Below this a slice may keep its line alive; above, one small field would hold a large row in memory. */
const LONG_LINE = 64 * 1024;

function copied(text: string, from: number, to: number): string {
  const slice = text.slice(from, to);
  return text.length <= LONG_LINE || slice.length === text.length
    ? slice
    : Buffer.from(slice, 'utf16le').toString('utf16le');
}
