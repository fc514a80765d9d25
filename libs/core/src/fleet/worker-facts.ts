// What a live worker tells others of itself, every two seconds: who it is, what it has in flight, and how fast it is.
// Rates are measured, in real tokens a second at the device, by the length of rows, because a CPU falls behind further
// on some lengths than on others. They are counted by load-meter.ts; lane-choice.ts decides by them.

import type { Lane } from '@shoal/contract';
import type { BudgetState, Precision } from '../ports/device.ts';
import type { WorkerStanding } from './worker-state.ts';
import type { CollectionFacts, SimilarityFacts } from '../similarity/facts.ts';

/** The width of a micro-batch, in three classes. */
export type LengthClass = 'short' | 'medium' | 'long';
export const LENGTH_CLASSES: readonly LengthClass[] = ['short', 'medium', 'long'];
const MAX_SHORT_TOKENS = 32;
const MAX_MEDIUM_TOKENS = 128;

export function lengthClassOf(width: number): LengthClass {
  if (width <= MAX_SHORT_TOKENS) return 'short';
  return width <= MAX_MEDIUM_TOKENS ? 'medium' : 'long';
}

export type ByLength = Partial<Readonly<Record<LengthClass, number>>>;

/** How fast a worker is and what it has to do. */
export interface WorkerLoad {
  /** Real tokens a second, of runs as large as this worker had lately. */
  readonly rates: ByLength;
  /** Share of each length in the tokens it ran lately; together 1, or nothing before its first run. */
  readonly mix: ByLength;
  /** Claims in flight, and the tokens of them that wait in its pool. */
  readonly claims: number;
  readonly poolTokens: number;
  /** Tokens of a job, the mean of those it completed. */
  readonly tokensPerJob: number | undefined;
}

/** What the driver says of a worker's card; undefined is not told. */
export interface CardFacts {
  readonly name?: string | undefined;
  readonly uuid?: string | undefined;
  readonly totalBytes?: number | undefined;
  readonly usedBytes?: number | undefined;
  /** 0 to 1. */
  readonly utilization?: number | undefined;
  readonly temperatureCelsius?: number | undefined;
  readonly powerWatts?: number | undefined;
}

/** How a payload server fares with who uses it. */
export interface PayloadServerFacts {
  /** As pointers have it, without secrets: host:port, s3://bucket/prefix, file:/path. */
  readonly name: string;
  /** Why nothing can be put there, or had from there, as of the last question; undefined: it can. */
  readonly problem?: string | undefined;
  /** Since when that is so, epoch ms. */
  readonly sinceMs?: number | undefined;
  /** Of a Valkey or Redis server that tells it; `maxBytes` 0: no limit. */
  readonly memory?: { readonly usedBytes: number; readonly maxBytes: number } | undefined;
}

/** What became of bodies of a worker since it started. */
export interface BodyCounts {
  /** Results put on payload servers, and those that went by the queue server because none took them. */
  readonly put: number;
  readonly byQueueServer: number;
  /** Inputs that payload servers had lost: their jobs were asked for again. */
  readonly lost: number;
}

export interface WorkerFacts extends WorkerLoad {
  readonly device: string;
  readonly precision: Precision;
  /** name@revision */
  readonly model: string;
  readonly host: string;
  readonly pid: number;
  /** What it is called over all its lives; its id has more behind it. */
  readonly name?: string;
  /** By the server's clock, epoch ms. */
  readonly startedMs?: number;
  /** Its state, and since when by the server's clock, epoch ms. Workers of 0.1.0 do not tell it. */
  readonly standing?: WorkerStanding & { readonly sinceMs: number };
  /** Rows that its device ran a second, of about the last ten seconds. */
  readonly textsPerSecond?: number;
  /** Of Shoal. Workers of 0.1.0 do not tell it. */
  readonly version?: string;
  /** Where it serves /metrics, /livez and /readyz: http://127.0.0.1:9464. Undefined: nowhere. */
  readonly metricsUrl?: string | undefined;
  /** Of a worker on one of NVIDIA's, as of some seconds ago. */
  readonly card?: CardFacts | undefined;
  /** The newest version of jobs that it reads; left out: 1. */
  readonly jobVersion?: number;
  /** The most rows that it takes of a job; left out: 256. */
  readonly maxJobRows?: number | undefined;
  /** Names of prompts that may be asked for, and whether vectors have length 1; of one that embeds. */
  readonly prompts?: readonly string[] | undefined;
  readonly isNormalized?: boolean | undefined;
  /**
   * Folders in which it takes parts of files, as it was given them and as links lead; undefined: of a worker that takes
   * none, has too many to tell, or is older than this fact.
   */
  readonly partFolders?: readonly string[] | undefined;
  /** Its set of payload servers; undefined: it has none. */
  readonly payloads?: string | undefined;
  /** How each of that set fares; undefined: not known yet, or not told by this version. */
  readonly payloadServers?: readonly PayloadServerFacts[] | undefined;
  readonly bodies?: BodyCounts | undefined;
  /** Lanes it claims from; one that serves the CPU lane is a CPU worker. */
  readonly lanes: readonly Lane[];
  /** Told to claim nothing until it is resumed. */
  readonly isDrained: boolean;
  readonly budget?: BudgetState | undefined;
  /** What its executor or device holds, bytes. */
  readonly memoryBytes?: number | undefined;
  /** What a worker that compares holds and where it computes; undefined for one that embeds. */
  readonly similarity?: SimilarityFacts | undefined;
  /** Those that a worker that compares answers from. */
  readonly collections?: readonly CollectionFacts[] | undefined;
  /** Cells that it helped since it started: jobs that it claimed there, and those of them that it has now. */
  readonly helped?: readonly { readonly cell: string; readonly jobs: number; readonly held: number }[] | undefined;
  /**
   * Why a CPU worker takes from the main lane or does not, and from which backlog on, in tokens, that shortens the
   * total time.
   */
  readonly mainLane?: { readonly reason: string; readonly breakEven: ByLength } | undefined;
}
