// A batch from its input to its output. Lines are read once to be checked and then to be asked; their answers are stored
// in shards of a few hundred, and the record says after each how far the input was answered. Whoever goes on after a kill
// begins there: a shard is whole or absent, so each line is answered once, however often its shard was begun.
//
//   validating    every line's frame is checked; any fault ends the batch here (failed), with all of them named
//   in_progress   lines become jobs of the queue, `InFlight` of them at a time, or are read by workers themselves
//                 (batch-parts.ts), and shards
//   finalizing    shards become the output and the error file; lines that were not asked (cancelled, expired) are put
//                 into the error file
//
// Held (held.ts) says when to stop: the batch is cancelled, or another process has it.

import { loopTurn } from '@shoal/core/base';
import type { Logger } from '@shoal/core';
import type { Allowances } from '../access/allowances.ts';
import { Problem } from '../problem.ts';
import { LineProblem, endedLine, outputLine, parseLine, problemLine, type BatchLine } from './batch-lines.ts';
import type { BatchCounts } from './batch-counts.ts';
import { BatchParts, type PartTiming } from './batch-parts.ts';
import type { BatchStore } from './batch-store.ts';
import { rowsOf, tokensOf, type Call, type CallAnswer, type Calls } from './calls.ts';
import type { Held } from './held.ts';
import type { InFlight } from './in-flight.ts';
import { linesOf, type TextLine } from './jsonl.ts';
import type { PartClients } from './part-clients.ts';
import { LineCutter, planOf, takersOf, type Kind } from './part-plan.ts';
import { answerPatiently, checkPatiently } from './patience.ts';
import {
  newId,
  nowSeconds,
  type BatchRecord,
  type Ending,
  type LineError,
  type PartPlan,
  type WebhookState,
} from './records.ts';

export interface BatchRunParts {
  readonly store: BatchStore;
  readonly calls: Calls;
  readonly inFlight: InFlight;
  readonly allowances: Pick<Allowances, 'wait' | 'spentBy'>;
  readonly counts: Pick<BatchCounts, 'stored' | 'lines' | 'ended'>;
  readonly maxLines: number;
  /** Where workers are asked for parts of inputs, and how many lines one has; undefined: they are not. */
  readonly partsOf?:
    | { readonly clients: PartClients; readonly lines: number; readonly timing?: PartTiming }
    | undefined;
  /** Seconds that output files are kept where the batch does not say; undefined: for good. */
  readonly keptSeconds: number | undefined;
  readonly log: Logger;
}

/** Of one shard: what a kill loses, and what is held in memory. Of lines that workers read it loses little. */
const SHARD_LINES = 256;
const PART_SHARD_LINES = 1_024;
/** No line of a request is shorter. */
const LEAST_LINE_BYTES = 80;
const SHARD_ROWS = 2_048;
/** Shards whose lines are with the queue. */
const OPEN_SHARDS = 3;
const MAX_ERRORS = 100;
const LOOK_EVERY_LINES = 256;

export class BatchRun {
  private readonly parts: BatchRunParts;
  private readonly held: Held<'batch'>;
  /** This process stops. */
  private readonly stop: AbortSignal;

  constructor(parts: BatchRunParts, held: Held<'batch'>, stop: AbortSignal) {
    this.parts = parts;
    this.held = held;
    this.stop = stop;
  }

