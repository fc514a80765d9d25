// A file that is one array of JSON, element by element: an element is cut out by its brackets and quotes and parsed alone,
// so that the array may be larger than memory. Decides nothing about elements; what stands around them has to be an array.

import { MAX_LINE_BYTES } from './lines.ts';

export interface Element {
  /** 1 for the first one. */
  readonly number: number;
  /** Undefined when it was longer than the limit. */
  readonly bytes: Buffer | undefined;
}

/** What is wrong with the file as an array, from where on no element can be told. */
export class ArrayProblem extends Error {}

const SPACE = new Set([0x20, 0x09, 0x0a, 0x0d]);
const [QUOTE, BACKSLASH, COMMA, OPEN, CLOSE, OPEN_OBJECT, CLOSE_OBJECT] = [...Buffer.from(String.raw`"\,[]{}`)];

/** The elements of the array. Throws ArrayProblem for what is no array, or none that ends. */
export async function* readArray(
  chunks: AsyncIterable<Buffer>,
  maxBytes: number = MAX_LINE_BYTES,
): AsyncGenerator<readonly Element[]> {
  const array = new OpenArray(maxBytes);
  for await (const chunk of chunks) {
    const elements = array.add(chunk);
    if (elements.length > 0) yield elements;
  }
  array.end();
}

/** Where reading is: before the array, in it, or behind it. */
class OpenArray {
  readonly #maxBytes: number;
  #state: 'before' | 'first' | 'element' | 'behind' = 'before';
  /** Bytes of the file before the present chunk. */
  #offset = 0;
  #pieces: Buffer[] = [];
  #bytes = 0;
  /** Whether the element has anything in it but space. */
  #isBegun = false;
  #number = 1;
  #depth = 0;
  #isInString = false;
  #isEscaped = false;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  add(chunk: Buffer): readonly Element[] {
    const done: Element[] = [];
    let from = 0;
    for (let at = 0; at < chunk.length; at++) {
      const byte = chunk[at]!;
      if (this.#state === 'before' || this.#state === 'behind') {
        this.#around(byte, this.#offset + at);
        from = at + 1;
      } else if (this.#isInString) {
        if (this.#isEscaped) this.#isEscaped = false;
        else if (byte === BACKSLASH) this.#isEscaped = true;
        else if (byte === QUOTE) this.#isInString = false;
      } else if (this.#depth === 0 && (byte === COMMA || byte === CLOSE)) {
        this.#keep(chunk.subarray(from, at));
        from = at + 1;
        // "[]" has no element; "[1,]" has a second one, which is wrong
        if (byte === COMMA || this.#isBegun || this.#state === 'element') done.push(this.#close());
        this.#state = byte === COMMA ? 'element' : 'behind';
      } else {
        if (byte === QUOTE) this.#isInString = true;
        else if (byte === OPEN || byte === OPEN_OBJECT) this.#depth++;
        else if (byte === CLOSE || byte === CLOSE_OBJECT) this.#depth = Math.max(0, this.#depth - 1);
        this.#isBegun ||= !SPACE.has(byte);
      }
    }
    if (this.#state === 'first' || this.#state === 'element') this.#keep(chunk.subarray(from));
    this.#offset += chunk.length;
    return done;
  }

  end(): void {
    if (this.#state === 'before') throw new ArrayProblem('the file is empty; an array without elements is written []');
    if (this.#state !== 'behind')
      throw new ArrayProblem(
        `the array is never closed: the file ends in element ${this.#number}, and seems to be cut`,
      );
  }

  #around(byte: number, offset: number): void {
    const isMark = this.#state === 'before' && offset < 3 && byte === [0xef, 0xbb, 0xbf][offset];
    if (SPACE.has(byte) || isMark) return;
    if (this.#state === 'behind')
      throw new ArrayProblem(
        `something stands behind the end of the array, at byte ${offset}; records a line are .jsonl`,
      );
    if (byte !== OPEN)
      throw new ArrayProblem(
        'it is no array; .json is one array of objects or of strings, and an object a line is .jsonl (--format jsonl)',
      );
    this.#state = 'first';
  }

  #keep(piece: Buffer): void {
    this.#bytes += piece.length;
    if (this.#bytes > this.#maxBytes) this.#pieces = [];
    else if (piece.length > 0) this.#pieces.push(piece);
  }

  #close(): Element {
    const element = {
      number: this.#number++,
      bytes: this.#bytes > this.#maxBytes ? undefined : Buffer.concat(this.#pieces),
    };
    this.#pieces = [];
    this.#bytes = 0;
    this.#isBegun = false;
    return element;
  }
}
