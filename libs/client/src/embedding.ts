// What goes into the client and what comes out of it, as types. Nothing here does anything.

import type { Meta, OutputDtype, ShoalError, Trace } from '@shoal/contract';
import type { ListedCell, Logger, Tokenizer, Tracer } from '@shoal/core';
import type { FaultPoints } from '@shoal/core/base';
import type { AdmissionLimits, CancelResult, GivenConnection, Waiting } from '@shoal/queue';

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
  /** redis://, rediss://, unix://, redis+sentinel:// or redis+cluster:// */
  readonly redisUrl?: string | undefined;
  /**
   * Instead of `redisUrl`: a connection of ioredis, or its options. The client opens connections of its own to the same
   * server with the same credentials; the one given is neither used nor closed.
   */
  readonly connection?: GivenConnection | undefined;
  /**
   * Several queue servers used as one queue: a list, or as the setting `cells`, where a file is read again while the client
   * is open. Ids of submitted requests then end with `@` and the cell's name, and ids of your own may have no other `@`.
   * `redisUrl` says which cell is home, where similarity is asked. Default the first.
   */
  readonly cells?: string | readonly ListedCell[] | undefined;
  /** A cell that does not answer for so long is away: new work goes to the others. Milliseconds, default 1,000. */
  readonly cellAwayAfterMs?: number | undefined;
  /** Hash tag of every key. Default {shoal}. */
  readonly prefix?: string;
  /** Its name alone, or more where the revision is to be a certain one. */
  readonly model: string | ClientModel;
  /**
   * Given: texts are tokenized here and token ids travel (the fast form). Left out: texts travel, the worker tokenizes.
   */
  readonly tokenizer?: Tokenizer;
  /** Goes before every job id and into every job. Default "default". */
  readonly tenant?: string;
  /**
   * Most jobs of one call between "added" and "handed to the caller". Bounds its memory. Default 64; with cells 64 for each
   * that takes new work, up to 256.
   */
  readonly maxInFlightJobs?: number;
  /**
   * Texts a job, 1 to 1,024. Default 64. More than 256 only where all workers of the model take them, else 256.
   */
  readonly jobTexts?: number | undefined;
  readonly log?: Logger;
  /** Makes spans of adding jobs whose `trace` is followed, which workers then go on from (docs/observability.md). */
  readonly tracer?: Tracer | undefined;
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
  /**
   * Payload servers as the setting `payloadServers` lists them: URLs separated by commas. Large inputs and results
   * of `embed`, `embedStream` and `embedMany` go there instead of through the queue server, where all workers of the model
   * have the same servers; what is lost there is computed again. Never of what is submitted, or kept longer than 5 minutes.
   */
  readonly payloadServers?: string | undefined;
  /** How much the queue takes; the same for all its producers. Default: that of the settings. */
  readonly limits?: Partial<AdmissionLimits>;
  /** The points at which this process dies; tests alone set it. */
  readonly faults?: FaultPoints;
}

/** As they were checked. */
export interface KnownOptions extends ClientOptions {
  readonly model: ClientModel;
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
  /**
   * Fields of your own, up to 2,048 bytes as JSON, which every job of the call carries, for those who look at the queue
   * or listen to it. Needs workers later than 0.1.0.
   */
  readonly meta?: Meta;
  /**
   * The request that the call is a part of: its id, which workers name where they log what became of its jobs, and W3C's
   * trace context. Left out of jobs for workers of 0.1.0, and where none is alive.
   */
  readonly trace?: Trace;
}

interface RequestOptions<Dtype extends OutputDtype> extends CallOptions {
  /** One of the model's prompts by its name, or "none" where the model has a default one that is not wanted. */
  readonly prompt?: string;
  /**
   * `dtype`: the form of the vectors, on the queue server and in what comes. Default f32. `normalize`: true for length 1 also from a model whose vectors have lengths of their own; false for those lengths,
   * refused (JOB_INVALID) of a model that has none but 1. Left out: as the model has it.
   */
  readonly output?: { readonly dtype?: Dtype; readonly dimensions?: number; readonly normalize?: boolean };
}

