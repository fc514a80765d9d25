// A run of parts from the side of whoever asks for it: its parts are added as jobs, some hundreds at a time, and followed
// until each has an object and a place on the list of the run. All that is known of a run lies on the queue server and in
// the folder, so that the same command goes on where another was killed, and two of them do no harm.
//
// A part is done when the list has it and its object lies there. One whose pointer is there and whose place on the list is
// not gets that place here. One whose object is gone is asked for again. A part that fails ends the following: no more are
// added, and those that workers have go on.

import { setTimeout as sleep } from 'node:timers/promises';
import {
  PART_JOB,
  RUN_TTL_MS,
  ShoalError,
  decodePartResult,
  decodeRunEntry,
  encodeRunEntry,
  isShoalError,
  manifestOf,
  nameOfSource,
  parseFailedReason,
  partId,
  partJobData,
  partRows,
  type Part,
} from '@shoal/contract';
import { claimingOf, type Again, type AddResult, type JobProducer, type NewJob } from '@shoal/queue';
import type { PartLedger } from '@shoal/queue/payload';
import type { Plan } from './plan-parts.ts';
import { entryIn, isThere, type Manifest } from './run-folder.ts';
import type { RunPlace } from './run-place.ts';

/** A hundred workers have two each; behind that nothing is gained by more jobs on the server. */
const MOST_OPEN = 256;
const ADDED_AT_ONCE = 500;
const STATS_AT_ONCE = 64;
const LOOK_MS = 500;
/** Workers write checkpoints every few seconds, and a folder on a network has many names. */
const CHECKPOINTS_MS = 5_000;
const AWAY_MS = 2_000;
/** Without news for so long, it is looked whether anybody takes parts. */
const SILENT_MS = 15_000;

export interface PartsRunOptions {
  readonly plan: Plan;
  readonly place: RunPlace;
  readonly tenant: string | undefined;
  readonly producer: Pick<JobProducer, 'add' | 'endings' | 'workers' | 'whyWaiting'>;
  readonly ledger: Pick<PartLedger, 'pointer' | 'enter' | 'entries' | 'entriesOf'>;
  readonly signal: AbortSignal;
  /** Ends the run's command when nothing came for so long. Undefined: it waits. */
  readonly waitLimitMs: number | undefined;
  readonly onProgress: (rows: number) => void;
  /** What a person may have to do something about. */
  readonly onNotice: (message: string) => void;
}

export class PartsRun {
  readonly #options: PartsRunOptions;
  /** Entries of the list of the run by their numbers, as far as their objects are there. */
  #done: Record<string, string> = {};
  readonly #todo: { readonly part: Part; readonly again: Again }[] = [];
  /** Asked for and not ended, by job id. */
  readonly #open = new Map<string, Part>();
  #doneRows = 0;
  #newsMs = performance.now();
  #said = '';

  constructor(options: PartsRunOptions) {
    this.#options = options;
  }

