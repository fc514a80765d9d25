// Rules about how jobs end: all of them, in time, as they were told to, and for a reason that there is.

import type { Call } from '../calls.ts';
import type { IdHistory } from '../id-history.ts';
import { successions, type Breach, type Rule } from './rule.ts';

export const AFTER_CANCEL: Rule = {
  name: 'after-cancel',
  promise:
    'A cancel that answers "cancelled" has failed the job: from then on it is neither claimed nor completed, and nothing ' +
    'is written, until the id is added anew. One that answers "asked" has told the worker that holds the job: what is ' +
    'committed or completed first stays so, and a claim that begins once the mark must have been heard completes nothing.',
  check: (history) => [...afterCancelled(history), ...afterAsked(history)],
};

function afterCancelled(history: IdHistory): Breach[] {
  const cancels = history.ok('cancel', 'cancelled');
  const forbidden = [
    ...history.ok('claim'),
    ...history.ok('commit', 'committed'),
    ...history.ok('complete'),
    ...history.ok('see', 'completed'),
  ];
  const breaches = successions(cancels, forbidden).filter(([cancel, call]) => isFinal(history, cancel, call));
  const unseen = successions(cancels, history.bodies()).filter(
    ([cancel, body]) =>
      history.around.hasCommits &&
      isFinal(history, cancel, body) &&
      !history.possible('commit').some(({ from }) => from <= cancel.to), // one may be there, and nobody fetches it
  );
  return [...breaches, ...unseen].map(([cancel, call]) => ({
    what: `${call.op} after it was cancelled`,
    calls: [cancel, call],
  }));
}

function afterAsked(history: IdHistory): Breach[] {
  const endings = [...history.ok('commit', 'committed'), ...history.ok('complete')];
  return successions(history.ok('cancel', 'asked'), endings).flatMap(([cancel, ending]): Breach[] => {
    const heardBy = history.quietAfter(cancel.end) + history.around.options.cancelHeardMs;
    const claims = history.possible('claim').filter(({ token }) => token === ending.token);
    const isLate = claims.length > 0 && claims.every(({ start }) => start > heardBy);
    if (!isLate || !isFinal(history, cancel, ending)) return [];
    return [
      { what: `${ending.op} by a claim that began long after it was cancelled`, calls: [cancel, ...claims, ending] },
    ];
  });
}

function isFinal(history: IdHistory, cancel: Call, call: Call): boolean {
  return !history.mayBeReborn(cancel, call) && !history.mayBeForgotten(cancel, call);
}

export const NEVER_ENDED: Rule = {
  name: 'never-ended',
  promise:
    'An add that was acknowledged ends, and after the last fault within a bound: completed, failed or cancelled. What a ' +
    'server forgot is added again by its producer, unless that one has cancelled it.',
  check: (history) => {
    const duty = dutyOf(history);
    if (duty === undefined || duty.ended !== undefined) {
      if (duty?.ended === undefined || duty.ended.end <= duty.dueMs) return [];
      return [{ what: `it ended ${seconds(duty.ended.end - duty.dueMs)} too late`, calls: [duty.add, duty.ended] }];
    }
    if (!history.around.isAtRest && history.around.lastMs <= duty.dueMs) return [];
    return [{ what: 'it was acknowledged and never ended', calls: [duty.add] }];
  },
};

/** Whether the history ends before it can be said that the id's last add ends. */
export function isUndecided(history: IdHistory): boolean {
  const duty = dutyOf(history);
  return (
    duty !== undefined && duty.ended === undefined && !history.around.isAtRest && history.around.lastMs <= duty.dueMs
  );
}

/** The last acknowledged add, by when it must have ended, and how it did. */
function dutyOf(history: IdHistory): { add: Call; dueMs: number; ended: Call | undefined } | undefined {
  const add = history.ok('add', 'added', 'known').at(-1);
  if (add === undefined) return undefined;
  const { addsAgain, settleMs } = history.around.options;
  const isWanted = history.possible('cancel').length === 0; // who cancelled it does not bring it again
  if (!(addsAgain && isWanted) && history.around.forgets.some(({ from, to }) => add.to >= from && add.from <= to))
    return undefined;
  const ended = endingsOf(history)
    .filter(({ to }) => to >= add.from)
    .toSorted((a, b) => a.end - b.end)[0];
  return { add, dueMs: history.quietAfter(add.end) + settleMs, ended };
}

function endingsOf(history: IdHistory): Call[] {
  return [
    ...history.ok('see', 'completed', 'failed'),
    ...history.ok('read', 'body', 'taken'),
    ...history.ok('take', 'body', 'taken', 'mark'),
    ...history.ok('cancel', 'cancelled', 'finished'),
    ...history.ok('complete'),
    ...history.ok('fail'),
  ];
}

function seconds(ms: number): string {
  return `${(ms / 1_000).toFixed(1)} s`;
}

export const ENDED_TWICE: Rule = {
  name: 'ended-twice',
  promise:
    'A job ends once in each life of its id, completed or failed. A server that forgot an ending may see another.',
  check: (history) => {
    const endings = [...history.ok('complete'), ...history.ok('fail')].toSorted((a, b) => a.from - b.from);
    return endings.slice(1).flatMap((b, at): Breach[] => {
      const a = endings[at]!;
      if (history.mayBeReborn(a, b) || history.mayBeForgotten(a, b)) return [];
      return [{ what: `${b.op} after ${a.op}`, calls: [a, b] }];
    });
  },
};

export const INPUT_LOST: Rule = {
  name: 'input-lost',
  promise:
    'An input is deleted only after its job completed or failed: no job fails for want of it while servers forget nothing.',
  check: (history) =>
    failures(history, 'INPUT_LOST')
      .filter(
        (failure) =>
          !history.mayHaveLost(history.calls[0]!, failure) && !history.clockMayHaveStepped(history.calls[0]!, failure),
      )
      .map((failure) => ({ what: 'it failed because its input was gone', calls: [failure] })),
};

export const FALSE_CONFLICT: Rule = {
  name: 'false-conflict',
  promise: 'A conflict over an id is told only where it was used for different inputs.',
  check: (history) => {
    const inputs = new Set(history.calls.flatMap(({ op, fingerprint }) => (op === 'add' ? [fingerprint] : [])));
    if (inputs.size > 1) return [];
    return history.calls
      .filter(
        ({ op, kind, outcome, code }) =>
          (kind === 'fail' && outcome === 'conflict' && (op === 'add' || op === 'commit')) ||
          code === 'JOB_ID_CONFLICT',
      )
      .map((call) => ({ what: 'a conflict was told, and it was used for one input only', calls: [call] }));
  },
};

function failures(history: IdHistory, code: string): Call[] {
  return [...history.ok('fail'), ...history.ok('see', 'failed')].filter((call) => call.code === code);
}

export const ENDING_RULES: readonly Rule[] = [AFTER_CANCEL, NEVER_ENDED, ENDED_TWICE, INPUT_LOST, FALSE_CONFLICT];
