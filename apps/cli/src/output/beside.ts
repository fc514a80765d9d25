// What a file of rows cannot say itself, in files beside it: the ids of its rows where the form has no place for them
// (.npy), and the records of the input that have no row. Without them a row could not be put back to what it came
// from. Both grow in hidden files while the run goes on, so that a later run goes on with them too.

import { open, readFile, rename, rm, writeFile, type FileHandle } from 'node:fs/promises';
import { writeAt } from '@shoal/fetch';
import type { SkippedRecord } from '../input/record-reader.ts';
import type { RecordId } from '@shoal/worker/files/record';
import { NPY_HEADER_BYTES, npyHeader, npyRows } from '@shoal/worker/files/npy';
import type { Block, RowForm } from '@shoal/worker/files/row-form';
import { writeFailure } from '@shoal/worker/files/write-failure';
import type { FileTarget } from './target.ts';
import { encodeVectors } from '@shoal/worker/files/vector-form';

/** One id a line, as JSON, in the order of the rows; null for a row without one. */
export function idsPath({ path }: Pick<FileTarget, 'path'>): string {
  return `${path}.ids.jsonl`;
}

/** One object a line for each record without a row, in the order of the input. */
export function skippedPath({ path }: Pick<FileTarget, 'path'>): string {
  return `${path}.skipped.jsonl`;
}

/** Hidden, of the whole run: shards have one state and one list each. */
export function hiddenLists({ state }: FileTarget): Readonly<Record<'ids' | 'scales' | 'skipped', string>> {
  return { ids: `${state}.ids`, scales: `${state}.scales`, skipped: `${state}.skipped` };
}

/** Begun by the first id there is; rows before it are counted until then. */
export class IdList {
  readonly #target: FileTarget;
  #file: FileHandle | undefined;
  #rowsWithout: number;
  #bytes: number;

  private constructor(target: FileTarget, file: FileHandle | undefined, rowsWithout: number, bytes: number) {
    this.#target = target;
    this.#file = file;
    this.#rowsWithout = rowsWithout;
    this.#bytes = bytes;
  }

  /**
   * The list of so many `rows`, of which `bytes` are vouched for; undefined when they are not there any more. A new
   * list: 0 and 0.
   */
  static async open(target: FileTarget, rows: number, bytes: number): Promise<IdList | undefined> {
    if (bytes === 0) return new IdList(target, undefined, rows, 0);
    const file = await open(hiddenLists(target).ids, 'r+').catch(() => undefined);
    if (file === undefined || (await file.stat()).size < bytes) {
      await file?.close();
      return undefined;
    }
    await file.truncate(bytes);
    return new IdList(target, file, 0, bytes);
  }

  /** Bytes of the list; 0: no row had an id so far. */
  get bytes(): number {
    return this.#bytes;
  }

