// The executor's half of the pipeline: fill → cut → run → commit. Jobs come in as orders; their rows go into one pool and
// lose touch with each other; micro-batches leave it for the device, and each job is committed when its last row is back.
// Everything here happens in one process beside the claimer, and knows no Redis, no ONNX Runtime and no clock of its own.
//
// The life of a job here: *filling* (its input is read and tokenized), *pooled* (some rows wait, some may be running),
// *done* (all rows are back, its result is being committed), *gone* (its outcome was sent). A job that is dropped in
// between goes straight to gone: rows at the device finish, and nothing is written for it.

import { decodeInput, encodeTexts, type DecodedInput, type TokenIds } from './input-format.ts';
import { ShoalError, toFailure, type Failure } from './errors.ts';
import { decodeResultHeader, encodeResult, type ResultHeader } from './result-format.ts';
import { encodeBody } from './output-encoding.ts';
import { fingerprintOf } from './fingerprint.ts';
import { invariant, unreachable } from './invariant.ts';
import { BUCKET_TOKENS, Pool, batchOf, halve, type CutLimits, type MicroBatch, type PoolRow } from './pool.ts';
import type { BatchBudget, BatchTokenizer, Clock, CommitRequest, CommitResult, InferenceBackend, InputRead, Logger, PayloadStore, Slot } from './ports.ts';
import type { EmbedReturn } from './job-schema.ts';
import type { FaultPoints } from './fault-points.ts';
import type { FromExecutor, JobOrder, JobOutcome, ToExecutor } from './protocol.ts';

export interface ExecutorLimits extends Pick<CutLimits, 'maxRowAgeMs'> {
  readonly maxWaitMs: number;
  readonly minRows: number;
}

export interface ExecutorParts {
  readonly store: PayloadStore;
  readonly backend: InferenceBackend;
  readonly budget: BatchBudget;
  readonly tokenizer: BatchTokenizer;
  readonly clock: Clock;
  readonly log: Logger;
  readonly limits: ExecutorLimits;
  /** name@revision */
  readonly model: string;
  readonly prompts: Readonly<Record<'query' | 'passage', string>>;
  /** Key of a job's result, for its return value. */
  readonly resultKey: (jobId: string) => string;
  readonly send: (message: FromExecutor) => void;
  readonly faults: FaultPoints;
}

interface OpenJob {
  readonly order: JobOrder;
  readonly fingerprint: string;
  readonly vectors: Float32Array;
  readonly rows: number;
  readonly tokens: number;
  readonly truncated: number;
  left: number;
  splits: number;
  runMs: number;
  isBegun: boolean;
  isDropped: boolean;
}

interface Row extends PoolRow {
  readonly job: OpenJob;
  readonly index: number;
  readonly ids: ArrayLike<number>;
}

export class Executor {
  private readonly parts: ExecutorParts;
  private readonly cutLimits: CutLimits;
  private readonly pool = new Pool<Row>();
  /** Orders whose input is being read. One that is no longer here when it arrives was dropped meanwhile. */
  private readonly wanted = new Map<string, JobOrder>();
  private readonly jobs = new Map<string, OpenJob>();
  /** Halves of batches that were too much for the device; they go before anything new. */
  private halves: MicroBatch<Row>[] = [];
  private readonly running = new Set<Promise<void>>();
  private readonly filling = new Set<Promise<void>>();
  private done: OpenJob[] = [];
  private commitLoop: Promise<void> | undefined;
  private isQueueDrained = false;
  private batches = 0;
  private cancelWindow: (() => void) | undefined;

  constructor(parts: ExecutorParts) {
    this.parts = parts;
    const { backend, budget, limits } = parts;
    this.cutLimits = {
      maxRowAgeMs: limits.maxRowAgeMs,
      rowsAt: (width) => Math.min(budget.rowsAt(width), backend.slotRows, Math.floor(backend.slotTokens / width)),
    };
  }

