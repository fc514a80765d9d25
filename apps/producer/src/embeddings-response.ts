// The answer of POST /v1/embeddings, in OpenAI's shape. float: every value as the exact decimal of its float32; base64:
// float32, little-endian, as the official clients ask for when nobody says otherwise.

import { endianness } from 'node:os';
import { invariant } from '@shoal/contract';
import type { EmbedResult } from '@shoal/client';

export interface EmbeddingsResponse {
  readonly object: 'list';
  readonly data: readonly {
    readonly object: 'embedding';
    readonly index: number;
    readonly embedding: string | readonly number[];
  }[];
  readonly model: string;
  readonly usage: { readonly prompt_tokens: number; readonly total_tokens: number };
}

/** `tokens`: real tokens of all rows, special ones included. */
export function toResponse(
  { rows, dims, vectors }: Pick<EmbedResult, 'rows' | 'dims' | 'vectors'>,
  model: string,
  encoding: 'float' | 'base64',
  tokens: number,
): EmbeddingsResponse {
  const encode = encoding === 'base64' ? toBase64 : toNumbers;
  const data = Array.from({ length: rows }, (_, index) => ({
    object: 'embedding' as const,
    index,
    embedding: encode(vectors.subarray(index * dims, (index + 1) * dims)),
  }));
  return { object: 'list', data, model, usage: { prompt_tokens: tokens, total_tokens: tokens } };
}

function toNumbers(vector: Float32Array): readonly number[] {
  return [...vector];
}

function toBase64(vector: Float32Array): string {
  invariant(endianness() === 'LE', 'this machine keeps its numbers little-endian');
  return Buffer.from(vector.buffer, vector.byteOffset, vector.byteLength).toString('base64');
}