  async append(records: readonly { readonly id: RecordId | undefined }[]): Promise<void> {
    if (this.#file === undefined && records.every(({ id }) => id === undefined)) {
      this.#rowsWithout += records.length;
      return;
    }
    const text = records.map(({ id }) => `${JSON.stringify(id ?? null)}\n`).join('');
    try {
      if (this.#file === undefined) {
        this.#file = await open(hiddenLists(this.#target).ids, 'w');
        for (let left = this.#rowsWithout; left > 0; left -= ROWS_AT_ONCE)
          await this.#write('null\n'.repeat(Math.min(left, ROWS_AT_ONCE)));
      }
      await this.#write(text);
    } catch (error) {
      throw writeFailure(idsPath(this.#target), error);
    }
  }

  async sync(): Promise<void> {
    await this.#file?.datasync();
  }

  /** Gives the list its name beside `output`, or takes an older one away where no row has an id. */
  async publish(output: Pick<FileTarget, 'path'>): Promise<void> {
    const hasIds = this.#file !== undefined;
    await this.#file?.sync();
    await this.close();
    if (hasIds) await rename(hiddenLists(this.#target).ids, idsPath(output));
    else await rm(idsPath(output), { force: true });
  }

  async close(): Promise<void> {
    await this.#file?.close();
    this.#file = undefined;
  }

  async #write(text: string): Promise<void> {
    const bytes = Buffer.from(text);
    await writeAt(this.#file!, bytes, this.#bytes);
    this.#bytes += bytes.length;
  }
}

/** float32, one a row of a .npy of bytes: by what they are multiplied. */
export function scalesPath({ path }: Pick<FileTarget, 'path'>): string {
  return `${path}.scales.npy`;
}

/** Scales of the rows so far, in a hidden file whose size follows from their number; begun by the first of them. */
class ScaleList {
  readonly #target: FileTarget;
  #file: FileHandle | undefined;
  #rows: number;

  constructor(target: FileTarget, file: FileHandle | undefined, rows: number) {
    this.#target = target;
    this.#file = file;
    this.#rows = rows;
  }

  /** The list of so many `rows`; undefined when they are not all there any more. */
  static async open(target: FileTarget, rows: number): Promise<ScaleList | undefined> {
    if (rows === 0) return new ScaleList(target, undefined, 0);
    const file = await open(hiddenLists(target).scales, 'r+').catch(() => undefined);
    const bytes = NPY_HEADER_BYTES + 4 * rows;
    if (file === undefined || (await file.stat()).size < bytes) {
      await file?.close();
      return undefined;
    }
    await file.truncate(bytes);
    return new ScaleList(target, file, rows);
  }

  async append(scales: Float32Array): Promise<void> {
    try {
      this.#file ??= await open(hiddenLists(this.#target).scales, 'w+');
      await this.#file.write(npyRows(scales), 0, scales.byteLength, NPY_HEADER_BYTES + 4 * this.#rows);
    } catch (error) {
      throw writeFailure(scalesPath(this.#target), error);
    }
    this.#rows += scales.length;
  }

  async sync(): Promise<void> {
    await this.#file?.datasync();
  }

  async publish(output: Pick<FileTarget, 'path'>): Promise<void> {
    this.#file ??= await open(hiddenLists(this.#target).scales, 'w+');
    await this.#file.write(npyHeader(this.#rows, undefined), 0, NPY_HEADER_BYTES, 0);
    await this.#file.sync();
    await this.close();
    await rename(hiddenLists(this.#target).scales, scalesPath(output));
  }

  async close(): Promise<void> {
    await this.#file?.close();
    this.#file = undefined;
  }
}

/** What a .npy has no place for, row by row: ids, and of bytes the scales. */
export class RowLists {
  readonly #ids: IdList;
  readonly #scales: ScaleList | undefined;

  private constructor(ids: IdList, scales: ScaleList | undefined) {
    this.#ids = ids;
    this.#scales = scales;
  }

  /** Those of so many `rows`; undefined where they are not all there any more. A new run: 0 and 0. */
  static async open(
    target: FileTarget,
    { dtype }: Pick<RowForm, 'dtype'>,
    { rows, idBytes }: { readonly rows: number; readonly idBytes: number },
  ): Promise<RowLists | undefined> {
    const ids = await IdList.open(target, rows, idBytes);
    if (ids === undefined) return undefined;
    if (dtype !== 'i8') return new RowLists(ids, undefined);
    const scales = await ScaleList.open(target, rows);
    if (scales !== undefined) return new RowLists(ids, scales);
    await ids.close();
    return undefined;
  }

  /** Bytes of the list of ids; 0: no row had one so far. */
  get bytes(): number {
    return this.#ids.bytes;
  }

  get hasScales(): boolean {
    return this.#scales !== undefined;
  }

  async append({ records, vectors, dims }: Block): Promise<void> {
    await this.#ids.append(records);
    const scales = this.#scales === undefined ? undefined : encodeVectors(vectors, records.length, dims, 'i8').scales;
    if (scales !== undefined) await this.#scales?.append(scales);
  }

  async sync(): Promise<void> {
    await this.#ids.sync();
    await this.#scales?.sync();
  }

  async publish(output: Pick<FileTarget, 'path'>): Promise<void> {
    await this.#ids.publish(output);
    await this.#scales?.publish(output);
  }

  async close(): Promise<void> {
    await this.#ids.close();
    await this.#scales?.close();
  }
}

const ROWS_AT_ONCE = 65_536;
/** Of a reason; a message may quote a whole line. */
const MAX_REASON_CHARACTERS = 300;

/** Records that have no row, by their place in the input. */
export class SkippedList {
  readonly #lines = new Map<number, string>();
  #hidden: string | undefined;
  /** Not written yet, and the write that is under way. */
  #pending: string[] = [];
  #writing: Promise<void> | undefined;

  get size(): number {
    return this.#lines.size;
  }

  add({ index, file, line, unit = 'line', id, reason }: SkippedRecord): void {
    if (this.#lines.has(index)) return;
    const text = `${JSON.stringify({ index, file, [unit]: line, id, reason: reason.slice(0, MAX_REASON_CHARACTERS) })}\n`;
    this.#lines.set(index, text);
    this.#pending.push(text);
    if (this.#hidden !== undefined) this.#writing ??= this.#write(this.#hidden);
  }

  /** A record of an earlier run that failed then has a row now. */
  hasRow(index: number): void {
    if (this.#lines.size > 0) this.#lines.delete(index);
  }

  /** From here on the list is kept beside the unfinished output; `goesOn`: with what is there. */
  async begin(target: FileTarget, goesOn: boolean): Promise<void> {
    const path = hiddenLists(target).skipped;
    if (goesOn) for (const [index, line] of await linesOf(path)) this.#lines.set(index, line);
    else await rm(path, { force: true });
    this.#hidden = path;
    if (this.#pending.length > 0) this.#writing ??= this.#write(path);
    await this.#writing;
  }

  async publish(output: Pick<FileTarget, 'path'>): Promise<void> {
    await this.#writing;
    const path = skippedPath(output);
    if (this.#lines.size === 0) return rm(path, { force: true });
    const inOrder = [...this.#lines].sort(([a], [b]) => a - b).map(([, line]) => line);
    await writeFile(`${path}.new`, inOrder.join(''), { flush: true });
    await rename(`${path}.new`, path);
  }

  /** Resolves when what was added is written. */
  async settled(): Promise<void> {
    await this.#writing;
  }

  /** A list that cannot be kept for a later run is kept for this one all the same. */
  async #write(path: string): Promise<void> {
    while (this.#pending.length > 0) {
      const text = this.#pending.splice(0).join('');
      await writeFile(path, text, { flag: 'a' }).catch(() => undefined);
    }
    this.#writing = undefined;
  }
}

async function linesOf(path: string): Promise<Map<number, string>> {
  const lines = new Map<number, string>();
  for (const line of (await readFile(path, 'utf8').catch(() => '')).split('\n')) {
    const index = indexIn(line);
    if (index !== undefined) lines.set(index, `${line}\n`);
  }
  return lines;
}

/** Undefined for a line that a killed run left half-way. */
function indexIn(line: string): number | undefined {
  try {
    const { index }: Record<string, unknown> = JSON.parse(line);
    return typeof index === 'number' ? index : undefined;
  } catch {
    return undefined;
  }
}
