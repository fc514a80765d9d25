// A thread that has one part at a time: it reads the part's rows and writes their object (part-work.ts), for whoever runs
// them on the main thread (part-threads.ts). Texts and vectors are handed over, not copied; vectors go back as memory for
// the next. It answers every request once. A failure that is the part's own is an answer; any other ends the thread.

import { parentPort, workerData } from 'node:worker_threads';
import { ShoalError, invariant, promptText, type Failure } from '@shoal/contract';
import { systemClock } from '@shoal/core';
import { faultPointsFrom } from '@shoal/core/base';
import { openModel, openTokenizer } from '@shoal/models';
import type { TokenizerThreadData } from '../executor/tokenizer-thread.ts';
import type { Block } from '../files/row-form.ts';
import type { Spent } from './part-object.ts';
import { PartPlaces } from './part-place.ts';
import { OpenPart, type PartDone, type PartTerms, type PartTexts } from './part-work.ts';

export interface PartThreadData {
  /** In which parts may lie. */
  readonly folders: readonly string[];
  readonly tokenizer: TokenizerThreadData;
}

export type PartRequest = { readonly id: number } & (
  | { readonly kind: 'open'; readonly terms: PartTerms }
  | { readonly kind: 'next' }
  | {
      readonly kind: 'write';
      readonly vectors: Float32Array<ArrayBuffer>;
      readonly spent: Omit<Spent, 'rows'>;
      readonly rowTokens: Block['rowTokens'];
    }
  | { readonly kind: 'finish' }
  | { readonly kind: 'giveUp' }
  | { readonly kind: 'leave' }
  | { readonly kind: 'remove' }
  // what waits for a store is broken off, also while the part is opened
  | { readonly kind: 'stop' }
  | { readonly kind: 'close' }
);

export type PartReply = { readonly id: number } & (
  | { readonly kind: 'next'; readonly texts: PartTexts | undefined }
  | { readonly kind: 'written'; readonly vectors: Float32Array<ArrayBuffer> }
  | { readonly kind: 'finished'; readonly done: PartDone }
  | { readonly kind: 'done' }
  // unasked, with no request's id
  | { readonly kind: 'away'; readonly problem: string; readonly waitMs: number }
  | { readonly kind: 'failed'; readonly failure: Failure }
);
type Answer<Reply = PartReply> = Reply extends unknown ? Omit<Reply, 'id'> : never;

invariant(parentPort !== null, 'this file runs as a worker thread');
const port = parentPort;
const { folders, tokenizer } = workerData as PartThreadData;
const places = new PartPlaces(folders, {
  onAway: (problem, waitMs) => port.postMessage({ id: 0, kind: 'away', problem, waitMs } satisfies PartReply),
});
const faults = faultPointsFrom(process.env['SHOAL_FAULT_POINT'], (signal) => process.kill(process.pid, signal));
let own: OpenPart | undefined;
let stopping = new AbortController();

port.on('message', (request: PartRequest) => void answer(request));

async function answer(request: PartRequest): Promise<void> {
  const { id } = request;
  try {
    const told = await answerTo(request);
    port.postMessage({ id, ...told } satisfies PartReply, givenWith(told));
  } catch (error) {
    port.postMessage({ id, kind: 'failed', failure: failureOf(error) } satisfies PartReply);
  }
}

async function answerTo(request: PartRequest): Promise<Answer> {
  if (request.kind === 'open') {
    stopping = new AbortController();
    const { signal } = stopping;
    own = await OpenPart.open(request.terms, { places, tooLong, clock: systemClock, faults, signal });
    return { kind: 'done' };
  }
  if (request.kind === 'stop') {
    stopping.abort();
    return { kind: 'done' };
  }
  invariant(own !== undefined, 'a part is opened first');
  switch (request.kind) {
    case 'next':
      return { kind: 'next', texts: await own.next() };
    case 'write':
      return { kind: 'written', vectors: await own.write(request.vectors, request.spent, request.rowTokens) };
    case 'finish':
      return { kind: 'finished', done: await own.finish() };
    default:
      await own[request.kind]();
      return { kind: 'done' };
  }
}

function givenWith(told: Answer): ArrayBuffer[] {
  if (told.kind === 'written') return [told.vectors.buffer];
  return told.kind === 'next' && told.texts !== undefined ? [told.texts.input.buffer] : [];
}

/** A disk that fails while it is read is no reason to end a thread. */
function failureOf(error: unknown): Failure {
  if (error instanceof ShoalError) return { code: error.code, message: error.message };
  if (stopping.signal.aborted) return { code: 'FILE_UNREADABLE', message: 'the part is left as it is' };
  if (error instanceof Error && 'syscall' in error) return { code: 'FILE_UNREADABLE', message: error.message };
  throw error;
}

/** Asked of parts alone that let nothing be cut: the model is opened for the first of them. */
let measure: Promise<(texts: readonly string[], prompt: string | undefined) => readonly boolean[]> | undefined;

async function tooLong(texts: readonly string[], prompt: string | undefined): Promise<readonly boolean[]> {
  measure ??= openMeasure();
  return (await measure)(texts, prompt);
}

async function openMeasure(): Promise<(texts: readonly string[], prompt: string | undefined) => readonly boolean[]> {
  const { model: name, maxTokens, ...where } = tokenizer;
  const model = await openModel(name, where);
  const encoder = await openTokenizer(model, { maxTokens });
  return (texts, prompt) => {
    const prefix = promptText(model, prompt) ?? '';
    return texts.map((text) => encoder.encode(prefix + text).isTruncated);
  };
}
