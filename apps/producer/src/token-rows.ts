// Token ids that a caller sent, as rows the model takes. The ids are those of the model's own tokenizer, with or
// without its special tokens around them: either way the vector is that of the text they came from.
//
// The client takes texts and a tokenizer. A row of ids travels through it as a text of digits that `idTokenizer` reads
// back; no text of a caller ever meets that tokenizer, because it belongs to a client of its own.

import { invariant } from '@shoal/contract';
import type { Encoded, Tokenizer } from '@shoal/core';
import { invalid } from './problem.ts';

/** Ids with special tokens around them, cut to the model's length with `truncate` "end"; throws a Problem otherwise. */
export function toTokenTexts(
  rows: readonly (readonly number[])[],
  tokenizer: Tokenizer,
  truncate: 'end' | 'error',
): readonly string[] {
  return rows.map((row, i) => {
    const ids = withSpecials(row, tokenizer);
    if (ids.length <= tokenizer.maxTokens) return ids.join(' ');
    if (truncate === 'error') throw tooLong(i, ids.length, tokenizer.maxTokens);
    return [...ids.slice(0, tokenizer.maxTokens - 1), ids.at(-1)!].join(' ');
  });
}

/** Reads what `toTokenTexts` wrote. */
export function idTokenizer(tokenizer: Tokenizer): Tokenizer {
  const { hash, maxTokens, vocabularySize } = tokenizer;
  return {
    hash,
    maxTokens,
    vocabularySize,
    encode: (text): Encoded => ({ ids: text.split(' ').map(Number), isTruncated: false }),
  };
}

export function tooLong(row: number, tokens: number | undefined, maxTokens: number): Error {
  const found = tokens === undefined ? `more than ${maxTokens}` : String(tokens);
  return invalid(
    'context_length_exceeded',
    `input[${row}]`,
    `input[${row}] has ${found} tokens, special ones included; the model takes ${maxTokens}. Shorten it, or ` +
      'send "truncate": "end" to have it cut',
  );
}

function withSpecials(row: readonly number[], tokenizer: Tokenizer): readonly number[] {
  const { ids } = tokenizer.encode('');
  const [first, last] = ids;
  invariant(
    ids.length === 2 && first !== undefined && last !== undefined,
    'the encoding of nothing is the two special tokens',
  );
  const isWhole = row.length >= 2 && row[0] === first && row.at(-1) === last;
  return isWhole ? row : [first, ...row, last];
}
