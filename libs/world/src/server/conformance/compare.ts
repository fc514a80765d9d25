// Whether two servers answered and stored the same. What may differ is named: the order in which a real server hands out
// sets and large hashes, the order of fields in JSON that a script wrote, the sign of what is no number, and the line and the
// words of an error that Lua itself raised.

import { Failure, NoList, Status, type Reply } from '../replies.ts';

/** What is different, or undefined. */
export function difference(model: Reply, real: Reply, isUnordered: boolean): string | undefined {
  if (isSame(model, real)) return undefined;
  if (isSame(normal(model, isUnordered), normal(real, isUnordered))) return undefined;
  return `model ${shown(model)}\nreal  ${shown(real)}`;
}

/** Of what TELL_AND_EMPTY tells. */
export function stateDifference(model: Reply, real: Reply): string | undefined {
  if (isSame(model, real)) return undefined;
  if (!Array.isArray(model) || !Array.isArray(real)) return `no state: model ${shown(model)}, real ${shown(real)}`;
  const [one, other] = [byName(model), byName(real)];
  for (const name of new Set([...one.keys(), ...other.keys()])) {
    const [a, b] = [one.get(name), other.get(name)];
    if (a === undefined || b === undefined)
      return `key ${name} is ${a === undefined ? 'not there' : 'there'} in the model`;
    const kind = String(a[1]);
    if (kind !== b[1]) return `key ${name} is a ${kind} in the model, a ${String(b[1])} in the real one`;
    const [mine, theirs] = kind === 'hash' ? [pairs(a[3]!), pairs(b[3]!)] : [a[3]!, b[3]!];
    const found = difference(mine, theirs, false);
    if (found !== undefined) return `key ${name} (${kind}):\n${found}`;
    if (a[2] !== b[2]) return `key ${name} ends at ${String(a[2])} in the model, at ${String(b[2])} in the real one`;
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

function isSame(a: Reply, b: Reply): boolean {
  if (a === b) return true;
  if (a instanceof Status) return b instanceof Status && a.text === b.text;
  if (a instanceof Failure) return b instanceof Failure && errorOf(a) === errorOf(b);
  if (a instanceof NoList) return b instanceof NoList;
  if (!Array.isArray(a) || !Array.isArray(b) || a.length !== b.length) return false;
  return a.every((item, at) => isSame(item as Reply, b[at] as Reply));
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
