// Holds a history against what the product promises. Pure, and fast: each id by itself, a few dozen events of it at a
// time, so a history of a million events takes seconds.

import { callsOf, type Call } from './calls.ts';
import type { HistoryEvent } from './event.ts';
import { DEFAULT_OPTIONS, IdHistory, type CheckOptions, type Surroundings } from './id-history.ts';
import { ENDING_RULES, isUndecided } from './rules/endings.ts';
import { LEASE_RULES } from './rules/leases.ts';
import { RESULT_RULES } from './rules/results.ts';
import type { Rule, Violation } from './rules/rule.ts';

/** Looks at no id: its events have none. */
export const ROOM_NEGATIVE = {
  name: 'room-negative',
  promise: 'What admission has reserved is never below zero: no row, byte or tenant is given back twice.',
};

/** Every rule about an id. */
export const RULES: readonly Rule[] = [...RESULT_RULES, ...LEASE_RULES, ...ENDING_RULES];

export interface HistoryReport {
  readonly events: number;
  readonly ids: number;
  readonly violations: readonly Violation[];
  /** Acknowledged adds that the history ends too early for. */
  readonly undecided: number;
}

/**
 * Every breach of every rule, by id. The order of events is by time, as `readHistory` gives them. Throws when the
 * history is not whole: an end without its beginning.
 */
export function checkHistory(events: readonly HistoryEvent[], options: Partial<CheckOptions> = {}): HistoryReport {
  const calls = callsOf(events);
  const around = surroundingsOf(calls, { ...DEFAULT_OPTIONS, ...options });
  const violations: Violation[] = roomViolations(calls);
  let undecided = 0;
  const byId = callsById(calls);
  for (const [id, own] of byId) {
    const history = new IdHistory(id, own, around);
    for (const { name, check } of RULES)
      for (const { what, calls: shown } of check(history))
        violations.push({ rule: name, id, what, events: shown.flatMap((call) => call.events) });
    if (isUndecided(history)) undecided++;
  }
  return { events: events.length, ids: byId.size, violations, undecided };
}

function callsById(calls: readonly Call[]): Map<string, Call[]> {
  const byId = new Map<string, Call[]>();
  for (const call of calls) {
    if (call.id === '') continue;
    const own = byId.get(call.id);
    if (own === undefined) byId.set(call.id, [call]);
    else own.push(call);
  }
  return byId;
}

function surroundingsOf(calls: readonly Call[], options: CheckOptions): Surroundings {
  const faults = calls.filter(({ op }) => op === 'fault');
  const forgets = calls.filter(({ op }) => op === 'forget');
  return {
    faults,
    forgets,
    lastFaultMs: [...faults, ...forgets].reduce(
      (last, { start, end }) => Math.max(last, isFinite(end) ? end : start),
      0,
    ),
    hasCommits: calls.some(({ op }) => op === 'commit'),
    lastMs: calls.reduce((last, { start, end }) => Math.max(last, isFinite(end) ? end : start), 0),
    isAtRest: calls.some(({ op }) => op === 'rest'),
    options,
  };
}

function roomViolations(calls: readonly Call[]): Violation[] {
  return calls
    .filter(({ op }) => op === 'room')
    .flatMap(({ values = {}, events }) =>
      Object.entries(values)
        .filter(([, value]) => value < 0)
        .map(([name, value]) => ({
          rule: ROOM_NEGATIVE.name,
          id: '',
          what: `${name} is ${value}`,
          events,
        })),
    );
}

/** A violation as lines for people: the rule, the id, and the events that show it. */
export function violationText({ rule, id, what, events }: Violation): string {
  return [`${rule}: ${id === '' ? '' : `${id}: `}${what}`, ...events.map((event) => `  ${JSON.stringify(event)}`)].join(
    '\n',
  );
}
