// A list of the API as pieces of JSON text, made as fast as they are taken: an answer of 17 MB as one text would hold
// the event loop for a second and stay in memory for as long as its caller reads. Short lists are one piece.

/** The field that the items stand in; "bare": the list is all. */
type ListForm = 'data' | 'results' | 'bare';

/** A list of the API, its items not yet made: what a route gives back instead of a large answer. */
export class JsonList {
  readonly count: number;
  readonly item: (index: number) => object | string;
  /** What stands beside `object` and the items. */
  readonly rest: object;
  readonly form: ListForm;
  /** An item as JSON text, where that can be had for less than from the item. */
  readonly text: ((index: number) => string) | undefined;

  constructor(
    count: number,
    item: (index: number) => object | string,
    rest: object = {},
    form: ListForm = 'data',
    text?: (index: number) => string,
  ) {
    this.count = count;
    this.item = item;
    this.rest = rest;
    this.form = form;
    this.text = text;
  }

  /** As it would be in one piece. */
  whole(): object {
    const items = Array.from({ length: this.count }, (_, index) => this.item(index));
    return this.form === 'bare' ? items : { object: 'list', [this.form]: items, ...this.rest };
  }
}

const PIECE_CHARACTERS = 65_536;

/** All of it as text, in pieces of about 64 KB, or of one item where that is longer. */
export function* jsonPieces({
  count,
  item,
  rest,
  form,
  text = (index) => JSON.stringify(item(index)),
}: JsonList): Generator<string, void, undefined> {
  let piece = form === 'bare' ? '[' : `{"object":"list","${form}":[`;
  for (let index = 0; index < count; index++) {
    piece += (index === 0 ? '' : ',') + text(index);
    if (piece.length < PIECE_CHARACTERS) continue;
    yield piece;
    piece = '';
  }
  if (form === 'bare') return yield `${piece}]`;
  const others = JSON.stringify(rest).slice(1);
  yield `${piece}]${others === '}' ? '' : ','}${others}`;
}