  handle(message: Exclude<ToExecutor, { kind: 'stop' }>): void {
    switch (message.kind) {
      case 'run': return this.accept(message.jobs, message.isQueueDrained);
      case 'drop': return this.drop(message.jobIds);
      case 'ping': return this.parts.send({ kind: 'pong', sequence: message.sequence, runningMs: this.parts.backend.runningMs() });
      default: return unreachable(message);
    }
  }

  /** Gives back what has not begun, finishes the rest, and resolves when every job has had its outcome and nothing runs. */
  async stop(): Promise<void> {
    await Promise.all(this.filling);
    this.giveBackUnstarted();
    this.isQueueDrained = true;
    this.pump();
    while (this.running.size > 0 || this.commitLoop !== undefined) await Promise.all([...this.running, this.commitLoop]);
    invariant(this.jobs.size === 0 && this.halves.length === 0, 'nothing is open once nothing runs');
  }

  // ---- fill -----------------------------------------------------------------------------------------------------

  private accept(orders: readonly JobOrder[], isQueueDrained: boolean): void {
    this.isQueueDrained = isQueueDrained;
    const fresh = orders.filter((order) => !this.holds(order));
    this.drop(fresh.map((order) => order.jobId)); // older claims of the same jobs on this worker
    for (const order of fresh) this.wanted.set(order.jobId, order);
    const filled = this.fill(fresh).finally(() => this.filling.delete(filled));
    this.filling.add(filled);
  }

  /** Whether this very claim is here already: a claimer that is not sure whether an order arrived sends it again. */
  private holds({ jobId, token }: JobOrder): boolean {
    return (this.wanted.get(jobId) ?? this.jobs.get(jobId)?.order)?.token === token;
  }

  private async fill(orders: readonly JobOrder[]): Promise<void> {
    const reads = await this.parts.store.read(orders.map((order) => ({ jobId: order.jobId, hasInput: order.input.form !== 'inline' })));
    const prepared = await Promise.all(orders.map((order, i) => this.prepared(order, reads[i]!)));
    const pooled = orders.flatMap((order, i) => {
      if (this.wanted.get(order.jobId) !== order) return []; // dropped while its input was read
      this.wanted.delete(order.jobId);
      const tokens = this.admit(order, prepared[i]!);
      return tokens === undefined ? [] : [{ jobId: order.jobId, tokens }];
    });
    if (pooled.length > 0) this.parts.send({ kind: 'filled', jobs: pooled, poolTokens: this.pool.tokens });
    this.pump();
  }

  /** The real tokens now in the pool for this job, or undefined when it ended here. */
  private admit(order: JobOrder, prepared: Prepared): number | undefined {
    const { jobId, token } = order;
    switch (prepared.kind) {
      case 'rows': return this.pour(order, prepared);
      case 'already': return void this.report([{ kind: 'already', jobId, token, value: this.repeatedValue(order, prepared.header) }]);
      case 'failed': return void this.report([failed(order, prepared.failure)]);
      default: return unreachable(prepared);
    }
  }

  private async prepared(order: JobOrder, read: InputRead): Promise<Prepared> {
    try {
      const known = read.resultHead === undefined ? undefined : decodeResultHeader(read.resultHead);
      return await this.prepare(order, read, known);
    } catch (error) {
      if (!(error instanceof ShoalError)) throw error;
      return { kind: 'failed', failure: toFailure(error) };
    }
  }

  private async prepare(order: JobOrder, read: InputRead, known: ResultHeader | undefined): Promise<Prepared> {
    const bytes = order.input.form === 'inline' ? encodeTexts(order.input.texts) : read.input;
    if (bytes === undefined) {
      if (known !== undefined && (order.fingerprint === undefined || order.fingerprint === known.fingerprint)) return { kind: 'already', header: known };
      if (known !== undefined) throw conflict(order.jobId, known.fingerprint, order.fingerprint ?? 'unknown');
      throw new ShoalError('INPUT_LOST', `job "${order.jobId}" has neither an input key nor a result; add it again with its input`, { jobId: order.jobId });
    }
    const fingerprint = this.checkedFingerprint(order, bytes);
    if (known !== undefined) {
      if (known.fingerprint === fingerprint) return { kind: 'already', header: known };
      throw conflict(order.jobId, known.fingerprint, fingerprint);
    }
    return { kind: 'rows', fingerprint, ...(await this.rowsOf(order, order.input.form === 'inline' ? { form: 'texts', texts: order.input.texts } : decodeInput(bytes))) };
  }

