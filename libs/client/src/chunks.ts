// Cuts a stream of texts into the pieces that become jobs. Where it cuts depends on the texts and the settings alone,
// never on time or on what is in flight, so that a run that is started again asks for the very same jobs.

import { ShoalError } from '@shoal/contract';

export interface Chunk<Item> {
  /** Row index of the first item. */
  readonly first: number;
  readonly items: readonly Item[];
  /** UTF-16 units of all texts. */
  readonly chars: number;
}

/** A job is closed early rather than grow beyond this many UTF-16 units; one longer text makes a job of its own. */
const MAX_CHUNK_CHARS = 1 << 20;

export async function* cutChunks<Item extends { readonly text: string }>(
  texts: AsyncIterable<Item> | Iterable<Item>,
  startAt: number,
  jobTexts: number,
): AsyncGenerator<Chunk<Item>, void, undefined> {
  let first = startAt;
  let items: Item[] = [];
  let chars = 0;
  for await (const item of texts) {
    const length = lengthOf(item, first + items.length);
    if (items.length > 0 && (items.length === jobTexts || chars + length > MAX_CHUNK_CHARS)) {
      yield { first, items, chars };
      first += items.length;
      items = [];
      chars = 0;
    }
    items.push(item);
    chars += length;
  }
  if (items.length > 0) yield { first, items, chars };
}

function lengthOf(item: { readonly text: unknown }, row: number): number {
  if (typeof item.text === 'string') return item.text.length;
  throw new ShoalError(
    'INPUT_INVALID',
    `row ${row} has no text: expected an item with a string "text", found ` +
      `${item.text === null ? 'null' : typeof item.text}`,
    { row },
  );
}
