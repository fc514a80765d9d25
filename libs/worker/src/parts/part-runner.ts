// The parts that an executor has. To it each is many small jobs: they go into the same pool as all others, as bulk work of
// their tenant, and this lies between the executor and those it speaks with. Their inputs are in their orders and their
// results come here, so it is a payload store; what the executor says of them is kept from the claimer, which knows the
// parts alone. Rows of parts fill half of the pool at most: the rest is for what comes through the queue.

import { randomUUID } from 'node:crypto';
import {
  RESULT_HEADER_BYTES,
  ShoalError,
  isShoalError,
  missingPrompt,
  promptText,
  type Prompts,
} from '@shoal/contract';
import type {
  CommitRequest,
  CommitResult,
  Executor,
  FromExecutor,
  InputRead,
  JobOrder,
  JobOutcome,
  OtherCell,
  PartOrder,
  PayloadStore,
  WantedPayload,
} from '@shoal/core';
import type { TokenizedInput } from '../executor/tokenized-input.ts';
import type { JobRows } from './part-rows.ts';
import { Left, PartRun, type Embedded, type PartRunParts } from './part-run.ts';

export interface PartRunnerParts extends Omit<
  PartRunParts,
  'ledger' | 'jobRows' | 'embed' | 'tokenize' | 'reclaim' | 'onRows' | 'signal'
> {
  /** Of the cell that a part is of; undefined: at home. */
  readonly ledgerIn: (cell: OtherCell | undefined) => PartRunParts['ledger'];
  readonly tokenizer: {
    readonly hash: string;
    readonly encodeInput: (input: Uint8Array<ArrayBuffer>, prefix: string) => Promise<TokenizedInput>;
  };
  readonly prompts: Prompts;
  /** Tokens that are to wait in the executor's pool, of all jobs. */
  readonly poolTokens: number;
  /** To the claimer. */
  readonly tell: (message: FromExecutor) => void;
}

interface SmallJob {
  readonly part: PartOrder;
  /** Until it is read. */
  input: Uint8Array<ArrayBuffer> | undefined;
  /** Of its rows that are not at the device. */
  waitingTokens: number;
  readonly truncated: number;
  vectors: Float32Array<ArrayBuffer> | undefined;
  readonly done: PromiseWithResolvers<Embedded>;
}

interface OpenPart {
  /** In the order in which parts came. */
  readonly number: number;
  readonly order: PartOrder;
  readonly left: PromiseWithResolvers<never>;
  readonly leaving: AbortController;
  ended: Promise<void>;
}

interface Waiting {
  readonly part: OpenPart;
  readonly tokens: number;
  readonly begin: () => void;
}

/** Rows that are told of together. */
const TOLD_ROWS = 4_096;
/** Memory of vectors that is kept for the next: that of so many small jobs. */
const MOST_SPARE = 32;
/**
 * Where so many tokens wait, small jobs are large: what costs the main thread the same for each, messages above all, costs
 * a row a quarter. Eight of them are half of the pool of a GPU.
 */
const LARGE_POOL_TOKENS = 1_048_576;
/** Of a large small job: beyond it memory for vectors is not used again (buffer-pool.ts). */
const MOST_LARGE_BYTES = 4 * 1024 * 1024;

export class PartRunner {
  private readonly parts: PartRunnerParts;
  private readonly open = new Map<string, OpenPart>();
  private readonly small = new Map<string, SmallJob>();
  /** Of all small jobs. */
  private waitingTokens = 0;
  /** Rows that wait for room. */
  private waiting: Waiting[] = [];
  private executor: Pick<Executor, 'handle' | 'waitingTokens'> | undefined;
  /** No job of a producer has such an id. */
  private readonly prefix = randomUUID();
  private begun = 0;
  private made = 0;
  private spare: ArrayBuffer[] = [];
  private untoldRows = 0;
  private isStopping = false;

