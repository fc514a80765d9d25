// What a collection may be called. An entry point of its own, so that the command line can ask before it loads anything
// else.

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;

/** For sentences. */
export const COLLECTION_NAME_RULE = 'up to 64 letters, digits, ".", "_" and "-", the first a letter or digit';

export function isCollectionName(text: string): boolean {
  return NAME.test(text);
}
