// Bugs stop the process; they are not errors that somebody handles. Expected failures are values or ShoalError, never
// this.

/** Throws when `condition` does not hold. `claim` says what must be true. */
export function invariant(condition: unknown, claim: string): asserts condition {
  if (!condition) throw new Error(`invariant broken: ${claim}`);
}

/** For the `default` of a switch over a closed set: a new member does not compile until it is decided. */
export function unreachable(value: never): never {
  throw new Error(`unreachable: ${JSON.stringify(value)}`);
}