  constructor(parts: PartRunnerParts) {
    this.parts = parts;
  }

  /** Before the first part. */
  serve(executor: Pick<Executor, 'handle' | 'waitingTokens'>): void {
    this.executor = executor;
  }

  // ---- towards the claimer ----------------------------------------------------------------------------------------

  run(orders: readonly PartOrder[]): void {
    for (const order of orders) {
      const { jobId, token } = order;
      const older = this.open.get(jobId);
      if (older?.order.token === token) continue; // a claimer that is not sure sends it again
      if (this.isStopping) this.answer({ kind: 'unstarted', jobId, token });
      else this.begin(order, older);
    }
  }

  drop(jobIds: readonly string[]): void {
    for (const jobId of jobIds) {
      const part = this.open.get(jobId);
      if (part === undefined) continue;
      this.open.delete(jobId);
      this.leave(part);
    }
  }

  /** Every part goes back as far as it is: at its last even place, with a checkpoint. */
  async stop(): Promise<void> {
    this.isStopping = true;
    const open = [...this.open.values()];
    for (const part of open) this.leave(part);
    await Promise.all(open.map(({ ended }) => ended));
  }

  private begin(order: PartOrder, older: OpenPart | undefined): void {
    if (older !== undefined) this.leave(older);
    const left = Promise.withResolvers<never>();
    left.promise.catch(() => undefined);
    const part: OpenPart = {
      number: ++this.begun,
      order,
      left,
      leaving: new AbortController(),
      ended: Promise.resolve(),
    };
    this.open.set(order.jobId, part);
    part.ended = this.through(part, older?.ended);
  }

  private async through(part: OpenPart, before: Promise<void> | undefined): Promise<void> {
    const { order } = part;
    const { jobId, token } = order;
    await before; // it may write the same file
    let outcome: JobOutcome;
    try {
      const run = new PartRun(
        {
          ...this.parts,
          ledger: this.parts.ledgerIn(order.cell),
          jobRows: this.jobRows(),
          tokenize: (_, { input }) => this.tokenize(part, input),
          embed: (_, rows) => this.embed(part, rows),
          onRows: (rows) => this.count(rows),
          reclaim: ({ buffer }) => void (this.spare.length < MOST_SPARE && this.spare.push(buffer)),
          signal: part.leaving.signal,
        },
        order,
      );
      outcome = await run.run();
    } catch (error) {
      // what was written stays: the cell may have heard of it, or gives the part out again
      const isElsewhere = order.cell !== undefined && isShoalError(error, 'QUEUE_UNREACHABLE');
      if (!(error instanceof Left) && !isElsewhere) throw error;
      outcome = { kind: 'unstarted', jobId, token };
    } finally {
      this.leave(part); // rows that nobody waits for any more
    }
    this.count(0);
    // of one that was dropped nobody wants to hear
    if (this.open.get(jobId) !== part) return;
    this.open.delete(jobId);
    this.answer(outcome);
  }

  /** What this part still has at the executor is forgotten, and whoever waits for it hears so. */
  private leave(part: OpenPart): void {
    part.left.reject(new Left('the part is left as it is'));
    part.leaving.abort();
    this.waiting = this.waiting.filter((one) => one.part !== part);
    const own = [...this.small].filter(([, job]) => job.part === part.order);
    if (own.length > 0) this.executor?.handle({ kind: 'drop', jobIds: own.map(([jobId]) => jobId) });
    for (const [jobId, job] of own) {
      this.forget(jobId, job);
      job.done.reject(new Left('the part is left as it is'));
    }
    this.pump();
  }

  private answer(outcome: JobOutcome): void {
    this.parts.tell({ kind: 'outcomes', outcomes: [outcome] });
  }

  private count(rows: number): void {
    this.untoldRows += rows;
    if (this.untoldRows === 0 || (rows > 0 && this.untoldRows < TOLD_ROWS)) return;
    this.parts.tell({ kind: 'part-rows', rows: this.untoldRows });
    this.untoldRows = 0;
  }

