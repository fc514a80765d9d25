// Token ids that a caller sent, as rows the model takes. Ids say nothing of who made them: those of "hello world" for
// OpenAI's models are words of minilm as well, and the vector would be one of something else. What the model's own
// tokenizer makes begins and ends with its two end tokens ([CLS] … [SEP]), which no other tokenizer puts there; so rows
// without them are refused, unless the setting `tokenRows` says that bare ids are the model's own too.
//
// Why: docs/decisions/command-and-setup.md#token-ids-over-http-are-whole-rows
//
// The client takes texts and a tokenizer. A row of ids travels through it as a text of digits that `idTokenizer` reads
// back; no text of a caller ever meets that tokenizer, because it belongs to a client of its own.

import { invariant } from '@shoal/contract';
import type { Encoded, Tokenizer } from '@shoal/core';
import { invalid, type Problem } from './problem.ts';

/** What is taken for a row of the model: only ids within its end tokens, or ids without them as well. */
export type TokenRows = 'whole' | 'bare';

/** The ids that the model's tokenizer puts first and last. */
export interface RowEnds {
  readonly first: number;
  readonly last: number;
}

export function rowEndsOf(tokenizer: Pick<Tokenizer, 'encode'>): RowEnds {
  const { ids } = tokenizer.encode('');
  const [first, last] = ids;
  invariant(
    ids.length === 2 && first !== undefined && last !== undefined,
    'the encoding of nothing is the two special tokens',
  );
  return { first, last };
}

export function isWhole(row: readonly number[], { first, last }: RowEnds): boolean {
  return row.length >= 2 && row[0] === first && row.at(-1) === last;
}

/** Of a row that `tokenRows` "whole" does not take. */
export function notWhole(param: string, model: string, { first, last }: RowEnds): Problem {
  return invalid(
    'invalid_token',
    param,
    `"${param}" is not a row of ${model}'s own tokenizer, which begins with ${first} and ends with ${last}: ids that ` +
      `another tokenizer made would get the vector of another text. Send texts instead (with LangChain: ` +
      `OpenAIEmbeddings(check_embedding_ctx_length=False)), or the whole row with its two end tokens; the server's ` +
      'setting tokenRows "bare" takes ids without them',
  );
}

/** Ids with end tokens around them, cut to the model's length with `truncate` "end"; throws a Problem otherwise. */
export function toTokenTexts(
  rows: readonly (readonly number[])[],
  tokenizer: Tokenizer,
  truncate: 'end' | 'error',
): { readonly texts: readonly string[]; readonly cut: number } {
  const ends = rowEndsOf(tokenizer);
  let cut = 0;
  const texts = rows.map((row, i) => {
    const ids = isWhole(row, ends) ? row : [ends.first, ...row, ends.last];
    if (ids.length <= tokenizer.maxTokens) return ids.join(' ');
    if (truncate === 'error') throw tooLong(i, ids.length, tokenizer.maxTokens);
    cut += 1;
    return [...ids.slice(0, tokenizer.maxTokens - 1), ids.at(-1)!].join(' ');
  });
  return { texts, cut };
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
    `input[${row}] has ${found} tokens, special ones included; the model takes ${maxTokens}. Shorten it, ` +
      'send "truncate": "end" to have it cut, or let the server cut it (its setting truncate)',
  );
}
