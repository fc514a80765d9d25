// A thread that tokenizes and nothing else. Texts come as an array; ids go back as one buffer with offsets, handed
// over, not copied. It ends with its process.

import { parentPort, workerData } from 'node:worker_threads';
import { invariant } from '@shoal/contract';
import { openModel, openTokenizer } from '@shoal/models';

export interface TokenizerThreadData {
  readonly model: string;
  readonly cacheDir: string;
  readonly modelsDir?: string | undefined;
  readonly modelsReadOnly?: boolean | undefined;
  readonly maxTokens: number;
}

export interface TokenizeRequest {
  readonly id: number;
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
}

invariant(parentPort !== null, 'this file runs as a worker thread');
const port = parentPort;
const { model, maxTokens, ...folders } = workerData as TokenizerThreadData;
const tokenizer = await openTokenizer(await openModel(model, folders), { maxTokens });

port.on('message', ({ id, texts }: TokenizeRequest) => {
  const rows = texts.map((text) => tokenizer.encode(text));
  const offsets = new Uint32Array(rows.length + 1);
  for (const [row, { ids }] of rows.entries()) offsets[row + 1] = offsets[row]! + ids.length;
  const ids = new Uint32Array(offsets[rows.length]!);
  for (const [row, encoded] of rows.entries()) ids.set(encoded.ids, offsets[row]);
  const cut = Uint8Array.from(rows, (row) => Number(row.isTruncated));
  port.postMessage({ id, ids, offsets, cut } satisfies TokenizeReply, [ids.buffer, offsets.buffer, cut.buffer]);
});