  private checkedFingerprint(order: JobOrder, bytes: Buffer): string {
    const { prompt, truncate, output } = order;
    const fingerprint = fingerprintOf({ model: this.parts.model, prompt, truncate, output }, bytes);
    if (order.fingerprint !== undefined && order.fingerprint !== fingerprint) {
      throw new ShoalError(
        'FINGERPRINT_MISMATCH',
        `job "${order.jobId}" came with fingerprint ${order.fingerprint}, but its input and options for ${this.parts.model} have ${fingerprint}; ` +
          'the producer uses another revision of the model or makes fingerprints differently',
        { jobId: order.jobId },
      );
    }
    return fingerprint;
  }

  private async rowsOf(order: JobOrder, input: DecodedInput): Promise<{ ids: ArrayLike<number>[]; truncated: number }> {
    const expected = order.input.form === 'inline' ? undefined : order.input;
    if (expected !== undefined && expected.form !== input.form) throw inputMismatch(order.jobId, `says ${expected.form}`, `holds ${input.form}`);
    const ids = input.form === 'texts' ? await this.tokenized(order, input.texts) : { ids: this.checkedIds(order, input.rows), truncated: 0 };
    if (expected !== undefined && expected.rows !== ids.ids.length) throw inputMismatch(order.jobId, `says ${expected.rows} rows`, `holds ${ids.ids.length}`);
    return ids;
  }

  private async tokenized(order: JobOrder, texts: readonly string[]): Promise<{ ids: ArrayLike<number>[]; truncated: number }> {
    const { tokenizer, prompts } = this.parts;
    const prefix = order.prompt === undefined ? '' : prompts[order.prompt];
    const rows = await tokenizer.encodeAll(prefix === '' ? texts : texts.map((text) => prefix + text));
    const firstCut = rows.findIndex((row) => row.isTruncated);
    if (firstCut >= 0 && order.truncate === 'error') throw tooLong(order.jobId, firstCut, tokenizer.maxTokens);
    return { ids: rows.map((row) => row.ids), truncated: rows.filter((row) => row.isTruncated).length };
  }

  private checkedIds(order: JobOrder, rows: readonly TokenIds[]): ArrayLike<number>[] {
    const { tokenizer } = this.parts;
    invariant(order.input.form === 'tokens', 'token ids come with the hash of their tokenizer');
    if (order.input.tokenizer !== tokenizer.hash) {
      throw new ShoalError('TOKENIZER_MISMATCH', `job "${order.jobId}" has token ids of tokenizer ${order.input.tokenizer}; ${this.parts.model} has ${tokenizer.hash}`, {
        jobId: order.jobId,
      });
    }
    for (const [row, ids] of rows.entries()) {
      if (ids.length > tokenizer.maxTokens) throw tooLong(order.jobId, row, tokenizer.maxTokens);
      const stranger = firstAtLeast(tokenizer.vocabularySize, ids);
      if (stranger !== undefined) {
        throw new ShoalError('INPUT_CORRUPT', `job "${order.jobId}", row ${row}: token id ${stranger} is outside the vocabulary of ${tokenizer.vocabularySize}`);
      }
    }
    return [...rows];
  }

  private pour(order: JobOrder, prepared: Extract<Prepared, { kind: 'rows' }>): number {
    const { ids, truncated, fingerprint } = prepared;
    const tokens = ids.reduce((sum, row) => sum + row.length, 0);
    const job: OpenJob = {
      order, fingerprint, tokens, truncated, rows: ids.length, left: ids.length,
      vectors: new Float32Array(ids.length * this.parts.backend.dims),
      splits: 0, runMs: 0, isBegun: false, isDropped: false,
    };
    this.jobs.set(order.jobId, job);
    const enteredMs = this.parts.clock.nowMs();
    for (const [index, row] of ids.entries()) this.pool.add({ job, index, ids: row, tokens: row.length, enteredMs });
    return tokens;
  }

