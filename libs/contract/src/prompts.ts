// The prompts of a model, by the names that its authors gave them, and which one goes before a text. Said here once, so
// that the worker, the SDK, the command and HTTP put the same words before the same text.

export interface Prompts {
  /** What goes before a text, by name; '' is a prompt that is nothing on purpose. */
  readonly prompts: Readonly<Record<string, string>>;
  /** Name of the one for texts that ask for none. */
  readonly defaultPrompt?: string | undefined;
}

/** Asks for no prompt, also not for the model's default one. A model's own prompt of this name goes before it. */
export const NO_PROMPT = 'none';

/** The two sides of a search, as many models have them and sentence-transformers looks for them. */
const PASSAGES = ['passage', 'document', 'corpus'];
const SIDES = ['query', ...PASSAGES];

/** Whether there is anything that a prompt could put before a text. */
export function hasPrompts(prompts: Prompts['prompts'] | undefined): boolean {
  return prompts !== undefined && Object.values(prompts).some((text) => text !== '');
}

/**
 * What goes before a text that asks for the prompt of this name, or for none; undefined where the model has no such
 * prompt. "passage", "document" and "corpus" are one side by three names; of a model with a prompt for one side alone
 * the other has none on purpose.
 */
export function promptText({ prompts, defaultPrompt }: Prompts, asked: string | undefined): string | undefined {
  if (asked === undefined) return defaultPrompt === undefined ? '' : (ownPrompt(prompts, defaultPrompt) ?? '');
  if (!hasPrompts(prompts)) return asked === NO_PROMPT ? '' : undefined;
  const own = ownPrompt(prompts, asked);
  if (own !== undefined) return own;
  if (asked === NO_PROMPT) return '';
  if (!SIDES.includes(asked)) return undefined;
  const other = PASSAGES.includes(asked) ? PASSAGES.find((name) => ownPrompt(prompts, name) !== undefined) : undefined;
  if (other !== undefined) return ownPrompt(prompts, other);
  return SIDES.some((name) => (ownPrompt(prompts, name) ?? '') !== '') ? '' : undefined;
}

/** The option that asks for this side of a search, where the model has one. */
export function sidePrompt<Side extends 'query' | 'passage'>(model: Prompts, side: Side): { readonly prompt?: Side } {
  return hasPrompts(model.prompts) && promptText(model, side) !== undefined ? { prompt: side } : {};
}

/** All that may be asked for by name: the model's own names, the sides of a search that it has, and no prompt. */
export function askablePrompts(model: Prompts): readonly string[] {
  const sides = SIDES.filter((name) => promptText(model, name) !== undefined);
  const own = hasPrompts(model.prompts) ? Object.keys(model.prompts) : [];
  return [...new Set([...own, ...sides, NO_PROMPT])];
}

/** Why the prompt of this name cannot be asked for, as the end of a sentence about the model. */
export function missingPrompt({ prompts }: Prompts): string {
  return notAskable(Object.keys(prompts).filter((name) => prompts[name] !== ''));
}

/** The same by the names that may be asked for. */
export function notAskable(askable: readonly string[]): string {
  const names = askable.filter((name) => name !== NO_PROMPT);
  return names.length === 0
    ? 'has no prompts: leave it out, or import the model with --query-prompt and --passage-prompt'
    : `has ${names.map((name) => JSON.stringify(name)).join(', ')}: ask for one of them, or for "${NO_PROMPT}"`;
}

function ownPrompt(prompts: Prompts['prompts'], name: string): string | undefined {
  return Object.hasOwn(prompts, name) ? prompts[name] : undefined;
}
