// Long texts are read in steps, between which others may work: a generator that yields nothing, and how to run it through.

/** Code units in a step: well below a millisecond of most texts. */
export const STEP_UNITS = 8_192;

/** What the steps come to, without a pause. */
export function lastOf<Value>(steps: Generator<void, Value, undefined>): Value {
  for (;;) {
    const { done, value } = steps.next();
    if (done === true) return value;
  }
}

/** The first place at or behind `at` that is no second half of a character. */
export function wholeCharacters(text: string, at: number): number {
  return at < text.length && (text.charCodeAt(at) & 0xfc00) === 0xdc00 ? at + 1 : at;
}