  /**
   * Resolves when the batch has ended. Rejects with LeaseLost, StorageFailure, or the reason of `stop`; then another
   * process, or this one later, goes on.
   */
  async run(): Promise<void> {
    const expiry = new AbortController();
    const leftMs = this.held.record.expires_at * 1_000 - Date.now();
    const timer = setTimeout(() => expiry.abort('expired'), Math.min(Math.max(0, leftMs), 2 ** 31 - 1)).unref();
    if (leftMs <= 0) expiry.abort('expired');
    const ended = AbortSignal.any([this.held.interrupted.signal, expiry.signal, this.stop]);
    try {
      if (this.held.record.status === 'validating' && !(await this.validate(ended))) return;
      if (this.held.record.ending === undefined) {
        await this.work(ended);
        this.throwIfNotOurs();
        await this.begins(ended.aborted ? (expiry.signal.aborted ? 'expired' : 'cancelled') : 'completed');
      }
      await this.finalize(this.held.record.ending!);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Rejects where the end is not the batch's own. */
  private throwIfNotOurs(): void {
    this.stop.throwIfAborted();
    const { signal } = this.held.interrupted;
    if (signal.aborted && signal.reason !== 'cancelled') throw signal.reason as Error;
  }

  private lines(from?: {
    readonly line: number;
    readonly offset: number;
  }): Promise<AsyncIterable<TextLine> | undefined> {
    const { tenant, input_file_id: fileId } = this.held.record;
    const { store } = this.parts;
    return store.storage
      .open(store.contentKey(tenant, fileId), from?.offset)
      .then((pieces) => (pieces === undefined ? undefined : linesOf(pieces, from)));
  }

  // ---- validating -------------------------------------------------------------------------------------------------

  /** Whether the batch goes on. */
  private async validate(ended: AbortSignal): Promise<boolean> {
    const found = await this.checkLines(ended);
    this.throwIfNotOurs();
    if (ended.aborted) return true;
    const { errors, total, models, cutter } = found;
    if (errors.length > 0) {
      await this.held.end((batch) => ({
        ...batch,
        status: 'failed',
        failed_at: nowSeconds(),
        errors,
        webhook: due(batch),
      }));
      this.parts.counts.ended('failed');
      return false;
    }
    const [model] = models;
    const parts = await this.planParts(cutter);
    await this.held.save((batch) => ({
      ...batch,
      parts,
      ...(batch.status === 'validating' && { status: 'in_progress' }),
      in_progress_at: nowSeconds(),
      request_counts: { ...batch.request_counts, total },
      ...(models.size === 1 && { model }),
    }));
    return true;
  }

  private async checkLines(ended: AbortSignal): Promise<{
    readonly errors: readonly LineError[];
    readonly total: number;
    readonly models: ReadonlySet<string>;
    readonly cutter: LineCutter | undefined;
  }> {
    const { endpoint } = this.held.record;
    const cutter = await this.cutterOf();
    const { maxLines } = this.parts;
    const errors = new Errors();
    const seen = new Map<string, number>();
    const models = new Map<string, LineError | undefined>();
    let total = 0;
    const lines = await this.lines();
    if (lines === undefined) errors.add(noInput());
    for await (const line of lines ?? []) {
      if (ended.aborted) break;
      if (++total % LOOK_EVERY_LINES === 0) await loopTurn();
      if (total > maxLines) {
        errors.add(tooManyLines(maxLines));
        break;
      }
      try {
        const { number, customId, body } = parseLine(line, endpoint);
        const first = seen.get(customId);
        if (first === undefined) seen.set(customId, number);
        else errors.add(duplicate(number, customId, first));
        const error = await this.modelProblem(body, number, models);
        if (error !== undefined) errors.add(error);
        else await cutter?.add(line, body);
      } catch (error) {
        if (!(error instanceof LineProblem)) throw error;
        errors.add(error.error);
      }
    }
    if (total === 0 && lines !== undefined && !ended.aborted) errors.add(emptyFile());
    return { errors: errors.list(), total, models: new Set(models.keys()), cutter };
  }

  /** Where the input is large enough to be read by workers, and they can. Limits by the minute are for smaller pieces. */
  private async cutterOf(): Promise<LineCutter | undefined> {
    const { partsOf, store, calls } = this.parts;
    const { endpoint, key, tenant, input_file_id: fileId } = this.held.record;
    const access = store.storage.forWorkers;
    if (partsOf === undefined || access === undefined || endpoint !== '/v1/embeddings' || key !== undefined)
      return undefined;
    const source = await access.source(store.contentKey(tenant, fileId));
    const isLarge = source !== undefined && source.bytes >= partsOf.lines * LEAST_LINE_BYTES;
    return isLarge ? new LineCutter(calls, partsOf.lines) : undefined;
  }

  /** Of the kinds of lines whose workers can read them. */
  private async planParts(cutter: LineCutter | undefined): Promise<readonly PartPlan[] | undefined> {
    const { store, log } = this.parts;
    const { id, tenant } = this.held.record;
    const kinds = cutter?.plan() ?? [];
    const plans: PartPlan[] = [];
    for (const [at, kind] of kinds.entries()) {
      const plan = await this.planKind(kind, `part-${at}`).catch((error: unknown) => {
        log.warn(
          { err: error, id },
          'a large batch goes through the queue: whether workers take parts could not be seen',
        );
      });
      if (plan !== undefined) plans.push(plan);
    }
    if (plans.length === 0) {
      if (kinds.length > 0) await store.storage.forWorkers?.clear(store.partsFolder(tenant, id));
      return undefined;
    }
    const ranges = plans.flatMap((plan) => plan.ranges);
    const lines = ranges.reduce((sum, range) => sum + range.lines, 0);
    log.info({ id, parts: ranges.length, lines }, 'a large batch is read by workers as parts of its file');
    return plans;
  }

  /** Undefined where all workers that take parts of the model do not have this storage in their folders, or nobody does. */
  private async planKind(kind: Kind, stem: string): Promise<PartPlan | undefined> {
    const { partsOf, store, log } = this.parts;
    const { record } = this.held;
    const { id, tenant, input_file_id: fileId } = record;
    const access = store.storage.forWorkers;
    const { name } = kind.call.model;
    if (partsOf === undefined || access === undefined || !(await partsOf.clients.isServed(name))) return undefined;
    const source = await access.source(store.contentKey(tenant, fileId));
    if (source === undefined) return undefined;
    const plan = planOf(record, kind, { source, place: await access.output(store.partsFolder(tenant, id)), stem });
    const { producer } = await partsOf.clients.laneOf(name);
    const takers = await takersOf(await producer.workers(), plan);
    if (takers === 'all') return plan;
    const why = takers === 'some' ? 'not all workers that take parts have' : 'no worker that takes parts has';
    const place = store.storage.place;
    log.info({ id, model: name, place }, `a large batch goes through the queue: ${why} its files in partFolders`);
    return undefined;
  }

  /** A model that nobody serves is one mistake on all lines, and nobody wants to hear of it the next morning. */
  private async modelProblem(
    body: object,
    line: number,
    known: Map<string, LineError | undefined>,
  ): Promise<LineError | undefined> {
    const model: unknown = Reflect.get(body, 'model');
    const name = typeof model === 'string' ? model : '';
    if (!known.has(name)) known.set(name, await this.look(model));
    const problem = known.get(name);
    return problem && { ...problem, line, message: `line ${line}: ${problem.message}` };
  }

  private async look(model: unknown): Promise<LineError | undefined> {
    try {
      await this.parts.calls.checkModel(this.held.record.endpoint, model ?? undefined);
      return undefined;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      const { code, param } = error.facts;
      return { code: code ?? 'invalid_value', param: `body.${param ?? 'model'}`, line: null, message: error.message };
    }
  }

  // ---- in progress ------------------------------------------------------------------------------------------------

  /** Asks what was not asked yet, until all is answered or `ended` is aborted. */
  private async work(ended: AbortSignal): Promise<void> {
    const failed = new AbortController();
    try {
      await this.askAll(ended, AbortSignal.any([ended, failed.signal]));
    } catch (error) {
      failed.abort(error); // what is with the queue is taken back
      throw error;
    }
  }

  private async askAll(ended: AbortSignal, signal: AbortSignal): Promise<void> {
    const parts = ended.aborted ? new Map<string, BatchParts>() : await this.openParts(signal);
    try {
      const first = this.held.record.progress.line + 1;
      for (const some of parts.values()) await some.begin(first);
      await this.askLines(ended, signal, parts);
    } finally {
      for (const some of parts.values()) await some.close();
    }
  }

  /** By the group of the calls that they answer. */
  private async openParts(signal: AbortSignal): Promise<ReadonlyMap<string, BatchParts>> {
    const { partsOf, store, calls, log } = this.parts;
    const { record } = this.held;
    const access = store.storage.forWorkers;
    const opened = new Map<string, BatchParts>();
    if (partsOf === undefined || access === undefined) return opened;
    const { clients, timing } = partsOf;
    const folder = store.partsFolder(record.tenant, record.id);
    for (const plan of record.parts ?? []) {
      const [name = ''] = plan.model.name.split('@', 1);
      const lane = await clients.laneOf(name);
      const onGivenUp = (): Promise<void> => this.partsGivenUp(plan);
      const options = { record, plan, access, folder, lane, calls, signal, onGivenUp, log, timing };
      opened.set(plan.group, new BatchParts(options));
    }
    return opened;
  }

  private async partsGivenUp({ group }: PartPlan): Promise<void> {
    const { store } = this.parts;
    await this.held.save((batch) => ({ ...batch, parts: batch.parts?.filter((plan) => plan.group !== group) }));
    const { tenant, id, parts = [] } = this.held.record;
    if (parts.length === 0) await store.storage.forWorkers?.clear(store.partsFolder(tenant, id));
  }

  private async askLines(
    ended: AbortSignal,
    signal: AbortSignal,
    parts: ReadonlyMap<string, BatchParts>,
  ): Promise<void> {
    const { progress, endpoint } = this.held.record;
    const { calls, log } = this.parts;
    const { jobRows } = this.parts.inFlight;
    const lines = ended.aborted ? undefined : await this.lines(progress);
    if (lines === undefined && !ended.aborted) throw new Error('the input file of the batch is gone');
    const shardLines = Math.max(jobRows, parts.size === 0 ? SHARD_LINES : PART_SHARD_LINES);
    let shard = new Shard(progress.shards);
    /** Of the shard, by what their calls have in common. */
    const groups = new Map<string, Group>();
    const open: Promise<void>[] = [];
    let committed = Promise.resolve();
    const flush = async (group: Group): Promise<void> => {
      const begun = await this.begin(group, signal);
      if (begun !== undefined) shard.pending.push(begun.answered);
    };
    const close = async (): Promise<void> => {
      for (const group of groups.values()) await flush(group);
      groups.clear();
      if (shard.entries.length === 0) return;
      const whole = shard;
      committed = committed.then(() => this.commit(whole));
      committed.catch(() => undefined); // heard below
      open.push(committed);
      shard = new Shard(whole.number + 1);
      if (open.length >= OPEN_SHARDS) await open.shift();
    };
    const ask = async (entry: Entry, key: string | undefined, call: Call): Promise<void> => {
      shard.rows += rowsOf(call);
      const known = key === undefined ? undefined : groups.get(key);
      const hasRoom = known !== undefined && known.rows + rowsOf(call) <= jobRows;
      if (known !== undefined && !hasRoom) await flush(known);
      const group = hasRoom ? known : new Group();
      group.add(entry, call);
      if (key === undefined) await flush(group);
      else groups.set(key, group);
    };
    for await (const line of lines ?? []) {
      if (ended.aborted) break;
      const entry = shard.add(parseLine(line, endpoint), line);
      const call = await checkPatiently(calls, endpoint, entry.line.body, { signal, log }).catch((error: unknown) => {
        if (error instanceof Problem) return error;
        if (ended.aborted) return undefined;
        throw error;
      });
      if (call instanceof Problem) entry.answer = { problem: call };
      else if (call !== undefined) {
        const key = calls.groupOf(call);
        entry.answer = key === undefined ? undefined : await parts.get(key)?.answerOf(line.number, call);
        if (entry.answer === undefined) await ask(entry, key, call);
      }
      if (shard.entries.length % LOOK_EVERY_LINES === 0) await loopTurn(); // of parts many come at once
      if (shard.entries.length >= shardLines || shard.rows >= SHARD_ROWS) await close();
    }
    await close();
    await committed;
  }

  /**
   * The group is with the queue, for which there has to be room, and something left of what the key of the batch may use;
   * `answered` resolves when its lines have answers or the
   * batch ends. Undefined where it ended before.
   */
  private async begin(group: Group, signal: AbortSignal): Promise<{ readonly answered: Promise<void> } | undefined> {
    const { calls, inFlight, allowances, log } = this.parts;
    const { id, tenant, trace, key } = this.held.record;
    const leave = await allowances
      .wait(key, group.rows, signal)
      .then(() => inFlight.enter(group.rows, signal))
      .catch((error: unknown) => (signal.aborted ? undefined : Promise.reject(error)));
    if (leave === undefined) return undefined;
    const [first] = group.entries;
    const terms = { id: `${id}.${first!.line.number}.${group.rows}`, tenant, trace, signal };
    const answered = answerPatiently(calls, group.calls, terms, log)
      .then((answers) => {
        for (const [at, entry] of group.entries.entries()) entry.answer = answers[at];
        allowances.spentBy(key, tokensOf(answers));
      })
      .catch((error: unknown) => {
        if (!signal.aborted) throw error;
      })
      .finally(leave);
    answered.catch(() => undefined); // heard when its shard is stored
    return { answered };
  }

  private async commit({ number, pending, entries }: Shard): Promise<void> {
    await Promise.all(pending);
    this.throwIfNotOurs();
    const { store } = this.parts;
    const { id, tenant } = this.held.record;
    const as = this.held.interrupted.signal.aborted ? 'cancelled' : 'expired';
    const written = { out: '', err: '', completed: 0, failed: 0, tokens: 0, ended: 0 };
    for (const { line, answer } of entries) {
      if (answer !== undefined && 'body' in answer) {
        written.out += outputLine(id, line, answer.body);
        written.tokens += answer.tokens;
        written.completed += 1;
      } else {
        written.err += answer === undefined ? endedLine(id, line, as) : problemLine(id, line, answer.problem);
        written.failed += 1;
        if (answer === undefined) written.ended += 1;
      }
      if (entries.length > 1) await loopTurn();
    }
    for (const which of ['out', 'err'] as const)
      await store.storage.write(store.shardKey(tenant, id, number, which), [Buffer.from(written[which])]);
    const last = entries.at(-1)!;
    await this.held.save((batch) => ({
      ...batch,
      progress: { shards: number + 1, line: last.line.number, offset: last.endOffset },
      tokens: batch.tokens + written.tokens,
      request_counts: {
        total: batch.request_counts.total,
        completed: batch.request_counts.completed + written.completed,
        failed: batch.request_counts.failed + written.failed,
      },
    }));
    const { counts } = this.parts;
    counts.lines('completed', written.completed);
    counts.lines('failed', written.failed - written.ended);
    counts.lines(as, written.ended);
  }

  // ---- finalizing -------------------------------------------------------------------------------------------------

  private begins(as: Ending['as']): Promise<void> {
    const ending = { as, outputId: newId('file'), errorId: newId('file') };
    return this.held.save((batch) => ({
      ...batch,
      ...(as !== 'cancelled' && { status: 'finalizing' as const }),
      finalizing_at: nowSeconds(),
      ending,
    }));
  }

  private async finalize({ as, outputId, errorId }: Ending): Promise<void> {
    const { counts, store } = this.parts;
    if (as !== 'completed') await this.cancelParts();
    const rest = { lines: 0 };
    const hasOutput = await this.writeFile(outputId, 'output', this.shardsOf('out'));
    const hasErrors = await this.writeFile(errorId, 'error', this.errors(as, rest));
    const { parts, tenant, id } = this.held.record;
    if (parts !== undefined) await store.storage.forWorkers?.clear(store.partsFolder(tenant, id));
    await this.held.end((batch) => {
      const { total, completed, failed } = batch.request_counts;
      return {
        ...batch,
        status: as,
        [`${as}_at`]: nowSeconds(),
        ...(hasOutput && { output_file_id: outputId }),
        ...(hasErrors && { error_file_id: errorId }),
        request_counts: {
          total: Math.max(total, completed + failed + rest.lines),
          completed,
          failed: failed + rest.lines,
        },
        webhook: due(batch),
      };
    });
    if (as !== 'completed') counts.lines(as, rest.lines);
    counts.ended(as);
    await store.removeShards(tenant, id);
  }

  private async cancelParts(): Promise<void> {
    const parts = await this.openParts(AbortSignal.abort()).catch((error: unknown) => {
      this.parts.log.warn({ err: error }, 'parts of a batch that has ended could not be taken back');
    });
    for (const some of parts?.values() ?? []) await some.cancel();
  }

  /** Whether there was anything to write. */
  private async writeFile(id: string, what: 'output' | 'error', pieces: AsyncIterable<Uint8Array>): Promise<boolean> {
    const { store, keptSeconds } = this.parts;
    const { tenant, id: batchId, output_expires_after: asked } = this.held.record;
    const key = store.contentKey(tenant, id);
    const bytes = await store.storage.write(key, pieces);
    if (bytes === 0) {
      await store.storage.remove(key);
      return false;
    }
    const created = nowSeconds();
    const kept = asked?.seconds ?? keptSeconds;
    const file = {
      tenant,
      id,
      bytes,
      created_at: created,
      filename: `${batchId}_${what}.jsonl`,
      purpose: 'batch_output' as const,
      ...(kept !== undefined && { expires_at: created + kept }),
    };
    await store.save('file', file, undefined); // who was killed here has written the same before
    this.parts.counts.stored(file);
    return true;
  }

  private async *shardsOf(which: 'out' | 'err'): AsyncGenerator<Uint8Array, void, undefined> {
    const { store } = this.parts;
    const { tenant, id, progress } = this.held.record;
    for (let shard = 0; shard < progress.shards; shard++) {
      this.throwIfNotOurs();
      const pieces = await store.storage.open(store.shardKey(tenant, id, shard, which));
      if (pieces !== undefined) yield* pieces;
    }
  }

  private async *errors(as: Ending['as'], rest: { lines: number }): AsyncGenerator<Uint8Array, void, undefined> {
    yield* this.shardsOf('err');
    if (as === 'completed') return;
    const { id, endpoint, progress } = this.held.record;
    for await (const line of (await this.lines(progress)) ?? []) {
      try {
        const text = endedLine(id, parseLine(line, endpoint), as);
        rest.lines += 1;
        yield Buffer.from(text);
      } catch (error) {
        if (!(error instanceof LineProblem)) throw error; // of an input that was never checked to its end
      }
      if (rest.lines % LOOK_EVERY_LINES === 0) await loopTurn();
    }
  }
}

/** The caller of a batch that has ended is to be told at once. */
function due({ webhook }: BatchRecord): WebhookState | undefined {
  return webhook && { ...webhook, nextMs: Date.now() };
}

interface Entry {
  readonly line: BatchLine;
  readonly endOffset: number;
  answer: CallAnswer | undefined;
}

class Shard {
  readonly number: number;
  readonly entries: Entry[] = [];
  readonly pending: Promise<void>[] = [];
  rows = 0;

  constructor(number: number) {
    this.number = number;
  }

  add(line: BatchLine, { endOffset }: TextLine): Entry {
    const entry: Entry = { line, endOffset, answer: undefined };
    this.entries.push(entry);
    return entry;
  }
}

/** Lines that are asked as one job. */
class Group {
  readonly entries: Entry[] = [];
  readonly calls: Call[] = [];
  rows = 0;

  add(entry: Entry, call: Call): void {
    this.entries.push(entry);
    this.calls.push(call);
    this.rows += rowsOf(call);
  }
}

// ---- what is wrong with an input ----------------------------------------------------------------------------------

/** The first ones, and how many more there are. */
class Errors {
  private readonly found: LineError[] = [];
  private more = 0;

  add(error: LineError): void {
    if (this.found.length < MAX_ERRORS) this.found.push(error);
    else this.more += 1;
  }

  list(): readonly LineError[] {
    if (this.more === 0) return this.found;
    const message = `there are ${this.more} more errors like these; mend the file and make a new batch`;
    return [...this.found, { code: 'more_errors', line: null, param: null, message }];
  }
}

function duplicate(line: number, customId: string, first: number): LineError {
  return {
    code: 'duplicate_custom_id',
    line,
    param: 'custom_id',
    message: `line ${line}: the custom_id ${JSON.stringify(customId.slice(0, 80))} is that of line ${first}; each line has its own`,
  };
}

function emptyFile(): LineError {
  const message = 'the input file has no lines; each line is one request, a JSON object';
  return { code: 'empty_file', line: null, param: 'input_file_id', message };
}

function noInput(): LineError {
  const message = 'the input file is not there any more; upload it again and make a new batch';
  return { code: 'file_not_found', line: null, param: 'input_file_id', message };
}

function tooManyLines(maxLines: number): LineError {
  return {
    code: 'too_many_lines',
    line: maxLines + 1,
    param: 'input_file_id',
    message: `the input file has more than ${maxLines} lines (the setting batchMaxLines); cut it into several batches`,
  };
}
