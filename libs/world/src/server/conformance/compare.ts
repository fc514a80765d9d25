// Whether two servers answered and stored the same. What may differ is named: ids of streams (they are the hour), times
// by what a round trip takes, the order in which a real server hands out sets and large hashes, the order of fields in
// JSON that a script wrote, and the line and the words of an error that Lua itself raised.

import { Failure, NoList, Status, type Reply } from '../replies.ts';

export interface Tolerance {
  /** Times may differ by so much. */
  readonly ms: number;
  /** The hour when the real server had answered: a key that ended before may be gone there. */
  readonly answeredAt: number;
  /** The script looks at what is left of a time to live. */
  readonly tellsTimes: boolean;
  /** The script goes through something that has no order. */
  readonly isUnordered: boolean;
  /** The script goes through a table by `pairs`: where it ended in an error, how far it had come is an order of hashes. */
  readonly usesPairs: boolean;
}

/** What is different, or undefined. */
export function difference(model: Reply, real: Reply, tolerance: Tolerance): string | undefined {
  if (isSame(model, real, tolerance)) return undefined;
  if (isSame(normal(model, tolerance.isUnordered), normal(real, tolerance.isUnordered), tolerance)) return undefined;
  return `model ${shown(model)}\nreal  ${shown(real)}`;
}

/** Dumps as DUMP makes them. */
export function dumpDifference(model: Reply, real: Reply, tolerance: Tolerance): string | undefined {
  if (!Array.isArray(model) || !Array.isArray(real)) return `no dump: model ${shown(model)}, real ${shown(real)}`;
  const [one, other] = [byName(model), byName(real)];
  for (const name of new Set([...one.keys(), ...other.keys()])) {
    const [a, b] = [one.get(name), other.get(name)];
    const end = Number((a ?? b)![2]);
    if ((a === undefined || b === undefined) && end >= 0 && end <= tolerance.answeredAt) continue;
    if (a === undefined || b === undefined)
      return `key ${name} is ${a === undefined ? 'not there' : 'there'} in the model`;
    const kind = String(a[1]);
    const isLoose = tolerance.isUnordered || kind === 'hash';
    const found =
      kind === String(b[1])
        ? difference(kind === 'hash' ? pairs(a[3]!) : a[3]!, kind === 'hash' ? pairs(b[3]!) : b[3]!, {
            ...tolerance,
            isUnordered: isLoose,
          })
        : `types ${kind} and ${String(b[1])}`;
    if (found !== undefined) return `key ${name} (${kind}):\n${found}`;
    const [until, realUntil] = [Number(a[2]), Number(b[2])];
    if (until !== realUntil && (until < 0 || realUntil < 0 || Math.abs(until - realUntil) > tolerance.ms))
      return `key ${name} ends at ${until} in the model, at ${realUntil} in the real one`;
  }
  return undefined;
}

function byName(dump: readonly Reply[]): Map<string, readonly Reply[]> {
  return new Map((dump as readonly (readonly Reply[])[]).map((entry) => [String(entry[0]), entry]));
}

/** Of a hash: its fields with their values, in the order of their names. */
function pairs(flat: Reply): Reply {
  const list = flat as readonly Reply[];
  return list
    .flatMap((field, at) => (at % 2 === 0 ? [[field, list[at + 1]!]] : []))
    .toSorted(([a], [b]) => (String(a) < String(b) ? -1 : 1));
}

/** JavaScript has no sign of what is no number. */
const NO_NUMBER = /-nan\b/g;
const STREAM_ID = /^\d{13}-\d+$/;

function isSame(a: Reply, b: Reply, tolerance: Tolerance): boolean {
  if (typeof a === 'number' && typeof b === 'number')
    return a === b || (tolerance.tellsTimes && Math.abs(a - b) <= tolerance.ms);
  if (typeof a === 'string' && typeof b === 'string')
    return a === b || (STREAM_ID.test(a) && STREAM_ID.test(b)) || (tolerance.tellsTimes && areNear(a, b, tolerance.ms));
  if (a === null || b === null) return a === b;
  if (a instanceof Status || b instanceof Status)
    return a instanceof Status && b instanceof Status && a.text === b.text;
  if (a instanceof Failure || b instanceof Failure)
    return a instanceof Failure && b instanceof Failure && errorOf(a) === errorOf(b);
  if (a instanceof NoList || b instanceof NoList) return a instanceof NoList && b instanceof NoList;
  if (!Array.isArray(a) || !Array.isArray(b) || a.length !== b.length) return false;
  return a.every((item, at) => isSame(item as Reply, b[at] as Reply, tolerance));
}

function areNear(a: string, b: string, ms: number): boolean {
  return /^-?\d+$/.test(a) && /^-?\d+$/.test(b) && Math.abs(Number(a) - Number(b)) <= ms;
}

/** Without the place in the script; of what Lua raised, that it did. */
function errorOf({ text }: Failure): string {
  const said = text.replace(/ script: .*$/s, '');
  return /^ERR (?:Error running script|user_script:\d+: )/.test(said) ? 'ERR in Lua' : said;
}

/** With JSON in the order of its fields, and lists sorted where order means nothing. */
function normal(reply: Reply, isUnordered: boolean): Reply {
  if (typeof reply === 'string') return (/^[[{]/.test(reply) ? sortedJson(reply) : reply).replaceAll(NO_NUMBER, 'nan');
  if (!Array.isArray(reply)) return reply;
  const list = (reply as readonly Reply[]).map((item) => normal(item, isUnordered));
  return isUnordered ? list.toSorted((a, b) => (shown(a) < shown(b) ? -1 : 1)) : list;
}

function sortedJson(text: string): string {
  try {
    return JSON.stringify(sortedValue(JSON.parse(text)));
  } catch {
    return text;
  }
}

function sortedValue(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sortedValue);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .toSorted(([a], [b]) => (a < b ? -1 : 1))
      .map(([name, inner]) => [name, sortedValue(inner)]),
  );
}

export function shown(reply: Reply): string {
  return JSON.stringify(reply, (_, value: unknown) =>
    value instanceof Failure ? `-${value.text}` : value instanceof Status ? `+${value.text}` : value,
  ).slice(0, 1_500);
}
