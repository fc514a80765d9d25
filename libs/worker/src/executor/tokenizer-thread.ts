// A thread that tokenizes and nothing else. Texts come as an array; ids go back as one buffer with offsets, handed
// over, not copied. It ends with its process.

import { parentPort, workerData } from 'node:worker_threads';
import { invariant } from '@shoal/contract';
import { encodePairs, openModel, openTokenizer } from '@shoal/models';

export interface TokenizerThreadData {
  readonly model: string;
  readonly cacheDir: string;
  readonly modelsDir?: string | undefined;
  readonly modelsReadOnly?: boolean | undefined;
  readonly maxTokens: number;
}

export interface TokenizeRequest {
  readonly id: number;
  /** With it each text is the second one of a pair. */
  readonly query?: string | undefined;
  readonly texts: readonly string[];
}

export interface TokenizeReply {
  readonly id: number;
  /** Ids of all rows, one after the other. */
  readonly ids: Uint32Array;
  /** The place at which each row begins, and the end of the last. */
  readonly offsets: Uint32Array;
  /** 1 where a row was cut. */
  readonly cut: Uint8Array;
  /** Of pairs: at which of its ids the second text of each begins. */
  readonly seconds?: Uint32Array | undefined;
}

invariant(parentPort !== null, 'this file runs as a worker thread');
const port = parentPort;
const { model, maxTokens, ...folders } = workerData as TokenizerThreadData;
const tokenizer = await openTokenizer(await openModel(model, folders), { maxTokens });

port.on('message', ({ id, query, texts }: TokenizeRequest) => {
  const pairs = query === undefined ? undefined : encodePairs(tokenizer, query, texts);
  const rows = pairs ?? texts.map((text) => tokenizer.encode(text));
  const offsets = new Uint32Array(rows.length + 1);
  for (const [row, { ids }] of rows.entries()) offsets[row + 1] = offsets[row]! + ids.length;
  const ids = new Uint32Array(offsets[rows.length]!);
  for (const [row, encoded] of rows.entries()) ids.set(encoded.ids, offsets[row]);
  const cut = Uint8Array.from(rows, (row) => Number(row.isTruncated));
  const seconds = pairs === undefined ? undefined : Uint32Array.from(pairs, ({ second }) => second);
  port.postMessage({ id, ids, offsets, cut, seconds } satisfies TokenizeReply, [
    ids.buffer,
    offsets.buffer,
    cut.buffer,
    ...(seconds === undefined ? [] : [seconds.buffer]),
  ]);
});
