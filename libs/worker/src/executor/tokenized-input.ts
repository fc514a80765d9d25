// Texts into token ids without a string on the way that another thread would have to copy: both as SHI1 has them, one
// piece of memory each, which threads hand over to one another.

import { ShoalError, decodeInput, encodeTokens } from '@shoal/contract';
import type { Tokenizer } from '@shoal/core';

/** Rows of token ids. */
export interface TokenizedInput {
  /** SHI1 of token ids, with a buffer of its own. */
  readonly input: Uint8Array<ArrayBuffer>;
  /** In all rows. */
  readonly tokens: number;
  /** Rows that were cut. */
  readonly truncated: number;
  /** Of each row, negative where it was cut. */
  readonly rowTokens: Int32Array<ArrayBuffer>;
}

/** `input`: SHI1 of texts; each is read behind `prefix`. */
export function tokenizeInput(
  input: Uint8Array<ArrayBuffer>,
  prefix: string,
  tokenizer: Pick<Tokenizer, 'encode'>,
): TokenizedInput {
  const decoded = decodeInput(Buffer.from(input.buffer, input.byteOffset, input.byteLength));
  if (decoded.form !== 'texts') throw new ShoalError('INPUT_CORRUPT', 'texts are tokenized, and this is token ids');
  const rows = decoded.texts.map((text) => tokenizer.encode(prefix === '' ? text : prefix + text));
  const ids = rows.map((row) => row.ids);
  return {
    input: encodeTokens(ids),
    tokens: ids.reduce((sum, row) => sum + row.length, 0),
    truncated: rows.filter(({ isTruncated }) => isTruncated).length,
    rowTokens: Int32Array.from(rows, (row) => (row.isTruncated ? -row.ids.length : row.ids.length)),
  };
}