export interface EmbedOptions<Dtype extends OutputDtype = OutputDtype> extends RequestOptions<Dtype> {
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

export interface StreamOptions<Dtype extends OutputDtype = OutputDtype> extends RequestOptions<Dtype> {
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

/** Arrays by the form of vectors, as they are stored. */
export interface StoredForms {
  readonly f32: Float32Array;
  /** IEEE 754 binary16, as its 16 bits. */
  readonly f16: Uint16Array;
  /** A value is its integer times the scale of its row. */
  readonly i8: Int8Array;
  /** One bit a dimension, set where the value is above 0, most significant first; each row begins with a byte. */
  readonly binary: Uint8Array;
}

/** Vectors, row-major, in the form that was asked for: nothing is widened. */
export interface Vectors<Dtype extends OutputDtype = 'f32'> {
  readonly rows: number;
  readonly dims: number;
  readonly dtype: Dtype;
  /** rows × dims values; of binary rows × ⌈dims / 8⌉ bytes. */
  readonly vectors: StoredForms[Dtype];
  /** Of i8 alone: one a row. */
  readonly scales: Dtype extends 'i8' ? Float32Array : undefined;
  /** One of them, a view and not a copy. Throws a RangeError where there is no such row. */
  row(index: number): StoredForms[Dtype];
  /** rows × dims values, whatever the form; of binary a set bit is 1 and a clear one −1. Of f32 `vectors` itself. */
  toFloat32(): Float32Array;
}

export interface EmbedResult<Dtype extends OutputDtype = 'f32'> extends Vectors<Dtype> {
  /** Real tokens per row, special tokens included; only when this client tokenized. */
  readonly tokens: readonly number[] | undefined;
  /** Rows that were cut at the model's length; row indices when this client tokenized, else whether there were any. */
  readonly truncated: readonly number[] | boolean;
  /** True: a simulated device gave (some of) the vectors, for a trial; they are not those of the model. */
  readonly isSimulated: boolean;
}

export interface EmbeddedBlock<Item, Dtype extends OutputDtype = 'f32'> extends EmbedResult<Dtype> {
  readonly kind: 'embedded';
  /** Row index, over the whole stream, of the first row of this block. */
  readonly first: number;
  /** What the caller's iterable gave, one per row. */
  readonly items: readonly Item[];
}

/** One text of `embedMany`. */
export interface EmbeddedRow<Item, Dtype extends OutputDtype = 'f32'> {
  readonly kind: 'embedded';
  /** Over the whole run, from 0 or `startAt` on. */
  readonly index: number;
  /** As the caller's iterable gave it. */
  readonly item: Item;
  /** In the form that was asked for; a view of a block of rows, which is kept as long as one of them is. */
  readonly vector: StoredForms[Dtype];
  /** Of i8 alone: by which the integers are multiplied. */
  readonly scale: Dtype extends 'i8' ? number : undefined;
}

export interface SkippedRow<Item> {
  readonly kind: 'skipped';
  readonly index: number;
  readonly item: Item;
  readonly error: ShoalError;
}

export interface SkippedBlock<Item> {
  readonly kind: 'skipped';
  readonly first: number;
  readonly rows: number;
  readonly items: readonly Item[];
  readonly error: ShoalError;
}

/** Blocks come in input order without gaps: `first` of the next is `first + rows` of this one. */
export type StreamBlock<Item, Dtype extends OutputDtype = 'f32'> = EmbeddedBlock<Item, Dtype> | SkippedBlock<Item>;

export interface StreamProgress {
  readonly rowsRead: number;
  /** Rows whose blocks were handed over. */
  readonly rowsDone: number;
  readonly jobsInFlight: number;
  /** Tokens of the rows read; 0 when the worker tokenizes. */
  readonly tokensRead: number;
}

export interface SubmitOptions<Dtype extends OutputDtype = OutputDtype> extends Omit<
  RequestOptions<Dtype>,
  'timeoutMs'
> {
  /**
   * By which the request is found again, in this process or another. The same id with the same texts and options is the
   * same request. Default: a random one.
   */
  readonly jobId?: string;
}

/** `expired`: the result is not kept any more. `unknown`: there is no such request. */
export type JobState = 'waiting' | 'running' | 'completed' | 'failed' | 'cancelled' | 'expired' | 'unknown';

export interface JobStatus {
  readonly state: JobState;
  readonly rows: number;
  /** Of them computed. */
  readonly rowsDone: number;
  /** Of a request that failed or was cancelled. */
  readonly error: ShoalError | undefined;
  /** name@revision. Absent, as what follows, of an unknown request. */
  readonly model?: string;
  readonly submittedAt?: Date;
  /** As it was submitted. */
  readonly meta?: Meta;
}

export interface JobOptions {
  /** Whose request it is. Default: the client's. */
  readonly tenant?: string;
}

export interface WaitOptions {
  /** Ends the wait, and leaves the request as it is. */
  readonly signal?: AbortSignal | undefined;
  /** How long to wait, in milliseconds; then DEADLINE_PASSED. Left out: until it has ended. */
  readonly timeoutMs?: number | undefined;
}

export interface SubmittedResult<Dtype extends OutputDtype = OutputDtype> extends EmbedResult<Dtype> {
  /** name@revision */
  readonly model: string;
  readonly meta?: Meta;
}

/** Of `submitRerank`: what `rerank` takes but for what is of a caller that waits. */
export type SubmitRerankOptions = Omit<RerankOptions, 'timeoutMs' | 'topN' | 'onProgress'>;

export interface RerankJobOptions extends JobOptions {
  /** The reranker that was asked. Left out: the client's own model, which has to be one. */
  readonly model?: RerankModel;
}

/** `ranked` has all documents. */
export interface SubmittedScores extends RerankResult {
  readonly meta?: Meta;
}

/** A request that was submitted, by its id: in the process that did it, or in any other. */
export interface JobHandle<Dtype extends OutputDtype = OutputDtype> extends RequestHandle<SubmittedResult<Dtype>> {}

/** The same for documents that are weighed. */
export interface RerankHandle extends RequestHandle<SubmittedScores> {}

/** What both have; `Result` is what was asked for. */
export interface RequestHandle<Result> {
  readonly id: string;
  readonly tenant: string;
  /** One look. Rejects with QUEUE_UNREACHABLE. */
  status(): Promise<JobStatus>;
  /**
   * The vectors or scores, once all are computed. They stay on the queue server for their time to live: another process may fetch
   * them as well. Rejects with the failure of the request, CANCELLED among them, RESULT_EXPIRED, RESULT_TAKEN,
   * INPUT_LOST where there is no such request, or INTERRUPTED, called AbortError.
   */
  result(options?: WaitOptions): Promise<Result>;
  /**
   * Takes it back. `asked`: workers had jobs of it and were told. `cancelled`: all that was left has failed with
   * CANCELLED. `finished`, `unknown`: there is nothing to cancel.
   */
  cancel(): Promise<CancelResult['outcome']>;
  /** The result is safe elsewhere: frees their memory on the queue server. The request is unknown afterwards. */
  release(): Promise<void>;
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
