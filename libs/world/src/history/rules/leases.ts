// Rules about claims: one token at a time, nothing without one, and no attempt used up by a death.

import { mayHaveHappened, type Call } from '../calls.ts';
import type { EventOp } from '../event.ts';
import type { IdHistory } from '../id-history.ts';
import { type Breach, type Rule } from './rule.ts';

/** What a server does only for the token in the lock. */
const UNDER_LOCK: readonly EventOp[] = ['renew', 'commit', 'complete', 'fail', 'return'];
/** What lets go of it. */
const RELEASES: readonly EventOp[] = ['complete', 'fail', 'return', 'abandon'];

export const LEASE_SHARED: Rule = {
  name: 'lease-shared',
  promise:
    'A lock holds one token: once a job was claimed again, nothing is accepted under the token before it, unless the ' +
    'server forgot the later claim.',
  check: (history) =>
    pairs(history.ok('claim')).flatMap(([first, second]): Breach[] => {
      if (first.token === second.token || first.to >= second.from) return [];
      const late = accepted(history).find(
        (use) =>
          use.token === first.token &&
          use.from > second.to &&
          !history.mayBeForgotten(second, use) &&
          !isClaimedBetween(history, second, use),
      );
      return late === undefined
        ? []
        : [{ what: `a ${late.op} was accepted under a token that is over`, calls: [first, second, late] }];
    }),
};

/** Whether the token of the use may have been claimed once more since `from`. */
function isClaimedBetween(history: IdHistory, from: Call, use: Call): boolean {
  return history
    .possible('claim')
    .some(
      (claim) =>
        (claim.token === use.token || claim.token === undefined) &&
        claim.to >= from.from &&
        claim.from <= use.to &&
        claim !== from,
    );
}

export const LEASE_OVERLAP: Rule = {
  name: 'lease-overlap',
  promise:
    'A job is not given to a second worker while the lease of the first runs, unless that one gave it back, ended it or ' +
    'died, a clock stepped, or a server forgot.',
  check: (history) =>
    pairs(history.ok('claim')).flatMap(([first, second]): Breach[] => {
      if (first.token === second.token || first.leaseMs === undefined || first.to >= second.from) return [];
      const renewals = history.ok('renew').filter(({ token, from }) => token === first.token && from < second.from);
      const heldUntil = Math.max(
        ...[first, ...renewals].map(({ start, leaseMs }) => start + (leaseMs ?? first.leaseMs!)),
      );
      if (second.end >= heldUntil || mayBeReleased(history, first, second)) return [];
      return [{ what: 'it was claimed twice at once', calls: [first, ...renewals, second] }];
    }),
};

function mayBeReleased(history: IdHistory, first: Call, second: Call): boolean {
  const isOver = history.calls.some(
    (call) =>
      RELEASES.includes(call.op) && call.token === first.token && mayHaveHappened(call) && call.from <= second.to,
  );
  const isGone = history.around.faults.some(
    ({ target, from, to }) => target === first.process && from <= second.to && to >= first.from,
  );
  return (
    isOver ||
    isGone ||
    history.mayBeReborn(first, second) ||
    history.mayHaveLost(first, second) ||
    history.clockMayHaveStepped(first, second)
  );
}

export const WITHOUT_LEASE: Rule = {
  name: 'without-lease',
  promise:
    'A result is written, and a claim renewed or ended, only under the token of a claim that has not ended; what comes ' +
    'later is answered as a lost lease.',
  check: (history) => {
    const claims = history.possible('claim');
    if (claims.length === 0) return []; // nobody writes claims down
    return accepted(history).flatMap((use): Breach[] => {
      const own = claims.filter(({ token }) => token === use.token || token === undefined);
      if (!own.some(({ from }) => from <= use.to))
        return [{ what: `a ${use.op} was accepted under a token that nobody had claimed`, calls: [use] }];
      const release = releaseBefore(history, use);
      if (release === undefined || own.some(({ to, from }) => to > release.from && from <= use.to)) return [];
      return [{ what: `a ${use.op} was accepted under a token that was given back`, calls: [release, use] }];
    });
  },
};

function releaseBefore(history: IdHistory, use: Call): Call | undefined {
  return history.calls.find(
    (call) =>
      RELEASES.includes(call.op) &&
      call.op !== 'abandon' && // it lets go without asking: the lock may be there for a while
      call.kind === 'ok' &&
      call.token === use.token &&
      call.to < use.from &&
      !history.mayBeForgotten(call, use),
  );
}

export const ATTEMPT_CHARGED: Rule = {
  name: 'attempt-charged',
  promise: 'Deaths of processes, servers and connections never use up attempts: only a failure does.',
  check: (history) =>
    [...history.ok('claim'), ...history.ok('see')].flatMap((call): Breach[] => {
      const charged = call.attempts ?? 0;
      const failures = history.possible('fail').filter(({ from }) => from <= call.to);
      if (charged <= failures.length) return [];
      return [{ what: `${charged} attempts are used up, ${failures.length} failed`, calls: [...failures, call] }];
    }),
};

/** What was accepted under a token. A result that was there already needs the lock as well. */
function accepted(history: IdHistory): Call[] {
  return history.calls.filter(
    ({ op, kind, token, outcome }) =>
      UNDER_LOCK.includes(op) && kind === 'ok' && token !== undefined && outcome !== 'conflict',
  );
}

function pairs(claims: readonly Call[]): [Call, Call][] {
  return claims.flatMap((first, at) => claims.slice(at + 1).map((second): [Call, Call] => [first, second]));
}

export const LEASE_RULES: readonly Rule[] = [LEASE_SHARED, LEASE_OVERLAP, WITHOUT_LEASE, ATTEMPT_CHARGED];
