// What is told to whoever counts.

import type { LaneChoice } from '../claimer/lane-choice.ts';
import type { BodyCounts, PayloadServerFacts } from '../fleet/worker-facts.ts';
import type { SimilarityFacts } from '../similarity/facts.ts';
import type { BudgetState, MemoryReading, RunShape } from './device.ts';
import type { Settlement } from './queue.ts';
import type { ErrorCode } from '@shoal/contract';

/** With which a micro-batch is halved. */
export const SPLIT_CODES = ['OUT_OF_VRAM', 'INFERENCE_FAILED'] as const satisfies readonly ErrorCode[];
export type SplitCode = (typeof SPLIT_CODES)[number];

/**
 * Why an executor had to be replaced: a signal ended it, or it ended by itself; it was killed because it was silent, or a
 * run lasted too long; or because nothing could be allocated in it any more.
 */
export const LOSS_REASONS = ['signal', 'exit', 'silence', 'sticky'] as const;
export type LossReason = (typeof LOSS_REASONS)[number];

/** The verbs of both processes that take time, in order. */
export const STAGES = ['fill', 'tokenize', 'plan', 'run', 'commit', 'settle', 'announce'] as const;
export type Stage = (typeof STAGES)[number];

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
  /** Results whose time to live ended before anybody read them. */
  readonly resultsExpired: number;
  readonly jobsMended: number;
  readonly jobsFailed: number;
  readonly jobsRequeued: number;
  readonly parentsReleased: number;
  readonly idsRemoved: number;
  /** Records of jobs that ended longer ago than they are to be kept. */
  readonly finishedRemoved: number;
  readonly durationMs: number;
}

/** What a worker did, told once at the seam between two stages. Calls are cheap and do not fail. */
export interface Metrics {
  /** `queuedMs`: how long the job had waited. `kind`: bulk also for what could not be read as a job. */
  jobClaimed(queuedMs: number, kind: 'interactive' | 'bulk'): void;
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
      /** Of whose jobs its rows are. */
      readonly jobIds?: ReadonlySet<string> | undefined;
    },
  ): void;
  microBatchSplit(code: SplitCode): void;
  /** Rows that ran again in fp32. */
  rowsRerun(rows: number): void;
  /** So many parts of runs of files are claimed from now on. */
  partsOpen(parts: number): void;
  /** Rows of parts that were written, those that a dead worker's successor wrote again among them. */
  partRows(rows: number): void;
  /** What became of bodies for payload servers, and how these fare where that has changed. */
  bodiesBeside(bodies: BodyCounts & { readonly servers?: readonly PayloadServerFacts[] }): void;
  budgetChanged(budget: BudgetState): void;
  /** `source`: what the prediction is corrected from. */
  memoryMeasured(memory: {
    readonly predictedBytes: number | undefined;
    readonly measuredBytes: number;
    readonly source: MemoryReading['source'];
  }): void;
  similarityTold(facts: SimilarityFacts): void;
  /** `reason`: for a person. */
  executorRecycled(reason?: string): void;
  leaseLost(): void;
  /** A job whose worker is gone waits again. */
  jobStalled(): void;
  /** So many micro-batches are at the device from now on. */
  atDevice(runs: number): void;
  /** How long something took that is one of the stages. */
  stageTook(stage: Stage, ms: number): void;
  /** Claiming is held back because the queue server has no room for results, or goes on. */
  claimingBraked(reason: 'memory' | 'unread' | undefined): void;
  /** What a CPU worker takes from the main lane now. */
  laneChosen(choice: LaneChoice): void;
  /** So many bulk jobs of another cell were claimed. */
  cellHelped(cell: string, jobs: number): void;
  /** The janitor of this worker has swept its queue. */
  janitorSwept(findings: SweepFindings): void;
  executorReady(pid: number): void;
  /** `words`: what the log says of it. */
  executorLost(reason: LossReason, words?: string): void;
}

export const noMetrics: Metrics = {
  jobClaimed: () => undefined,
  inFlight: () => undefined,
  jobSettled: () => undefined,
  microBatchRan: () => undefined,
  microBatchSplit: () => undefined,
  rowsRerun: () => undefined,
  partsOpen: () => undefined,
  partRows: () => undefined,
  bodiesBeside: () => undefined,
  budgetChanged: () => undefined,
  memoryMeasured: () => undefined,
  similarityTold: () => undefined,
  executorRecycled: () => undefined,
  leaseLost: () => undefined,
  jobStalled: () => undefined,
  atDevice: () => undefined,
  stageTook: () => undefined,
  claimingBraked: () => undefined,
  laneChosen: () => undefined,
  cellHelped: () => undefined,
  janitorSwept: () => undefined,
  executorReady: () => undefined,
  executorLost: () => undefined,
};
