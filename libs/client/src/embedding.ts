// What goes into the client and what comes out of it, as types. Nothing here does anything.

import type { OutputDtype, ShoalError } from '@shoal/contract';
import type { Logger, Tokenizer } from '@shoal/core';
import type { FaultPoints } from '@shoal/core/base';
import type { AdmissionLimits, Waiting } from '@shoal/queue';

export interface ClientModel {
  /** The store's name, e.g. "minilm", or ORG/NAME, which the store calls org--name; it names the queue. */
  readonly name: string;
  /**
   * Revision of the weights; part of every fingerprint, so that two revisions never share a result. Left out: that of the
   * workers that serve the model when the client connects.
   */
  readonly revision?: string;
  /** Texts that go before others, by name, where the model has any. Used only when the client tokenizes. */
  readonly prompts?: Readonly<Record<string, string>>;
  /** Name of the prompt for texts that ask for none. */
  readonly defaultPrompt?: string;
  /** Default embedder. A client of a reranker has no vectors: its own model is asked by `rerank`. */
  readonly kind?: 'embedder' | 'reranker';
  /** Whether its vectors have length 1, where that is known. Left out: workers tell. */
  readonly isNormalized?: boolean;
}

export interface ClientOptions {
  /** redis://, rediss:// or unix:// */
  readonly redisUrl: string;
  /** Hash tag of every key. Default {shoal}. */
  readonly prefix?: string;
  readonly model: ClientModel;
  /**
   * Given: texts are tokenized here and token ids travel (the fast form). Left out: texts travel, the worker tokenizes.
   */
  readonly tokenizer?: Tokenizer;
  /** Goes before every job id and into every job. Default "default". */
  readonly tenant?: string;
  /** Most jobs of one call between "added" and "handed to the caller". Bounds its memory. Default 64. */
  readonly maxInFlightJobs?: number;
  /** Texts a job, 1 to 256. Default 64. */
  readonly jobTexts?: number;
  readonly log?: Logger;
  /** A job that nobody spoke of for so long, or up to an eighth longer, is asked for. Milliseconds, default 2,000. */
  readonly askAfterMs?: number;
  /** How long a server that cannot be reached, or is full, is waited for. Milliseconds, default 60,000. */
  readonly giveUpAfterMs?: number;
  /**
   * What becomes of a job for which the queue has no room: 'wait' (default) until there is some, or 'fail' with
   * ADMISSION_REFUSED and `retryAfterMs`.
   */
  readonly whenFull?: 'wait' | 'fail';
  /**
   * How long jobs of a queue wait that no worker serves and none ever did, while others are served: most likely the
   * model's name is wrong. Then they fail with NOT_SERVED. Milliseconds, default 30,000; Infinity waits.
   */
  readonly notServedAfterMs?: number;
  /**
   * Told why nothing comes, once nothing came for three seconds, when the reason changes and every half minute; and with
   * undefined once results come again. Left out: it goes to `log`.
   */
  readonly onWaiting?: (waiting: Waiting | undefined) => void;
  /** Told when the queue takes no more, with the time until it is asked again, and with undefined once it goes on. */
  readonly onHeldBack?: (retryAfterMs: number | undefined) => void;
  /** How much the queue takes; the same for all its producers. Default: that of the settings. */
  readonly limits?: Partial<AdmissionLimits>;
  /** The points at which this process dies; tests alone set it. */
  readonly faults?: FaultPoints;
}

interface CallOptions {
  /** Takes the call back: it rejects with INTERRUPTED, called AbortError, and its jobs are taken off the queue. */
  readonly signal?: AbortSignal;
  /** How long the call may take, in milliseconds. Then it rejects with DEADLINE_PASSED, and its jobs are taken back. */
  readonly timeoutMs?: number;
  /** The same as a moment, by this machine's clock; jobs that are not begun by then never run. A Date or epoch ms. */
  readonly deadline?: Date | number;
  /** Instead of the client's. */
  readonly tenant?: string;
  /** How long the result may lie unread, in milliseconds. Default: a quarter of an hour. */
  readonly resultTtlMs?: number;
  /** What happens to a text, or a pair, with more tokens than the model takes. Default "end": it is cut there. */
  readonly truncate?: 'end' | 'error';
  readonly class?: 'interactive' | 'bulk';
}

interface RequestOptions extends CallOptions {
  /** One of the model's prompts by its name, or "none" where the model has a default one that is not wanted. */
  readonly prompt?: string;
  /**
   * `normalize`: true for length 1 also from a model whose vectors have lengths of their own; false for those lengths,
   * refused (JOB_INVALID) of a model that has none but 1. Left out: as the model has it.
   */
  readonly output?: { readonly dtype?: OutputDtype; readonly dimensions?: number; readonly normalize?: boolean };
}

export interface EmbedOptions extends RequestOptions {
  /** Stable id of this request: asking again with the same id and texts never computes twice. Default: a random one. */
  readonly jobId?: string;
}