  // ---- small jobs -----------------------------------------------------------------------------------------------

  private jobRows(): JobRows {
    const { poolTokens, model } = this.parts;
    return poolTokens >= LARGE_POOL_TOKENS && 4 * 1_024 * model.dims <= MOST_LARGE_BYTES ? 1_024 : 256;
  }

  private async tokenize({ left, order }: OpenPart, input: Uint8Array<ArrayBuffer>): Promise<TokenizedInput> {
    const { tokenizer, prompts, model } = this.parts;
    const { prompt } = order.part.model;
    const prefix = promptText(prompts, prompt);
    if (prefix === undefined)
      throw new ShoalError(
        'JOB_INVALID',
        `the part asks for the prompt "${prompt}", and ${model.name} ${missingPrompt(prompts)}`,
      );
    return Promise.race([tokenizer.encodeInput(input, prefix), left.promise]);
  }

  /** Resolves once there is room for them in the pool. */
  private async embed(
    part: OpenPart,
    { input, rows, tokens, truncated }: TokenizedInput & { readonly rows: number },
  ): Promise<{ readonly embedded: Promise<Embedded> }> {
    const begun = Promise.withResolvers<void>();
    this.waiting.push({ part, tokens, begin: () => begun.resolve() });
    this.pump();
    await Promise.race([begun.promise, part.left.promise]);
    const done = Promise.withResolvers<Embedded>();
    done.promise.catch(() => undefined);
    const order = this.orderOf(part.order, rows, tokens);
    const job = { part: part.order, input, waitingTokens: tokens, truncated, vectors: undefined, done };
    this.small.set(order.jobId, job);
    this.waitingTokens += tokens;
    this.executor!.handle({ kind: 'run', jobs: [order], isQueueDrained: false });
    this.pump();
    return { embedded: done.promise };
  }

  private orderOf({ part, tenant, requestId }: PartOrder, rows: number, tokens: number): JobOrder {
    const { prompt, dimensions, normalize } = part.model;
    const jobId = `${this.prefix}#${++this.made}`;
    return {
      jobId,
      // there is nobody to hand its rows over to: one that does not fit here fails its part
      lane: 'cpu',
      token: jobId,
      queuedMs: 0,
      fingerprint: undefined,
      class: 'bulk',
      tenant,
      input: { form: 'tokens', rows, tokens, tokenizer: this.parts.tokenizer.hash },
      truncate: 'end',
      prompt,
      // the object's encoder makes its form of them
      output: { dtype: 'f32', dimensions, ...(normalize !== undefined && { normalize }) },
      resultTtlMs: 0,
      requestId,
      remainingMs: undefined,
    };
  }

  /**
   * The part that came first goes first, and those behind it fill what it leaves: parts that took turns would all end at the
   * same time, and leave the device empty while their objects are synced and committed.
   */
  private pump(): void {
    const next = this.waiting.reduce<Waiting | undefined>(
      (first, one) => (first === undefined || one.part.number < first.part.number ? one : first),
      undefined,
    );
    if (next === undefined || !this.hasRoom(next.tokens)) return;
    this.waiting.splice(this.waiting.indexOf(next), 1);
    next.begin(); // its job is counted once it is made, and pumps again
  }

  private hasRoom(tokens: number): boolean {
    return this.waitingTokens === 0 || this.waitingTokens + tokens <= this.parts.poolTokens / 2;
  }

  /** Rows of it may have gone to the device. */
  private recount(jobId: string): void {
    const job = this.small.get(jobId);
    const now = job && this.executor?.waitingTokens(jobId);
    if (job === undefined || now === undefined) return;
    this.waitingTokens += now - job.waitingTokens;
    job.waitingTokens = now;
  }

  private forget(jobId: string, job: SmallJob): void {
    this.waitingTokens -= job.waitingTokens;
    this.small.delete(jobId);
  }

