// The lines of one kind of a batch that workers read and embed by themselves. Parts are asked for some ahead of where the
// batch is; when one is done, the rows of its object answer its lines, in order. Whatever a part does not answer (a line
// that workers could not read, one whose text had to be cut and must not be, another kind of request) is the caller's to
// ask.
//
// Parts are given up, and all lines that are left with them, where a part fails, its object is not what was written, or
// no worker takes such parts for a minute. Nothing is lost by that: the batch goes on through the queue. What is known of
// parts lies on the queue server and in the record's plan, so whoever has the batch next finds them under the same ids.

import { createHash } from 'node:crypto';
import { setTimeout as after } from 'node:timers/promises';
import {
  PART_JOB,
  decodePartResult,
  decodeResultHeader,
  decodeRunEntry,
  parseFailedReason,
  partFingerprint,
  partId,
  partJobData,
  type PartResult,
} from '@shoal/contract';
import type { Logger } from '@shoal/core';
import { unlessAborted } from '@shoal/core/base';
import { readAt, type ReadableAt } from '@shoal/worker/files/footer';
import { writtenRows, type WrittenRows } from '@shoal/worker/files/written-rows';
import type { Call, CallAnswer, Calls, EmbeddedRow } from './calls.ts';
import { isPassing } from './calls.ts';
import type { PartLane } from './part-clients.ts';
import { partOf, takersOf } from './part-plan.ts';
import type { BatchRecord, PartPlan } from './records.ts';
import { StorageFailure, type WorkerAccess } from './storage.ts';

export interface BatchPartsOptions {
  readonly record: Pick<BatchRecord, 'id' | 'trace' | 'expires_at'>;
  readonly plan: PartPlan;
  /** Where the objects are. */
  readonly access: WorkerAccess;
  readonly folder: string;
  readonly lane: PartLane;
  readonly calls: Pick<Calls, 'embedded'>;
  /** The batch ends, or this process stops. */
  readonly signal: AbortSignal;
  /** To be noted: these parts are asked no more. */
  readonly onGivenUp: () => Promise<void>;
  readonly log: Logger;
  readonly timing?: PartTiming | undefined;
}

export interface PartTiming {
  readonly lookMs: number;
  /** Parts wait so long for workers that take them. */
  readonly nobodyMs: number;
}

const TIMING: PartTiming = { lookMs: 500, nobodyMs: 60_000 };
/** Of parts that are with the queue. */
const PARTS_AHEAD = 64;
const MOST_REPEATS = 5;
const WORKERS_EVERY_MS = 5_000;
const CANCELLED_AT_ONCE = 500;
/** A server that is away is not waited for. */
const CANCEL_MS = 5_000;
const READ_BYTES = 1 << 23;
/** Workers keep no more of a text. */
const MAX_TEXT_CHARACTERS = 1 << 20;

/** As the list of its run has it, and what was committed. */
interface Done {
  readonly result: PartResult;
  readonly pointer: Buffer | undefined;
}

/** Why parts are given up. */
class GivenUp extends Error {}

export class BatchParts {
  private readonly options: BatchPartsOptions;
  private readonly timing: PartTiming;
  /** Of the plan: where the batch is, and how many parts were asked for. */
  private at = 0;
  private added = 0;
  private rows: Rows | undefined;
  private isOver = false;
  /** How often the part where the batch is was asked for again. */
  private repeats = 0;
  private servedMs = performance.now();
  private lookedMs = 0;

  constructor(options: BatchPartsOptions) {
    this.options = options;
    this.timing = options.timing ?? TIMING;
  }

  /** Asks for the first parts that have lines from this one on, so that workers have them when the batch is there. */
  async begin(line: number): Promise<void> {
    await this.orGiveUp(async () => {
      await this.pass(line);
      await this.patiently(() => this.addAhead());
    });
  }

  /**
   * Lines come in order, and are of the plan's group. Undefined: no part answers this one, or the batch ends. Waits until
   * its part is done.
   */
  async answerOf(line: number, call: Call): Promise<CallAnswer | undefined> {
    const { calls } = this.options;
    const isRow = call.kind === 'embeddings' && call.texts.length === 1 && call.texts[0]!.length <= MAX_TEXT_CHARACTERS;
    if (this.isOver || !isRow) return undefined;
    const row = await this.orGiveUp(() => this.rowOf(line));
    const isRefused = row?.isTruncated === true && call.asked.truncate === 'error';
    return row === undefined || isRefused ? undefined : calls.embedded(call, row);
  }

