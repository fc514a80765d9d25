// The rows of a part, as the small jobs that an executor runs: so many good records at a time, cut where the encoder of
// the object ends a page or a row group, so that a checkpoint can lie between two of them. What is a bad record, and that
// it ends the part or is left out and told, is as in `shoal embed` (docs/files.md).

import { MAX_TOLD_REFUSALS, ShoalError, type Part, type PartResult } from '@shoal/contract';
import { clip } from '../files/clip.ts';
import { readFooter, readAt, type ParquetFile } from '../files/footer.ts';
import { lineRecords } from '../files/line-records.ts';
import { parquetRecords } from '../files/parquet-records.ts';
import { placeIn, unitOf, type Found, type RecordOptions, type TextRecord } from '../files/record.ts';
import type { PartFile } from './part-place.ts';

export interface RowBatch {
  readonly records: readonly TextRecord[];
  /** Good records of the part up to and with the last of these. */
  readonly position: number;
}

export interface PartRowsOptions {
  readonly part: Part;
  readonly file: PartFile;
  /** Of a Parquet file. */
  readonly parquet: ParquetFile | undefined;
  /** Rows of a small job. */
  readonly jobRows: JobRows;
  /** Which of these texts the model would cut, where that makes them bad. */
  readonly tooLong?: ((texts: readonly string[]) => Promise<readonly boolean[]>) | undefined;
}

/** A quarter of a page of vectors and an eighth of a row group of the encoders, or a page and half a row group. */
export type JobRows = 256 | 1_024;
/** Rows that are looked at together. */
const PIECE_ROWS = 256;
/** Texts of a small job, together: what is held of it is bounded whatever the texts are. Characters. */
const JOB_CHARACTERS = 4 * 1024 * 1024;

/** What a row is before it is known to be good. */
type Row = TextRecord | { readonly line: number; readonly problem: string };

/** Reads the footer, and checks that the part is a part of this file. JOB_INVALID, FILE_UNREADABLE. */
export async function openRange({ format, range }: Part, file: PartFile): Promise<ParquetFile | undefined> {
  const handle = await file.open();
  try {
    if (range.kind === 'bytes') {
      for (const at of [range.from, range.to])
        if (at > 0 && at < file.bytes && !'\n\r'.includes((await readAt(handle, at - 1, 1)).toString('latin1')))
          throw wrongRange(file, `byte ${at} is in the middle of a line of ${format}`);
      return undefined;
    }
    const whole = await readFooter(handle, file.name);
    const { groups } = whole;
    const rowsOf = (from: number, to: number): number =>
      groups.slice(from, to).reduce((sum, { rows }) => sum + rows, 0);
    if (
      range.to > groups.length ||
      rowsOf(0, range.from) !== range.firstRow ||
      rowsOf(range.from, range.to) !== range.rows
    )
      throw wrongRange(
        file,
        `its row groups ${range.from} to ${range.to} are not ${range.rows} rows from ${range.firstRow} on`,
      );
    return whole;
  } finally {
    await handle.close();
  }
}

function wrongRange({ name }: PartFile, problem: string): ShoalError<'JOB_INVALID'> {
  return new ShoalError('JOB_INVALID', `the part does not fit ${name}: ${problem}; whoever cut the file counted wrong`);
}

export class PartRows {
  readonly #options: PartRowsOptions;
  readonly #first: PartResult['refused']['first'] = [];
  #refused = 0;
  #good = 0;
  /** Where row groups of the part end, among the rows of the file: pages of the object end there as well. */
  readonly #ends: ReadonlySet<number>;
  /** With the row groups of the part alone. */
  readonly #parquet: ParquetFile | undefined;

  constructor(options: PartRowsOptions) {
    this.#options = options;
    const { parquet, part } = options;
    const { from, to } = part.range;
    this.#parquet = parquet && { ...parquet, groups: parquet.groups.slice(from, to) };
    let end = firstRowOf(part);
    this.#ends = new Set(this.#parquet?.groups.map(({ rows }) => (end += rows)));
  }

