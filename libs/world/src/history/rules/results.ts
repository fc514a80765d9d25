// Rules about results: once, of the right input, whole, and there when they should be.

import type { Call } from '../calls.ts';
import type { IdHistory } from '../id-history.ts';
import { successions, type Breach, type Rule } from './rule.ts';

/** Answers of a take after which the header says TAKEN. */
const TAKEN = ['body', 'mark', 'taken'];

/** One reader, which tells a server again what it took before it calls again: nothing that was forgotten excuses it. */
function isOfOneReader(history: IdHistory, a: Call, b: Call): boolean {
  const isMetByForgetting = history.mayHaveLost(b, b);
  return a.process === b.process && !history.mayBeAskedAnew(a, b) && !isMetByForgetting;
}

export const TWO_RESULTS: Rule = {
  name: 'two-results',
  promise:
    'A result is handed out once in each life of an id. A life ends when the id is added anew. Where a server forgot ' +
    'that a result was taken, the reader that took it tells it again; another reader, one that adds the id again, and ' +
    'one whose next call was under way then, may get it once more.',
  check: (history) => {
    const handedOut = history.ok('take', 'body');
    return handedOut.slice(1).flatMap((b, at): Breach[] => {
      const a = handedOut[at]!;
      if (history.mayBeReborn(a, b) || (!isOfOneReader(history, a, b) && history.mayBeForgotten(a, b))) return [];
      return [{ what: 'its result was handed out twice', calls: [a, b] }];
    });
  },
};

export const AFTER_TAKEN: Rule = {
  name: 'after-taken',
  promise:
    'After a result was taken, nobody sees it and nothing is written in its place, until the id is added anew. ' +
    'Excused as above where a server forgot.',
  check: (history) => {
    const commits = history.ok('commit', 'committed');
    return successions(history.ok('take', ...TAKEN), [...history.bodies(), ...commits])
      .filter(([a, b]) => {
        if (history.mayBeReborn(a, b)) return false;
        if (b.op === 'commit' && !history.isAliveAt(a.start, b.end)) return false; // the mark has ended with its result
        return (b.op !== 'commit' && isOfOneReader(history, a, b)) || !history.mayBeForgotten(a, b);
      })
      .map(([a, b]) => ({
        what: `${b.op === 'commit' ? 'a result was written' : 'its result was seen'} after it was taken`,
        calls: [a, b],
      }));
  },
};

export const WRITTEN_TWICE: Rule = {
  name: 'written-twice',
  promise:
    'A result is never written over one that is there: a second commit answers "already" or "conflict", for as long as ' +
    'results live.',
  check: (history) =>
    successions(history.ok('commit', 'committed'), history.ok('commit', 'committed'))
      .filter(
        ([a, b]) =>
          history.isAliveAt(a.start, b.end) &&
          !history.mayBeReborn(a, b) &&
          !history.mayBeForgotten(a, b) &&
          !history.clockMayHaveStepped(a, b),
      )
      .map((calls) => ({ what: 'two commits wrote its result', calls })),
};

export const OTHER_INPUT: Rule = {
  name: 'other-input',
  promise: 'An id never answers for other input: what is seen or written has the fingerprint of the id’s present life.',
  check: (history) =>
    [...history.bodies(), ...history.ok('commit', 'committed')]
      .filter((seen) => seen.fingerprint !== undefined && !isAsked(history, seen))
      .map((seen) => ({
        what: `a result for ${seen.fingerprint} was ${seen.op === 'commit' ? 'written' : 'seen'}, which nobody asks for`,
        calls: [...history.possible('add'), seen],
      })),
};

/** Whether some add of this fingerprint may be the one in force when it was seen. */
function isAsked(history: IdHistory, seen: Call): boolean {
  const adds = history.possible('add').filter(({ from }) => from <= seen.to);
  return adds.some(
    (add) =>
      add.fingerprint === seen.fingerprint &&
      !adds.some(
        (next) =>
          next.kind === 'ok' &&
          next.outcome === 'added' &&
          next.fingerprint !== add.fingerprint &&
          next.from > add.to &&
          next.to < seen.from,
      ),
  );
}

export const ROWS: Rule = {
  name: 'rows',
  promise: 'The vectors of a result answer to the rows of the input, each in its place.',
  check: (history) =>
    history
      .bodies()
      .filter(({ got }) => got !== undefined)
      .flatMap((body): Breach[] => {
        const adds = history
          .possible('add')
          .filter(({ fingerprint, want }) => fingerprint === body.fingerprint && want !== undefined);
        if (adds.length === 0 || adds.some(({ want }) => want === body.got)) return [];
        return [{ what: `rows ${adds[0]!.want} were asked for, ${body.got} came`, calls: [adds[0]!, body] }];
      }),
};

export const TORN: Rule = {
  name: 'torn',
  promise: 'What is seen is, byte for byte, what one commit wrote.',
  check: (history) => {
    const commits = history.mayHaveWritten().filter(({ digest }) => digest !== undefined);
    if (commits.length === 0) return [];
    return history
      .bodies()
      .filter(
        (body) =>
          body.digest !== undefined && !commits.some(({ digest, from }) => digest === body.digest && from <= body.to),
      )
      .map((body) => ({ what: `a body ${body.digest} was seen that no commit wrote`, calls: [...commits, body] }));
  },
};

export const COMPLETED_EMPTY: Rule = {
  name: 'completed-empty',
  promise: 'A result is stored before its job completes.',
  check: (history) => {
    if (!history.around.hasCommits) return [];
    const commits = history.mayHaveWritten();
    return history
      .ok('complete')
      .filter(({ to }) => !commits.some(({ from }) => from <= to))
      .map((complete) => ({ what: 'it was completed and nobody had committed a result', calls: [complete] }));
  },
};

export const LOST_RESULT: Rule = {
  name: 'lost-result',
  promise: 'The result of a completed job is there until it is taken or its time to live is over.',
  check: (history) => {
    const takes = history.possible('take').filter(({ kind, outcome }) => kind === 'unknown' || outcome !== 'absent');
    const ended = [...history.ok('complete'), ...history.ok('see', 'completed')];
    return successions(ended, [...history.ok('read', 'absent'), ...history.ok('take', 'absent')])
      .filter(
        ([a, b]) =>
          history.isAliveAt(writtenSince(history, b), b.end) &&
          !takes.some((take) => take.from <= b.to) &&
          !history.mayBeReborn(a, b) &&
          !history.mayHaveLost(history.calls[0]!, b) &&
          !history.clockMayHaveStepped(history.calls[0]!, b),
      )
      .map((calls) => ({ what: 'it is completed and its result is not there', calls }));
  },
};

/** When the result of the present life may have been written first: its time to live may have begun then. */
function writtenSince(history: IdHistory, { to }: Call): number {
  const birth = history.births().findLast(({ from }) => from <= to);
  const commits = history.possible('commit').filter((commit) => birth === undefined || commit.to >= birth.from);
  return Math.min(...(commits.length > 0 ? commits : [birth]).map((call) => call?.from ?? -Infinity));
}

export const RESULT_RULES: readonly Rule[] = [
  TWO_RESULTS,
  AFTER_TAKEN,
  WRITTEN_TWICE,
  OTHER_INPUT,
  ROWS,
  TORN,
  COMPLETED_EMPTY,
  LOST_RESULT,
];
