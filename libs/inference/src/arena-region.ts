// Lays out the CPU provider's arena before its first run, and with it everything that a first run takes whatever its
// shape.
//
// Why: docs/decisions/memory-and-budget.md#on-the-cpu-the-arena-begins-with-one-region-for-the-largest-run

/** Not −1: that is the last word of a vocabulary. */
export const NO_WORD = 2 ** 31 - 1;
/** Any that a model takes. */
export const SHORT_WIDTH = 8;

/**
 * The CPU provider's arena grows region by region, each twice as large as the last. Where tensors come to lie then
 * depends on which of them just fits a region's rest, and one width took 40 KB a token with 8 rows and 52 KB with 10.
 * In one region that holds all of them a run takes the same for each token, and up to a quarter less: rows × 512 tokens
 * of minilm 45 to 48 KB instead of 51 to 62 (2026-11-22; bench/device/memory-model.ts). The binding cannot ask for a
 * region, but a run can: the first thing a graph makes is a vector for each token, and the runtime refuses ids that are
 * no words before it has written any of it. What nobody writes to costs address space, and 1/32 of it for the arena's
 * own books. Where there is no room for it all stays as it was.
 *
 * `canRun`: whether rows of SHORT_WIDTH tokens, all of this id, run.
 */
export async function layOutArena(
  tokens: number,
  canRun: (rows: number, id: number) => Promise<boolean>,
): Promise<void> {
  // a graph that takes any number for a word would really compute all this
  const takesAnyNumber = await canRun(1, NO_WORD);
  if (!takesAnyNumber) await canRun(Math.ceil(tokens / SHORT_WIDTH), NO_WORD);
  await canRun(1, 0); // what the first run takes whatever its shape, before anybody asks what the open graph holds
}
