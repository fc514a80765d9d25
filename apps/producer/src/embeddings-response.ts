// The answer of POST /v1/embeddings, in OpenAI's shape. float: every value as the exact decimal of its float32; base64:
// float32, little-endian, as the official clients ask for when nobody says otherwise.

import { endianness } from 'node:os';
import { invariant } from '@shoal/contract';
import type { EmbedResult } from '@shoal/client';
import { JsonList } from './json-stream.ts';

export interface Usage {
  /** Real tokens of all rows, special ones included. */
  readonly tokens: number;
  /** Inputs that were cut at the model's longest row. */
  readonly truncated: number;
}

/** Bytes that an answer of so many vectors holds until it is written: they and the results they came in. */
export function answerBytes(rows: number, dims: number): number {
  return 2 * rows * dims * Float32Array.BYTES_PER_ELEMENT;
}

export function toResponse(
  { rows, dims, vectors }: Pick<EmbedResult, 'rows' | 'dims' | 'vectors'>,
  model: string,
  encoding: 'float' | 'base64',
  { tokens, truncated }: Usage,
): JsonList {
  const vector = (index: number): Float32Array => vectors.subarray(index * dims, (index + 1) * dims);
  const encode = encoding === 'base64' ? toBase64 : toNumbers;
  return new JsonList(
    rows,
    (index) => ({ object: 'embedding', index, embedding: encode(vector(index)) }),
    { model, usage: { prompt_tokens: tokens, total_tokens: tokens, truncated_inputs: truncated } },
    'data',
    encoding === 'base64' ? (index) => base64Item(index, vector(index)) : undefined,
  );
}

/** Base64 has nothing that JSON escapes; looking for it took four fifths of the time of an answer of 64 vectors. */
function base64Item(index: number, vector: Float32Array): string {
  return `{"object":"embedding","index":${index},"embedding":"${toBase64(vector)}"}`;
}

function toNumbers(vector: Float32Array): readonly number[] {
  return [...vector];
}

function toBase64(vector: Float32Array): string {
  invariant(endianness() === 'LE', 'this machine keeps its numbers little-endian');
  return Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString('base64');
}
