// One part of a run of files, from its order to its outcome (docs/decisions/parts.md): its rows are read, run as small
// jobs, and written into an object beside, by a thread of its own (part-work.ts); the commit chooses one of those that
// claims wrote, the chosen one gets its last name, the part goes on the list of its run, and whoever completes that list
// writes the manifest. A part that was committed before only has done what was missing.

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
  toFailure,
  type EmbedReturn,
  type Failure,
  type PartResult,
} from '@shoal/contract';
import type { Clock, JobOutcome, Logger, PartOrder, Precision } from '@shoal/core';
import type { FaultPoints } from '@shoal/core/base';
import type { PartLedger } from '@shoal/queue/payload';
import type { TokenizedInput } from '../executor/tokenized-input.ts';
import type { Spent } from './part-object.ts';
import type { PartPlaces, PartTarget } from './part-place.ts';
import type { JobRows } from './part-rows.ts';
import type { PartTerms, PartTexts, PartWork } from './part-work.ts';

/** What the executor serves. */
export interface ServedModel {
  /** name@revision */
  readonly name: string;
  readonly dims: number;
  readonly isNormalized: boolean;
  readonly device: string;
  readonly precision: Precision;
}

/** What a small job has become. `vectors`: rows × dims, given to whoever gets them. */
export interface Embedded extends Omit<Spent, 'rows'> {
  readonly vectors: Float32Array<ArrayBuffer>;
}

export interface PartRunParts {
  readonly ledger: Pick<PartLedger, 'pointer' | 'commit' | 'enter' | 'entries' | 'entriesOf' | 'keyOf'>;
  readonly places: PartPlaces;
  readonly model: ServedModel;
  /** For messages. */
  readonly workerName?: string | undefined;
  /** Rows that run and are written together. */
  readonly jobRows: JobRows;
  /** Opens source and object of a part, and what a claim before this one has written of it. `signal`: waits for nobody more. */
  readonly open: (terms: PartTerms, signal: AbortSignal | undefined) => Promise<PartWork>;
  readonly tokenize: (order: PartOrder, texts: PartTexts) => Promise<TokenizedInput>;
  /** Runs rows in their turn, beside all other jobs; resolves when there is room for them, with what they become. */
  readonly embed: (
    order: PartOrder,
    rows: TokenizedInput & { readonly rows: number },
  ) => Promise<{ readonly embedded: Promise<Embedded> }>;
  readonly onRows: (rows: number) => void;
  /** Memory of vectors that are written. */
  readonly reclaim: (vectors: Float32Array<ArrayBuffer>) => void;
  readonly clock: Clock;
  readonly faults: FaultPoints;
  readonly log: Logger;
  readonly checkpointMs?: number | undefined;
  /** The part is to be left where it is. */
  readonly signal?: AbortSignal | undefined;
}

/** Thrown through whoever waits, when the part is to be left where it is. */
export class Left extends Error {}

/**
 * Vectors of rows that are being run or wait to be written: of 384 dimensions 65,536 rows, which is what an H200 runs in
 * 0.36 s. A row may wait in the pool for 0.25 s, and all behind it wait to be written.
 */
const MOST_OPEN_BYTES = 100 * 1024 * 1024;
/**
 * Batches that are read and tokenized before there is room for them: enough for several tokenizer threads, and 4 MB of
 * text each at most.
 */