  /** Takes back what waits and runs. Never rejects: whoever has such a part finds no folder for it. */
  async cancel(): Promise<void> {
    const { plan, lane, log, record } = this.options;
    this.isOver = true;
    await this.close();
    const ids = plan.ranges.slice(this.at).map((_, at) => partId({ run: plan.run, number: this.at + at }));
    const cancelling = async (): Promise<void> => {
      for (let from = 0; from < ids.length; from += CANCELLED_AT_ONCE)
        await lane.canceller.cancel(ids.slice(from, from + CANCELLED_AT_ONCE));
    };
    await Promise.race([cancelling(), after(CANCEL_MS, undefined, { ref: false })]).catch((error: unknown) => {
      log.warn({ err: error, id: record.id }, 'parts of a batch that has ended could not be taken back');
    });
  }

  /** Leaves parts to whoever goes on. */
  async close(): Promise<void> {
    await this.rows?.close();
    this.rows = undefined;
  }

  private async orGiveUp<Found>(work: () => Promise<Found>): Promise<Found | undefined> {
    try {
      return await work();
    } catch (error) {
      if (error instanceof StorageFailure) throw error; // the batch waits for its storage, whichever way it goes
      return this.giveUp(reasonOf(error));
    }
  }

  private async giveUp(reason: string): Promise<undefined> {
    const { record, onGivenUp, log } = this.options;
    log.warn({ id: record.id, reason }, 'parts of a batch are given up; its lines go through the queue');
    await this.cancel();
    await onGivenUp();
  }

  private async rowOf(line: number): Promise<EmbeddedRow | undefined> {
    await this.pass(line);
    const range = this.options.plan.ranges[this.at];
    if (range === undefined || line < range.firstLine) return undefined;
    this.rows ??= await this.whenDone(this.at);
    return this.rows?.at(BigInt(line - 1));
  }

  /** Parts that end before this line are behind the batch. */
  private async pass(line: number): Promise<void> {
    const { ranges } = this.options.plan;
    const isBefore = ({ firstLine, lines }: PartPlan['ranges'][number]): boolean => line >= firstLine + lines;
    while (this.at < ranges.length && isBefore(ranges[this.at]!)) {
      await this.close();
      this.at++;
      this.repeats = 0;
    }
  }

  // ---- a part -----------------------------------------------------------------------------------------------------

  /** Undefined where the batch ends before. */
  private async whenDone(number: number): Promise<Rows | undefined> {
    const { signal, plan } = this.options;
    const { lookMs } = this.timing;
    while (!signal.aborted) {
      const found = await this.patiently(() => this.look(number));
      if (found !== undefined) return this.open(found, partOf(plan, number));
      await after(lookMs, undefined, { signal }).catch(() => undefined);
    }
    return undefined;
  }

  private async addAhead(): Promise<void> {
    const end = Math.min(this.options.plan.ranges.length, this.at + PARTS_AHEAD);
    for (this.added = Math.max(this.added, this.at); this.added < end; this.added++)
      if (!(await this.add(this.added, 'when-used-up'))) return;
  }

  /** Adds what is to be asked for, and says what became of this part. */
  private async look(number: number): Promise<Done | undefined> {
    const { lane, plan } = this.options;
    await this.addAhead();
    const [entry] = await lane.ledger.entriesOf(plan.run, [number]);
    if (entry !== undefined) return this.pointed(number, entry);
    const [ending] = await lane.producer.endings([partId({ run: plan.run, number })]);
    if (ending?.state === 'failed') {
      const { code, message } = parseFailedReason(ending.failedReason ?? '');
      throw new GivenUp(`part ${number} failed: ${code} ${message}`);
    }
    if (ending?.state === 'open') await this.lookAround();
    else if (this.added > number) {
      // it is on the list by now, or what is missing behind its commit is asked for again
      const [late] = await lane.ledger.entriesOf(plan.run, [number]);
      if (late !== undefined) return this.pointed(number, late);
      // a server that keeps no failed jobs does not say why
      if (++this.repeats > MOST_REPEATS)
        throw new GivenUp(`part ${number} ended ${MOST_REPEATS} times, and nobody knows how`);
      await this.add(number, 'always');
    }
    return undefined;
  }

  private async pointed(number: number, entry: string): Promise<Done> {
    const { run } = this.options.plan;
    const pointer = await this.options.lane.ledger.pointer(partId({ run, number }));
    return { result: decodeRunEntry(entry).result, pointer };
  }

