// A keyspace as it is written into the corpus, made on a server, the model or a real one, by ordinary commands, and told
// again.

import type { Flavour } from '../command.ts';
import type { Entry, Keyspace } from '../keyspace.ts';
import { scoreText } from '../numbers.ts';
import type { Reply } from '../replies.ts';
import { idText } from '../stream.ts';

export type StateValue =
  | readonly ['string', string, (number | undefined)?]
  | readonly ['hash' | 'list' | 'set', readonly string[], (number | undefined)?]
  /** Member and score in turn. */
  | readonly ['zset', readonly (string | number)[], (number | undefined)?]
  | readonly ['stream', readonly (readonly string[])[], (number | undefined)?];

/** By the name of the key; the last part of a value is for how many ms it still lives. */
export type State = Readonly<Record<string, StateValue>>;

const ADDS = { hash: 'HSET', list: 'RPUSH', set: 'SADD' } as const;

/** The commands that make a state on an empty server whose hour is `now`. */
export function commandsFor(state: State, now: number): string[][] {
  return Object.entries(state).flatMap(([key, value]) => {
    const ends = value[2] === undefined ? [] : [['PEXPIREAT', key, String(now + value[2])]];
    switch (value[0]) {
      case 'string':
        return [['SET', key, value[1]], ...ends];
      case 'zset': {
        const pairs = value[1].map(String);
        const swapped = pairs.flatMap((text, at) => (at % 2 === 0 ? [pairs[at + 1]!, text] : []));
        return [['ZADD', key, ...swapped], ...ends];
      }
      case 'stream':
        return [...value[1].map((fields) => ['XADD', key, '*', ...fields]), ...ends];
      default:
        return [[ADDS[value[0]], key, ...value[1]], ...ends];
    }
  });
}

/**
 * Tells everything of every key, in the order of their names, and leaves nothing. A key whose time is over is none, and
 * would be one again when the clock is set back: hence FLUSHALL.
 */
export const TELL_AND_EMPTY = `
local names = redis.call('KEYS', '*')
table.sort(names)
local all = {}
for at, name in ipairs(names) do
  local kind = redis.call('TYPE', name).ok
  local value
  if kind == 'string' then
    value = redis.call('GET', name)
  elseif kind == 'hash' then
    value = redis.call('HGETALL', name)
  elseif kind == 'list' then
    value = redis.call('LRANGE', name, 0, -1)
  elseif kind == 'set' then
    value = redis.call('SMEMBERS', name)
    table.sort(value)
  elseif kind == 'zset' then
    value = redis.call('ZRANGE', name, 0, -1, 'WITHSCORES')
  else
    value = redis.call('XRANGE', name, '-', '+')
  end
  all[at] = { name, kind, redis.call('PEXPIRETIME', name), value }
  redis.call('DEL', name)
end
if redis.call('DBSIZE') > 0 then
  redis.call('FLUSHALL')
end
return all
`;

/** The same of the model. */
export function tellAndEmpty(keys: Keyspace, flavour: Flavour): Reply {
  const told = keys
    .keys()
    .toSorted()
    .map((name): Reply => {
      const entry = keys.find(name)!;
      return [name, entry.type, entry.expireAt ?? -1, valueOf(entry, flavour)];
    });
  keys.clear();
  return told;
}

function valueOf(entry: Entry, flavour: Flavour): Reply {
  switch (entry.type) {
    case 'string':
      return entry.value;
    case 'hash':
      return [...entry.value].flat();
    case 'list':
      return [...entry.value];
    case 'set':
      return [...entry.value].toSorted();
    case 'zset':
      return entry.value.entries.flatMap(({ member, score }) => [member, scoreText(score, flavour)]);
    case 'stream':
      return entry.value.entries.map((one) => [idText(one), [...one.fields]]);
  }
}