const READ_AHEAD = 8;

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
      // what waited for a store was broken off
      if (this.#parts.signal?.aborted === true) throw new Left('the part is left as it is');
      if (!isVerdict(error)) throw error;
      return { kind: 'failed', jobId, token, failure: this.#failureOf(error) };
    }
  }

  async #run(): Promise<JobOutcome> {
    const { jobId, token, part, fingerprint } = this.#order;
    const { ledger, places, model, faults, signal } = this.#parts;
    const dims = part.model.dimensions ?? model.dims;
    if (!isSameModel(part.model.name, model.name)) throw this.#ofAnother();
    if (dims > model.dims)
      throw new ShoalError('JOB_INVALID', `the part asks for ${dims} dimensions, and ${model.name} has ${model.dims}`);
    const target = await places.target(part, signal);
    const known = await ledger.pointer(jobId);
    if (known !== undefined) return this.#conclude('already', target, this.#pointed(known));
    invariant(fingerprint !== undefined, 'a part has a fingerprint');
    const { jobRows, checkpointMs } = this.#parts;
    const terms = { part, fingerprint, token, model: model.name, dims, jobRows, checkpointMs };
    const work = await this.#parts.open(terms, signal);
    let isWhole = false;
    try {
      await this.#embedAll(work);
      const result: PartResult = { ...(await work.finish()), dims };
      isWhole = true; // from now on it may be committed
      faults.reach('part-whole');
      const pointer = this.#encoded(result);
      const { resultTtlMs: ttlMs } = this.#order;
      switch (await ledger.commit({ jobId, token, pointer, ttlMs })) {
        case 'committed':
          faults.reach('part-committed');
          return await this.#conclude('committed', target, result);
        case 'lease-lost':
          await work.remove();
          return { kind: 'lease-lost', jobId, token };
        default: {
          const chosen = await ledger.pointer(jobId);
          const other = chosen === undefined ? undefined : this.#pointed(chosen);
          if (other?.written !== result.written) await work.remove();
          invariant(other !== undefined, 'what stood in the way of a commit is there');
          return await this.#conclude('already', target, other);
        }
      }
    } catch (error) {
      if (error instanceof Left || signal?.aborted === true) await work.leave();
      else if (!isWhole && isVerdict(error)) await work.giveUp().catch(() => undefined);
      throw error;
    } finally {
      await work.close();
    }
  }

  // ---- rows -----------------------------------------------------------------------------------------------------

  /** Batches are read and tokenized ahead, run side by side, and are written in order. */
  async #embedAll(work: PartWork): Promise<void> {
    const { jobRows, model } = this.#parts;
    const mostOpen = Math.max(2, Math.floor(MOST_OPEN_BYTES / (4 * jobRows * model.dims)));
    const failed = Promise.withResolvers<never>();
    failed.promise.catch(() => undefined);
    const ahead: Promise<Batch | undefined>[] = [];
    const lookAhead = (): void => {
      const batch = this.#prepare(work);
      batch.catch(() => undefined); // awaited in its turn
      ahead.push(batch);
    };
    for (let count = 0; count < READ_AHEAD; count++) lookAhead();
    const underWay: Promise<void>[] = [];
    let before: Promise<unknown> = Promise.resolve();
    try {
      for (;;) {
        const batch = await Promise.race([ahead.shift(), failed.promise]);
        if (batch === undefined) break;
        lookAhead();
        if (underWay.length >= mostOpen) await Promise.race([underWay.shift(), failed.promise]);
        const { embedded } = await Promise.race([this.#parts.embed(this.#order, batch), failed.promise]);
        const inTurn = inTurnOf(before, embedded, batch);
        before = inTurn;
        const written = inTurn.then((vectors) => this.#write(work, vectors, batch));
        written.catch((error: unknown) => failed.reject(error));
        underWay.push(written);
      }
      await Promise.race([Promise.all(underWay), failed.promise]);
    } finally {
      // nothing is written behind the back of whoever closes the object
      await Promise.allSettled(underWay);
    }
  }

  async #prepare(work: PartWork): Promise<Batch | undefined> {
    const texts = await work.next();
    if (texts === undefined) return undefined;
    const { rows, place } = texts;
    return { ...(await this.#parts.tokenize(this.#order, texts)), rows, place };
  }

  async #write(work: PartWork, { vectors, ...spent }: Embedded, { rows, rowTokens }: Batch): Promise<void> {
    const { withTokens } = this.#order.part.output;
    this.#parts.reclaim(await work.write(vectors, spent, withTokens === true ? rowTokens : undefined));
    this.#parts.onRows(rows);
  }

  // ---- the end --------------------------------------------------------------------------------------------------

  /** Does what is missing behind a commit, whoever committed. */
  async #conclude(kind: 'committed' | 'already', target: PartTarget, result: PartResult): Promise<JobOutcome> {
    const { jobId, token, part } = this.#order;
    const { ledger, faults } = this.#parts;
    const isNamed = await target.name(result, {
      onCopied: () => faults.reach('part-copied'),
      wasDone: async () => (await ledger.entriesOf(part.run, [part.number]))[0] !== undefined,
    });
    if (!isNamed) throw this.#lost(target.pathOf(result.name));
    faults.reach('part-renamed');
    const done = await ledger.enter(part.run, part.number, encodeRunEntry(part, result));
    if (done >= part.of) {
      await target.writeManifest(manifestName(part.output), manifestOf(part, await ledger.entries(part.run)));
      this.#parts.log.info({ run: part.run, parts: part.of }, 'all parts of a run are done');
    }
    return { kind, jobId, token, value: this.#valueOf(result) };
  }

  /** What depends on the machine that it happened on names the worker there. */
  #failureOf(error: unknown): Failure {
    const failure = toFailure(error, 'FILE_UNREADABLE');
    const { workerName } = this.#parts;
    return workerName === undefined || !OF_THE_MACHINE.includes(failure.code)
      ? failure
      : { ...failure, message: `${failure.message} (worker ${workerName})` };
  }

  #lost(path: string): ShoalError<'PAYLOAD_LOST'> {
    const { jobId, part } = this.#order;
    return new ShoalError(
      'PAYLOAD_LOST',
      `part ${part.number} of run ${part.run} was done, and ${path} is not what was written then: it was removed or ` +
        `changed, or another command writes into the same place. Remove the result of job ${jobId} (${this.#parts.ledger.keyOf(jobId)}) and the job to have it computed again`,
      { file: path },
    );
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

const OF_THE_MACHINE: readonly string[] = ['FILE_UNREADABLE', 'FILE_UNWRITABLE', 'SOURCE_CHANGED'];

/** Whether the part failed, and not what it ran on. A disk that fails while it is read is no reason to end the process. */
function isVerdict(error: unknown): boolean {
  const isOfFiles = error instanceof Error && 'syscall' in error;
  return isOfFiles || (error instanceof ShoalError && error.code !== 'QUEUE_UNREACHABLE');
}

interface Batch extends TokenizedInput, Pick<PartTexts, 'rows' | 'place'> {}

/** What a batch became, once all before it have become something. */
async function inTurnOf(before: Promise<unknown>, embedded: Promise<Embedded>, { place }: Batch): Promise<Embedded> {
  embedded.catch(() => undefined); // awaited in its turn
  await before;
  try {
    return await embedded;
  } catch (error) {
    // a failure of a small job names rows that only this process knows; a person knows lines of a file
    throw error instanceof ShoalError ? new ShoalError(error.code, `${place}: ${error.message}`, {}, error) : error;
  }
}