  /** Rows that were left out, as far as has been read. */
  get refused(): PartResult['refused'] {
    return { rows: this.#refused, first: this.#first };
  }

  /** Throws INPUT_INVALID at the first bad record, unless they are to be left out. */
  async *batches(): AsyncGenerator<RowBatch> {
    const { jobRows, part } = this.#options;
    const { carries = false } = part.output;
    let records: TextRecord[] = [];
    let characters = 0;
    const take = (): RowBatch => {
      const batch = { records, position: this.#good };
      [records, characters] = [[], 0];
      return batch;
    };
    for await (const rows of this.#checked())
      for (const row of rows) {
        // columns that go along have a page for every 1,024 rows of their group, good or bad
        if (carries && records.length > 0 && this.#windowOf(row) !== this.#windowOf(records[0]!)) yield take();
        if ('problem' in row) {
          this.#refuse(row);
          continue;
        }
        records.push(row);
        characters += row.text.length;
        this.#good++;
        const isFull = carries ? records.length === jobRows : this.#good % jobRows === 0;
        if (isFull || characters >= JOB_CHARACTERS) yield take();
      }
    if (records.length > 0) yield take();
  }

  /** The rows of a small job of its row group in which a row lies, as a number that no others have. */
  #windowOf({ line }: Row): number {
    const { jobRows } = this.#options;
    const row = line! - 1;
    let begin = firstRowOf(this.#options.part);
    for (const end of this.#ends) {
      if (row < end) break;
      begin = end;
    }
    return begin + Math.floor((row - begin) / jobRows) * jobRows;
  }

  #refuse({ line, problem }: Extract<Row, { problem: string }>): void {
    const { part } = this.#options;
    if (part.onError === 'fail')
      throw new ShoalError('INPUT_INVALID', `${problem}. --on-error skip leaves such records out`);
    if (this.#refused++ < MAX_TOLD_REFUSALS) this.#first.push({ line, problem });
  }

  /** Rows with what is wrong with them, in pieces. */
  async *#checked(): AsyncGenerator<readonly Row[]> {
    const { tooLong } = this.#options;
    let piece: Row[] = [];
    for await (const found of this.#found()) {
      piece.push(this.#rowOf(found));
      if (piece.length < PIECE_ROWS) continue;
      yield tooLong === undefined ? piece : await this.#measured(piece, tooLong);
      piece = [];
    }
    yield tooLong === undefined ? piece : await this.#measured(piece, tooLong);
  }

  async #measured(rows: readonly Row[], tooLong: NonNullable<PartRowsOptions['tooLong']>): Promise<readonly Row[]> {
    const good = rows.filter((row) => 'text' in row);
    const isCut = await tooLong(good.map(({ text }) => text));
    const cut = new Set(good.filter((_, at) => isCut[at]));
    return rows.map((row) =>
      'text' in row && cut.has(row)
        ? this.#bad(
            row.line!,
            'the text has more tokens than a row may have; shorten it, or leave out --truncate error',
          )
        : row,
    );
  }

  #found(): AsyncGenerator<Found> {
    const { part, file } = this.#options;
    const parquet = this.#parquet;
    const { textField, idField, range, format } = part;
    const fields = { textField, idField };
    if (parquet !== undefined)
      return parquetRecords(
        () => file.open(),
        parquet,
        fields,
        () => undefined,
      );
    const { from = 0, to = 0, firstLine: number = 1 } = range.kind === 'bytes' ? range : {};
    const options: RecordOptions = {
      ...fields,
      format,
      name: file.name,
      firstIndex: 0,
      begin: { number, byteOffset: from },
    };
    return lineRecords(file.chunks(from, to), options);
  }

  #rowOf(found: Found): Row {
    const { part, file } = this.#options;
    const { format, output, range } = part;
    // rows of Parquet are counted from the first that is read
    const line = range.kind === 'groups' ? range.firstRow + found.line! : found.line!;
    if ('problem' in found) return this.#bad(line, found.problem);
    const { id } = found;
    if (output.carries !== true && output.hasIds && id === undefined)
      return this.#bad(line, 'the record has no id, and the output has a column of ids');
    return { index: line - 1, id, text: clip(found.text), file: file.name, line, unit: unitOf(format) };
  }

  #bad(line: number, problem: string): Extract<Row, { problem: string }> {
    const { part, file } = this.#options;
    return { line, problem: `${placeIn(file.name, line, unitOf(part.format))}: ${problem}` };
  }
}

export function firstRowOf({ range }: Pick<Part, 'range'>): number {
  return range.kind === 'groups' ? range.firstRow : range.firstLine - 1;
}
