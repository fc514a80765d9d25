// Checks the history that a run wrote, and says what is wrong with it.

import { checkHistory, readHistoryFolder, violationText, type CheckOptions } from '@shoal/world';

export interface Judged {
  readonly events: number;
  readonly ids: number;
  readonly violations: number;
  readonly undecided: number;
  /** Files whose last line is unfinished. */
  readonly unfinished: number;
  /** ms that checking took. */
  readonly tookMs: number;
}

const MOST_TOLD = 10;

/** Prints the first violations to stderr. Throws when the folder holds anything but events. */
export function judgeHistory(folder: string, options: Partial<CheckOptions>): Judged {
  const startedMs = performance.now();
  const { events, unfinished } = readHistoryFolder(folder);
  const { ids, violations, undecided } = checkHistory(events, options);
  for (const violation of violations.slice(0, MOST_TOLD)) process.stderr.write(`${violationText(violation)}\n`);
  return {
    events: events.length,
    ids,
    violations: violations.length,
    undecided,
    unfinished: unfinished.length,
    tookMs: Math.round(performance.now() - startedMs),
  };
}
