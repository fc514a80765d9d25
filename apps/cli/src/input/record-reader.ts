// The records of all inputs on their way to the queue: what happens to bad ones is decided here and nowhere else, and
// how far the input has been read is known here. Starts nothing and writes nothing but notes for the person.

import { ShoalError } from '@shoal/contract';
import type { Tokenizer } from '@shoal/core';
import { say, sayAway, type Terminal } from '../terminal.ts';
import { readInputs, type FieldFlags, type Input, type ReadOptions } from './files.ts';
import { untilAborted } from './until-aborted.ts';
import { ReadingNotes, isEmptyText } from '@shoal/worker/files/reading-notes';
import { placeIn, type BadRecord, type PlaceUnit, type RecordId, type TextRecord } from '@shoal/worker/files/record';

export interface RecordReaderOptions extends Omit<ReadOptions, 'stdin' | 'signal' | 'onBytes' | 'onAway' | 'notes'> {
  /** Bad records are left out, each with a note; else the first one ends the run. */
  readonly skipsBad: boolean;
  /** Told of each record that is left out. */
  readonly onSkip?: (skipped: SkippedRecord) => void;
  /** The output has a column for ids or one for indices (Arrow), so that records must all have ids or none. */
  readonly hasOneColumn: boolean;
}

/** A record without a row, as it is written beside the output. */
export interface SkippedRecord {
  readonly index: number;
  readonly file: string;
  readonly line: number | undefined;
  /** What `line` counts; undefined: lines. */
  readonly unit?: PlaceUnit | undefined;
  readonly id: RecordId | undefined;
  readonly reason: string;
}

export interface RecordsTerms extends Pick<RecordReaderOptions, 'onSkip' | 'hasOneColumn'> {
  readonly flags: FieldFlags & { readonly onError: 'fail' | 'skip' };
}

/** Runs `use` with a reader of the inputs, which is closed when it has ended, in whatever way. */
export async function withRecords<Result>(
  terminal: Terminal,
  inputs: readonly Input[],
  { flags, ...options }: RecordsTerms,
  use: (records: RecordReader) => Promise<Result>,
): Promise<Result> {
  const { textField, idField, delimiter, header: hasHeader, onError } = flags;
  const fields = { textField, idField, delimiter, hasHeader };
  const records = new RecordReader(terminal, inputs, { ...fields, skipsBad: onError === 'skip', ...options });
  try {
    return await use(records);
  } finally {
    await records.close();
  }
}

/** Good records only. To be closed, however its command ends. */
export class RecordReader {
  readonly #terminal: Terminal;
  readonly #inputs: readonly Input[];
  readonly #closing = new AbortController();
  readonly #skips: boolean;
  readonly #hasOneColumn: boolean;
  readonly #onSkip: ((skipped: SkippedRecord) => void) | undefined;
  readonly #records: AsyncGenerator<TextRecord | BadRecord>;
  #firstGood: TextRecord | undefined;
  #bytes = 0;
  #good = 0;
  #isAtEnd = false;
  skipped = 0;
  /** What was left out or is empty, in as much as has been read. */
  readonly notes = new ReadingNotes();

