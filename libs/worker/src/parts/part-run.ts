// One part of a run of files, from its order to its outcome (docs/decisions/parts.md): its rows are read, run as small
// jobs, and written into an object beside; the commit chooses one of those that claims wrote, the chosen one gets its last
// name, the part goes on the list of its run, and whoever completes that list writes the manifest. A part that was
// committed before only has done what was missing.

import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, readdir, rename, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import {
  ShoalError,
  decodePartResult,
  decodeResultHeader,
  encodePartResult,
  encodeRunEntry,
  invariant,
  isSameModel,
  manifestName,
  manifestOf,
  partName,
  partRows,
  toFailure,
  type EmbedReturn,
  type PartResult,
} from '@shoal/contract';
import type { Clock, JobOutcome, Logger, PartOrder, Precision } from '@shoal/core';
import { codeOf, type FaultPoints } from '@shoal/core/base';
import type { PartLedger } from '@shoal/queue/payload';
import { carriedGroups, refuseUncarriable } from '../files/carried-columns.ts';
import type { ParquetFile } from '../files/footer.ts';
import { idColumn } from '../files/parquet-records.ts';
import type { CarriedFile, RowForm } from '../files/row-form.ts';
import { PartObject, writing, type Spent } from './part-object.ts';
import type { PartPlaces, SourceFile } from './part-place.ts';
import { PartRows, firstRowOf, openRange, type RowBatch } from './part-rows.ts';

/** What the executor serves. */
export interface ServedModel {
  /** name@revision */
  readonly name: string;
  readonly dims: number;
  readonly isNormalized: boolean;
  readonly device: string;
  readonly precision: Precision;
}

/** What a small job has become. `vectors`: rows × dims, the caller's own. */
export interface Embedded extends Omit<Spent, 'rows'> {
  readonly vectors: Float32Array;
}

export interface PartRunParts {
  readonly ledger: Pick<PartLedger, 'pointer' | 'commit' | 'enter' | 'entries' | 'keyOf'>;
  readonly places: PartPlaces;
  readonly model: ServedModel;
  /** Runs texts in their turn, beside all other jobs; resolves when there is room for them, with what they become. */
  readonly embed: (order: PartOrder, texts: readonly string[]) => Promise<{ readonly embedded: Promise<Embedded> }>;
  /** Which of these texts the model would cut behind this prompt. */
  readonly tooLong: (texts: readonly string[], prompt: string | undefined) => Promise<readonly boolean[]>;
  readonly onRows: (rows: number) => void;
  readonly clock: Clock;
  readonly faults: FaultPoints;
  readonly log: Logger;
  readonly checkpointMs?: number | undefined;
}

/** Thrown through whoever waits, when the part is to be left where it is. */
export class Left extends Error {}

/** Batches that are being run or wait to be written, 100 MB of vectors of 384 dimensions at most. */
const MOST_OPEN = 256;

export class PartRun {
  readonly #parts: PartRunParts;
  readonly #order: PartOrder;
  readonly #startedMs: number;

  constructor(parts: PartRunParts, order: PartOrder) {
    this.#parts = parts;
    this.#order = order;
    this.#startedMs = parts.clock.nowMs();
  }

  /** Throws `Left` when it was told to leave the part. */
  async run(): Promise<JobOutcome> {
    const { jobId, token } = this.#order;
    try {
      return await this.#run();
    } catch (error) {
      // a disk that fails while it is read is no reason to end the process
      const isOfFiles = error instanceof Error && 'syscall' in error;
      const isVerdict = error instanceof ShoalError && error.code !== 'QUEUE_UNREACHABLE';
      if (!isOfFiles && !isVerdict) throw error;
      return { kind: 'failed', jobId, token, failure: toFailure(error, 'FILE_UNREADABLE') };
    }
  }