  get done(): number {
    return Object.keys(this.#done).length;
  }

  /** Parts that somebody may be working on. */
  get open(): number {
    return this.#open.size;
  }

  /** Rows of parts that are not done. */
  get leftRows(): number {
    return this.#options.plan.rows - this.#doneRows;
  }

  /** Looks what is done already. */
  async begin(manifest: Manifest | undefined): Promise<void> {
    const { plan, ledger } = this.#options;
    const listed = await ledger.entries(plan.run);
    const entries = plan.parts.map(({ number }) => {
      const kept = manifest?.run === plan.run ? entryIn(manifest, number) : undefined;
      return listed[number] ?? (kept && encodeRunEntry(kept, kept.result));
    });
    for (let at = 0; at < entries.length; at += STATS_AT_ONCE) {
      const some = plan.parts.slice(at, at + STATS_AT_ONCE);
      await Promise.all(some.map((part) => this.#find(part, entries[part.number], listed[part.number] !== undefined)));
    }
    this.#todo.sort((one, other) => one.part.number - other.part.number);
  }

  async #find(part: Part, entry: string | undefined, isListed: boolean): Promise<void> {
    const { place, ledger } = this.#options;
    if (entry === undefined || !(await isThere(place, decodeRunEntry(entry).result))) {
      this.#todo.push({ part, again: entry === undefined ? 'when-used-up' : 'always' });
      return;
    }
    if (!isListed) await ledger.enter(part.run, part.number, entry);
    this.#count(part, entry);
  }

  /** All that is missing, at once: for a command that leaves. Returns how many are asked for. */
  async addAll(): Promise<number> {
    while (this.#todo.length > 0) await this.#patiently(() => this.#add(ADDED_AT_ONCE));
    return this.#open.size;
  }

  /** Resolves with the manifest when every part is done. Throws what a part failed with. */
  async follow(): Promise<string> {
    const { plan, place, signal, onProgress } = this.#options;
    let [behind, behindMs]: [ReadonlyMap<Part, number>, number] = [new Map(), 0];
    while (this.#todo.length > 0 || this.#open.size > 0) {
      await this.#patiently(async () => {
        if (this.#todo.length > 0 && this.#open.size < MOST_OPEN) await this.#add(MOST_OPEN - this.#open.size);
        await this.#look();
      });
      if (this.#todo.length + this.#open.size === 0) break;
      if (performance.now() - behindMs > CHECKPOINTS_MS) {
        behind = await place.checkpointRows([...this.#open.values()]);
        behindMs = performance.now();
      }
      const begun = [...this.#open.values()].reduce((sum, part) => sum + (behind.get(part) ?? 0), 0);
      onProgress(this.#doneRows + begun);
      await this.#lookAround();
      await sleep(LOOK_MS, undefined, { signal });
    }
    onProgress(this.#doneRows);
    return manifestOf(plan.parts[0]!, this.#done);
  }

  /** Up to so many more. What is refused for want of room stays, and is waited for. */
  async #add(most: number): Promise<void> {
    const { producer, signal } = this.#options;
    const chosen = this.#todo.splice(0, most);
    const refused: ShoalError<'ADMISSION_REFUSED'>[] = [];
    let isAdded = false;
    try {
      for (const again of ['when-used-up', 'always'] as const) {
        const own = chosen.filter((one) => one.again === again);
        const results = await producer.add(
          own.map(({ part }) => this.#jobOf(part)),
          { again },
        );
        for (const [at, result] of results.entries()) this.#added(own[at]!, result, refused);
        await this.#settleAll(own.flatMap(({ part }, at) => (results[at]!.outcome === 'ready' ? [part] : [])));
      }
      isAdded = true;
    } finally {
      // whatever came of it, adding a job that is there does nothing
      if (!isAdded) this.#todo.unshift(...chosen.filter(({ part }) => !this.#open.has(partId(part))));
    }
    const waitMs = refused[0]?.fields['retryAfterMs'];
    if (refused.length > 0) await sleep(typeof waitMs === 'number' ? waitMs : AWAY_MS, undefined, { signal });
  }

  #jobOf(part: Part): NewJob {
    const { tenant } = this.#options;
    const data = partJobData(part, { resultTtlMs: RUN_TTL_MS, ...(tenant !== undefined && { tenant }) });
    return { jobId: partId(part), name: PART_JOB, data };
  }

  #added(
    one: { readonly part: Part; readonly again: Again },
    result: AddResult,
    refused: ShoalError<'ADMISSION_REFUSED'>[],
  ): void {
    switch (result.outcome) {
      case 'added':
      case 'known':
        this.#open.set(result.jobId, one.part);
        return;
      case 'refused':
        refused.push(result.error);
        this.#todo.push(one);
        return;
      case 'conflict':
        throw result.error;
      default: // ready; one that is finished is asked for again
    }
  }

  /** What has become of the parts that are open. */
  async #look(): Promise<void> {
    const ended = (await this.#options.producer.endings([...this.#open.keys()])).filter(
      ({ state }) => state !== 'open',
    );
    if (ended.length === 0) return;
    this.#newsMs = performance.now();
    const done = ended.filter(({ state }) => state !== 'failed').map(({ jobId }) => this.#open.get(jobId)!);
    await this.#settleAll(done);
    for (const part of done) this.#open.delete(partId(part));
    const failed = ended.find(({ state }) => state === 'failed');
    if (failed === undefined) return;
    const part = this.#open.get(failed.jobId)!;
    this.#open.delete(failed.jobId);
    throw this.#failed(part, failed.failedReason ?? '');
  }

  async #settleAll(parts: readonly Part[]): Promise<void> {
    const { ledger, plan } = this.#options;
    const listed = await ledger.entriesOf(
      plan.run,
      parts.map(({ number }) => number),
    );
    for (const [at, part] of parts.entries()) await this.#settle(part, listed[at]);
  }

  /** It ended, or its job is gone: done where the list has it or its object is there, else asked for again. */
  async #settle(part: Part, listed: string | undefined): Promise<void> {
    if (listed !== undefined) return this.#count(part, listed);
    const { ledger, place } = this.#options;
    const entry = await this.#pointed(part);
    if (entry === undefined || !(await isThere(place, decodeRunEntry(entry).result))) {
      this.#todo.push({ part, again: entry === undefined ? 'when-used-up' : 'always' });
      return;
    }
    await ledger.enter(part.run, part.number, entry);
    this.#count(part, entry);
  }

  async #pointed(part: Part): Promise<string | undefined> {
    const pointer = await this.#options.ledger.pointer(partId(part));
    return pointer === undefined ? undefined : encodeRunEntry(part, decodePartResult(pointer));
  }

  #count(part: Part, entry: string): void {
    this.#done[part.number] = entry;
    this.#doneRows += partRows(part);
  }

  #failed(part: Part, reason: string): ShoalError {
    const { code, message } = parseFailedReason(reason);
    const { number, of, source } = part;
    return new ShoalError(code, `part ${number} of ${of} (${nameOfSource(source)}) failed: ${message}`, {
      jobId: partId(part),
    });
  }

  /** A queue server that is away is waited for: whatever was asked of it may be asked again. */
  async #patiently(work: () => Promise<void>): Promise<void> {
    const { signal, onNotice } = this.#options;
    for (let isSaid = false; ; isSaid = true) {
      signal.throwIfAborted();
      try {
        return await work();
      } catch (error) {
        if (!isShoalError(error, 'QUEUE_UNREACHABLE') && !isShoalError(error, 'QUEUE_FULL')) throw error;
        if (!isSaid) onNotice(`${error.message}; parts that workers have go on, and this waits`);
        this.#refuseSilence(error.message);
        await sleep(AWAY_MS, undefined, { signal });
      }
    }
  }

  async #lookAround(): Promise<void> {
    const silentMs = performance.now() - this.#newsMs;
    if (silentMs < SILENT_MS) return;
    const { producer, onNotice } = this.#options;
    const workers = await producer.workers();
    const why =
      workers === undefined || claimingOf(workers).length > 0
        ? undefined
        : 'no worker takes parts of this model any more; the run goes on when one with partFolders does';
    if (why !== undefined && why !== this.#said) onNotice(why);
    this.#said = why ?? '';
    if (why !== undefined) this.#refuseSilence(why);
  }

  #refuseSilence(why: string): void {
    const { waitLimitMs } = this.#options;
    const silentMs = performance.now() - this.#newsMs;
    if (waitLimitMs !== undefined && silentMs > waitLimitMs)
      throw new ShoalError(
        'DEADLINE_PASSED',
        `nothing came for ${Math.round(silentMs / 1_000)} s, the limit of --wait-limit: ${why}`,
      );
  }
}
