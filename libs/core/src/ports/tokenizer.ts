// What turns texts into the rows that a model takes.

export interface Encoded {
  /** Token ids as the model takes them: special tokens in, truncated to `maxTokens`. */
  readonly ids: readonly number[] | Uint16Array | Uint32Array;
  readonly isTruncated: boolean;
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
}

/** What an executor tokenizes with: many texts at once, on other threads where that pays. */
export interface BatchTokenizer extends Pick<Tokenizer, 'hash' | 'maxTokens' | 'vocabularySize'> {
  /** One row per text, in order. */
  encodeAll(texts: readonly string[]): Promise<readonly Encoded[]>;
}