  private drop(jobIds: readonly string[]): void {
    let hasOpen = false;
    for (const jobId of jobIds) {
      this.wanted.delete(jobId);
      const job = this.jobs.get(jobId);
      if (job === undefined) continue;
      job.isDropped = true;
      this.jobs.delete(jobId);
      hasOpen = true;
    }
    if (!hasOpen) return; // the usual case, and looking through the whole pool is not cheap
    this.pool.remove((row) => row.job.isDropped);
    this.halves = this.halves.flatMap(withoutDropped);
  }

  private giveBackUnstarted(): void {
    const unstarted = [...this.jobs.values()].filter((job) => !job.isBegun);
    this.drop(unstarted.map((job) => job.order.jobId));
    if (unstarted.length > 0) this.report(unstarted.map(({ order }) => ({ kind: 'unstarted', jobId: order.jobId, token: order.token })));
  }

  // ---- cut ------------------------------------------------------------------------------------------------------

  /** Keeps every free slot busy as long as the window says that a batch is due. */
  private pump(): void {
    this.cancelWindow?.();
    this.cancelWindow = undefined;
    while (this.halves.length > 0 || this.isBatchDue()) {
      const slot = this.parts.backend.lend();
      if (slot === undefined) return;
      const batch = this.halves.shift() ?? this.pool.cut(this.cutLimits, this.parts.clock.nowMs());
      invariant(batch !== undefined, 'a batch that is due can be cut');
      this.launch(slot, batch);
    }
  }

  /** The window: at once when the budget is full or nothing else is queued; else after maxWaitMs with minRows, after twice that with any. */
  private isBatchDue(): boolean {
    const { limits, clock, budget } = this.parts;
    const oldestMs = this.pool.oldestMs();
    if (oldestMs === undefined) return false;
    if (this.isQueueDrained || this.pool.tokens >= budget.current().maxPaddedTokens || this.pool.rows >= this.cutLimits.rowsAt(BUCKET_TOKENS)) return true;
    const waitMs = this.pool.rows >= limits.minRows ? limits.maxWaitMs : 2 * limits.maxWaitMs;
    const remainingMs = oldestMs + waitMs - clock.nowMs();
    if (remainingMs <= 0) return true;
    this.cancelWindow ??= clock.after(remainingMs, () => this.pump());
    return false;
  }

  // ---- run ------------------------------------------------------------------------------------------------------

  private launch(slot: Slot, batch: MicroBatch<Row>): void {
    for (const row of batch.rows) row.job.isBegun = true;
    const number = ++this.batches;
    this.parts.send({ kind: 'began', batch: number, jobIds: [...new Set(batch.rows.map((row) => row.job.order.jobId))] });
    const ended = this.run(slot, batch, number).finally(() => {
      this.running.delete(ended);
      this.pump();
    });
    this.running.add(ended);
  }

  private async run(slot: Slot, batch: MicroBatch<Row>, number: number): Promise<void> {
    const { backend } = this.parts;
    pack(slot, batch);
    try {
      const result = await backend.run(slot, { rows: batch.rows.length, width: batch.width });
      if (result.ok) this.unpack(slot, batch, number, result.runMs);
      else this.split(batch, number, { code: 'OUT_OF_VRAM', message: result.outOfVram.message });
    } catch (error) {
      if (!(error instanceof ShoalError) || error.code !== 'INFERENCE_FAILED') throw error; // the device itself: the process ends, its jobs run again
      this.split(batch, number, toFailure(error));
    } finally {
      backend.giveBack(slot);
    }
  }

