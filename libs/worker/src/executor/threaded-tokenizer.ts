// Tokenizes for the executor. Jobs that bring token ids never come here; a few short texts are tokenized where they
// are, because a trip to another thread takes longer; more of them go to threads, so that the main thread keeps the
// device fed. A thread that fails fails the process: the executor is started anew and its jobs run again.

import { Worker } from 'node:worker_threads';
import { invariant } from '@shoal/contract';
import type { BatchTokenizer, Encoded, EncodedPair, Tokenizer } from '@shoal/core';
import { programFile } from '@shoal/core/base';
import { encodePairs } from '@shoal/models';
import { tokenizeInput, type TokenizedInput } from './tokenized-input.ts';
import type { TokenizedRows, TokenizeReply, TokenizeRequest, TokenizerThreadData } from './tokenizer-thread.ts';

export interface ThreadedTokenizerOptions extends TokenizerThreadData {
  /** Tokenizes here what is not worth a trip. */
  readonly tokenizer: Tokenizer;
  /** Most threads; each is started when the ones before it are busy. */
  readonly threads: number;
}

/**
 * 8,192 characters of prose take 0.06 ms here and 0.09 ms by a thread and back; 256 k take 2.3 ms either way (2026-11).
 */
const WORTH_A_TRIP_CHARACTERS = 8_192;

type Asked<Request = TokenizeRequest> = Request extends unknown ? Omit<Request, 'id'> : never;

interface Thread {
  readonly worker: Worker;
  readonly pending: Map<number, (reply: TokenizeReply) => void>;
}

export class ThreadedTokenizer implements BatchTokenizer {
  readonly hash: string;
  readonly maxTokens: number;
  readonly vocabularySize: number;
  private readonly options: ThreadedTokenizerOptions;
  private readonly threads: Thread[] = [];
  private requests = 0;

  constructor(options: ThreadedTokenizerOptions) {
    this.options = options;
    this.hash = options.tokenizer.hash;
    this.maxTokens = options.tokenizer.maxTokens;
    this.vocabularySize = options.tokenizer.vocabularySize;
  }

  async encodeAll(texts: readonly string[]): Promise<readonly Encoded[]> {
    if (!this.isWorthATrip(texts)) return texts.map((text) => this.options.tokenizer.encode(text));
    return rowsOf(await this.askRows({ kind: 'texts', texts }));
  }

  async encodePairs(query: string, texts: readonly string[]): Promise<readonly EncodedPair[]> {
    // it is read once for each text
    if (!this.isWorthATrip(texts, query.length * texts.length))
      return encodePairs(this.options.tokenizer, query, texts);
    const rows = await this.askRows({ kind: 'pairs', query, texts });
    return rowsOf(rows).map((row, at) => ({ ...row, second: rows.seconds![at]! }));
  }

  /** `input`: SHI1 of texts, each to be read behind `prefix`; its buffer is given away. */
  async encodeInput(input: Uint8Array<ArrayBuffer>, prefix: string): Promise<TokenizedInput> {
    if (input.length < WORTH_A_TRIP_CHARACTERS || this.options.threads === 0)
      return tokenizeInput(input, prefix, this.options.tokenizer);
    const reply = await this.ask({ kind: 'input', input, prefix }, [input.buffer]);
    invariant(reply.kind === 'input', 'a tokenizer thread answers an input with one');
    return reply.input;
  }

  /** Threads have nothing that must be saved. Safe to call twice. */
  async stop(): Promise<void> {
    await Promise.all(this.threads.splice(0).map(({ worker }) => worker.terminate()));
  }

  private isWorthATrip(texts: readonly string[], more = 0): boolean {
    const characters = texts.reduce((sum, text) => sum + text.length, more);
    return characters >= WORTH_A_TRIP_CHARACTERS && this.options.threads > 0;
  }

  private async askRows(asked: Asked): Promise<TokenizedRows> {
    const reply = await this.ask(asked);
    invariant(reply.kind === 'rows', 'a tokenizer thread answers texts with rows');
    return reply.rows;
  }

  private ask(asked: Asked, given: readonly ArrayBuffer[] = []): Promise<TokenizeReply> {
    const { worker, pending } = this.leastBusy();
    const request: TokenizeRequest = { id: ++this.requests, ...asked };
    return new Promise((resolve) => {
      pending.set(request.id, resolve);
      worker.postMessage(request, given);
    });
  }

  private leastBusy(): Thread {
    let least = this.threads[0];
    for (const thread of this.threads) if (thread.pending.size < least!.pending.size) least = thread;
    if (least === undefined || (least.pending.size > 0 && this.threads.length < this.options.threads))
      return this.startThread();
    return least;
  }

  private startThread(): Thread {
    const { model, cacheDir, modelsDir, modelsReadOnly, maxTokens } = this.options;
    const workerData: TokenizerThreadData = { model, cacheDir, modelsDir, modelsReadOnly, maxTokens };
    const worker = new Worker(programFile('./tokenizer-thread', import.meta.url), { workerData });
    const thread: Thread = { worker, pending: new Map() };
    worker.on('message', (reply: TokenizeReply) => {
      const answer = thread.pending.get(reply.id);
      invariant(answer !== undefined, 'a tokenizer thread answers what it was asked');
      thread.pending.delete(reply.id);
      answer(reply);
    });
    worker.on('error', (error) => void Promise.reject(error)); // ends the process, see the head of this file
    this.threads.push(thread);
    return thread;
  }
}

function rowsOf({ ids, offsets, cut }: TokenizedRows): Encoded[] {
  return Array.from(cut, (isCut, row) => ({
    ids: ids.subarray(offsets[row], offsets[row + 1]),
    isTruncated: isCut === 1,
  }));
}
