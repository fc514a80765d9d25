// What is said of every model, whoever brought it.

export interface ModelFacts {
  readonly name: string;
  readonly description: string;
  /** SPDX identifier. */
  readonly licence: string;
  /** Whose work it is, for the notice beside the files. */
  readonly attribution: string;
  /** Put before a text that asks for one of them. */
  readonly prompts: Readonly<Record<'query' | 'passage', string>>;
}
