// What the core needs from the outside world, said as interfaces. Core knows no Redis, no ONNX Runtime, no clock of its
// own; each engine's folder implements one of these and translates its library's errors at that edge.
// Every JobSource and every InferenceBackend, fakes included, passes the conformance suite in testing/.

import type { ErrorCode, Failure } from './errors.ts';
import type { ToHalves } from './half.ts';
import type { LaneChoice } from './lane-choice.ts';
import type { AnyOrder, FromExecutor, JobReturn, ToExecutor } from './protocol.ts';
import type { SimilarityFacts } from './similarity-facts.ts';

/** Monotonic time and timers. Fakes turn the hands by hand. */
export interface Clock {
  /** Milliseconds since an arbitrary start; never goes back. */
  nowMs(): number;
  /** Calls `wake` once after `delayMs`; the returned function cancels it. */
  after(delayMs: number, wake: () => void): () => void;
}

/** Messages are constants, facts are fields. */
export interface Logger {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

/** How a claim ended, for counting. `rows`: texts of a completed job, else 0. */
export interface SettledJob {
  readonly outcome: Settlement['kind'];
  readonly code: ErrorCode | undefined;
  readonly rows: number;
}

/** What a sweep of the janitor took away or put right. */
export interface SweepFindings {
  /** Inputs without a job, and their bytes. */
  readonly inputs: number;
  readonly inputBytes: number;
  /** Results without a time to live; they have one now. */
  readonly strayResults: number;
  /** Room that was reserved for nobody. */
  readonly reservations: number;
  readonly jobsMended: number;
  readonly jobsFailed: number;
  readonly jobsRequeued: number;
  readonly parentsReleased: number;
  readonly idsRemoved: number;
  readonly durationMs: number;
}

/** What a worker did, told once at the seam between two stages. Calls are cheap and do not fail. */
export interface Metrics {
  /** `queuedMs`: how long the job had waited. */
  jobClaimed(queuedMs: number): void;
  /** Claims that are not settled, and their tokens (expected ones until the executor has counted). */
  inFlight(claims: number, tokens: number): void;
  jobSettled(job: SettledJob): void;
  /** `duplicates`: rows that got the vector of an equal one. `poolAgeMs`: of the row that waits longest, afterwards. */
  microBatchRan(
    run: RunShape & {
      readonly tokens: number;
      readonly runMs: number;
      readonly duplicates: number;
      readonly poolAgeMs: number;
    },
  ): void;
  microBatchSplit(code: ErrorCode): void;
  /** Rows that ran again in fp32. */
  rowsRerun(rows: number): void;
  budgetChanged(budget: BudgetState): void;
  /** `source`: what the prediction is corrected from. */
  memoryMeasured(memory: {
    readonly predictedBytes: number | undefined;
    readonly measuredBytes: number;
    readonly source: MemoryReading['source'];
  }): void;
  similarityTold(facts: SimilarityFacts): void;
  executorRecycled(): void;
  leaseLost(): void;
  /** Claiming is held back because the queue server has no room for results, or goes on. */
  claimingBraked(reason: 'memory' | 'unread' | undefined): void;
  /** Jobs that wait in the CPU lane, and the workers that serve it. */
  handedOverWaiting(jobs: number, cpuWorkers: number): void;
  /** What a CPU worker takes from the main lane now. */
  laneChosen(choice: LaneChoice): void;
  /** The janitor of this worker has swept its queue. */
  janitorSwept(findings: SweepFindings): void;
  executorReady(pid: number): void;
  executorLost(): void;
}

// ---- queue side -------------------------------------------------------------------------------------------------

/** Which of a model's two queues: any device may claim from the main lane, only CPU workers from the CPU lane. */
export type Lane = 'main' | 'cpu';

/** A job under a lock, as it was found: nothing in it has been checked. */
export interface RawClaim {
  readonly jobId: string;
  /** Where it was claimed, and so where its lock is. Left out: the main lane. */
  readonly lane?: Lane | undefined;
  /** This claim's lock token; a result is committed only while the lock still has it. */
  readonly token: string;
  readonly name: string;
  readonly data: unknown;
  /** How often the job was tried before, verdicts about its input only. */
  readonly attempt: number;
  /** Milliseconds the job waited in the queue. */
  readonly queuedMs: number;
  /** How often a worker that had it died or was cut off. */
  readonly stalls?: number | undefined;
  /** Set when the queue already decided that this job must fail. */
  readonly mustFail: string | undefined;
  /** Set for a job that was handed over and whose child has ended: how. There is nothing left to run. */
  readonly ending?: KnownEnding | undefined;
}

export type KnownEnding = Extract<Settlement, { kind: 'complete' | 'fail' }>;

/** Why a job goes to the CPU lane, kept with it for whoever asks later. */
export interface HandOver {
  readonly reason: Failure;
  /** Memory the run was predicted to need at its peak, bytes; undefined when nothing predicts it. */
  readonly peakBytes: number | undefined;
}

/** The one ending of a claim. */
export type Settlement =
  | { readonly kind: 'complete'; readonly value: JobReturn }
  | { readonly kind: 'fail'; readonly failure: Failure }
  /** To the CPU lane in one transaction. The job itself stays the public handle and completes when its child has. */
  | { readonly kind: 'hand-over'; readonly handOver: HandOver }
  /** Failed with QUARANTINED, and a copy with its input kept where a person can look at it. */
  | { readonly kind: 'quarantine'; readonly failure: Failure }
  /** Back to the queue after `delayMs`, without using up an attempt: nothing was wrong with the job. */
  | { readonly kind: 'return'; readonly delayMs: number; readonly reason: string }
  /** Another worker may own it by now: leave it alone. */
  | { readonly kind: 'abandon' };

/**
 * `settled`: the queue took the ending. `announced`: it did, and what follows is done. `lease-lost`: the job belongs to
 * somebody else by now and nothing was changed.
 */
export type SettleResult = 'settled' | 'announced' | 'lease-lost';

/** Where jobs are claimed from: one lane of one model. */
export interface JobSource {
  /** Connects, checks the server and begins to renew leases. Throws QUEUE_UNREACHABLE or QUEUE_UNSAFE. */
  start(): Promise<void>;
  /**
   * Up to `limit` jobs in as few round trips as possible; waits until there is at least one. Empty only while stopping.
   */
  claim(limit: number): Promise<readonly RawClaim[]>;
  /** Of the jobs that are next in line, up to `limit` interactive ones; none when another is next. Does not wait. */
  claimUrgent(limit: number): Promise<readonly RawClaim[]>;
  /**
   * Gives a claim its ending. Faults of the server are retried inside until the lease is lost. A source that can
   * announces the job as part of it; else whoever asked does, afterwards.
   */
  settle(claim: RawClaim, settlement: Settlement, announcement?: Announcement): Promise<SettleResult>;
  /** Called for each claim whose lease could not be renewed. */
  onLeaseLost(listener: (jobId: string) => void): void;
  /** Called with jobs that somebody cancelled; not all of them need be held here. */
  onCancelled(listener: (jobIds: readonly string[]) => void): void;
  /**
   * Jobs that wait and that this source may claim now, asked in another way than claims are. Throws QUEUE_UNREACHABLE
   * while nobody can tell.
   */
  claimable(): Promise<number>;
  /**
   * Stops claiming at once: a waiting `claim` resolves empty. Leases are still renewed, claims can still be settled.
   */
  stopClaiming(): Promise<void>;
  /** Closes everything. Claims not settled by now are left to their leases. Safe to call early or twice. */
  stop(): Promise<void>;
}

/** What follows a completed or failed job: clean up after it and tell the producer that waits. */
export interface Announcement {
  readonly jobId: string;
  readonly outcome: 'completed' | 'failed';
  readonly reply: string | undefined;
  readonly resultTtlMs: number;
  /** An interactive job: told without waiting for what is being told of others. */
  readonly isUrgent: boolean;
  /** Whether somebody else's commit made the result: then it may have been announced and taken already. */
  readonly wasRepeated: boolean;
}

export interface Announcer {
  /** Deletes inputs, starts the results' time to live and publishes on the reply channels, in one pipeline. */
  announce(announcements: readonly Announcement[]): Promise<void>;
}

// ---- executor side ----------------------------------------------------------------------------------------------

export interface InputRead {
  /** The SHI1 bytes, or undefined when the key does not exist. */
  readonly input: Buffer | undefined;
  /** The first bytes of a result that exists already, or undefined. */
  readonly resultHead: Buffer | undefined;
}

export interface CommitRequest {
  readonly jobId: string;
  /** Whose lock counts. Left out: the main lane's. */
  readonly lane?: Lane | undefined;
  readonly token: string;
  /** 16 hex digits. */
  readonly fingerprint: string;
  /** Header and body (SHL1). */
  readonly result: Buffer;
  readonly ttlMs: number;
}

/** `already`: a result with this fingerprint is there. `conflict`: one with another fingerprint is. */
export type CommitResult = 'committed' | 'already' | 'conflict' | 'lease-lost';

/** Inputs and results as binary keys. One value per request, in order; connection faults are retried inside. */
export interface PayloadStore {
  /** `hasInput` false: only the result's head is looked for (inline jobs have no input key). */
  read(jobs: readonly { readonly jobId: string; readonly hasInput: boolean }[]): Promise<readonly InputRead[]>;
  /**
   * Inputs that nobody looks at any more: later ones come in their memory. Of what is never given back nothing is kept.
   */
  release(inputs: readonly Buffer[]): void;
  /**
   * `isUrgent`: not behind other results that are being written. Once it is answered the bytes are the caller's again,
   * who may write over them.
   */
  commit(
    requests: readonly CommitRequest[],
    options?: { readonly isUrgent?: boolean },
  ): Promise<readonly CommitResult[]>;
  stop(): Promise<void>;
}

export interface Encoded {
  /** Token ids as the model takes them: special tokens in, truncated to `maxTokens`. */
  readonly ids: readonly number[] | Uint16Array | Uint32Array;
  readonly isTruncated: boolean;
}

export interface Tokenizer {
  /** First 16 hex digits of sha256 of tokenizer.json. */
  readonly hash: string;
  /** Longest row in tokens, special tokens included. */
  readonly maxTokens: number;
  readonly vocabularySize: number;
  encode(text: string): Encoded;
}

/** What an executor tokenizes with: many texts at once, on other threads where that pays. */
export interface BatchTokenizer extends Pick<Tokenizer, 'hash' | 'maxTokens' | 'vocabularySize'> {
  /** One row per text, in order. */
  encodeAll(texts: readonly string[]): Promise<readonly Encoded[]>;
}

/** A micro-batch as the device sees it. */
export interface RunShape {
  readonly rows: number;
  /** Tokens of each row after padding. */
  readonly width: number;
}

/** How large the next micro-batch may be. The executor tells it how each run went; see budget.ts. */
export interface BatchBudget {
  /** Most rows of this width that one run may have now; at least 1: whether one row fits is for the device to say. */
  rowsAt(width: number): number;
  /** What holds now, for cutting, metrics and logs. */
  current(): BudgetState;
  ran(run: RunShape & { readonly runMs: number; readonly memory?: MemoryReading | undefined }): void;
  /**
   * `siblingWaits`: it is half of a batch that failed, and the other half has yet to run, which shows whether it was
   * the size or the rows.
   */
  ranOutOfMemory(shape: RunShape, half?: { readonly siblingWaits: boolean }): void;
  /** While an interactive row waits, runs are kept short enough for the latency target. */
  interactiveWaits(isWaiting: boolean): void;
  /** Predicted peak of a run, bytes; undefined without a memory model. */
  peakBytes(shape: RunShape): number | undefined;
  /** What a run will take; undefined while too few were seen. */
  predictMs(shape: RunShape): number | undefined;
}

export interface BudgetState {
  /** Padded tokens of the largest run, at the width where most fit. */
  readonly maxPaddedTokens: number;
  readonly limitedBy: 'memory' | 'knee' | 'latency' | 'integer' | 'setting' | 'unknown-memory';
  /** Where predictions of memory come from. */
  readonly source: 'fitted' | 'stored' | 'preset' | 'corrected' | 'learned' | 'none';
  /**
   * The device ran out of memory, and no run near the budget has gone well since: what is sent behind one that fails
   * would fail as well.
   */
  readonly isTesting?: boolean;
}

export type Precision = 'fp32' | 'fp16' | 'bf16' | 'int8';

/** Buffers shared with the thread that runs the model. Row-major; `ids` is rows × width, padding is 0. */
export interface Slot {
  readonly index: number;
  readonly ids: Int32Array;
  readonly lengths: Int32Array;
  /** rows × dims after a run. */
  readonly embeddings: Float32Array;
}

/**
 * What a device holds, bytes. `liveBytes`: most that tensors used at once. `footprintBytes`: what is gone from the
 * device, arena and context included.
 */
export interface MemoryReading {
  readonly liveBytes: number | undefined;
  readonly footprintBytes: number | undefined;
  /**
   * `process`: resident set of the executor. `arena`: the runtime's own statistics. `driver`: what the driver shows.
   */
  readonly source: 'process' | 'arena' | 'driver' | 'simulated';
}

/** Running out of device memory is a result; everything else that goes wrong is thrown. */
export type RunResult =
  | {
      readonly ok: true;
      readonly runMs: number;
      /** The peak up to and with this run, where the backend knows it without asking. */ readonly memory?: MemoryReading;
    }
  /** `needsRecycle`: a library below the arena could not allocate (cuBLAS, cuDNN); the next runs would fail as well. */
  | { readonly ok: false; readonly outOfVram: { readonly message: string; readonly needsRecycle?: boolean } };

export interface RunOptions {
  /** Runs before everything that is queued and has not begun. */
  readonly isUrgent?: boolean;
}

export interface InferenceBackend {
  /** What really runs: e.g. "cpu", "cuda:0". */
  readonly device: string;
  readonly precision: Precision;
  readonly dims: number;
  /** Most rows and most padded tokens that a slot's buffers hold. */
  readonly slotRows: number;
  readonly slotTokens: number;
  /** A shape that it has not seen before costs it many times its run: it is given few of them, see run-shapes.ts. */
  readonly prefersFewShapes?: boolean;
  /**
   * Rows of `run` are of length 1 to the last bit of f32, or NaN from their first value on: nobody has to look at every
   * number of them again. Not those of `runExact`.
   */
  readonly givesUnitRows?: boolean;
  /** Runs that go on side by side. Default 1. */
  readonly sessions?: number;
  /** A free slot to fill, or undefined while all are queued or running. */
  lend(): Slot | undefined;
  /**
   * Queues the slot's first rows × width ids. Runs happen in the order of the calls, urgent ones first. The slot stays
   * lent.
   */
  run(slot: Slot, shape: RunShape, options?: RunOptions): Promise<RunResult>;
  /** The same in fp32, for rows that a narrower precision turned into NaN. Absent where `precision` is fp32 already. */
  runExact?(slot: Slot, shape: RunShape): Promise<RunResult>;
  /** By an instruction, where one can be had. Absent: core's own loop does it. */
  readonly toHalves?: ToHalves;
  /** CRC-32 by an instruction, where one can be had. Absent: zlib's. */
  readonly checksum?: (bytes: Uint8Array) => number;
  /** What the device holds now, or undefined where nothing tells. */
  memory(): Promise<MemoryReading | undefined>;
  /** The slot may be lent again: its embeddings have been read. */
  giveBack(slot: Slot): void;
  /** How long the run at the device has been going on; 0 when idle. */
  runningMs(): number;
  /** Waits for runs in flight, then frees the device. Safe to call twice. */
  stop(): Promise<void>;
}

/** Free and total memory of the device a worker runs on, bytes. Undefined where no source exists. */
export interface MemoryProbe {
  read(): Promise<{ readonly freeBytes: number; readonly totalBytes: number } | undefined>;
}

// ---- between the two halves -------------------------------------------------------------------------------------

/** The claimer's end of the line to its executor. Messages of one executor arrive in order; none after `onLost`. */
export interface ExecutorLink {
  /** Starts an executor and resolves with its `ready`; throws when the model cannot be opened. */
  start(): Promise<Extract<FromExecutor, { kind: 'ready' }>>;
  send(message: ToExecutor<AnyOrder>): void;
  onMessage(listener: (message: FromExecutor) => void): void;
  /** The executor died or was killed. */
  onLost(listener: (reason: string) => void): void;
  /** SIGKILL: for an executor that stopped answering. */
  kill(reason: string): void;
  /** Lets the executor finish and waits until its process is gone. */
  stop(): Promise<void>;
}
