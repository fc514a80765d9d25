// The blocks of a run as one result.

import type { OutputDtype } from '@shoal/contract';
import type { EmbedResult, EmbeddedBlock } from './embedding.ts';
import { joinedRows } from './stored-rows.ts';
import { withRows } from './with-rows.ts';

/** `blocks`: all of a run, in order. Of none, no rows of `dtype`. */
export function joined(
  blocks: readonly EmbeddedBlock<unknown, OutputDtype>[],
  dtype: OutputDtype = 'f32',
): EmbedResult<OutputDtype> {
  const { rows, dims, ...stored } = joinedRows(blocks, dtype);
  const tokens = blocks.every((block) => block.tokens !== undefined)
    ? blocks.flatMap((block) => block.tokens ?? [])
    : undefined;
  const isSimulated = blocks.some((block) => block.isSimulated);
  return withRows({
    rows,
    dims,
    dtype: stored.dtype,
    vectors: stored.vectors,
    scales: stored.scales,
    tokens,
    truncated: joinedTruncated(blocks),
    isSimulated,
  });
}

function joinedTruncated(blocks: readonly EmbeddedBlock<unknown, OutputDtype>[]): readonly number[] | boolean {
  const rows = blocks.map(({ truncated, first }) =>
    typeof truncated === 'boolean' ? truncated : truncated.map((row) => first + row),
  );
  return rows.some((part) => typeof part === 'boolean')
    ? rows.includes(true)
    : rows.flatMap((part) => (typeof part === 'boolean' ? [] : part));
}
