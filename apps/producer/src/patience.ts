// How long a request waits for the queue: until the answer, its time-out, or its caller's leaving, whichever is first.
// What still waits on the queue is taken off it by the signal. Knows no HTTP.

import { callerLeft, unavailable } from './problem.ts';

export interface PatienceTerms {
  readonly timeoutMs: number;
  /** What did not come: "no vectors". */
  readonly what: string;
  /** How many jobs wait and how many workers there are, as words for a person; undefined when that is not known. */
  readonly backlog: () => Promise<string | undefined>;
}

/** After a whole time-out without an answer: a worker may just be starting. */
const RETRY_TIMEOUT_SECONDS = 10;

/** What `ask` gives, or a Problem that says why nothing came. `callerGone` is aborted when nobody waits any more. */
export async function withPatience<Answer>(
  { timeoutMs, what, backlog }: PatienceTerms,
  callerGone: AbortSignal,
  ask: (signal: AbortSignal) => Promise<Answer>,
): Promise<Answer> {
  const late = new AbortController();
  let known: Promise<string | undefined> | undefined;
  const timer = setTimeout(() => {
    known = backlog(); // while what this request asked for still waits
    void known.finally(() => late.abort());
  }, timeoutMs);
  const ending = AbortSignal.any([late.signal, callerGone]);
  try {
    return await ask(ending);
  } catch (error) {
    if (!ending.aborted) throw error;
    if (callerGone.aborted) throw callerLeft();
    const why = await known;
    const waited = `there were ${what} within ${timeoutMs / 1_000} s`;
    throw unavailable('timeout', why === undefined ? waited : `${waited}: ${why}`, RETRY_TIMEOUT_SECONDS);
  } finally {
    clearTimeout(timer);
  }
}