  private unpack(slot: Slot, batch: MicroBatch<Row>, number: number, runMs: number): void {
    const { dims } = this.parts.backend;
    for (const [i, row] of batch.rows.entries()) {
      const vector = slot.embeddings.subarray(i * dims, (i + 1) * dims);
      const squaredLength = squaredLengthOf(vector);
      if (!(Math.abs(squaredLength - 1) < MAX_LENGTH_ERROR)) {
        this.fail(row.job, { code: 'INFERENCE_FAILED', message: `row ${row.index} gave a vector that is not of length 1 (${row.tokens} tokens)` });
        continue;
      }
      writeScaled(vector, 1 / Math.sqrt(squaredLength), row.job.vectors, row.index * dims);
      row.job.runMs += runMs / batch.rows.length;
      if (--row.job.left === 0 && !row.job.isDropped) this.done.push(row.job);
    }
    const tokens = batch.rows.reduce((sum, row) => sum + row.tokens, 0);
    this.parts.send({ kind: 'ran', batch: number, rows: batch.rows.length, width: batch.width, tokens, runMs, poolTokens: this.pool.tokens });
    this.commitDone();
  }

  /** Keeps the halves of a batch apart until the row is found that cannot run; only its job fails. */
  private split(batch: MicroBatch<Row>, number: number, failure: Failure): void {
    const [only] = batch.rows;
    invariant(only !== undefined, 'a batch has at least one row');
    if (batch.rows.length === 1) return this.fail(only.job, failure);
    this.parts.log.warn({ rows: batch.rows.length, paddedTokens: batch.rows.length * batch.width, code: failure.code, reason: failure.message }, 'micro-batch failed, splitting');
    this.parts.send({ kind: 'split', batch: number, code: failure.code });
    for (const job of new Set(batch.rows.map((row) => row.job))) job.splits++;
    this.halves.unshift(...halve(batch).flatMap(withoutDropped));
  }

  private fail(job: OpenJob, failure: Failure): void {
    if (job.isDropped) return;
    this.drop([job.order.jobId]);
    this.report([failed(job.order, failure)]);
  }

  // ---- commit ---------------------------------------------------------------------------------------------------

  /** One loop at a time; looks again when one ends, because a job may be done between its last look and its end. */
  private commitDone(): void {
    if (this.done.length === 0) return;
    this.commitLoop ??= this.commit().finally(() => {
      this.commitLoop = undefined;
      this.commitDone();
    });
  }

  /** Writes the results of every job that is done, one pipeline at a time, until none is left. */
  private async commit(): Promise<void> {
    while (this.done.length > 0) {
      const jobs = this.done.filter((job) => !job.isDropped);
      this.done = [];
      if (jobs.length === 0) return;
      this.parts.faults.reach('before-commit');
      const results = await this.parts.store.commit(jobs.map((job) => this.commitRequest(job)));
      this.parts.faults.reach('after-commit');
      for (const job of jobs) if (this.jobs.get(job.order.jobId) === job) this.jobs.delete(job.order.jobId);
      this.report(jobs.map((job, i) => this.outcomeOf(job, results[i]!)));
    }
  }

  private commitRequest(job: OpenJob): CommitRequest {
    const { order, fingerprint, rows } = job;
    const { dims, body } = encodeBody(job.vectors, rows, this.parts.backend.dims, order.output);
    const result = encodeResult({ dtype: order.output.dtype, rows, dims, fingerprint, isTruncated: job.truncated > 0 }, body);
    return { jobId: order.jobId, lane: order.lane, token: order.token, fingerprint, result, ttlMs: order.resultTtlMs };
  }

  private outcomeOf(job: OpenJob, result: CommitResult): JobOutcome {
    const { jobId, token } = job.order;
    switch (result) {
      case 'committed': return { kind: 'committed', jobId, token, value: this.valueOf(job) };
      case 'already': return { kind: 'already', jobId, token, value: this.valueOf(job) };
      case 'lease-lost': return { kind: 'lease-lost', jobId, token };
      case 'conflict': return failed(job.order, toFailure(conflict(jobId, 'something else', job.fingerprint)));
    }
  }

  private valueOf(job: OpenJob): EmbedReturn {
    const { order, rows, tokens, truncated, splits, runMs } = job;
    const dims = Math.min(order.output.dimensions ?? this.parts.backend.dims, this.parts.backend.dims);
    return { ...this.commonValue(order), rows, dims, tokens, truncated, splits, ms: { queued: Math.round(order.queuedMs), run: Math.round(runMs) } };
  }

