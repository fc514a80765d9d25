// What of a part has to do with its files: its rows are read, and what they become is written into the object beside. It
// runs on a thread of its own (part-thread.ts), because reading lines, making Parquet and summing it take more time than
// the executor's main thread has for a row; tests run it where they are. It knows no queue server and no device.

import { encodeTexts, invariant, partRows, partTemporary, type Part, type PartResult } from '@shoal/contract';
import type { Clock } from '@shoal/core';
import { Serial, type FaultPoints } from '@shoal/core/base';
import { carriedGroups, refuseUncarriable } from '../files/carried-columns.ts';
import type { ParquetFile } from '../files/footer.ts';
import { idColumn } from '../files/parquet-records.ts';
import type { Block, CarriedFile, RowForm } from '../files/row-form.ts';
import { PartObject, type Spent } from './part-object.ts';
import { expectedBytes, type PartFile, type PartPlaces, type PartTarget } from './part-place.ts';
import { PartRows, firstRowOf, openRange, type JobRows, type RowBatch } from './part-rows.ts';

/** A part as whoever runs its rows has it. */
export interface PartWork {
  /**
   * The next rows that are not in the object yet; undefined behind the last. It may be asked for the ones behind them
   * before these are written.
   */
  next(): Promise<PartTexts | undefined>;
  /**
   * What the earliest rows became that were not written yet. The buffer is given away; resolves, in order, with its
   * memory once nobody needs what was in it. `rowTokens`: of each row, for a part that wants them.
   */
  write(
    vectors: Float32Array<ArrayBuffer>,
    spent: Omit<Spent, 'rows'>,
    rowTokens: Block['rowTokens'],
  ): Promise<Float32Array<ArrayBuffer>>;
  /** The object is whole and where it can be committed, and its source is the same as in the beginning. */
  finish(): Promise<PartDone>;
  /** The part has failed: keeps of its object only what somebody can go on with. */
  giveUp(): Promise<void>;
  /** Leaves what is written to whoever goes on. */
  leave(): Promise<void>;
  /** Nobody needs the object. */
  remove(): Promise<void>;
  /** Lets go of all files. To be called in the end, whatever went before. */
  close(): Promise<void>;
}

export interface PartTexts {
  /** SHI1 of texts, with a buffer of its own. */
  readonly input: Uint8Array<ArrayBuffer>;
  readonly rows: number;
  /** For a person: file and rows. */
  readonly place: string;
}

/** What the pointer of the part says of its object. */
export type PartDone = Omit<PartResult, 'dims'>;

export interface PartTerms {
  readonly part: Part;
  readonly fingerprint: string;
  readonly token: string;
  /** What serves the part, name@revision. */
  readonly model: string;
  /** Of the vectors that come. */
  readonly dims: number;
  readonly jobRows: JobRows;
  /** For tests and benches. */
  readonly checkpointMs?: number | undefined;
}

export interface PartWorkParts {
  readonly places: PartPlaces;
  /** Which of these texts the model would cut behind this prompt. */
  readonly tooLong: (texts: readonly string[], prompt: string | undefined) => Promise<readonly boolean[]>;
  readonly clock: Clock;
  readonly faults: FaultPoints;
  /** Waits for no store any more. */
  readonly signal?: AbortSignal | undefined;
}

interface Opened {
  readonly file: PartFile;
  readonly rows: PartRows;
  readonly object: PartObject;
  readonly target: PartTarget;
  readonly faults: FaultPoints;
}

export class OpenPart implements PartWork {
  readonly #terms: PartTerms;
  readonly #target: PartTarget;
  readonly #faults: FaultPoints;
  readonly #file: PartFile;
  readonly #rows: PartRows;
  readonly #batches: AsyncGenerator<RowBatch>;
  readonly #object: PartObject;
  readonly #reading = new Serial();
  /** Rows that were given to be run, in order. */
  readonly #given: Pick<Block, 'records' | 'position'>[] = [];
  /** Rejects from the first write on that failed. */
  #written: Promise<unknown> = Promise.resolve();
  #isClosed = false;

  private constructor(terms: PartTerms, { file, rows, object, target, faults }: Opened) {
    this.#terms = terms;
    this.#target = target;
    this.#faults = faults;
    this.#file = file;
    this.#rows = rows;
    this.#batches = rows.batches();
    this.#object = object;
  }

