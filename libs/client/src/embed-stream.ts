// A stream of texts in, a stream of blocks out, in input order and with bounded memory, whatever the rows of a result
// are: vectors, or scores, which are rows of one. One task reads ahead: it cuts
// chunks, makes requests of them and asks, as long as the window has room. The generator hands over the oldest block,
// and takes its result as delivered once the caller comes back for the next one. What became of a job on the queue is
// open-jobs.ts's business.

import { ShoalError, isShoalError, toFailure, type OutputDtype } from '@shoal/contract';
import type { Tokenizer } from '@shoal/core';
import { abortError } from './abort-error.ts';
import { cutChunks, type Chunk, type PieceSize } from './chunks.ts';
import type { EmbeddedBlock, StreamBlock, StreamOptions, StreamProgress } from './embedding.ts';
import type { Asked, Delivery, RowsRequest } from './job-request.ts';
import type { OpenJobs } from './open-jobs.ts';
import { storedRows } from './stored-rows.ts';
import { withRows } from './with-rows.ts';

export interface StreamTerms {
  /** The job of one chunk. Rejects where none can be made of it. */
  readonly requestOf: (jobId: string, texts: readonly string[]) => Promise<RowsRequest>;
  /** What the rows of a result are called in messages. */
  readonly what: 'vectors' | 'scores';
  readonly truncate: 'end' | 'error';
  /** What texts were tokenized with here, if they were. */
  readonly tokenizer: Tokenizer | undefined;
  readonly jobs: Pick<OpenJobs, 'abandon' | 'ask' | 'letGo' | 'release'>;
  readonly maxInFlightJobs: number;
  readonly size: PieceSize;
  /** Id of the job of a chunk. */
  readonly jobIdOf: (chunk: Pick<Chunk<unknown>, 'first' | 'most'>) => string;
  /** The caller named the request, and can ask for it again. */
  readonly hasOwnId: boolean;
}

/** Texts of all blocks in flight, in UTF-16 units, whatever their number; one block is always let in. */
const MAX_WINDOW_CHARS = 1 << 26;

/** Failures that are not about one job: the next job would meet them too, so they are never skipped. */
const FATAL = new Set([
  'QUEUE_UNREACHABLE',
  'QUEUE_FULL',
  'QUEUE_REFUSES_WRITES',
  'QUEUE_DAMAGED',
  'ADMISSION_REFUSED',
  'QUEUE_UNSAFE',
  'INTERRUPTED',
  'TOKENIZER_MISMATCH',
  'FINGERPRINT_MISMATCH',
  'NOT_SERVED',
]);

interface Entry<Item> {
  readonly chunk: Chunk<Item>;
  /** Undefined when no job could be made of the chunk. */
  readonly asked: Asked<RowsRequest> | undefined;
  /** Never rejects. */
  readonly outcome: Promise<Outcome>;
}

type Outcome =
  | { readonly ok: true; readonly request: RowsRequest; readonly delivery: Delivery }
  | { readonly ok: false; readonly error: ShoalError };

type Options = Pick<StreamOptions, 'startAt' | 'signal' | 'onError' | 'onProgress'>;

export async function* embedStream<Item extends { readonly text: string }>(
  texts: AsyncIterable<Item> | Iterable<Item>,
  terms: StreamTerms,
  options: Options,
): AsyncGenerator<StreamBlock<Item, OutputDtype>, void, undefined> {
  const run = new StreamRun(texts, terms, options);
  try {
    for (let entry = await run.next(); entry !== undefined; entry = await run.next()) {
      const outcome = await entry.outcome;
      options.signal?.throwIfAborted();
      if (outcome.ok) yield run.toBlock(entry.chunk, outcome);
      else if (options.onError === 'skip' && !FATAL.has(outcome.error.code)) {
        yield {
          kind: 'skipped',
          first: entry.chunk.first,
          rows: entry.chunk.items.length,
          items: entry.chunk.items,
          error: outcome.error,
        };
      } else throw outcome.error;
      run.handedOver(entry, outcome.ok);
    }
  } catch (error) {
    throw options.signal?.aborted === true ? interrupted(options.signal.reason, terms) : error;
  } finally {
    await run.stop();
  }
}

/** The window between reader and caller. Entries are in input order; the first is the one handed over next. */
class StreamRun<Item extends { readonly text: string }> {
  private readonly terms: StreamTerms;
  private readonly options: Options;
  private readonly chunks: AsyncGenerator<Chunk<Item>, void, undefined>;
  private readonly entries: Entry<Item>[] = [];
  private input:
    | { readonly name: 'reading' | 'ended' | 'stopped' }
    | { readonly name: 'failed'; readonly error: unknown } = { name: 'reading' };
  private charsInFlight = 0;
  private progress: StreamProgress = { rowsRead: 0, rowsDone: 0, jobsInFlight: 0, tokensRead: 0 };
  private stopping: Promise<void> | undefined;
  private wakeReader: (() => void) | undefined;
  private wakeCaller: (() => void) | undefined;
  private readonly onAbort = (): void => void this.stop();

  constructor(texts: AsyncIterable<Item> | Iterable<Item>, terms: StreamTerms, options: Options) {
    this.terms = terms;
    this.options = options;
    this.chunks = cutChunks(texts, options.startAt ?? 0, terms.size);
    if (options.signal?.aborted === true) this.input = { name: 'stopped' };
    options.signal?.addEventListener('abort', this.onAbort, { once: true });
    void this.read();
  }