  /** Whether it is with the queue; it may have no room. */
  private async add(number: number, again: 'when-used-up' | 'always'): Promise<boolean> {
    const { lane, plan, record } = this.options;
    const part = partOf(plan, number);
    const leftMs = Math.max(60_000, record.expires_at * 1_000 - Date.now());
    const data = partJobData(part, {
      tenant: plan.tenant,
      resultTtlMs: leftMs,
      ...(record.trace !== undefined && { trace: record.trace }),
    });
    const [result] = await lane.producer.add([{ jobId: partId(part), name: PART_JOB, data }], { again });
    if (result?.outcome === 'conflict') throw new GivenUp(result.error.message);
    if (result?.outcome === 'refused') await this.lookAround();
    return result?.outcome !== 'refused';
  }

  private async lookAround(): Promise<void> {
    const { lane, plan } = this.options;
    const { nobodyMs } = this.timing;
    const nowMs = performance.now();
    if (nowMs - this.lookedMs < Math.min(WORKERS_EVERY_MS, nobodyMs)) return;
    this.lookedMs = nowMs;
    const workers = await lane.producer.workers();
    if (workers === undefined || (await takersOf(workers, plan)) !== 'none') this.servedMs = nowMs;
    if (nowMs - this.servedMs > nobodyMs)
      throw new GivenUp(
        `for ${Math.round(nobodyMs / 1_000)} s the workers that take parts of ${plan.model.name} have been without these folders, ` +
          'or there were none (partFolders)',
      );
  }

  /** A queue server that is away, or full, is waited for; not by a batch that ends. */
  private async patiently<Found>(work: () => Promise<Found>): Promise<Found | undefined> {
    try {
      return await unlessAborted(this.options.signal, work());
    } catch (error) {
      if (error instanceof GivenUp) throw error;
      if (!isPassing(error)) throw new GivenUp(reasonOf(error));
      this.options.log.debug({ err: error, id: this.options.record.id }, 'parts of a batch cannot be asked for now');
      this.servedMs = performance.now();
      return undefined;
    }
  }

  // ---- its object -------------------------------------------------------------------------------------------------

  /** Of the very bytes that the worker wrote for this part. */
  private async open({ result, pointer }: Done, part: ReturnType<typeof partOf>): Promise<Rows> {
    const { access, folder, plan } = this.options;
    const { name, bytes, sha256, dims } = result;
    const header = pointer && decodeResultHeader(pointer);
    if (pointer === undefined || header?.fingerprint !== partFingerprint(part) || header.isTaken)
      throw new GivenUp(`the pointer of part ${part.number} is not there, or another's`);
    if (decodePartResult(pointer).sha256 !== sha256 || dims !== plan.dims)
      throw new GivenUp(`the pointer of part ${part.number} and the list of its run do not agree`);
    const file = await access.object(folder, name);
    try {
      const found = file && (await sumOf(file));
      if (file === undefined || found?.bytes !== bytes || found.sha256 !== sha256)
        throw new GivenUp(`the object ${name} is gone, or not what was written`);
      return new Rows(file, writtenRows(file, name, dims), header.isSimulated);
    } catch (error) {
      await file?.close();
      throw error;
    }
  }
}

/** Rows of an object, asked for in order. */
class Rows {
  private readonly file: ReadableAt;
  private readonly groups: AsyncGenerator<WrittenRows>;
  private readonly isSimulated: boolean;
  private group: WrittenRows | undefined;
  private row = 0;

  constructor(file: ReadableAt, groups: AsyncGenerator<WrittenRows>, isSimulated: boolean) {
    this.file = file;
    this.groups = groups;
    this.isSimulated = isSimulated;
  }

  /** Undefined where it was left out. */
  async at(index: bigint): Promise<EmbeddedRow | undefined> {
    for (;;) {
      const found = this.group?.indexes[this.row];
      if (found === undefined) {
        const { value, done } = await this.groups.next();
        if (done === true) return undefined;
        [this.group, this.row] = [value, 0];
      } else if (found < index) this.row++;
      else return found === index ? this.rowOf(this.group!) : undefined;
    }
  }

  async close(): Promise<void> {
    await this.file.close();
  }

  private rowOf(group: WrittenRows): EmbeddedRow {
    const dims = group.vectors.length / group.indexes.length;
    return {
      vector: group.vectors.subarray(this.row * dims, (this.row + 1) * dims),
      tokens: group.tokens[this.row]!,
      isTruncated: group.isTruncated(this.row),
      isSimulated: this.isSimulated,
    };
  }
}

function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

async function sumOf(file: ReadableAt): Promise<{ readonly bytes: number; readonly sha256: string }> {
  const hash = createHash('sha256');
  let bytes = 0;
  for (let piece = await readAt(file, 0, READ_BYTES); piece.length > 0; piece = await readAt(file, bytes, READ_BYTES)) {
    hash.update(piece);
    bytes += piece.length;
  }
  return { bytes, sha256: hash.digest('hex') };
}
