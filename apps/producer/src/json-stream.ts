// A list of the API as pieces of JSON text, made as fast as they are taken: an answer of 17 MB as one text would hold
// the event loop for a second and stay in memory for as long as its caller reads. Short lists are one piece.

/** A list of the API, its items not yet made: what a route gives back instead of a large answer. */
export class JsonList {
  readonly count: number;
  readonly item: (index: number) => object;
  /** What stands beside `object` and `data`. */
  readonly rest: object;

  constructor(count: number, item: (index: number) => object, rest: object = {}) {
    this.count = count;
    this.item = item;
    this.rest = rest;
  }

  /** As it would be in one piece. */
  whole(): { readonly object: 'list'; readonly data: readonly object[] } {
    return { object: 'list', data: Array.from({ length: this.count }, (_, index) => this.item(index)), ...this.rest };
  }
}

const PIECE_CHARACTERS = 65_536;

/** All of it as text, in pieces of about 64 KB, or of one item where that is longer. */
export function* jsonPieces({ count, item, rest }: JsonList): Generator<string, void, undefined> {
  let piece = '{"object":"list","data":[';
  for (let index = 0; index < count; index++) {
    piece += (index === 0 ? '' : ',') + JSON.stringify(item(index));
    if (piece.length < PIECE_CHARACTERS) continue;
    yield piece;
    piece = '';
  }
  const others = JSON.stringify(rest).slice(1);
  yield `${piece}]${others === '}' ? '' : ','}${others}`;
}