  /** The oldest entry, or undefined at the end of the input. Throws what reading the input threw, in its place. */
  async next(): Promise<Entry<Item> | undefined> {
    while (this.entries.length === 0 && this.input.name === 'reading')
      await new Promise<void>((resolve) => (this.wakeCaller = resolve));
    this.options.signal?.throwIfAborted();
    if (this.entries.length === 0 && this.input.name === 'failed') throw this.input.error;
    return this.entries[0];
  }

  toBlock(
    { first, items }: Chunk<Item>,
    { request, delivery }: Extract<Outcome, { ok: true }>,
  ): EmbeddedBlock<Item, OutputDtype> {
    const { header, body } = delivery;
    const stored = storedRows(header, body);
    this.terms.jobs.letGo(delivery);
    return withRows({
      kind: 'embedded',
      first,
      items,
      ...stored,
      tokens: request.tokens,
      truncated: request.truncated ?? header.isTruncated,
      isSimulated: header.isSimulated,
    });
  }

  handedOver(entry: Entry<Item>, isDelivered: boolean): void {
    this.entries.shift();
    this.charsInFlight -= entry.chunk.chars;
    if (isDelivered && entry.asked !== undefined) this.terms.jobs.release([entry.asked.request.jobId]);
    this.report({ rowsDone: this.progress.rowsDone + entry.chunk.items.length });
    this.wakeReader?.();
  }

  /** Stops reading, takes what still waits off the queue. Safe to call twice; the input may never answer again. */
  stop(): Promise<void> {
    return (this.stopping ??= this.stopNow());
  }

  private async stopNow(): Promise<void> {
    this.options.signal?.removeEventListener('abort', this.onAbort);
    this.input = { name: 'stopped' };
    this.wakeReader?.();
    this.wakeCaller?.();
    void this.chunks.return().catch(() => undefined);
    const open = this.entries.splice(0).flatMap(({ asked }) => asked ?? []);
    if (open.length === 0) return; // all was handed over: nobody is to be told, and errors with their stacks are dear
    await this.terms.jobs.abandon(open, interrupted(this.options.signal?.reason, this.terms));
  }

  // ---- reading ahead --------------------------------------------------------------------------------------------

  private async read(): Promise<void> {
    try {
      for await (const chunk of this.chunks) {
        while (this.isFull(chunk) && this.input.name === 'reading')
          await new Promise<void>((resolve) => (this.wakeReader = resolve));
        if (this.input.name !== 'reading') return;
        await this.enter(chunk);
      }
      if (this.input.name === 'reading') this.input = { name: 'ended' };
    } catch (error) {
      if (this.input.name === 'reading') this.input = { name: 'failed', error };
    }
    this.wakeCaller?.();
  }

  private isFull(chunk: Chunk<Item>): boolean {
    const { length } = this.entries;
    return length >= this.terms.maxInFlightJobs || (length > 0 && this.charsInFlight + chunk.chars > MAX_WINDOW_CHARS);
  }

  private async enter(chunk: Chunk<Item>): Promise<void> {
    const { jobIdOf, requestOf } = this.terms;
    const texts = chunk.items.map(({ text }) => text);
    const request = await requestOf(jobIdOf(chunk), texts).catch((error: unknown) => toShoalError(error));
    if (this.input.name !== 'reading') return;
    const asked = request instanceof ShoalError ? request : this.terms.jobs.ask(request);
    this.entries.push({
      chunk,
      asked: asked instanceof ShoalError ? undefined : asked,
      outcome: outcomeOf(asked, this.terms),
    });
    this.charsInFlight += chunk.chars;
    const tokens = request instanceof ShoalError ? 0 : (request.tokens?.reduce((sum, count) => sum + count, 0) ?? 0);
    this.report({
      rowsRead: this.progress.rowsRead + chunk.items.length,
      tokensRead: this.progress.tokensRead + tokens,
    });
    this.wakeCaller?.();
  }

  private report(change: Partial<StreamProgress>): void {
    this.progress = { ...this.progress, ...change, jobsInFlight: this.entries.length };
    this.options.onProgress?.(this.progress);
  }
}

async function outcomeOf(asked: Asked<RowsRequest> | ShoalError, terms: StreamTerms): Promise<Outcome> {
  try {
    if (asked instanceof ShoalError) throw asked;
    return { ok: true, request: asked.request, delivery: await asked.delivery };
  } catch (error) {
    return { ok: false, error: shorterThere(toShoalError(error), terms) };
  }
}

/** Rows were cut here, and are too long for the worker all the same: the two were told different lengths. */
function shorterThere(error: ShoalError, { truncate, tokenizer }: StreamTerms): ShoalError {
  if (error.code !== 'INPUT_TOO_LONG' || truncate !== 'end' || tokenizer === undefined) return error;
  const [found] = error.message.split(';');
  return new ShoalError(
    'INPUT_TOO_LONG',
    `texts were cut at ${tokenizer.maxTokens} tokens here, and ${found}: client and worker disagree about maxTokens. ` +
      'Start the workers with the same (--max-tokens, SHOAL_MAX_TOKENS), or ask with theirs',
    error.fields,
    error,
  );
}

function interrupted(reason: unknown, { hasOwnId, what: rows }: Pick<StreamTerms, 'hasOwnId' | 'what'>): ShoalError {
  const what = hasOwnId
    ? 'what is finished stays on the queue server for a while, and asking again with the same id finds it'
    : 'its jobs are taken off the queue';
  return abortError(reason, `the call was stopped before all its ${rows} had come; ${what}`);
}

function toShoalError(error: unknown): ShoalError {
  if (isShoalError(error)) return error;
  const { code, message } = toFailure(error);
  return new ShoalError(code, message, {}, error);
}
