// A stream of blocks as rows, for those who think of one text at a time. Back-pressure is the stream's: the next block
// is asked for once the caller has taken the last row of this one.

import type { OutputDtype } from '@shoal/contract';
import type { EmbeddedRow, SkippedRow, StreamBlock } from './embedding.ts';

/** What may be given: a text, or something that has one and comes back as `item`. */
export type TextItem = string | { readonly text: string };

/** Items as the stream of blocks takes them. */
export async function* asTextItems<Item extends TextItem>(
  items: AsyncIterable<Item> | Iterable<Item>,
): AsyncGenerator<{ readonly text: string; readonly item: Item }, void, undefined> {
  for await (const item of items) yield { text: typeof item === 'string' ? item : textOf(item), item };
}

/** Each row of the blocks, in order; what is skipped as well. Leaving the loop early ends the stream. */
export async function* rowsOf<Item>(
  blocks: AsyncGenerator<StreamBlock<{ readonly item: Item }, OutputDtype>, void, undefined>,
): AsyncGenerator<EmbeddedRow<Item, OutputDtype> | SkippedRow<Item>, void, undefined> {
  for await (const block of blocks)
    for (const [at, { item }] of block.items.entries()) {
      const index = block.first + at;
      if (block.kind === 'skipped') yield { kind: 'skipped', index, item, error: block.error };
      else yield { kind: 'embedded', index, item, vector: block.row(at), scale: block.scales?.[at] };
    }
}

/** What has no text is refused by its row, where rows are counted. */
function textOf(item: { readonly text: string } | null | undefined): string {
  return item?.text as string;
}
