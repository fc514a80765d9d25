// A thread that tokenizes and nothing else. Texts come as an array, or as the bytes of an input that are handed over; ids
// go back as one buffer with offsets, handed over, not copied. It ends with its process.

import { parentPort, workerData } from 'node:worker_threads';
import { invariant } from '@shoal/contract';
import type { Encoded } from '@shoal/core';
import { encodePairs, openModel, openTokenizer } from '@shoal/models';
import { tokenizeInput, type TokenizedInput } from './tokenized-input.ts';

export interface TokenizerThreadData {
  readonly model: string;
  readonly cacheDir: string;
  readonly modelsDir?: string | undefined;
  readonly modelsReadOnly?: boolean | undefined;
  readonly maxTokens: number;
}

export type TokenizeRequest = { readonly id: number } & (
  | { readonly kind: 'texts'; readonly texts: readonly string[] }
  /** Each text is the second one of a pair. */
  | { readonly kind: 'pairs'; readonly query: string; readonly texts: readonly string[] }
  /** SHI1 of texts, each to be read behind the prefix. */
  | { readonly kind: 'input'; readonly input: Uint8Array<ArrayBuffer>; readonly prefix: string }
);

export type TokenizeReply = { readonly id: number } & (
  | { readonly kind: 'rows'; readonly rows: TokenizedRows }
  | { readonly kind: 'input'; readonly input: TokenizedInput }
);

export interface TokenizedRows {
  /** Ids of all rows, one after the other. */
  readonly ids: Uint32Array<ArrayBuffer>;
  /** The place at which each row begins, and the end of the last. */
  readonly offsets: Uint32Array<ArrayBuffer>;
  /** 1 where a row was cut. */
  readonly cut: Uint8Array<ArrayBuffer>;
  /** Of pairs: at which of its ids the second text of each begins. */
  readonly seconds?: Uint32Array<ArrayBuffer> | undefined;
}

invariant(parentPort !== null, 'this file runs as a worker thread');
const port = parentPort;
const { model, maxTokens, ...folders } = workerData as TokenizerThreadData;
const tokenizer = await openTokenizer(await openModel(model, folders), { maxTokens });

port.on('message', (request: TokenizeRequest) => {
  const { id } = request;
  if (request.kind === 'input') {
    const input = tokenizeInput(request.input, request.prefix, tokenizer);
    return port.postMessage({ id, kind: 'input', input } satisfies TokenizeReply, [
      input.input.buffer,
      input.rowTokens.buffer,
    ]);
  }
  const rows = request.kind === 'pairs' ? pairRows(request.query, request.texts) : textRows(request.texts);
  const { ids, offsets, cut, seconds } = rows;
  port.postMessage({ id, kind: 'rows', rows } satisfies TokenizeReply, [
    ids.buffer,
    offsets.buffer,
    cut.buffer,
    ...(seconds === undefined ? [] : [seconds.buffer]),
  ]);
});

function textRows(texts: readonly string[]): TokenizedRows {
  return joined(texts.map((text) => tokenizer.encode(text)));
}

function pairRows(query: string, texts: readonly string[]): TokenizedRows {
  const pairs = encodePairs(tokenizer, query, texts);
  return { ...joined(pairs), seconds: Uint32Array.from(pairs, ({ second }) => second) };
}

function joined(rows: readonly Encoded[]): TokenizedRows {
  const offsets = new Uint32Array(rows.length + 1);
  for (const [row, { ids }] of rows.entries()) offsets[row + 1] = offsets[row]! + ids.length;
  const ids = new Uint32Array(offsets[rows.length]!);
  for (const [row, encoded] of rows.entries()) ids.set(encoded.ids, offsets[row]);
  return { ids, offsets, cut: Uint8Array.from(rows, (row) => Number(row.isTruncated)) };
}
