// The checker against a little model that is right, against the same with one bug each, and against histories of a few
// lines where intervals and lost replies decide.

import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { ROOM_NEGATIVE, RULES, checkHistory, violationText } from './check.ts';
import type { EventFacts, EventOp, HistoryEvent } from './event.ts';
import { BUGS, MODEL_SETTLE_MS, modelHistory, type Bug } from './testing/model.ts';

const OPTIONS = { settleMs: MODEL_SETTLE_MS, cancelHeardMs: 300 };
const SEEDS = 60;

test('histories of a model that is right are accepted, whatever was lost, killed or forgotten', () => {
  const ops = new Set<string>();
  for (let seed = 1; seed <= SEEDS; seed++) {
    const events = modelHistory(seed);
    const report = checkHistory(events, OPTIONS);
    expect(report.violations.map(violationText), `seed ${seed}`).toEqual([]);
    expect(report.undecided).toBe(0);
    for (const { op, kind } of events) ops.add(`${op} ${kind}`);
  }
  expect([...ops]).toEqual(
    expect.arrayContaining(['add unknown', 'commit unknown', 'take unknown', 'cancel ok', 'forget ok', 'fault ok']),
  );
});

test.each(Object.entries(BUGS) as [Bug, string][])('a model that %s is found by the rule %s', (bug, rule) => {
  const found = new Set<string>();
  for (let seed = 1; seed <= 5 * SEEDS && !found.has(rule); seed++)
    for (const { rule: broken } of checkHistory(modelHistory(seed, bug), OPTIONS).violations) found.add(broken);
  expect([...found]).toContain(rule);
});

test('every rule has a bug that it finds', () => {
  expect(RULES.map(({ name }) => name).toSorted()).toEqual(Object.values(BUGS).toSorted());
});

test('docs/simulation.md says of every rule what it promises', () => {
  const page = readFileSync(new URL('../../../../docs/simulation.md', import.meta.url), 'utf8');
  for (const { name, promise } of [...RULES, ROOM_NEGATIVE]) expect(page).toContain(`| \`${name}\` | ${promise} |`);
});

/** `at` and `until`: of the invoke and the end; one without an end was never answered. */
function call(
  process: string,
  op: EventOp,
  [at, until]: readonly [at: number, until?: number],
  facts: EventFacts & { readonly kind?: 'ok' | 'fail' | 'unknown' } = {},
): HistoryEvent[] {
  const { kind = 'ok', ...answer } = facts;
  const begin = { at, process, op, id: 'job', kind: 'invoke', call: at } as const;
  return until === undefined
    ? [{ ...begin, ...answer }]
    : [begin, { at: until, process, op, id: 'job', kind, call: at, ...answer }];
}

function moment(op: EventOp, at: number, facts: EventFacts = {}): HistoryEvent {
  return { at, process: 'run', op, id: '', kind: 'ok', ...facts };
}

function rulesBroken(...events: (HistoryEvent | readonly HistoryEvent[])[]): string[] {
  const ordered = (events.flat() as HistoryEvent[]).toSorted((a, b) => a.at - b.at);
  return checkHistory([...ordered, moment('rest', 1e9)], OPTIONS).violations.map(({ rule }) => rule);
}

const added = { outcome: 'added', fingerprint: 'f' };
const body = { outcome: 'body', fingerprint: 'f' };

test('two takes at the same time must not both get the body', () => {
  const add = call('p', 'add', [0, 1], added);
  expect(rulesBroken(add, call('p', 'take', [10, 20], body), call('q', 'take', [11, 19], body))).toEqual([
    'two-results',
  ]);
});

test('a second body is right where an add between may have begun a new life, and wrong where none did', () => {
  const first = [call('p', 'add', [0, 1], added), call('p', 'take', [10, 20], body)].flat();
  const second = call('q', 'take', [50, 60], body);
  expect(rulesBroken(first, second)).toContain('after-taken');
  expect(rulesBroken(first, call('q', 'add', [30, 40], added), second)).toEqual([]);
  expect(rulesBroken(first, call('q', 'add', [30]), second)).toEqual([]); // its answer was lost: it may have
  expect(rulesBroken(first, call('q', 'add', [30, 40], { kind: 'fail', outcome: 'refused' }), second)).toContain(
    'after-taken',
  );
});

test('a take whose answer was lost excuses nothing, and accuses nobody', () => {
  const add = call('p', 'add', [0, 1], added);
  expect(rulesBroken(add, call('p', 'take', [10]), call('p', 'take', [50, 60], body))).toEqual([]);
  expect(rulesBroken(add, call('p', 'take', [10]), call('p', 'take', [50, 60], { outcome: 'taken' }))).toEqual([]);
});

const told = (process: string, op: EventOp, at: number, since = at): HistoryEvent =>
  ({ at, process, op, id: 'job', kind: 'ok', since }) as const;

