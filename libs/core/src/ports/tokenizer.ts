// What turns texts into the rows that a model takes.

export interface Encoded {
  /** Token ids as the model takes them: special tokens in, truncated to `maxTokens`. */
  readonly ids: readonly number[] | Uint16Array | Uint32Array;
  readonly isTruncated: boolean;
}

/** Two texts as one row. */
export interface EncodedPair extends Encoded {
  /**
   * Where among the ids the second text begins: its first token, behind what stands between the two. From there on ids
   * have token type 1, of a model that knows types and a tokenizer that gives them.
   */
  readonly second: number;
}

export interface Tokenizer {
  /** First 16 hex digits of sha256 of tokenizer.json. */
  readonly hash: string;
  /** Longest row in tokens, special tokens included. */
  readonly maxTokens: number;
  readonly vocabularySize: number;
  encode(text: string): Encoded;
  /** The same in short steps, so that a long text holds nobody up; left out where no text takes long. */
  encodeSteps?(text: string): Generator<void, Encoded, undefined>;
  /** Two texts as a reranker takes them: of too long a pair the longer text is cut. Left out for other models. */
  encodePair?(first: string, second: string): EncodedPair;
}

/** What an executor tokenizes with: many texts at once, on other threads where that pays. */
export interface BatchTokenizer extends Pick<Tokenizer, 'hash' | 'maxTokens' | 'vocabularySize'> {
  /** One row per text, in order. */
  encodeAll(texts: readonly string[]): Promise<readonly Encoded[]>;
  /** One row per text, in order: each behind the same query. Only of a reranker's tokenizer. */
  encodePairs(query: string, texts: readonly string[]): Promise<readonly EncodedPair[]>;
}
