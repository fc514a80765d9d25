// Waiting with an end to it. For goodbyes: whoever stops asks nicely, and leaves when no answer comes.

/** Resolves when `work` is done or has failed, after `ms` at the latest. Leaves no timer behind. */
export async function within(ms: number, work: Promise<unknown>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const tooLate = new Promise<void>((resolve) => (timer = setTimeout(resolve, ms)));
  await Promise.race([work.catch(() => undefined), tooLate]);
  clearTimeout(timer);
}