  /** Throws FILE_UNREADABLE, FILE_UNWRITABLE, SOURCE_CHANGED, JOB_INVALID, INPUT_INVALID. */
  static async open(terms: PartTerms, { places, tooLong, clock, faults, signal }: PartWorkParts): Promise<OpenPart> {
    const { part, fingerprint, token, dims, jobRows, checkpointMs } = terms;
    const target = await places.target(part, signal);
    const { folder } = target;
    const file = await places.source(part.source, signal);
    const parquet = await openRange(part, file);
    const form = formOf(terms, file, parquet);
    const isRefused = part.model.truncate === 'error';
    const rows = new PartRows({
      part,
      file,
      parquet,
      jobRows,
      ...(isRefused && { tooLong: (texts: readonly string[]) => tooLong(texts, part.model.prompt) }),
    });
    await target.checkRoom(expectedBytes(part, dims, parquet));
    const object = await PartObject.open({ part, fingerprint, token, folder, form, clock, checkpointMs, faults });
    return new OpenPart(terms, { file, rows, object, target, faults });
  }

  next(): Promise<PartTexts | undefined> {
    return this.#reading.run(async () => {
      while (!this.#isClosed) {
        const { value, done } = await this.#batches.next();
        if (done === true) return undefined;
        const batch = behind(value, this.#object.position);
        if (batch.records.length > 0) return this.#give(batch);
      }
      return undefined;
    });
  }

  write(
    vectors: Float32Array<ArrayBuffer>,
    spent: Omit<Spent, 'rows'>,
    rowTokens: Block['rowTokens'],
  ): Promise<Float32Array<ArrayBuffer>> {
    const written = this.#written.then(async () => {
      const batch = this.#given.shift();
      invariant(batch !== undefined, 'only rows that were given are written');
      await this.#object.write({ ...batch, dims: this.#terms.dims, vectors, rowTokens }, spent);
      return vectors;
    });
    this.#written = written;
    written.catch(() => undefined);
    return written;
  }

  async finish(): Promise<PartDone> {
    await this.#written;
    const written = await this.#object.finish();
    await this.#file.check(); // rows of two versions would be rows of none
    this.#faults.reach('part-written');
    await this.#target.put(written);
    return { ...written, ...this.#object.spent, refused: this.#rows.refused };
  }

  async giveUp(): Promise<void> {
    this.#isClosed = true;
    await this.#written.catch(() => undefined);
    await this.#object.giveUp();
  }

  async leave(): Promise<void> {
    this.#isClosed = true;
    await this.#written.catch(() => undefined);
    await this.#object.leave();
  }

  async remove(): Promise<void> {
    await this.#object.remove();
    const { part, token } = this.#terms;
    await this.#target.remove(partTemporary(part, token));
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#reading.settled();
    await this.#batches.return(undefined);
    await this.#written.catch(() => undefined);
    await this.#object.close();
  }

  #give({ records, position }: RowBatch): PartTexts {
    const { withText = false } = this.#terms.part.output;
    // of those that wait, only what is written is held
    const kept = withText ? records : records.map(({ id, index }) => ({ id, index, text: '' }));
    this.#given.push({ records: kept, position });
    const [first, last] = [records[0]!.line, records.at(-1)!.line];
    return {
      input: encodeTexts(records.map(({ text }) => text)),
      rows: records.length,
      place: `${this.#file.name}, rows ${first} to ${last}`,
    };
  }
}

function formOf({ part, model, dims }: PartTerms, file: PartFile, parquet: ParquetFile | undefined): RowForm {
  const { carries = false, hasIds, withText = false, withTokens, dtype, vectorField, format } = part.output;
  const form = { format, dims, hasIds, withText, withTokens, dtype, vectorField, model };
  if (parquet !== undefined && hasIds && !carries) idColumn(parquet, part.idField ?? 'id');
  if (!carries || parquet === undefined) return form;
  const carried: CarriedFile = { open: () => file.open(), parquet };
  refuseUncarriable([carried], vectorField ?? 'embedding', dtype);
  const { from, to } = part.range;
  const groups = carriedGroups([carried]).filter(({ number }) => number >= from && number < to);
  return { ...form, carried: [carried], shard: { groups, firstRow: firstRowOf(part), rows: partRows(part) } };
}

/** What of a batch is not in the object yet. */
function behind({ records, position }: RowBatch, done: number): RowBatch {
  return { position, records: records.slice(Math.max(0, records.length - (position - done))) };
}