  async #run(): Promise<JobOutcome> {
    const { jobId, token, part } = this.#order;
    const { ledger, places, model, faults } = this.#parts;
    const dims = part.model.dimensions ?? model.dims;
    if (!isSameModel(part.model.name, model.name)) throw this.#ofAnother();
    if (dims > model.dims)
      throw new ShoalError('JOB_INVALID', `the part asks for ${dims} dimensions, and ${model.name} has ${model.dims}`);
    const folder = await places.target(part.output);
    const known = await ledger.pointer(jobId);
    if (known !== undefined) return this.#conclude('already', folder, this.#pointed(known));
    const file = await places.source(part.source);
    const { object, rows } = await this.#embedAll(folder, file, dims);
    const { spent } = object;
    try {
      const written = await object.finish();
      await file.check(); // rows of two versions would be rows of none
      faults.reach('part-whole');
      const result: PartResult = { ...written, ...spent, dims, refused: rows.refused };
      const pointer = this.#encoded(result);
      const { resultTtlMs: ttlMs } = this.#order;
      switch (await ledger.commit({ jobId, token, pointer, ttlMs })) {
        case 'committed':
          faults.reach('part-committed');
          return await this.#conclude('committed', folder, result);
        case 'lease-lost':
          await object.remove();
          return { kind: 'lease-lost', jobId, token };
        default: {
          const chosen = await ledger.pointer(jobId);
          const other = chosen === undefined ? undefined : this.#pointed(chosen);
          if (other?.written !== result.written) await object.remove();
          invariant(other !== undefined, 'what stood in the way of a commit is there');
          return await this.#conclude('already', folder, other);
        }
      }
    } catch (error) {
      if (!(error instanceof Left)) await object.close();
      throw error;
    }
  }

  // ---- rows -----------------------------------------------------------------------------------------------------

  async #embedAll(
    folder: string,
    file: SourceFile,
    dims: number,
  ): Promise<{ readonly object: PartObject; readonly rows: PartRows }> {
    const { part, token, fingerprint } = this.#order;
    const { clock, faults, tooLong, checkpointMs } = this.#parts;
    const parquet = await openRange(part, file);
    const form = this.#formOf(file, parquet, dims);
    const isRefused = part.model.truncate === 'error';
    const rows = new PartRows({
      part,
      file,
      parquet,
      ...(isRefused && { tooLong: (texts: readonly string[]) => tooLong(texts, part.model.prompt) }),
    });
    invariant(fingerprint !== undefined, 'a part has a fingerprint');
    const object = await PartObject.open({ part, fingerprint, token, folder, form, clock, checkpointMs, faults });
    try {
      await this.#writeAll(object, rows, dims, file);
      return { object, rows };
    } catch (error) {
      if (error instanceof Left) await object.leave();
      else await object.close();
      throw error;
    }
  }

  /** Batches run side by side and are written in order. */
  async #writeAll(object: PartObject, rows: PartRows, dims: number, file: SourceFile): Promise<void> {
    const { embed, onRows } = this.#parts;
    const failed = Promise.withResolvers<never>();
    failed.promise.catch(() => undefined);
    let written: Promise<void> = Promise.resolve();
    const underWay: Promise<void>[] = [];
    try {
      for await (const whole of rows.batches()) {
        const batch = behind(whole, object.position);
        if (batch.records.length === 0) continue;
        if (underWay.length >= MOST_OPEN) await Promise.race([underWay.shift(), failed.promise]);
        const texts = batch.records.map(({ text }) => text);
        const { embedded } = await Promise.race([embed(this.#order, texts), failed.promise]);
        embedded.catch(() => undefined); // awaited in its turn
        written = written.then(async () => {
          const { vectors, ...spent } = await embedded.catch((error: unknown) =>
            Promise.reject(at(batch, file, error)),
          );
          await object.write({ ...batch, dims, vectors }, spent);
          onRows(batch.records.length);
        });
        underWay.push(written);
        written.catch((error: unknown) => failed.reject(error));
      }
    } finally {
      // nothing is written behind the back of whoever closes the object
      await written.catch((error: unknown) => failed.reject(error));
    }
    await Promise.race([written, failed.promise]);
  }

  #formOf(file: SourceFile, parquet: ParquetFile | undefined, dims: number): RowForm {
    const { part } = this.#order;
    const { carries = false, hasIds, withText = false, dtype, vectorField, format } = part.output;
    const form = { format, dims, hasIds, withText, dtype, vectorField, model: this.#parts.model.name };
    if (parquet !== undefined && hasIds && !carries) idColumn(parquet, part.idField ?? 'id');
    if (!carries || parquet === undefined) return form;
    const carried: CarriedFile = { open: () => file.open(), parquet };
    refuseUncarriable([carried], vectorField ?? 'embedding', dtype);
    const { from, to } = part.range;
    const groups = carriedGroups([carried]).filter(({ number }) => number >= from && number < to);
    return { ...form, carried: [carried], shard: { groups, firstRow: firstRowOf(part), rows: partRows(part) } };
  }

  // ---- the end --------------------------------------------------------------------------------------------------

  /** Does what is missing behind a commit, whoever committed. */
  async #conclude(kind: 'committed' | 'already', folder: string, result: PartResult): Promise<JobOutcome> {
    const { jobId, token, part } = this.#order;
    const { ledger, faults } = this.#parts;
    await this.#name(folder, result);
    faults.reach('part-renamed');
    const done = await ledger.enter(part.run, part.number, encodeRunEntry(part, result));
    if (done >= part.of) await this.#writeManifest(folder);
    return { kind, jobId, token, value: this.#valueOf(result) };
  }

  /** The chosen object gets its last name; what others wrote of the part goes. */
  async #name(folder: string, { name, written, sha256 }: PartResult): Promise<void> {
    const path = join(folder, name);
    await writing(path, async () => {
      const isRenamed = await rename(join(folder, written), path).then(
        () => true,
        (error: unknown) => (codeOf(error) === 'ENOENT' ? false : Promise.reject(error)),
      );
      if (!isRenamed && (await sha256Of(path)) !== sha256) throw this.#lost(path);
      await syncFolder(folder);
      const others = (await readdir(folder)).filter((one) => one.startsWith(`${name}.`));
      await Promise.all(others.map((one) => rm(join(folder, one), { force: true })));
    });
  }

  #lost(path: string): ShoalError<'PAYLOAD_LOST'> {
    const { jobId, part } = this.#order;
    return new ShoalError(
      'PAYLOAD_LOST',
      `part ${part.number} of run ${part.run} was done, and ${path} is not what was written then: it was removed or ` +
        `changed. Remove the result of job ${jobId} (${this.#parts.ledger.keyOf(jobId)}) and the job to have it computed again`,
      { file: path },
    );
  }

  async #writeManifest(folder: string): Promise<void> {
    const { part, token } = this.#order;
    const path = join(folder, manifestName(part.output));
    const manifest = manifestOf(part, await this.#parts.ledger.entries(part.run));
    await writing(path, async () => {
      const beside = `${path}.${token.replaceAll(/[^\w-]/g, '-')}`;
      await writeFile(beside, manifest, { flush: true });
      await rename(beside, path);
      await syncFolder(folder);
    });
    this.#parts.log.info({ run: part.run, parts: part.of }, 'all parts of a run are done');
  }

  #encoded(result: PartResult): Buffer {
    const { fingerprint, part } = this.#order;
    invariant(fingerprint !== undefined, 'a part has a fingerprint');
    const isSimulated = this.#parts.model.device.startsWith('sim:');
    return encodePartResult(result, { fingerprint, dtype: part.output.dtype, isSimulated });
  }

  /** What was committed for this very part. JOB_ID_CONFLICT where it is another's. */
  #pointed(bytes: Buffer): PartResult {
    const { jobId, fingerprint, part } = this.#order;
    if (decodeResultHeader(bytes)?.fingerprint !== fingerprint)
      throw new ShoalError('JOB_ID_CONFLICT', `job "${jobId}" has a result already, and it is that of another part`);
    const result = decodePartResult(bytes);
    const isOwn = result.name === partName(part) && result.written.startsWith(`${result.name}.`);
    invariant(isOwn && !result.written.includes('/'), 'a part lies under its own name');
    return result;
  }

  #valueOf({ rows, dims, tokens, truncated }: PartResult): EmbedReturn {
    const { jobId, queuedMs, part } = this.#order;
    const { ledger, model, clock } = this.#parts;
    return {
      v: 1,
      key: ledger.keyOf(jobId),
      model: model.name,
      rows,
      dims,
      dtype: part.output.dtype,
      ...(!model.isNormalized && part.model.normalize !== true && { normalized: false as const }),
      device: model.device,
      precision: model.precision,
      tokens,
      truncated,
      splits: 0,
      ms: { queued: Math.round(queuedMs), run: Math.round(clock.nowMs() - this.#startedMs) },
    };
  }

  #ofAnother(): ShoalError<'FINGERPRINT_MISMATCH'> {
    const { part } = this.#order;
    return new ShoalError(
      'FINGERPRINT_MISMATCH',
      `the part is for ${part.model.name}, and this worker serves ${this.#parts.model.name}; run the command again`,
    );
  }
}

/** What of a batch is not in the object yet. */
function behind({ records, position }: RowBatch, done: number): RowBatch {
  return { position, records: records.slice(Math.max(0, records.length - (position - done))) };
}

/** A failure of a small job names rows that only this process knows; a person knows lines of a file. */
function at({ records }: RowBatch, { name }: SourceFile, error: unknown): unknown {
  if (!(error instanceof ShoalError)) return error;
  const [first, last] = [records[0]!.line, records.at(-1)!.line];
  return new ShoalError(error.code, `${name}, rows ${first} to ${last}: ${error.message}`, {}, error);
}

async function sha256Of(path: string): Promise<string | undefined> {
  const hash = createHash('sha256');
  try {
    for await (const chunk of createReadStream(path)) hash.update(chunk as Buffer);
    return hash.digest('hex');
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}

async function syncFolder(folder: string): Promise<void> {
  const handle = await open(folder, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
