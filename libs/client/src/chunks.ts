// Cuts a stream of texts into the pieces that become jobs. Where it cuts depends on the texts and the settings alone,
// never on time or on what is in flight, so that a run that is started again asks for the very same jobs. Pieces of more
// than 256 texts depend on what workers take as well, and their jobs have other names than smaller ones.

import { ROWS_EVERY_WORKER_TAKES, ShoalError } from '@shoal/contract';

export interface Chunk<Item> {
  /** Row index of the first item. */
  readonly first: number;
  readonly items: readonly Item[];
  /** UTF-16 units of all texts. */
  readonly chars: number;
  /** So many texts it could have. */
  readonly most: number;
}

/** Texts that the next piece may have. */
export type PieceSize = number | (() => Promise<number>);

/** A job is closed early rather than grow beyond this many UTF-16 units; one longer text makes a job of its own. */
const MAX_CHUNK_CHARS = 1 << 20;

export async function* cutChunks<Item extends { readonly text: string }>(
  texts: AsyncIterable<Item> | Iterable<Item>,
  startAt: number,
  size: PieceSize,
): AsyncGenerator<Chunk<Item>, void, undefined> {
  let first = startAt;
  let items: Item[] = [];
  let chars = 0;
  let most = typeof size === 'number' ? size : 0;
  for await (const item of texts) {
    const length = lengthOf(item, first + items.length);
    if (items.length > 0 && (items.length === most || chars + length > MAX_CHUNK_CHARS)) {
      yield { first, items, chars, most };
      first += items.length;
      items = [];
      chars = 0;
    }
    if (items.length === 0 && typeof size !== 'number') most = await size();
    items.push(item);
    chars += length;
  }
  if (items.length > 0) yield { first, items, chars, most };
}

/**
 * How large the pieces of a call are. `asked`: jobTexts; `texts`: of the whole call, undefined where nobody knows.
 * `line`: to the workers, who are asked only for larger pieces than any of them takes.
 */
export function pieceSize(
  line: { mostJobRows(): Promise<number> },
  asked: number,
  texts = Number.POSITIVE_INFINITY,
): PieceSize {
  if (asked <= ROWS_EVERY_WORKER_TAKES) return asked;
  if (texts <= ROWS_EVERY_WORKER_TAKES) return ROWS_EVERY_WORKER_TAKES;
  return async () => Math.min(asked, await line.mostJobRows());
}

/**
 * What a piece adds to the name of its call. Larger ones are called otherwise: the same call may be cut smaller another
 * time, and one name must not stand for two inputs.
 */
export function pieceName({ first, most }: Pick<Chunk<unknown>, 'first' | 'most'>): string {
  return most <= ROWS_EVERY_WORKER_TAKES ? `${first}` : `${first}x${most}`;
}

/** The pieces of texts that were cut before; `parts` have as many rows together as there are texts. */
export function* cutAgain<Part extends { readonly rows: number }>(
  texts: readonly string[],
  parts: readonly Part[],
): Generator<{ readonly part: Part; readonly texts: readonly string[] }, void, undefined> {
  let first = 0;
  for (const part of parts) yield { part, texts: texts.slice(first, (first += part.rows)) };
}

/** Row of its call that a job begins with, by the job's id. */
export function firstRowOf(jobId: string): number {
  return Number(/-(\d+)(?:x\d+)?$/.exec(jobId)?.[1] ?? 0);
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
