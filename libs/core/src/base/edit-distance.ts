// How unlike two words are, for whoever says what was probably meant.

/**
 * Insertions, deletions and replacements of a letter that make one string the other: Levenshtein's distance, by rows of
 * Wagner and Fischer's table (1974).
 */
export function editDistance(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, at) => at);
  for (const [down, char] of [...from].entries()) {
    const next = [down + 1];
    for (let at = 1; at <= to.length; at++)
      next.push(Math.min(next[at - 1]! + 1, row[at]! + 1, row[at - 1]! + (to[at - 1] === char ? 0 : 1)));
    row = next;
  }
  return row.at(-1)!;
}