/** A reranker by its name in the store, or name@revision. Without a revision: that of the workers that serve it. */
export type RerankModel = string | { readonly name: string; readonly revision?: string };

export interface RerankOptions extends CallOptions {
  /** Left out: the client's own model, which has to be a reranker. */
  readonly model?: RerankModel;
  /** What the documents are weighed against. */
  readonly query: string;
  /** Any number of them. */
  readonly documents: readonly string[];
  /** How many of the best are in `ranked`. Default: all. */
  readonly topN?: number;
  /** As of `EmbedOptions`. */
  readonly jobId?: string;
  /** Called with how many documents have their scores, whenever more of them have. */
  readonly onProgress?: (done: number) => void;
}

export interface RerankResult {
  /**
   * How well each document answers the query, in their order; best is largest. Between 0 and 1 where the model says so,
   * as sentence-transformers' `CrossEncoder.predict` gives it; scores of two models cannot be compared.
   */
  readonly scores: Float32Array;
  /** Indices of documents, best first. */
  readonly ranked: readonly number[];
  /** name@revision */
  readonly model: string;
  /** Of all pairs, special tokens included. Undefined where the queue has forgotten it, after thousands of jobs. */
  readonly tokens: number | undefined;
  /** Pairs that were cut at the model's length. Undefined as `tokens` is. */
  readonly truncated: number | undefined;
  /** Whether any pair was cut. */
  readonly isTruncated: boolean;
  /** True: a simulated device gave (some of) the scores. */
  readonly isSimulated: boolean;
}

export interface StreamOptions extends RequestOptions {
  /**
   * Names this run. Job ids are `<tenant>~<runId>-<row index of the job's first text>`, so a run that died and is
   * started again with the same runId, texts and settings finds what was computed meanwhile. Default: a random one.
   */
  readonly runId?: string;
  /**
   * Row index of the first text of `texts`: what a resumed run has already. Blocks and job ids count from here. Default
   * 0.
   */
  readonly startAt?: number;
  /**
   * 'fail' (default): the first job that fails ends the stream with its error. 'skip': its rows come as a block of kind
   * "skipped", in their place. A server that cannot be reached always ends the stream.
   */
  readonly onError?: 'fail' | 'skip';
  /** Called whenever a job was added or a block handed over. */
  readonly onProgress?: (progress: StreamProgress) => void;
}

/**
 * Vectors, row-major, always as f32: f16 and i8 results are widened, and of binary ones a set bit is 1 and a clear bit
 * −1. `output.dtype` decides how precise they are and how much the queue server holds, not what is given here.
 */
export interface Vectors {
  readonly rows: number;
  readonly dims: number;
  /** rows × dims values. */
  readonly vectors: Float32Array;
  /** One of them, a view and not a copy. Throws a RangeError where there is no such row. */
  row(index: number): Float32Array;
}

export interface EmbedResult extends Vectors {
  /** The form in which the result was stored. */
  readonly dtype: OutputDtype;
  /** Real tokens per row, special tokens included; only when this client tokenized. */
  readonly tokens: readonly number[] | undefined;
  /** Rows that were cut at the model's length; row indices when this client tokenized, else whether there were any. */
  readonly truncated: readonly number[] | boolean;
  /** True: a simulated device gave (some of) the vectors, for a trial; they are not those of the model. */
  readonly isSimulated: boolean;
}

export interface EmbeddedBlock<Item> extends EmbedResult {
  readonly kind: 'embedded';
  /** Row index, over the whole stream, of the first row of this block. */
  readonly first: number;
  /** What the caller's iterable gave, one per row. */
  readonly items: readonly Item[];
}

export interface SkippedBlock<Item> {
  readonly kind: 'skipped';
  readonly first: number;
  readonly rows: number;
  readonly items: readonly Item[];
  readonly error: ShoalError;
}

/** Blocks come in input order without gaps: `first` of the next is `first + rows` of this one. */
export type StreamBlock<Item> = EmbeddedBlock<Item> | SkippedBlock<Item>;

export interface StreamProgress {
  readonly rowsRead: number;
  /** Rows whose blocks were handed over. */
  readonly rowsDone: number;
  readonly jobsInFlight: number;
  /** Tokens of the rows read; 0 when the worker tokenizes. */
  readonly tokensRead: number;
}

/** What happened to this client's jobs since it connected. */
export interface ClientCounts {
  readonly added: number;
  /** Found waiting or running already: somebody asked the same before. */
  readonly known: number;
  /** Found finished with a result to fetch. */
  readonly ready: number;
  readonly delivered: number;
  readonly failed: number;
  /** Computed again, because the result had expired, was taken by somebody else or arrived damaged. */
  readonly askedAgain: number;
  /** Added again after the server had lost them. */
  readonly addedAgain: number;
  /** Looked up because nobody had spoken of them. */
  readonly lookedUp: number;
}
