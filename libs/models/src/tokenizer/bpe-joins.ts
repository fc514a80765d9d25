// Which characters some merge joins, by the list of merges. Between two that none joins a word may be cut before it is
// merged, and the ids are the same: a merge across the cut would end in the one and begin with the other. That makes
// short stretches, which a cache knows, of long words and of texts without words (SentencePiece's BPE has none).

import { PairTable } from './pair-table.ts';
import { hasPoint } from './unicode-sets.ts';

export interface JoinOptions {
  /** Code points of characters that some merge joins, the right one behind its left one. */
  readonly pairs: Int32Array;
  /** Last and first bytes of characters that some merge may join: 256 × last + first. */
  readonly bytes?: Uint8Array | undefined;
  /** A set of the characters beside which a text may be cut; all of them, if undefined. */
  readonly cuttable?: Uint8Array | undefined;
}

const ASCII = 0x80;

export class BpeJoins {
  readonly #ascii = new Uint8Array(ASCII * ASCII);
  readonly #pairs: PairTable;
  readonly #bytes: Uint8Array | undefined;
  readonly #cuttable: Uint8Array | undefined;

  constructor({ pairs, bytes, cuttable }: JoinOptions) {
    this.#bytes = bytes;
    this.#cuttable = cuttable;
    this.#pairs = new PairTable(pairs.length / 2);
    for (let at = 0; at < pairs.length; at += 2) this.#pairs.set(pairs[at]!, pairs[at + 1]!, 1);
    for (let left = 0; left < ASCII; left++)
      for (let right = 0; right < ASCII; right++)
        this.#ascii[left * ASCII + right] = this.#joinsAny(left, right) ? 1 : 0;
  }

  /**
   * Where the stretch that begins at `start` may be cut first; at the latest at the end of the text. Where it may not be
   * cut before `limit`: ~at, and `at` is the character to look on from.
   */
  end(text: string, start: number, limit: number = text.length): number {
    let left = text.codePointAt(start)!;
    let at = start + (left > 0xffff ? 2 : 1);
    while (at < text.length) {
      const right = text.codePointAt(at)!;
      const isJoined =
        left < ASCII && right < ASCII ? this.#ascii[left * ASCII + right] === 1 : this.#joinsAny(left, right);
      if (!isJoined) return at;
      if (at >= limit) return ~at;
      at += right > 0xffff ? 2 : 1;
      left = right;
    }
    return at;
  }

  #joinsAny(left: number, right: number): boolean {
    const cuttable = this.#cuttable;
    if (cuttable !== undefined && !(hasPoint(cuttable, left) && hasPoint(cuttable, right))) return true;
    if (this.#bytes?.[256 * lastByte(left) + firstByte(right)] === 1) return true;
    return this.#pairs.get(left, right) !== PairTable.NONE;
  }
}

/** Of a character in UTF-8. */
function firstByte(point: number): number {
  if (point < 0x80) return point;
  if (point < 0x800) return 0xc0 | (point >> 6);
  return point < 0x10000 ? 0xe0 | (point >> 12) : 0xf0 | (point >> 18);
}

function lastByte(point: number): number {
  return point < 0x80 ? point : 0x80 | (point & 0x3f);
}
