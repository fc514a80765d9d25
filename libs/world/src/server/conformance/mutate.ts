// Plausible calls from recorded ones: what a script finds and what it is given, changed a little. Most changes are those
// that happen (a key is gone, an id is elsewhere, a number is another one), some are what should never be (a key of the
// wrong type, a field that is no number).

import type { Random } from './random.ts';
import type { State, StateValue } from './state.ts';

export interface RecordedCall {
  readonly script: string;
  readonly keys: readonly string[];
  readonly args: readonly string[];
  readonly state: State;
  /** The hour of the call, ms since 1970: what TIME says in the script. */
  readonly now: number;
}

const ODD_TEXTS = [
  '',
  '0',
  '1',
  '-1',
  '2',
  '10',
  'x',
  '1e3',
  '0x10',
  ' 5',
  'nan',
  'inf',
  '-inf',
  '{}',
  '[]',
  '{"a":1}',
  'null',
];
const ODD_VALUES: readonly StateValue[] = [
  ['string', 'x'],
  ['string', '7'],
  ['hash', ['f', 'v']],
  ['list', ['a', 'b']],
  ['set', ['a']],
  ['zset', ['a', 1]],
];

/** `index` 0: as it was recorded. */
export function mutated(call: RecordedCall, random: Random, isPlain: boolean): RecordedCall {
  if (isPlain) return call;
  let { keys, args, state, now } = call;
  const steps = 1 + random.below(3);
  for (let step = 0; step < steps; step++) {
    const kind = random.next();
    if (kind < 0.55) state = changedState(state, keys, args, random);
    else if (kind < 0.9) args = changedArgs(args, state, random);
    else if (kind < 0.94) keys = keys.length < 2 ? keys : swapped(keys, random);
    else now += random.of([-3_600_000, -5_000, -1, 1, 1_000, 60_000, 7_200_000]);
  }
  return { script: call.script, keys, args, state, now };
}

function swapped(list: readonly string[], random: Random): string[] {
  const copy = [...list];
  const [one, other] = [random.below(copy.length), random.below(copy.length)];
  [copy[one], copy[other]] = [copy[other]!, copy[one]!];
  return copy;
}

/** Texts that are somewhere in the state: ids, tokens, numbers. */
function known(state: State, random: Random): string {
  const values = Object.values(state);
  if (values.length === 0) return random.of(ODD_TEXTS);
  const value = random.of(values);
  if (value[0] === 'string') return value[1];
  const texts = value[1].flat();
  return texts.length === 0 ? '' : String(random.of(texts));
}

function changedArgs(args: readonly string[], state: State, random: Random): readonly string[] {
  if (args.length === 0) return args;
  const copy = [...args];
  const at = random.below(copy.length);
  const had = copy[at]!;
  const kind = random.next();
  if (/^-?\d+$/.test(had) && kind < 0.6) copy[at] = otherNumber(had, random);
  else if (kind < 0.75) copy[at] = known(state, random);
  else if (kind < 0.85) copy[at] = random.of(ODD_TEXTS);
  else if (kind < 0.9) return swapped(copy, random);
  else if (kind < 0.93) return copy.slice(0, at);
  else if (kind < 0.96) copy[at] = had.slice(0, random.below(had.length + 1));
  else copy.splice(at, 0, had);
  return copy;
}

function otherNumber(text: string, random: Random): string {
  const value = Number(text);
  return String(
    random.of([0, 1, -1, value + 1, value - 1, value * 2, Math.floor(value / 2), -value, value + 60_000, 2 ** 31]),
  );
}

function changedState(state: State, keys: readonly string[], args: readonly string[], random: Random): State {
  const names = Object.keys(state);
  const kind = random.next();
  if (names.length === 0 || kind < 0.06)
    return { ...state, [random.of(keys.length > 0 ? keys : ['k'])]: random.of(ODD_VALUES) };
  const name = random.of(names);
  if (kind < 0.22) return Object.fromEntries(Object.entries(state).filter(([key]) => key !== name));
  if (kind < 0.27) return { ...state, [name]: random.of(ODD_VALUES) };
  return { ...state, [name]: changedValue(state[name]!, state, args, random) };
}

function changedValue(value: StateValue, state: State, args: readonly string[], random: Random): StateValue {
  if (random.is(0.12)) return withEnd(value, value[2] === undefined ? 60_000 + random.below(600_000) : undefined);
  const text = (): string => (random.is(0.5) || args.length === 0 ? known(state, random) : random.of(args));
  switch (value[0]) {
    case 'string':
      return [
        'string',
        /^-?\d+$/.test(value[1]) && random.is(0.6)
          ? otherNumber(value[1], random)
          : random.is(0.5)
            ? text()
            : random.of(ODD_TEXTS),
        value[2],
      ];
    case 'hash':
      return changedHash(value, text, random);
    case 'zset':
      return changedScores(value, text, random);
    case 'stream':
      return ['stream', value[1].slice(random.below(value[1].length)), value[2]];
    default:
      return changedList(value, text, random);
  }
}

function withEnd(value: StateValue, end: number | undefined): StateValue {
  return (end === undefined ? [value[0], value[1]] : [value[0], value[1], end]) as unknown as StateValue;
}

function changedHash(value: StateValue, text: () => string, random: Random): StateValue {
  const fields = [...(value[1] as readonly string[])];
  const at = 2 * random.below(fields.length / 2);
  const kind = random.next();
  if (kind < 0.35) fields.splice(at, 2);
  else if (kind < 0.6) fields[at + 1] = /^-?\d+$/.test(fields[at + 1]!) ? otherNumber(fields[at + 1]!, random) : text();
  else if (kind < 0.8) fields[at + 1] = random.of(ODD_TEXTS);
  else
    fields.push(
      random.of([
        'shoalPlace',
        'finishedOn',
        'paused',
        'max',
        'concurrency',
        'stc',
        'ats',
        'parentKey',
        'deid',
        'rjk',
        'defa',
        'extra',
      ]),
      text(),
    );
  return fields.length === 0 ? ['string', ''] : (['hash', fields, value[2]] as StateValue);
}

function changedList(value: StateValue, text: () => string, random: Random): StateValue {
  const list = [...(value[1] as readonly string[])];
  const at = random.below(list.length);
  const kind = random.next();
  if (kind < 0.3) list.splice(at, 1);
  else if (kind < 0.6) list.splice(at, 0, text());
  else if (kind < 0.75) list.push(list[at]!);
  else list[at] = kind < 0.9 ? text() : random.of(ODD_TEXTS);
  return list.length === 0 ? ['string', ''] : ([value[0], list, value[2]] as StateValue);
}

function changedScores(value: StateValue, text: () => string, random: Random): StateValue {
  const pairs = [...(value[1] as readonly (string | number)[])];
  const at = 2 * random.below(pairs.length / 2);
  const score = Number(pairs[at + 1]);
  const kind = random.next();
  if (kind < 0.3) pairs.splice(at, 2);
  else if (kind < 0.6)
    pairs[at + 1] = random.of([0, -1, 1, score + 1, score - 1, score * 2, 0.5, -(2 ** 53) + 3, 4294967296, 1e15]);
  else pairs.push(text(), random.of([score, 0, -5, 3.25, score + 2]));
  return pairs.length === 0 ? ['string', ''] : (['zset', pairs, value[2]] as StateValue);
}
