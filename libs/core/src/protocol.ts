// The messages between claimer and executor, both directions, as two unions. Only job ids, options, sizes and outcomes
// travel, never vectors; inline texts do, because the claim brought them anyway, and the few vectors that a job wants in
// its return value. Values survive structured cloning.

import type {
  ErrorCode,
  Failure,
  EmbedJob,
  Part,
  RerankJob,
  SimilarityInput,
  SimilarityRequest,
  HandOver,
  JobReturn,
  Lane,
} from '@shoal/contract';
import type { BodyCounts, PayloadServerFacts } from './fleet/worker-facts.ts';
import type { SimilarityFacts } from './similarity/facts.ts';
import type { BudgetState, MemoryReading, Precision } from './ports/device.ts';
import type { SplitCode, Stage } from './ports/metrics.ts';
import type { OtherCell } from './ports/queue.ts';

/** What an executor needs of a claimed job of any kind. */
export interface OrderTerms {
  readonly jobId: string;
  /** Where it was claimed. Left out: the main lane. */
  readonly lane?: Lane | undefined;
  /** In which cell, where its input and its result are. Left out: at home. */
  readonly cell?: OtherCell | undefined;
  /** Under which its result is kept. Left out: its id. */
  readonly resultId?: string | undefined;
  readonly token: string;
  readonly queuedMs: number;
  readonly fingerprint: string | undefined;
  readonly class: EmbedJob['class'];
  /** Left out: the tenant of those who name none. */
  readonly tenant?: string | undefined;
  readonly resultTtlMs: number;
  /** The set of payload servers that its reader reads. */
  readonly payloads?: string | undefined;
  /** Of the request that the job is a part of, for log lines. */
  readonly requestId?: string | undefined;
  /** How long after its arrival at the executor the job may still begin to run; undefined: for ever. */
  readonly remainingMs: number | undefined;
}

/** One claimed job for an executor that runs a model: to embed, or of a reranker to score pairs. */
export interface JobOrder extends OrderTerms {
  readonly input: EmbedJob['input'] | RerankJob['input'];
  readonly truncate: EmbedJob['truncate'];
  readonly prompt: EmbedJob['prompt'];
  readonly output: EmbedJob['output'];
  readonly returnsVectors?: EmbedJob['returnsVectors'];
}

/** One claimed job for an executor that compares. */
export interface SimilarityOrder extends OrderTerms {
  readonly rows: number;
  readonly request: SimilarityRequest;
  readonly input: SimilarityInput;
}

/** One claimed part of a run of files, for an executor that runs a model. */
export interface PartOrder extends OrderTerms {
  readonly part: Part;
  /** In which cell its pointer and the list of its run are. Left out: at home. */
  readonly cell?: OtherCell | undefined;
}

export type AnyOrder = JobOrder | SimilarityOrder | PartOrder;

export type ToExecutor<Order extends AnyOrder = JobOrder> =
  /** `isQueueDrained`: nothing else waits in the queue, so a short pool need not wait for company. */
  | { readonly kind: 'run'; readonly jobs: readonly Order[]; readonly isQueueDrained: boolean }
  /** These leases are lost or the jobs were cancelled: forget their rows that are not at the device yet. */
  | { readonly kind: 'drop'; readonly jobIds: readonly string[] }
  | { readonly kind: 'ping'; readonly sequence: number }
  /** Say which jobs have not begun, finish the others, then exit. */
  | { readonly kind: 'stop' };

export type JobOutcome =
  | { readonly kind: 'committed'; readonly jobId: string; readonly token: string; readonly value: JobReturn }
  /** A result with this fingerprint was there before: complete the job without announcing it again. */
  | { readonly kind: 'already'; readonly jobId: string; readonly token: string; readonly value: JobReturn }
  | { readonly kind: 'lease-lost'; readonly jobId: string; readonly token: string }
  /** The executor stops and had not begun this job. */
  | { readonly kind: 'unstarted'; readonly jobId: string; readonly token: string }
  /** A row of it does not fit this device even alone. */
  | { readonly kind: 'hand-over'; readonly jobId: string; readonly token: string; readonly handOver: HandOver }
  | { readonly kind: 'failed'; readonly jobId: string; readonly token: string; readonly failure: Failure };

export type FromExecutor =
  | {
      readonly kind: 'ready';
      /** name@revision */
      readonly model: string;
      readonly dims: number;
      readonly maxTokens: number;
      readonly device: string;
      readonly precision: Precision;
      /** What computes, where there was a choice. */
      readonly encoder?: string | undefined;
      readonly pid: number;
      /** Names of prompts that may be asked for, and whether vectors have length 1. Of one that embeds. */
      readonly prompts?: readonly string[];
      readonly isNormalized?: boolean;
    }
  /** The executor cannot do its work at all; it exits after this. */
  | { readonly kind: 'unfit'; readonly failure: Failure }
  /** The sizes of jobs whose rows are now in the pool. `poolTokens`: real tokens that wait there in all. */
  | {
      readonly kind: 'filled';
      readonly jobs: readonly { readonly jobId: string; readonly tokens: number }[];
      readonly poolTokens: number;
    }
  /**
   * These jobs' rows are at the device from now on, until `ran`, `split` or `refused` with the same batch: who is
   * suspect when the executor dies.
   */
  | { readonly kind: 'began'; readonly batch: number; readonly jobIds: readonly string[] }
  /**
   * `rows` is what the device ran, `duplicates` how many rows more got one of their vectors. `poolAgeMs`: of the row
   * that waits longest.
   */
  | {
      readonly kind: 'ran';
      readonly batch: number;
      readonly rows: number;
      readonly width: number;
      readonly tokens: number;
      readonly runMs: number;
      readonly duplicates: number;
      readonly poolTokens: number;
      readonly poolAgeMs: number;
    }
  /** A micro-batch failed with this code and its halves run next. */
  | { readonly kind: 'split'; readonly batch: number; readonly code: SplitCode }
  /** A micro-batch of one row failed with this code; the outcomes of its jobs follow. */
  | { readonly kind: 'refused'; readonly batch: number; readonly code: ErrorCode }
  /** Rows whose vector was not of length 1 run again in fp32. */
  | { readonly kind: 'rerun'; readonly rows: number }
  /** The budget changed; also said once after `ready`. */
  | { readonly kind: 'budget'; readonly budget: BudgetState }
  /** Predicted and measured memory of a run, bytes, now and then. */
  | {
      readonly kind: 'memory';
      readonly predictedBytes: number | undefined;
      readonly measuredBytes: number;
      readonly source: MemoryReading['source'];
    }
  /** Of an executor that compares: what it holds and where it computes, when that has changed. */
  | { readonly kind: 'similarity'; readonly facts: SimilarityFacts }
  /** How long stages took since this was said last, milliseconds each. */
  | { readonly kind: 'stages'; readonly tookMs: Readonly<Partial<Record<Stage, readonly number[]>>> }
  /** The device works, but not in this process any more: start another executor and give it the open jobs. */
  | { readonly kind: 'recycle'; readonly reason: string }
  /** So many rows of parts were written since this was said last. */
  | { readonly kind: 'part-rows'; readonly rows: number }
  /** What became of bodies for payload servers since this was said last, and how these servers fare where that has changed. */
  | (BodyCounts & { readonly kind: 'bodies'; readonly servers?: readonly PayloadServerFacts[] })
  | { readonly kind: 'outcomes'; readonly outcomes: readonly JobOutcome[] }
  /** `runningMs`: how long the run at the device has been going on. */
  | { readonly kind: 'pong'; readonly sequence: number; readonly runningMs: number };
