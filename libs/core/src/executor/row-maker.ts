// What makes the rows of a job from its input, whatever kind of model they are for, and what is checked of every input:
// that it is what the job says, that its token ids are of this tokenizer and vocabulary, and that no row is too long.

import { ShoalError, hasAtLeast, invariant, type TokenIds } from '@shoal/contract';
import type { BatchTokenizer } from '../ports/tokenizer.ts';
import type { JobOrder } from '../protocol.ts';

export interface FilledRows {
  /** Of each row, as the model takes them. */
  readonly ids: readonly ArrayLike<number>[];
  /** Of pairs: at which id of each row its second text begins. */
  readonly seconds?: ArrayLike<number>;
  /** How many rows were cut. */
  readonly truncated: number;
}

export interface RowMaker {
  /** SHI1 of what travels inside the job; undefined where it lies under its key. */
  inlineBytes(order: JobOrder): Buffer | undefined;
  /** That of the order's request, whose input is `bytes`. */
  fingerprintOf(order: JobOrder, bytes: Buffer): string;
  /** `isOwn`: token ids are right. Throws a ShoalError with the code that the job fails with. */
  rowsOf(order: JobOrder, bytes: Buffer, isOwn: boolean): Promise<FilledRows>;
}

/** INPUT_CORRUPT unless the input key holds the form and the number of rows that the job says. */
export function expectInput(
  { jobId, input }: JobOrder,
  found: { readonly form: 'texts' | 'tokens'; readonly rows: number },
): void {
  if (input.form === 'inline') return;
  if (input.form !== found.form) throw mismatch(jobId, `says ${input.form}`, `holds ${found.form}`);
  if (input.rows !== found.rows) throw mismatch(jobId, `says ${input.rows} rows`, `holds ${found.rows}`);
}

function mismatch(jobId: string, says: string, holds: string): ShoalError<'INPUT_CORRUPT'> {
  return new ShoalError('INPUT_CORRUPT', `job "${jobId}" ${says}, but its input key ${holds}`, { jobId });
}

interface TokenRows {
  readonly rows: readonly TokenIds[];
  /** Of all rows, one after the other. */
  readonly ids: TokenIds;
}

interface OfTheModel {
  readonly tokenizer: Pick<BatchTokenizer, 'hash' | 'maxTokens' | 'vocabularySize'>;
  /** name@revision */
  readonly model: string;
}

/** The rows that a job brought as token ids. TOKENIZER_MISMATCH, INPUT_TOO_LONG, INPUT_CORRUPT for strange ids. */
export function checkedIds(
  order: JobOrder,
  { rows, ids }: TokenRows,
  { tokenizer, model }: OfTheModel,
): ArrayLike<number>[] {
  invariant(order.input.form === 'tokens', 'token ids come with the hash of their tokenizer');
  if (order.input.tokenizer !== tokenizer.hash) {
    throw new ShoalError(
      'TOKENIZER_MISMATCH',
      `job "${order.jobId}" has token ids of tokenizer ${order.input.tokenizer}; ${model} has ${tokenizer.hash}`,
      { jobId: order.jobId },
    );
  }
  const long = rows.findIndex((row) => row.length > tokenizer.maxTokens);
  if (long !== -1) throw tooLong(order.jobId, long, tokenizer.maxTokens);
  if (hasAtLeast(tokenizer.vocabularySize, ids)) {
    const row = rows.findIndex((one) => hasAtLeast(tokenizer.vocabularySize, one));
    const stranger = rows[row]!.find((id) => id >= tokenizer.vocabularySize);
    throw new ShoalError(
      'INPUT_CORRUPT',
      `job "${order.jobId}", row ${row}: token id ${stranger} is outside the vocabulary of ` +
        `${tokenizer.vocabularySize}`,
    );
  }
  return [...rows];
}

/** How many of these rows were cut. INPUT_TOO_LONG where the job wants none to be. */
export function countCut(
  { jobId, truncate }: JobOrder,
  rows: readonly { readonly isTruncated: boolean }[],
  maxTokens: number,
): number {
  const firstCut = rows.findIndex((row) => row.isTruncated);
  if (firstCut >= 0 && truncate === 'error') throw tooLong(jobId, firstCut, maxTokens);
  return rows.filter((row) => row.isTruncated).length;
}

function tooLong(jobId: string, row: number, maxTokens: number): ShoalError<'INPUT_TOO_LONG'> {
  return new ShoalError(
    'INPUT_TOO_LONG',
    `job "${jobId}", row ${row} has more than the ${maxTokens} tokens this worker takes; shorten it or ask ` +
      'with truncate "end"',
    {
      jobId,
      row,
    },
  );
}
