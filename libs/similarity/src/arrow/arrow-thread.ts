// Arrow files read in a thread of their own, so that a file can neither hold up signals nor run without end: a thread
// that says nothing for as long as no sound file needs is ended, and the file is refused by name. Memory is bounded by
// arrow-rows.ts, which reads in pieces, and by the limit on the thread's objects.

import { Worker } from 'node:worker_threads';
import { ShoalError, type Failure } from '@shoal/contract';
import { programFile } from '@shoal/core/base';
import type { RowBatch } from '../collections/collections.ts';
import { wrongFile } from '../collections/vector-file-errors.ts';

export interface ThreadOptions {
  readonly column?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Read in the place of the file, whose name messages have. */
  readonly copy?: string;
  /** For tests: what the thread runs, and how long it may say nothing. */
  readonly program?: URL;
  readonly silenceMs?: number;
}

/** What a thread is started with. */
export interface ThreadOrder {
  readonly path: string;
  readonly copy: string | undefined;
  readonly column: string | undefined;
}

export type FromThread =
  | { readonly kind: 'alive' }
  | { readonly kind: 'rows'; readonly batch: RowBatch }
  | { readonly kind: 'end' }
  | { readonly kind: 'failed'; readonly failure: Failure; readonly fields: Readonly<Record<string, unknown>> };

/**
 * Between two reads of 4 MB lies at most the decompression of one buffer, of up to 1 GiB: 2 s here, so ten times that
 * leaves room for a machine that is slow and busy. Until the thread runs, this counts as well.
 */
const SILENCE_MS = 30_000;
/** Names are objects, vectors are not: 4 MB of them at a time. */
const OBJECTS_MB = 512;

/** As readArrowRows, in a thread. The signal ends it at once. */
export async function* readArrowInThread(path: string, options: ThreadOptions = {}): AsyncGenerator<RowBatch> {
  const { column, signal, copy, silenceMs = SILENCE_MS } = options;
  signal?.throwIfAborted();
  const worker = new Worker(options.program ?? programFile('./arrow-thread-main', import.meta.url), {
    workerData: { path, copy, column } satisfies ThreadOrder,
    resourceLimits: { maxOldGenerationSizeMb: OBJECTS_MB },
  });
  const inbox = new Inbox(worker, path, silenceMs, signal);
  try {
    for (;;) {
      const message = await inbox.next();
      if (message.kind === 'end') return;
      if (message.kind === 'failed')
        throw new ShoalError(message.failure.code, message.failure.message, message.fields);
      yield message.batch;
    }
  } finally {
    inbox.close();
    await worker.terminate();
  }
}

/** What the thread says, one message for each question; its silence counts only while somebody waits. */
class Inbox {
  readonly #worker: Worker;
  readonly #path: string;
  readonly #silenceMs: number;
  readonly #signal: AbortSignal | undefined;
  #waiting = Promise.withResolvers<Exclude<FromThread, { kind: 'alive' }>>();
  #timer: NodeJS.Timeout | undefined;

  constructor(worker: Worker, path: string, silenceMs: number, signal: AbortSignal | undefined) {
    this.#worker = worker;
    this.#path = path;
    this.#silenceMs = silenceMs;
    this.#signal = signal;
    this.#waiting.promise.catch(() => undefined); // a failure may come before anybody asks
    signal?.addEventListener('abort', this.#interrupted, { once: true });
    worker.on('message', (message: FromThread) => {
      if (message.kind === 'alive') this.#listen();
      else this.#waiting.resolve(message);
    });
    worker.on('error', (error) => this.#waiting.reject(this.#brokenBy(error)));
    worker.on('exit', () => this.#waiting.reject(new Error('the thread that read the file ended')));
  }

  async next(): Promise<Exclude<FromThread, { kind: 'alive' }>> {
    this.#listen();
    this.#worker.postMessage('next');
    try {
      return await this.#waiting.promise;
    } finally {
      clearTimeout(this.#timer);
      this.#waiting = Promise.withResolvers();
      this.#waiting.promise.catch(() => undefined);
    }
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#signal?.removeEventListener('abort', this.#interrupted);
  }

  #listen(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#waiting.reject(this.#silent()), this.#silenceMs);
  }

  #silent(): ShoalError {
    return wrongFile(
      this.#path,
      `reading it came to no end: nothing for ${this.#silenceMs / 1_000} s. It is damaged, or its record batches are ` +
        'far too large: write it again, in smaller ones',
    );
  }

  #brokenBy(error: Error): Error {
    if (!('code' in error) || error.code !== 'ERR_WORKER_OUT_OF_MEMORY') return error;
    return wrongFile(
      this.#path,
      `reading it takes more than ${OBJECTS_MB} MB for its names. It is damaged, or its record batches are far too ` +
        'large: write it again, in smaller ones',
    );
  }

  readonly #interrupted = (): void => this.#waiting.reject(this.#signal!.reason);
}