test('a job that ends twice is right where who saw both saw it added between, and wrong where another did', () => {
  const life = (at: number): HistoryEvent[] => [told('w', 'birth', at), told('w', 'complete', at + 2, at)];
  expect(rulesBroken(life(10), life(20))).toEqual([]);
  expect(rulesBroken(life(10), told('w', 'complete', 22, 9))).toEqual(['ended-twice']);
  expect(rulesBroken(life(10), told('w', 'complete', 22), told('w', 'birth', 23))).toEqual(['ended-twice']);
  expect(rulesBroken(life(10), told('v', 'birth', 15), told('w', 'complete', 22))).toEqual(['ended-twice']);
});

test('a server that forgot a take may hand the result to another reader, and not to the one that had it', () => {
  const first = [call('p', 'add', [0, 1], added), call('p', 'take', [10, 20], body)].flat();
  const forget = moment('forget', 30, { since: 5 });
  expect(rulesBroken(first, forget, call('q', 'take', [50, 60], body))).toEqual([]);
  expect(rulesBroken(first, forget, call('p', 'take', [50, 60], body))).toContain('two-results');
  expect(rulesBroken(first, moment('forget', 30, { since: 25 }), call('q', 'take', [50, 60], body))).toContain(
    'two-results',
  );
});

test('an add must end within the bound after the last fault, and what the history is too short for is undecided', () => {
  const add = call('p', 'add', [0, 1], added);
  const fault = moment('fault', 1_000, { outcome: 'kill', target: 'w' });
  expect(rulesBroken(add, fault)).toEqual(['never-ended']);
  expect(rulesBroken(add, fault, call('p', 'see', [3_000, 3_001], { outcome: 'failed' }))).toEqual([]);
  expect(rulesBroken(add, fault, call('p', 'see', [5_600, 5_601], { outcome: 'failed' }))).toEqual(['never-ended']);
  expect(checkHistory([...add, fault], OPTIONS)).toMatchObject({ violations: [], undecided: 1 });
  expect(rulesBroken(call('p', 'add', [0]))).toEqual([]); // never acknowledged
});

test('a worker that renews in time shares its lease with nobody, and one that stops may lose it', () => {
  const add = call('p', 'add', [0, 1], added);
  const first = call('v', 'claim', [10, 11], { token: 't', leaseMs: 100 });
  const renewed = call('v', 'renew', [80, 81], { token: 't', leaseMs: 100 });
  const second = call('w', 'claim', [130, 131], { token: 'u', leaseMs: 100 });
  const end = call('w', 'fail', [140, 141], { token: 'u' });
  expect(rulesBroken(add, first, second, end)).toEqual([]);
  expect(rulesBroken(add, first, renewed, second, end)).toEqual(['lease-overlap']);
  expect(rulesBroken(add, first, renewed, moment('fault', 90, { outcome: 'kill', target: 'v' }), second, end)).toEqual(
    [],
  );
  expect(rulesBroken(add, first, renewed, moment('fault', 90, { outcome: 'kill', target: 'w' }), second, end)).toEqual([
    'lease-overlap',
  ]);
  expect(
    rulesBroken(
      add,
      first,
      second,
      call('v', 'commit', [135, 136], { ...added, token: 't', outcome: 'committed' }),
      end,
    ),
  ).toContain('lease-shared');
});

test('what was asked to be cancelled may complete under the claim of that time, and under no later one', () => {
  const start = [call('p', 'add', [0, 1], added), call('w', 'claim', [5, 6], { token: 't' })].flat();
  const asked = call('p', 'cancel', [10, 11], { outcome: 'asked' });
  const commit = (token: string, at: number): HistoryEvent[] => [
    ...call('w', 'commit', [at, at + 1], { token, fingerprint: 'f', outcome: 'committed' }),
    ...call('w', 'complete', [at + 2, at + 3], { token }),
  ];
  expect(rulesBroken(start, asked, commit('t', 2_000))).toEqual([]);
  expect(rulesBroken(start, asked, call('v', 'claim', [100, 101], { token: 'u' }), commit('u', 110))).toEqual([]);
  expect(rulesBroken(start, asked, call('v', 'claim', [900, 901], { token: 'u' }), commit('u', 910))).toEqual([
    'after-cancel',
    'after-cancel',
  ]);
});

test('reserved room below zero is named', () => {
  const report = checkHistory([moment('room', 1, { values: { rows: 0, bytes: -64 } })]);
  expect(report.violations.map(violationText)).toEqual([
    `${ROOM_NEGATIVE.name}: bytes is -64\n  {"at":1,"process":"run","op":"room","id":"","kind":"ok","values":{"rows":0,"bytes":-64}}`,
  ]);
});

test('a history whose beginning is missing is refused, not judged', () => {
  expect(() => checkHistory([{ at: 1, process: 'p', op: 'add', id: 'a', kind: 'ok', call: 1 }])).toThrow(
    'p ends its call 1, which it did not begin',
  );
});