  /** For a result that somebody committed before: what its header tells. Tokens and times of that run are not known any more. */
  private repeatedValue(order: JobOrder, header: ResultHeader): EmbedReturn {
    const { rows, dims } = header;
    return { ...this.commonValue(order), rows, dims, tokens: 0, truncated: header.isTruncated ? 1 : 0, splits: 0, ms: { queued: Math.round(order.queuedMs), run: 0 } };
  }

  private commonValue(order: JobOrder): Pick<EmbedReturn, 'v' | 'key' | 'model' | 'dtype' | 'device' | 'precision'> {
    const { backend, model, resultKey } = this.parts;
    return { v: 1, key: resultKey(order.jobId), model, dtype: order.output.dtype, device: backend.device, precision: backend.precision };
  }

  private report(outcomes: readonly JobOutcome[]): void {
    this.parts.send({ kind: 'outcomes', outcomes });
  }
}

type Prepared =
  | { readonly kind: 'failed'; readonly failure: Failure }
  | { readonly kind: 'already'; readonly header: ResultHeader }
  | { readonly kind: 'rows'; readonly fingerprint: string; readonly ids: ArrayLike<number>[]; readonly truncated: number };

function withoutDropped(batch: MicroBatch<Row>): MicroBatch<Row>[] {
  const rows = batch.rows.filter((row) => !row.job.isDropped);
  if (rows.length === batch.rows.length) return [batch];
  return rows.length === 0 ? [] : [batchOf(rows)];
}

function pack(slot: Slot, batch: MicroBatch<Row>): void {
  const { rows, width } = batch;
  slot.ids.fill(0, 0, rows.length * width);
  for (const [i, row] of rows.entries()) {
    slot.ids.set(row.ids, i * width);
    slot.lengths[i] = row.tokens;
  }
}

/** Catches NaN, infinities and zero vectors before anybody can receive one. */
const MAX_LENGTH_ERROR = 0.01;

/** In f64. NaN when any component is. */
function squaredLengthOf(vector: Float32Array): number {
  let sum = 0;
  for (let i = 0; i < vector.length; i++) sum += vector[i]! * vector[i]!;
  return sum;
}

/**
 * The graph's own L2 norm sums 384 squares in f32 and is off by up to 1e-6 (ONNX Runtime 1.30 on the CPU, 2026-11); whoever
 * takes a dot product for the cosine would see that. One factor in f64 makes the length right to the last bit of f32.
 */
function writeScaled(vector: Float32Array, factor: number, target: Float32Array, at: number): void {
  for (let i = 0; i < vector.length; i++) target[at + i] = vector[i]! * factor;
}

/** A loop, because this looks at every token that passes. */
function firstAtLeast(limit: number, ids: TokenIds): number | undefined {
  for (let i = 0; i < ids.length; i++) if (ids[i]! >= limit) return ids[i];
  return undefined;
}

function failed(order: JobOrder, failure: Failure): JobOutcome {
  return { kind: 'failed', jobId: order.jobId, token: order.token, failure };
}

function conflict(jobId: string, found: string, asked: string): ShoalError<'JOB_ID_CONFLICT'> {
  return new ShoalError('JOB_ID_CONFLICT', `job id "${jobId}" already has a result for other input (fingerprint ${found}, asked for ${asked}); use another id`, { jobId });
}

function inputMismatch(jobId: string, says: string, holds: string): ShoalError<'INPUT_CORRUPT'> {
  return new ShoalError('INPUT_CORRUPT', `job "${jobId}" ${says}, but its input key ${holds}`, { jobId });
}

function tooLong(jobId: string, row: number, maxTokens: number): ShoalError<'INPUT_TOO_LONG'> {
  return new ShoalError('INPUT_TOO_LONG', `job "${jobId}", row ${row} has more than the ${maxTokens} tokens this worker takes; shorten it or ask with truncate "end"`, {
    jobId, row,
  });
}
