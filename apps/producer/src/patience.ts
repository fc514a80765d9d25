// How long a request waits for the queue: until the answer, its time-out, a server that refuses to
// write, or its caller's leaving, whichever is first.
// What still waits on the queue is taken off it by the signal. Knows no HTTP.

import { callerLeft, unavailable, writesRefused } from './problem.ts';
import type { RefusedWrites } from './refused-writes.ts';

export interface PatienceTerms {
  readonly timeoutMs: number;
  /** What did not come: "no vectors". */
  readonly what: string;
  /** How many jobs wait and how many workers there are, as words for a person; undefined when that is not known. */
  readonly backlog: () => Promise<string | undefined>;
  readonly refusedWrites: Pick<RefusedWrites, 'whileWaiting'>;
}

/** After a whole time-out without an answer: a worker may just be starting. */
const RETRY_TIMEOUT_SECONDS = 10;

/** What `ask` gives, or a Problem that says why nothing came. `callerGone` is aborted when nobody waits any more. */
export async function withPatience<Answer>(
  { timeoutMs, what, backlog, refusedWrites }: PatienceTerms,
  callerGone: AbortSignal,
  ask: (signal: AbortSignal) => Promise<Answer>,
): Promise<Answer> {
  const late = new AbortController();
  let known: Promise<string | undefined> | undefined;
  const timer = setTimeout(() => {
    known = backlog(); // while what this request asked for still waits
    void known.finally(() => late.abort());
  }, timeoutMs);
  const refused = new AbortController();
  const stopLooking = refusedWrites.whileWaiting((words) => refused.abort(writesRefused(words)));
  const ending = AbortSignal.any([late.signal, refused.signal, callerGone]);
  try {
    return await ask(ending);
  } catch (error) {
    if (!ending.aborted) throw error;
    if (callerGone.aborted) throw callerLeft();
    if (refused.signal.aborted) throw refused.signal.reason;
    const why = await known;
    const waited = `there were ${what} within ${Math.round(timeoutMs / 100) / 10} s`;
    throw unavailable('timeout', why === undefined ? waited : `${waited}: ${why}`, RETRY_TIMEOUT_SECONDS);
  } finally {
    clearTimeout(timer);
    stopLooking();
  }
}