  constructor(
    terminal: Terminal,
    inputs: readonly Input[],
    { skipsBad, hasOneColumn, onSkip, ...fields }: RecordReaderOptions,
  ) {
    this.#terminal = terminal;
    this.#inputs = inputs;
    this.#skips = skipsBad;
    this.#hasOneColumn = hasOneColumn;
    this.#onSkip = onSkip;
    this.#records = readInputs(inputs, {
      ...fields,
      notes: this.notes,
      stdin: terminal.stdin,
      signal: this.#closing.signal,
      onBytes: (bytes) => (this.#bytes += bytes),
      onAway: sayAway(terminal),
    });
  }

  /** Known once `isEmpty` has looked: whether records have ids, as far as their first one tells. */
  get hasIds(): boolean {
    return this.#firstGood?.id !== undefined;
  }

  /** Reads up to the first good record, so that an input which is wrong from its first line starts nothing. */
  async isEmpty(): Promise<boolean> {
    this.#firstGood = await this.#next();
    return this.#firstGood === undefined;
  }

  /**
   * The good records behind the first `position` of them. With a tokenizer, texts that it would cut are bad: the client
   * would refuse them too, but with all the texts of their job and without knowing their lines.
   */
  async *from(position: number, tokenizer: Tokenizer | undefined): AsyncGenerator<TextRecord> {
    for (let record = this.#firstGood; record !== undefined; record = await this.#next()) {
      if (tokenizer?.encode(record.text).isTruncated === true)
        this.#refuse(
          record,
          `${nameOf(record)}: the text has more than the ${tokenizer.maxTokens} tokens of a row; shorten it, ` +
            'or leave out --truncate error',
        );
      else if (this.#good++ >= position) yield record;
    }
  }

  /**
   * Leaves no input open: neither the one that is being read, also where it says nothing, nor an object. An interruption
   * waits for no device.
   */
  async close(): Promise<void> {
    this.#closing.abort();
    for (const { object } of this.#inputs) object?.close();
    await untilAborted(this.#records.return(undefined), this.#terminal.signal).catch(() => undefined);
  }

  /** Whether the number of records is known, and no estimate. */
  get isAtEnd(): boolean {
    return this.#isAtEnd;
  }

  /** Rows of the whole input: known at its end, before that estimated by bytes. */
  estimateTotal(bytes: number | undefined): number | undefined {
    if (this.#isAtEnd) return this.#good;
    return bytes === undefined || this.#bytes === 0
      ? undefined
      : Math.max(this.#good, Math.round((this.#good * bytes) / this.#bytes));
  }

  /** How to call some records in a message. */
  placeOf(records: readonly TextRecord[]): string {
    const [first, last] = [records[0], records.at(-1)];
    if (first === undefined || last === undefined) return 'no record';
    return first === last
      ? nameOf(first)
      : `${nameOf(first)} to ${nameOf(last)} (${records.length} records of one job)`;
  }

  async #next(): Promise<TextRecord | undefined> {
    for (;;) {
      const { value, done } = await untilAborted(this.#records.next(), this.#terminal.signal);
      if (done === true) {
        this.#isAtEnd = true;
        return undefined;
      }
      if (!('text' in value)) this.#refuse(value, value.problem);
      else if (this.#firstGood !== undefined && this.#hasOneColumn && (value.id !== undefined) !== this.hasIds)
        this.#refuse(value, otherKind(value, this.#firstGood));
      else {
        if (isEmptyText(value.text)) this.notes.add('emptyTexts');
        return value;
      }
    }
  }

  /** Once, when all is read. */
  sayNotes(): void {
    for (const line of this.notes.lines) say(this.#terminal, line);
  }

  #refuse(record: TextRecord | BadRecord, problem: string): void {
    if (!this.#skips) throw new ShoalError('INPUT_INVALID', `${problem}. --on-error skip leaves such records out`);
    this.skipped++;
    say(this.#terminal, `skipped ${problem}`);
    const { index, file, line, unit } = record;
    this.#onSkip?.({ index, file, line, unit, id: 'id' in record ? record.id : undefined, reason: problem });
  }
}

function nameOf({ file, line, unit, id }: TextRecord): string {
  return `${placeIn(file, line, unit)}${id === undefined ? '' : ` (id ${JSON.stringify(id)})`}`;
}

function otherKind(record: TextRecord, first: TextRecord): string {
  const [has, had] = [record, first].map(({ id }) => (id === undefined ? 'no id' : 'an id'));
  return (
    `${nameOf(record)}: the record has ${has} and the first one ${had}; the output has a column of ids or one ` +
    'of indices. Give all records ids or none, or write .jsonl'
  );
}
