// The official `tokenizers` package as the oracle of token ids. Only tests and benches import it: it has 64 MB and is
// eight times slower than ours.

import tokenizers from 'tokenizers';

export interface ReferenceOptions {
  /** Truncate here, special tokens included; unset: not at all. */
  readonly maxTokens?: number;
}

export class ReferenceTokenizer {
  readonly #tokenizer: InstanceType<typeof tokenizers.Tokenizer>;
  /** All that its answers depend on besides the texts and the package. */
  readonly about: string;

  /** `json` is the text of a tokenizer.json; its own padding and truncation are switched off. */
  constructor(json: string, options: ReferenceOptions = {}) {
    this.about = `${options.maxTokens ?? 'all'} ${json}`;
    this.#tokenizer = tokenizers.Tokenizer.fromString(json);
    this.#tokenizer.disablePadding();
    this.#tokenizer.disableTruncation();
    if (options.maxTokens !== undefined) this.#tokenizer.setTruncation(options.maxTokens);
  }

  /** Ids of each text, and whether something was cut off. */
  async encode(
    texts: readonly string[],
  ): Promise<{ readonly ids: readonly number[]; readonly isTruncated: boolean }[]> {
    const encodings = await this.#tokenizer.encodeBatch([...texts]);
    return encodings.map((encoding) => ({ ids: encoding.getIds(), isTruncated: encoding.getOverflowing().length > 0 }));
  }

  /** Ids and token types of pairs of texts as one row each; the longer text is cut first. */
  async encodePairs(
    pairs: readonly (readonly [first: string, second: string])[],
  ): Promise<{ readonly ids: readonly number[]; readonly types: readonly number[] }[]> {
    const encodings = await Promise.all(pairs.map(([first, second]) => this.#tokenizer.encode(first, second)));
    return encodings.map((encoding) => ({ ids: encoding.getIds(), types: encoding.getTypeIds() }));
  }
}

const normalizer = tokenizers.bertNormalizer({
  cleanText: true,
  handleChineseChars: true,
  stripAccents: true,
  lowercase: true,
});
const preTokenizer = tokenizers.bertPreTokenizer();

/** The words that WordPiece is given for a text without special tokens. */
export function referenceWords(text: string): readonly string[] {
  return preTokenizer.preTokenizeString(normalizer.normalizeString(text)).map(([word]) => word);
}
