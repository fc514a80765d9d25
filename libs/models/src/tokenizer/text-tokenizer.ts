// What every kind of tokenizer can do besides whole rows.

import type { Tokenizer } from '@shoal/core';

export interface TextTokenizer extends Tokenizer {
  /**
   * Appends the ids of a well-formed text, without what is put around texts. Reads on to the end of the word with which
   * `ids` has more than `most`.
   */
  appendText(text: string, ids: number[], most: number): void;
}
