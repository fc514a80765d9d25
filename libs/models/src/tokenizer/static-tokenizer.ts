// Texts into rows as the package of a static model makes them: a long text is cut by its characters before it is
// tokenized, unknown tokens are left out of the row that was cut to its length, and a text without any token is the one
// token whose row is zeros. Everything else is the tokenizer of its file.

import type { Encoded, Tokenizer } from '@shoal/core';
import type { StaticTexts } from '../encoder/encoder-description.ts';

export interface StaticTokenizerOptions extends StaticTexts {
  /** Of tokens that the file's tokenizer does not know; undefined where it has none. */
  readonly unknownId: number | undefined;
}

export class StaticTokenizer implements Tokenizer {
  readonly hash: string;
  readonly maxTokens: number;
  /** With the token that stands for none. */
  readonly vocabularySize: number;
  readonly #inner: Tokenizer;
  readonly #emptyId: number;
  readonly #droppedId: number | undefined;
  /** Code points of a text; infinite where it is not cut. */
  readonly #mostChars: number;

  /** `inner` puts nothing around texts. */
  constructor(inner: Tokenizer, { charsPerToken, dropsUnknown, emptyId, unknownId }: StaticTokenizerOptions) {
    this.#inner = inner;
    this.hash = inner.hash;
    this.maxTokens = inner.maxTokens;
    this.vocabularySize = emptyId + 1;
    this.#emptyId = emptyId;
    this.#droppedId = dropsUnknown ? unknownId : undefined;
    this.#mostChars = charsPerToken === undefined ? Number.POSITIVE_INFINITY : charsPerToken * inner.maxTokens;
  }

  encode(text: string): Encoded {
    const cut = this.#cut(text);
    return this.#ended(this.#inner.encode(cut), cut.length < text.length);
  }

  *encodeSteps(text: string): Generator<void, Encoded, undefined> {
    const cut = this.#cut(text);
    const steps = this.#inner.encodeSteps?.(cut);
    const encoded = steps === undefined ? this.#inner.encode(cut) : yield* steps;
    return this.#ended(encoded, cut.length < text.length);
  }

  #cut(text: string): string {
    if (text.length <= this.#mostChars) return text;
    let at = 0;
    for (let chars = 0; chars < this.#mostChars && at < text.length; chars++)
      at += text.codePointAt(at)! > 0xffff ? 2 : 1;
    return text.slice(0, at);
  }

  #ended({ ids, isTruncated }: Encoded, isCut: boolean): Encoded {
    const kept = this.#droppedId === undefined ? ids : Array.from(ids).filter((id) => id !== this.#droppedId);
    return { ids: kept.length === 0 ? [this.#emptyId] : kept, isTruncated: isTruncated || isCut };
  }
}
