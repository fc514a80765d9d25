// What is said of every model, whoever brought it.

export interface ModelFacts {
  readonly name: string;
  readonly description: string;
  /** SPDX identifier. */
  readonly licence: string;
  /** Whose work it is, for the notice beside the files. */
  readonly attribution: string;
  /** Put before a text whose job asks for one, by name. */
  readonly prompts: Readonly<Record<string, string>>;
  /** Name of the prompt for texts whose job asks for none. */
  readonly defaultPrompt?: string;
}
