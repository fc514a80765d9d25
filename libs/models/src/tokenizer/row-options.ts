// What a tokenizer needs besides its facts.

export interface RowOptions {
  /** Of tokenizer.json. */
  readonly hash: string;
  /** Longest row in tokens, special tokens included. */
  readonly maxTokens: number;
}