  // ---- between the executor and others ----------------------------------------------------------------------------

  /** The store of the executor: its own, and here for small jobs. */
  storeBefore(store: PayloadStore): PayloadStore {
    const isSmall = ({ jobId }: { readonly jobId: string }): boolean => jobId.startsWith(this.prefix);
    return {
      read: async (jobs: readonly WantedPayload[]): Promise<readonly InputRead[]> => {
        const others = jobs.filter((job) => !isSmall(job));
        const read = others.length === 0 ? [] : await store.read(others);
        let next = 0;
        return jobs.map((job) => (isSmall(job) ? this.give(job) : read[next++]!));
      },
      commit: async (requests: readonly CommitRequest[], options): Promise<readonly CommitResult[]> => {
        const others = requests.filter((request) => !isSmall(request));
        const results = others.length === 0 ? [] : await store.commit(others, options);
        let next = 0;
        return requests.map((request) => (isSmall(request) ? this.receive(request) : results[next++]!));
      },
      stop: () => store.stop(),
    };
  }

  /** What the executor says, without what it says of small jobs; undefined where nothing is left. */
  hear(message: FromExecutor): FromExecutor | undefined {
    if (this.small.size === 0 && this.waiting.length === 0 && this.made === 0) return message;
    const isOther = (jobId: string): boolean => !jobId.startsWith(this.prefix);
    switch (message.kind) {
      case 'filled': {
        this.pumpSoon();
        const jobs = message.jobs.filter(({ jobId }) => isOther(jobId));
        return jobs.length === 0 ? undefined : { ...message, jobs };
      }
      case 'began':
        for (const jobId of message.jobIds) this.recount(jobId);
        this.pumpSoon();
        return { ...message, jobIds: message.jobIds.filter(isOther) };
      case 'outcomes': {
        for (const outcome of message.outcomes) this.conclude(outcome);
        const outcomes = message.outcomes.filter(({ jobId }) => isOther(jobId));
        return outcomes.length === 0 ? undefined : { kind: 'outcomes', outcomes };
      }
      default:
        return message;
    }
  }

  /** The executor is in the middle of something: it is given more behind that. */
  private pumpSoon(): void {
    queueMicrotask(() => this.pump());
  }

  private give({ jobId }: WantedPayload): InputRead {
    const job = this.small.get(jobId);
    const { input } = job ?? {};
    if (job !== undefined) job.input = undefined;
    return {
      input: input && Buffer.from(input.buffer, input.byteOffset, input.byteLength),
      isOwn: true,
      resultHead: undefined,
    };
  }

  /** A copy: the bytes are the executor's again. */
  private receive({ jobId, result }: CommitRequest): CommitResult {
    const job = this.small.get(jobId);
    const body = result.subarray(RESULT_HEADER_BYTES);
    if (job !== undefined) {
      job.vectors = this.memoryFor(body.length);
      Buffer.from(job.vectors.buffer).set(body);
    }
    return 'committed';
  }

  private memoryFor(bytes: number): Float32Array<ArrayBuffer> {
    const spare = this.spare.pop();
    const memory = spare !== undefined && spare.byteLength >= bytes ? spare : new ArrayBuffer(bytes);
    return new Float32Array(memory, 0, bytes / 4);
  }

  private conclude(outcome: JobOutcome): void {
    const job = this.small.get(outcome.jobId);
    if (job === undefined) return;
    this.forget(outcome.jobId, job);
    const { vectors, truncated } = job;
    if (outcome.kind === 'committed' && vectors !== undefined && 'tokens' in outcome.value)
      job.done.resolve({ vectors, tokens: outcome.value.tokens, truncated });
    else if (outcome.kind === 'failed') job.done.reject(new ShoalError(outcome.failure.code, outcome.failure.message));
    else job.done.reject(new Left(`a small job of the part is ${outcome.kind}`));
    this.pumpSoon();
  }
}
